"""The GPU search against the CPU search: the same hypotheses, scores and attention.

The models are small and random, in float64, so that rounding cannot change a choice. Tables with
many ties are tried on `best` alone. On a machine with a GPU the same tests run there, in graphs.
"""

import gc
import math
import weakref
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from covnmt.base.arrays import IntArray
from covnmt.base.config import PAPER_SYSTEMS, DecodeConfig
from covnmt.decoding import beam_search as cpu_beam_search
from covnmt.decoding.backtrace import Hypothesis
from covnmt.decoding.beam_search import Proposal
from covnmt.decoding.gpu import beam_search
from covnmt.decoding.gpu import buffers as gpu_buffers
from covnmt.decoding.gpu.beam_search import (
    FallbackSearch,
    GpuBeamSearch,
    round_up_capacity,
)
from covnmt.decoding.gpu.buffers import CapturedStep, SearchBuffers, round_up
from covnmt.decoding.gpu.step import MAX_BEAM
from covnmt.decoding.torch import TorchEngine, TorchScorer, TorchStates
from covnmt.model.seq2seq import Seq2Seq
from covnmt.text.vocabulary import UNK_ID
from tests.model.small import COVERAGES, END, small_batch, small_config, small_model

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RAGGED = (1, 7, 3, 17, 2)  # source words of a batch

CONFIGS = {
    "greedy": DecodeConfig(beam=1),
    "beam 3": DecodeConfig(beam=3),
    "beam 10": DecodeConfig(beam=10),
    "n best": DecodeConfig(beam=10, nbest=7),
    "no length rules": DecodeConfig(beam=4, nbest=4, length_rules=False, max_length=9),
    "length penalty": DecodeConfig(beam=5, nbest=5, length_penalty=1.0),
    "coverage penalty": DecodeConfig(beam=5, nbest=5, coverage_penalty=0.3, length_penalty=0.6),
    "no unk": DecodeConfig(beam=3, nbest=3, forbid_unk=True),
    "one attempt": DecodeConfig(beam=2, nbest=2, retry=False),
    "wider than the vocabulary": DecodeConfig(beam=20, nbest=20),
    "too wide for the gpu": DecodeConfig(beam=MAX_BEAM + 1, length_rules=False, max_length=3),
}

Hypotheses = list[list[Hypothesis]]
Source = tuple[Tensor, Tensor]  # source ids and their mask, on the host


def model_of(kind: str = "gru10", seed: int = 0, **changes: str) -> Seq2Seq:
    model = small_model(small_config(COVERAGES[kind], **changes), seed).to(DEVICE)
    model.readout.b.data[END] += 2.5  # long and repeated searches are for a few tests only
    return model


def make_source(lengths: Sequence[int], seed: int = 0) -> Source:
    batch = small_batch([(length, 1) for length in lengths], seed)
    return batch.source, batch.source_mask


def gpu_search(model: Seq2Seq, min_capacity: int = beam_search.MIN_CAPACITY) -> GpuBeamSearch:
    return GpuBeamSearch(model, END, UNK_ID, min_capacity=min_capacity)


def reference(model: Seq2Seq) -> FallbackSearch:
    return TorchEngine([model], END).search_stepwise


def gpu_hypotheses(device: GpuBeamSearch, source: Source, config: DecodeConfig) -> Hypotheses:
    return device.search(*source, reference(device.model), config).hypotheses


@torch.no_grad()
def cpu_hypotheses(model: Seq2Seq, source: Source, config: DecodeConfig) -> Hypotheses:
    return reference(model)(*source, config).hypotheses


def assert_same(actual: Hypotheses, expected: Hypotheses) -> None:
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        assert [mine.token_ids for mine in ours] == [other.token_ids for other in theirs]
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.finished == other.finished
            assert mine.log_prob == pytest.approx(other.log_prob, abs=1e-5)
            assert mine.score == pytest.approx(other.score, abs=1e-5)
            np.testing.assert_allclose(mine.attention, other.attention, rtol=1e-4, atol=1e-6)


# --- whole searches ----------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["code", "paper"])
@pytest.mark.parametrize("kind", COVERAGES)
def test_equals_the_cpu_search_for_every_model(kind: str, order: str) -> None:
    model = model_of(kind, order=order)
    source = make_source(RAGGED)
    config = DecodeConfig(beam=4, nbest=3)
    assert_same(
        gpu_hypotheses(gpu_search(model), source, config), cpu_hypotheses(model, source, config)
    )


@pytest.mark.parametrize(("part", "kind"), [("cell", "reset_after"), ("output", "full")])
def test_equals_the_cpu_search_with_other_layers(part: str, kind: str) -> None:
    model = model_of("gru10", 0, **{part: kind})
    source = make_source(RAGGED)
    config = DecodeConfig(beam=4, nbest=3)
    assert_same(
        gpu_hypotheses(gpu_search(model), source, config), cpu_hypotheses(model, source, config)
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CONFIGS)
def test_equals_the_cpu_search_with_every_setting(name: str, seed: int) -> None:
    model = model_of(seed=seed)
    source = make_source(RAGGED, seed)
    config = CONFIGS[name]
    assert_same(
        gpu_hypotheses(gpu_search(model), source, config), cpu_hypotheses(model, source, config)
    )


@settings(max_examples=12)
@given(
    batches=st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=9), min_size=1, max_size=2),
    beam=st.integers(1, 6),
    forbid_unk=st.booleans(),
    min_capacity=st.integers(1, 4),
    rows=st.integers(2, 8),
    seed=st.integers(0, 10**6),
)
def test_equals_the_cpu_search_on_random_batches(
    batches: list[list[int]], beam: int, forbid_unk: bool, min_capacity: int, rows: int, seed: int
) -> None:
    """With buffers that become small quickly and are used again, and many history segments."""
    model = model_of("fertility", seed)
    device = gpu_search(model, min_capacity)
    config = DecodeConfig(beam=beam, nbest=beam, forbid_unk=forbid_unk)
    for lengths in batches:
        source = make_source(lengths, seed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpu_buffers, "HISTORY_STEPS", rows)
            result = gpu_hypotheses(device, source, config)
        assert_same(result, cpu_hypotheses(model, source, config))


def test_translation_does_not_depend_on_batch_composition() -> None:
    model = model_of()
    config = DecodeConfig(beam=5, nbest=5)
    words, mask = make_source(RAGGED)
    together = gpu_hypotheses(gpu_search(model), (words, mask), config)
    for number, hypotheses in enumerate(together):
        alone = (words[number : number + 1], mask[number : number + 1])
        assert_same(gpu_hypotheses(gpu_search(model), alone, config), [hypotheses])


def test_empty_batch_gives_an_empty_result() -> None:
    words, mask = make_source([3])
    assert gpu_hypotheses(gpu_search(model_of()), (words[:0], mask[:0]), DecodeConfig()) == []


def test_source_ids_may_be_on_the_device_already() -> None:
    model, config = model_of(), DecodeConfig(beam=3)
    words, mask = make_source(RAGGED)
    moved = (words.to(DEVICE), mask.to(DEVICE))
    assert_same(
        gpu_hypotheses(gpu_search(model), moved, config), cpu_hypotheses(model, moved, config)
    )


@pytest.mark.parametrize("beam", [2, MAX_BEAM + 1])
@pytest.mark.parametrize("kind", ["fertility", "gru10"])
def test_fertility_is_the_prediction_of_the_model(kind: str, beam: int) -> None:
    """As the model predicts it, whoever searches."""
    model = model_of(kind)
    words, mask = make_source(RAGGED)
    config = DecodeConfig(beam=beam, length_rules=False, max_length=2, retry=False)
    result = gpu_search(model).search(words, mask, reference(model), config)
    with torch.no_grad():
        memory = model.encode(words.to(DEVICE), mask.to(DEVICE))
    wanted = model.decoder.coverage.fertility(memory.Phi)
    assert (result.fertility is None) == (wanted is None)
    if result.fertility is not None and wanted is not None:
        np.testing.assert_allclose(result.fertility[mask], wanted.float().cpu()[mask], atol=1e-6)


def test_reused_buffers_keep_nothing_of_the_batch_before() -> None:
    """Also where the next batch has fewer and shorter sentences."""
    model = model_of("fertility")
    device = gpu_search(model)
    config = DecodeConfig(beam=3, nbest=3)
    for lengths, seed in [((9, 14, 12, 15), 1), ((2, 1, 4), 2), ((8, 5, 9, 3), 3)]:
        source = make_source(lengths, seed)
        assert_same(gpu_hypotheses(device, source, config), cpu_hypotheses(model, source, config))
    assert len(device._captured) == 2


def test_least_recently_used_buffers_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam_search, "MAX_CAPTURED_STEPS", 2)
    model, config = model_of(), DecodeConfig()
    device = gpu_search(model)
    for sentences in (1, 2, 1, 3):  # the buffers for two are the least recently used
        source = make_source([4] * sentences)
        assert_same(gpu_hypotheses(device, source, config), cpu_hypotheses(model, source, config))
    assert [key[0] for key in device._captured] == [1, 3]


def test_unused_search_is_freed_without_garbage_collection() -> None:
    """Every validation has one, and what it holds on a GPU must not wait for the next one."""
    device = GpuBeamSearch(model_of().float(), END, UNK_ID, precision=torch.bfloat16)
    gpu_hypotheses(device, make_source(RAGGED), DecodeConfig(retry=False))
    held = [device, *device._captured.values(), *device.model.modules()]
    seen = [weakref.ref(each) for each in held]
    gc.disable()
    try:
        del device, held
        assert not [each() for each in seen if each() is not None]
    finally:
        gc.enable()


@pytest.mark.parametrize("order", ["code", "paper"])
@pytest.mark.parametrize("kind", COVERAGES)
def test_half_precision_stays_near_full_precision(kind: str, order: str) -> None:
    """First words look at the same places, and what is found has the score of the whole model."""
    model = model_of(kind, seed=1, order=order).float()
    source = make_source(RAGGED)
    config = DecodeConfig(beam=1, retry=False)
    halved = gpu_hypotheses(
        GpuBeamSearch(model, END, UNK_ID, precision=torch.bfloat16), source, config
    )
    assert next(model.parameters()).dtype == torch.float32
    for (near,), (exact,) in zip(halved, cpu_hypotheses(model, source, config), strict=True):
        np.testing.assert_allclose(near.attention[0], exact.attention[0], atol=0.03)
        if near.token_ids == exact.token_ids:
            assert near.score == pytest.approx(exact.score, rel=0.05)


# --- how it gets there -------------------------------------------------------------------------


def without_end(model: Seq2Seq) -> Seq2Seq:
    """A model that never ends."""
    model.readout.b.data[END] = -math.inf
    return model


def test_unfinished_hypotheses_stop_at_the_step_limit() -> None:
    model = without_end(model_of())
    config = DecodeConfig(beam=2, retry=False)
    result = gpu_hypotheses(gpu_search(model), make_source((1, 4, 2)), config)
    assert [len(top.token_ids) for (top,) in result] == [6, 15, 9]  # 3 J
    assert not any(top.finished for (top,) in result)


@pytest.fixture
def stepwise_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each step of the CPU's search had."""
    rows: list[int] = []
    step = TorchScorer.step

    def spy(
        scorer: TorchScorer, state: TorchStates, token_ids: IntArray | None, k: int
    ) -> Proposal[TorchStates]:
        rows.append(len(state.states[0].t))
        return step(scorer, state, token_ids, k)

    monkeypatch.setattr(TorchScorer, "step", spy)
    return rows


def test_unfinished_sentences_are_retried_by_the_cpu_search(stepwise_rows: list[int]) -> None:
    """The retries are those of the CPU, and have as few rows at once."""
    model = without_end(model_of())
    source = make_source((2, 1))
    config = DecodeConfig(beam=3, max_retry_beam=12)
    wanted = cpu_hypotheses(model, source, config)
    first_attempt = 3 * 3  # steps of the longer sentence
    of_retries = stepwise_rows[first_attempt:]
    stepwise_rows.clear()
    assert_same(gpu_hypotheses(gpu_search(model), source, config), wanted)
    assert stepwise_rows == of_retries
    assert max(stepwise_rows) == 12


@pytest.mark.parametrize(("limit", "retried"), [(6 * 15, (15, 6)), (6 * 15 - 1, (6,))])
def test_the_work_of_retries_is_bounded(
    limit: int, retried: tuple[int, ...], stepwise_rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_beam_search, "MAX_RETRY_HYPOTHESES", limit)
    source = make_source((4, 1))  # of at most 15 and 6 steps
    config = DecodeConfig(beam=3, max_retry_beam=6)
    result = gpu_hypotheses(gpu_search(without_end(model_of())), source, config)
    assert len(stepwise_rows) == sum(retried)
    assert not any(best.finished for best, *_ in result)


def test_sentences_move_to_smaller_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = without_end(model_of()).cpu()
    sizes: list[int] = []
    device = gpu_search(model, min_capacity=1)

    def spy(buffers: SearchBuffers, first: bool) -> None:
        sizes.append(len(buffers.live))
        GpuBeamSearch.advance(device, buffers, first)

    monkeypatch.setattr(device, "advance", spy)
    source = make_source((0, 1, 2, 3))
    config = DecodeConfig(beam=2, retry=False)
    assert_same(gpu_hypotheses(device, source, config), cpu_hypotheses(model, source, config))
    # the limits are 3, 6, 9 and 12 steps; the host learns of them one step late, but knows the last
    assert sizes == [4] * 7 + [2] * 3 + [1] * 2


def test_moving_to_used_buffers_clears_the_places_behind() -> None:
    """Behind the sentences that move in there is no hypothesis, and a source to attend to."""
    device = gpu_search(model_of())
    large, small = (device._captured_step(size, 2, 16).buffers for size in (4, 3))
    large.forbidden_ids.fill_(UNK_ID)
    large.clock.fill_(5)
    small.live.fill_(True)
    small.log_probs.fill_(0)
    small.source.mask.fill_(False)
    small.receive(large, torch.tensor([3, 1], device=DEVICE))
    assert not small.live[2]
    assert (small.log_probs[2] == -math.inf).all()
    assert small.source.mask[2].all()
    assert small.forbidden_ids.tolist() == [UNK_ID, UNK_ID]
    assert small.clock.tolist() == [5, 5]


def test_step_that_cannot_be_captured_runs_plainly() -> None:
    if DEVICE.type == "cuda":
        pytest.skip("here it can")
    device, calls = gpu_search(model_of()), []
    buffers = device._captured_step(1, 1, 16).buffers
    plain = CapturedStep(buffers, lambda buffers, first: calls.append(first), pool=(0, 0))
    for first in (True, False, False, False, True):
        plain.run(first)
    assert calls == [True, False, False, False, True]
    seen = weakref.ref(plain)
    del plain
    assert seen() is None


# --- the parts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sentences", "size"),
    [(1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (7, 8), (9, 12), (13, 16), (80, 96), (128, 128)],
)
def test_capacity_rounds_up_to_few_sizes(sentences: int, size: int) -> None:
    assert round_up_capacity(sentences) == size


@pytest.mark.parametrize(("number", "step", "result"), [(1, 16, 16), (16, 16, 16), (17, 16, 32)])
def test_round_up_returns_the_next_multiple(number: int, step: int, result: int) -> None:
    assert round_up(number, step) == result


def test_models_include_all_paper_systems() -> None:
    assert set(PAPER_SYSTEMS) <= set(COVERAGES)
