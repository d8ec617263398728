"""Batches: padding, the paper's pools, token buckets, resuming, and prefetching."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, takewhile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from covnmt.base.config import DataConfig
from covnmt.base.errors import UserError
from covnmt.data.batching import (
    FIRST_POSITION,
    Batch,
    BatchPosition,
    PlannedBatch,
    build_batching,
    collate,
    evaluation_batches,
    prefetch,
    read_batch,
    select_short_pairs,
    train_batches,
)
from covnmt.data.corpus import SentenceIds, Split

Lengths = list[tuple[int, int]]

lengths = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=60)
SCHEMES = [
    DataConfig(batching="paper", batch_size=3, pool=4, max_length=9),
    DataConfig(batching="tokens", batch_tokens=30, max_length=9),
]


def make_split(pairs: Lengths, seed: int = 0) -> Split:
    """Make a split with sentences of these lengths, random ids, and end symbols 50 and 60."""
    random = np.random.default_rng(seed)

    def side(sizes: list[int], end: int) -> SentenceIds:
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return SentenceIds(random.integers(1, end, offsets[-1]).astype(np.uint16), offsets)

    return Split(
        name="train",
        directory=Path("data"),
        source=side([source for source, _ in pairs], 50),
        target=side([target for _, target in pairs], 60),
        order=random.permutation(len(pairs)),
        source_end_id=50,
        target_end_id=60,
    )


def usable(pairs: Lengths, longest: int = 9) -> set[int]:
    return {i for i, pair in enumerate(pairs) if max(pair) <= longest}


def take(
    split: Split, config: DataConfig, number: int, start: BatchPosition = FIRST_POSITION
) -> list[PlannedBatch]:
    return list(islice(train_batches(split, config, seed=7, start=start), number))


def same(left: list[PlannedBatch], right: list[PlannedBatch]) -> bool:
    return [(a.position, a.epoch, a.indices.tolist()) for a in left] == [
        (b.position, b.epoch, b.indices.tolist()) for b in right
    ]


def test_collate_adds_end_symbols_and_padding_on_both_sides() -> None:
    batch = collate([([5, 6], [7]), ([], [8, 9, 4])], source_end_id=50, target_end_id=60)
    assert batch.source.tolist() == [[5, 6, 50], [50, 0, 0]]
    assert batch.source_mask.tolist() == [[True, True, True], [True, False, False]]
    assert batch.target.tolist() == [[7, 60, 0, 0], [8, 9, 4, 60]]
    assert batch.target_mask.tolist() == [[True, True, False, False], [True] * 4]
    assert (batch.source.dtype, batch.source_mask.dtype) == (torch.int64, torch.bool)
    assert (batch.size, batch.target_tokens) == (2, 6)


def test_to_moves_every_tensor() -> None:
    moved = collate([([5], [7])], 50, 60).to("meta")
    assert all(tensor.device.type == "meta" for tensor in vars(moved).values())


def test_read_batch_reads_the_pairs_of_the_indices() -> None:
    split = make_split([(2, 3), (4, 1), (1, 1)])
    batch = read_batch(split, np.array([2, 1]))
    assert batch.source[0, :1].tolist() == split.source[2].tolist()
    assert batch.source[1].tolist() == [*split.source[1].tolist(), 50]
    assert batch.target[1].tolist() == [*split.target[1].tolist(), 60]


def slow_paper_batch(split: Split, pairs: Lengths, config: DataConfig, number: int) -> list[int]:
    """Follow docs/paper-to-code.md, section 1.1: read a pool, sort it, cut it, take one batch."""
    fitting = [int(i) for i in split.order if max(pairs[i]) <= config.max_length]
    pool, place = divmod(number, config.pool)
    size = config.pool * config.batch_size
    read = [fitting[k % len(fitting)] for k in range(pool * size, (pool + 1) * size)]
    read.sort(key=lambda i: max(pairs[i]))
    return read[place * config.batch_size : (place + 1) * config.batch_size]


@given(lengths)
def test_paper_batches_follow_the_specification(pairs: Lengths) -> None:
    pairs = [*pairs, (1, 1)]
    split = make_split(pairs)
    for number, batch in enumerate(take(split, SCHEMES[0], 20)):
        assert batch.position == divmod(number, SCHEMES[0].pool)
        assert batch.indices.tolist() == slow_paper_batch(split, pairs, SCHEMES[0], number)


def test_the_last_pool_of_an_epoch_continues_with_the_first_pairs() -> None:
    pairs = [(5, 5)] * 10
    split = make_split(pairs)
    config = DataConfig(batch_size=3, pool=4)
    seen = [int(i) for batch in take(split, config, 20) for i in batch.indices]
    assert seen == split.order.tolist() * 6
    assert [batch.epoch for batch in take(split, config, 11)] == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3]


@given(lengths, st.integers(5, 60))
def test_token_batches_have_every_pair_once_per_epoch(pairs: Lengths, budget: int) -> None:
    pairs = [*pairs, (1, 1)]
    config = DataConfig(batching="tokens", batch_tokens=budget, max_length=9)
    split = make_split(pairs)
    per_epoch = len(build_batching(split, config, seed=7).block(0))
    batches = take(split, config, 3 * per_epoch)
    assert [batch.epoch for batch in batches] == sorted([0, 1, 2] * per_epoch)
    for epoch in range(3):
        seen = [int(i) for batch in batches if batch.epoch == epoch for i in batch.indices]
        assert sorted(seen) == sorted(usable(pairs))


@given(lengths, st.integers(5, 60))
def test_token_batches_do_not_exceed_batch_tokens(pairs: Lengths, budget: int) -> None:
    pairs = [*pairs, (1, 1)]
    config = DataConfig(batching="tokens", batch_tokens=budget, max_length=9)
    split = make_split(pairs)
    for numbered in take(split, config, len(build_batching(split, config, seed=7).block(0))):
        batch = read_batch(split, numbered.indices)
        assert batch.size == 1 or batch.source.numel() <= budget
        assert batch.size == 1 or batch.target.numel() <= budget


def many_pairs(number: int) -> Lengths:
    random = np.random.default_rng(3)
    source = np.clip(random.gamma(3, 8, number).astype(int), 1, 80)
    target = np.clip((source * random.normal(1.1, 0.2, number)).astype(int), 1, 80)
    return list(zip(source.tolist(), target.tolist(), strict=True))


def test_token_batches_have_little_padding() -> None:
    split = make_split(many_pairs(20_000))
    config = DataConfig(batching="tokens", batch_tokens=2000)
    batches = take(split, config, len(build_batching(split, config, seed=7).block(0)))
    padded = [
        len(indices) * (side[indices].max() + 1)
        for _, _, indices in batches
        for side in (split.source.lengths(), split.target.lengths())
    ]
    words = sum(split.source.lengths() + 1) + sum(split.target.lengths() + 1)
    assert words / sum(padded) > 0.85
    # the mean of both sides; the longer one is fuller
    assert sum(padded) / len(padded) > 0.85 * 2000


def test_token_batches_differ_between_epochs() -> None:
    split = make_split(many_pairs(2000))
    config = DataConfig(batching="tokens", batch_tokens=400)
    per_epoch = len(build_batching(split, config, seed=7).block(0))
    first, second = (take(split, config, per_epoch, BatchPosition(epoch, 0)) for epoch in (0, 1))
    assert [len(batch.indices) for batch in first] != [len(batch.indices) for batch in second]
    sets = [{frozenset(batch.indices.tolist()) for batch in epoch} for epoch in (first, second)]
    # other pairs share a batch; it is not just another order of the same batches
    assert len(sets[0] & sets[1]) < 0.1 * per_epoch
    # short and long batches are mixed
    longest = [split.source.lengths()[batch.indices].max() for batch in first]
    assert 0.4 < np.mean(np.diff(longest) > 0) < 0.6


def test_the_seed_decides_token_batches() -> None:
    split = make_split(many_pairs(200))
    config = DataConfig(batching="tokens", batch_tokens=400)
    runs = [list(islice(train_batches(split, config, seed), 5)) for seed in (1, 1, 2)]
    assert same(runs[0], runs[1])
    assert not same(runs[0], runs[2])


@pytest.mark.parametrize("config", SCHEMES)
@given(pairs=lengths, start=st.integers(0, 40))
def test_resuming_gives_the_same_batches(config: DataConfig, pairs: Lengths, start: int) -> None:
    split = make_split([*pairs, (1, 1)])
    whole = take(split, config, start + 10)[start:]
    assert same(whole, take(split, config, 10, whole[0].position))
    # a position past its block is one in a later block
    assert same(whole, take(split, config, 10, BatchPosition(0, start)))


@given(pairs=lengths, shard=st.integers(1, 30), start=st.integers(0, 40))
def test_sections_have_every_pair_once_per_epoch(pairs: Lengths, shard: int, start: int) -> None:
    split, config = make_split([*pairs, (1, 1)]), SCHEMES[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("covnmt.data.batching.SHARD_PAIRS", shard)
        plans = train_batches(split, config, seed=7)
        batches = list(takewhile(lambda batch: batch.epoch < 2, plans))
        whole = take(split, config, start + 5)[start:]
        assert same(whole, take(split, config, 5, whole[0].position))
    for epoch in range(2):
        seen = [int(i) for batch in batches if batch.epoch == epoch for i in batch.indices]
        assert sorted(seen) == sorted(usable([*pairs, (1, 1)]))
    blocks = {batch.position.block for batch in batches}
    assert len(blocks) == 2 * -(-len(usable([*pairs, (1, 1)])) // shard)


def test_lengths_are_not_read_where_all_pairs_are_known_to_fit() -> None:
    """Reading all lengths would make the start of a run slower for larger corpora."""
    split = replace(make_split([(2, 3)] * 20), max_length=3)
    assert select_short_pairs(split, 3) is split.order
    assert select_short_pairs(split, 2).tolist() == []


@pytest.mark.parametrize("config", SCHEMES)
@given(pairs=lengths)
def test_long_pairs_are_skipped(config: DataConfig, pairs: Lengths) -> None:
    split = make_split([*pairs, (1, 10), (10, 1), (9, 9)])
    for batch in take(split, config, 30):
        assert split.source.lengths()[batch.indices].max() <= 9
        assert split.target.lengths()[batch.indices].max() <= 9


@pytest.mark.parametrize("config", SCHEMES)
def test_a_corpus_of_only_long_pairs_is_an_error(config: DataConfig) -> None:
    with pytest.raises(UserError, match="max_length = 9"):
        take(make_split([(10, 1), (1, 20)]), config, 1)


@pytest.mark.parametrize("batching", ["paper", "tokens"])
def test_starting_far_into_a_million_pairs_is_fast(batching: str) -> None:
    offsets = np.cumsum(np.random.default_rng(0).integers(1, 60, 1_000_001))
    side = SentenceIds(np.zeros(0, np.uint16), offsets)
    split = Split("train", Path("d"), side, side, np.arange(1_000_000), 1, 1)
    config = DataConfig.model_validate({"batching": batching})
    assert len(take(split, config, 3, BatchPosition(50_000, 7))) == 3


@given(lengths, st.integers(1, 7))
def test_evaluation_batches_have_every_pair_once_shortest_first(pairs: Lengths, size: int) -> None:
    batches = list(evaluation_batches(make_split(pairs), size))
    order = [int(i) for batch in batches for i in batch]
    assert sorted(order) == list(range(len(pairs)))
    longer = [max(pairs[i]) for i in order]
    assert longer == sorted(longer)
    assert all(len(batch) == size for batch in batches[:-1])


def test_an_empty_split_has_no_evaluation_batches() -> None:
    assert list(evaluation_batches(make_split([]), 3)) == []


@pytest.mark.parametrize("depth", [1, 3])
def test_prefetch_yields_all_items(depth: int) -> None:
    assert list(prefetch(iter(range(20)), depth)) == list(range(20))
    assert list(prefetch([], depth)) == []


def test_prefetch_takes_at_most_depth_items_ahead() -> None:
    made = []

    def items() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    ahead = prefetch(items(), depth=3)
    assert next(ahead) == 0
    while len(made) < 5:  # one taken, three waiting, one in hand
        time.sleep(0.01)
    time.sleep(0.2)
    assert len(made) == 5
    ahead.close()  # type: ignore[attr-defined]


def test_prefetch_passes_exceptions_on() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise UserError("damaged")

    ahead = prefetch(items(), depth=2)
    assert next(ahead) == 1
    with pytest.raises(UserError, match="damaged"):
        next(ahead)


def test_prefetch_stops_with_its_consumer() -> None:
    before = set(threading.enumerate())
    endless = prefetch(iter(int, 1), depth=2)
    assert [number for _, number in zip(range(3), endless, strict=False)] == [0, 0, 0]
    assert set(threading.enumerate()) - before
    del endless
    assert not set(threading.enumerate()) - before


def test_batches_can_be_prefetched() -> None:
    split = make_split(many_pairs(50))
    plan = train_batches(split, SCHEMES[1].model_copy(update={"max_length": 80}), seed=1)
    loaded = prefetch(((numbered, read_batch(split, numbered.indices)) for numbered in plan), 2)
    for numbered, batch in islice(loaded, 5):
        assert isinstance(batch, Batch)
        assert batch.size == len(numbered.indices)
