"""Make batches in an order that depends only on settings, seed and batch number.

So a resumed run continues with the batch that would have come next. Training batches come in
blocks: the paper's pools (docs/paper-to-code.md, section 1.1), or shards of the shuffled corpus
sorted into buckets of similar length. A block is a pure function of its number, made from its own
pairs alone. The start of a run and its memory do not depend on the size of the corpus, unless
`data.max_length` is below that of `prepare`: then the lengths of all pairs are read first.

Notation: B pairs, J source and I target positions, both with the end symbol.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import NamedTuple, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from covnmt.base.arrays import IntArray
from covnmt.base.config import DataConfig
from covnmt.base.errors import UserError
from covnmt.data.corpus import Split, TokenIds
from covnmt.data.padding import length_sorted_batches, pad_ids
from covnmt.text.vocabulary import PAD_ID

T = TypeVar("T")

# Every epoch, pairs are shuffled within groups of so many batches of similar length.
BATCHES_PER_GROUP = 16
SHARD_PAIRS = 1 << 20  # at most; they are sorted into buckets together


@dataclass(frozen=True)
class Batch:
    """Pairs of sentences; both sides have an end symbol and are padded with 0."""

    source: Tensor  # [B, J] int64
    source_mask: Tensor  # [B, J] bool, false on padding
    target: Tensor  # [B, I] int64
    target_mask: Tensor  # [B, I] bool

    @property
    def size(self) -> int:
        """Return the number of pairs."""
        return self.source.shape[0]

    @property
    def target_tokens(self) -> int:
        """Count target tokens with end symbols, without padding."""
        return int(self.target_mask.sum())

    def to(self, device: torch.device | str) -> "Batch":
        """Copy to a device, asynchronously from pinned memory."""
        pinned = self.source.is_pinned()
        return self._map(lambda tensor: tensor.to(device, non_blocking=pinned))

    def pin_memory(self) -> "Batch":
        """Copy to memory that a GPU reads directly."""
        return self._map(Tensor.pin_memory)

    def clone(self) -> "Batch":
        """Copy all tensors."""
        return self._map(Tensor.clone)

    def copy_(self, other: "Batch") -> None:
        """Overwrite this batch by another of the same shape."""
        for mine, others in zip(self._tensors(), other._tensors(), strict=True):
            mine.copy_(others, non_blocking=True)

    def pad_to_multiples(self, pairs: int, tokens: int) -> "Batch":
        """Pad to multiples of `pairs` and of `tokens` on both sides, so that fewer shapes occur.

        Added pairs have one source position to attend to and no target tokens.
        """

        def pad(tensor: Tensor) -> Tensor:
            missing = (0, -tensor.shape[1] % tokens, 0, -self.size % pairs)
            return nn.functional.pad(tensor, missing, value=PAD_ID)  # false in masks

        padded = self._map(pad)
        padded.source_mask[self.size :, 0] = True
        return padded

    def _map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        return Batch(*map(function, self._tensors()))

    def _tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.source, self.source_mask, self.target, self.target_mask


class BatchPosition(NamedTuple):
    """The position of a batch in the endless sequence of training batches."""

    block: int
    batch: int  # within the block


FIRST_POSITION = BatchPosition(0, 0)


class PlannedBatch(NamedTuple):
    """The pairs of a split that form a training batch."""

    position: BatchPosition
    epoch: int
    indices: IntArray


def collate(
    pairs: Sequence[tuple[TokenIds | Sequence[int], TokenIds | Sequence[int]]],
    source_end_id: int,
    target_end_id: int,
) -> Batch:
    """Add end symbols to pairs of ids and pad them to a batch."""
    source = pad_ids([source for source, _ in pairs], source_end_id)
    target = pad_ids([target for _, target in pairs], target_end_id)
    return Batch(*map(torch.from_numpy, (*source, *target)))


def read_batch(split: Split, indices: IntArray, multiples: tuple[int, int] = (1, 1)) -> Batch:
    """Read pairs, padded to `multiples`; into pinned memory if there is a GPU."""
    pairs = [(split.source[i], split.target[i]) for i in indices.tolist()]
    batch = collate(pairs, split.source_end_id, split.target_end_id) if pairs else empty_batch()
    batch = batch.pad_to_multiples(*multiples)
    return batch.pin_memory() if torch.cuda.is_available() else batch


def empty_batch() -> Batch:
    """Make a batch whose gradient is zero, for a rank without a share of the global batch.

    It has a source position to attend to and two target steps, so that every weight takes part.
    """
    source, target = torch.full((1, 1), PAD_ID), torch.full((1, 2), PAD_ID)
    return Batch(source, torch.ones_like(source, dtype=torch.bool), target, target != PAD_ID)


def evaluation_batches(split: Split, batch_size: int) -> Iterator[IntArray]:
    """Yield every pair once, shortest first."""
    for batch in length_sorted_batches(_longer_side(split, slice(None)).tolist(), batch_size):
        yield np.array(batch)


def train_batches(
    split: Split, config: DataConfig, seed: int, start: BatchPosition = FIRST_POSITION
) -> Iterator[PlannedBatch]:
    """Yield training batches from `start` on, endlessly.

    If `start.batch` is beyond its block, the surplus is skipped in the next blocks.
    """
    batching = build_batching(split, config, seed)
    skip = start.batch
    for number in count(start.block):
        block = batching.block(number)
        for batch in range(skip, len(block)):
            position = BatchPosition(number, batch)
            yield PlannedBatch(position, batching.epoch(position), block[batch])
        skip = max(skip - len(block), 0)


class Batching(Protocol):
    """An endless sequence of batches in blocks."""

    def block(self, number: int) -> list[IntArray]:
        """Return the batches of one block, as indices of pairs."""

    def epoch(self, position: BatchPosition) -> int:
        """Count the passes over the corpus before this batch."""


def build_batching(split: Split, config: DataConfig, seed: int) -> Batching:
    """Build the batching of the settings, over the pairs that are not too long."""
    pairs = select_short_pairs(split, config.max_length)
    if not len(pairs):
        raise UserError(
            f"{split.directory}: no pair of {split.name} has at most data.max_length = "
            f"{config.max_length} tokens on both sides; raise it, or prepare the text otherwise"
        )
    if config.batching == "paper":
        return PaperBatching(split, pairs, config.batch_size, config.pool)
    return TokenBatching(split, pairs, config.batch_tokens, seed)


def select_short_pairs(split: Split, max_length: int) -> IntArray:
    """Return the shuffled pairs that are not too long; reads lengths only if some might be."""
    if split.max_length is not None and split.max_length <= max_length:
        return split.order
    return split.order[_longer_side(split, slice(None))[split.order] <= max_length]


def _longer_side(split: Split, pairs: IntArray | slice) -> IntArray:
    return np.maximum(*split.lengths(pairs))


class PaperBatching:
    """Pools of pairs in corpus order, each sorted by length and cut into batches.

    See docs/paper-to-code.md, section 1.1. The last pool of an epoch continues with the first
    pairs.
    """

    def __init__(self, split: Split, pairs: IntArray, batch_size: int, pool: int) -> None:
        self._split, self._pairs = split, pairs
        self._batch_size, self._pool = batch_size, pool

    def block(self, number: int) -> list[IntArray]:
        size = self._pool * self._batch_size
        pairs = self._pairs[np.arange(number * size, (number + 1) * size) % len(self._pairs)]
        shortest_first = np.argsort(_longer_side(self._split, pairs), kind="stable")
        return np.split(pairs[shortest_first], self._pool)

    def epoch(self, position: BatchPosition) -> int:
        number = position.block * self._pool + position.batch
        return number * self._batch_size // len(self._pairs)


class TokenBatching:
    """Batches of pairs of similar length with at most `batch_tokens` on either side.

    The shuffled corpus is read in shards, one per block. The pairs of a shard are divided into
    groups of similar length. Every epoch shuffles the pairs within each group, cuts it into batches
    and shuffles those. The cuts are the same in every epoch.
    """

    def __init__(self, split: Split, pairs: IntArray, batch_tokens: int, seed: int) -> None:
        self._split, self._pairs = split, pairs
        self._batch_tokens, self._seed = batch_tokens, seed
        self._shards = -(-len(pairs) // SHARD_PAIRS)
        self._shard = lru_cache(maxsize=1)(self._divide_shard)

    def block(self, number: int) -> list[IntArray]:
        shard = self._shard(number % self._shards)
        random = np.random.default_rng([self._seed, number])
        shuffled = random.permutation(len(shard.pairs))
        by_group = shuffled[np.argsort(shard.groups[shuffled], kind="stable")]
        batches = np.split(shard.pairs[by_group], shard.cuts)
        return [batches[i] for i in random.permutation(len(batches))]

    def epoch(self, position: BatchPosition) -> int:
        return position.block // self._shards

    def _divide_shard(self, number: int) -> "GroupedPairs":
        first, end = (k * len(self._pairs) // self._shards for k in (number, number + 1))
        return divide_into_groups(self._split, self._pairs[first:end], self._batch_tokens)


class GroupedPairs(NamedTuple):
    """Pairs sorted into groups, and the boundaries of their batches."""

    pairs: IntArray
    groups: npt.NDArray[np.int32]  # the group of each pair
    cuts: IntArray


def divide_into_groups(split: Split, pairs: IntArray, batch_tokens: int) -> GroupedPairs:
    """Divide these pairs into groups of similar length."""
    source, target = split.lengths(pairs)
    longer = np.maximum(source, target) + 1  # with the end symbol
    buckets = np.searchsorted(_bucket_edges(int(longer.max())), longer)
    # within a bucket by the difference, so that the shorter sides are alike as well
    order = np.lexsort((target - source, buckets))
    bucket_starts = np.flatnonzero(np.diff(buckets[order])) + 1
    groups, batches = _cut_buckets(np.split(longer[order], bucket_starts), batch_tokens)
    numbers = np.repeat(np.arange(len(groups), dtype=np.int32), groups)
    return GroupedPairs(pairs[order], numbers, np.cumsum(batches)[:-1])


def _bucket_edges(longest: int) -> list[int]:
    """Return the greatest length of each bucket: 10% more than the one before, at least 1."""
    edges = [1]
    while edges[-1] < longest:
        edges.append(edges[-1] + 1 + edges[-1] // 10)
    return edges


def _cut_buckets(buckets: Iterable[IntArray], batch_tokens: int) -> tuple[list[int], list[int]]:
    """Return the number of pairs in each group and batch, from the lengths in each bucket."""
    groups, batches = [], []
    for lengths in buckets:
        batch_size = max(1, batch_tokens // int(lengths.max()))
        for group in _split_evenly(len(lengths), batch_size * BATCHES_PER_GROUP):
            groups.append(group)
            batches += _split_evenly(group, batch_size)
    return groups, batches


def _split_evenly(total: int, limit: int) -> list[int]:
    """Split into as few parts as possible of at most `limit`, as equal as possible."""
    number = -(-total // limit)
    return [(i + 1) * total // number - i * total // number for i in range(number)]


def prefetch(items: Iterable[T], depth: int) -> Iterator[T]:
    """Yield items while a background thread makes the next one and keeps up to `depth` ready.

    Its exceptions are raised here. It ends when the consumer stops.
    """
    rest, end = iter(items), object()
    with ThreadPoolExecutor(1) as thread:
        ready = deque(thread.submit(next, rest, end) for _ in range(depth + 1))
        try:
            while (item := ready.popleft().result()) is not end:
                ready.append(thread.submit(next, rest, end))
                yield cast(T, item)
        finally:
            thread.shutdown(cancel_futures=True)
