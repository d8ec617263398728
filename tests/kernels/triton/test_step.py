"""Compare the fused step of decoding with the model's own, and whole searches with it.

Steps are compared in the middle of a search: K hypotheses of every sentence with random states,
contexts and coverage. Uninitialized memory is full of NaN.
"""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="the kernels need Triton")

from covnmt.base.config import CoverageConfig, DecodeConfig, ModelConfig
from covnmt.decoding.gpu.beam_search import GpuBeamSearch
from covnmt.decoding.gpu.buffers import SearchBuffers
from covnmt.decoding.gpu.step import PaddedOutputLayer, PlainDecodingStep
from covnmt.decoding.torch import TorchEngine
from covnmt.kernels.tensors import EncodedSource
from covnmt.kernels.triton import search as triton_search
from covnmt.kernels.triton import step as triton_step
from covnmt.kernels.triton.step import TritonDecoderStep
from covnmt.model.decoder import DecoderState
from covnmt.model.seq2seq import Seq2Seq
from covnmt.text.vocabulary import UNK_ID
from tests.kernels.compare import DEVICE, ON_GPU, poison, ragged_mask, random_weights
from tests.model.small import small_batch

COVERAGES = {
    "none": CoverageConfig(),
    "linguistic": CoverageConfig(kind="linguistic"),
    "fertility-subtract": CoverageConfig(kind="fertility", accumulate="subtract"),
    "tanh1": CoverageConfig(kind="tanh"),
    "tanh3": CoverageConfig(kind="tanh", size=3, bias=True),
    "gru2": CoverageConfig(kind="gru", size=2, bias=True),
    "gru10": CoverageConfig(kind="gru", size=10),
}
WITHOUT_KERNELS = {
    "energies": CoverageConfig(kind="gru", size=2, energies=True),
    "previous context": CoverageConfig(kind="tanh", size=2, previous_context=True),
    "current context": CoverageConfig(kind="tanh", size=2, current_context=True),
    "many units": CoverageConfig(kind="gru", size=17),
}
VARIANTS = [(order, cell) for order in ("code", "paper") for cell in ("exact", "reset_after")]
SIZES: dict[str, object] = {"embedding": 5, "hidden": 6, "rank": 4}
OTHER_SIZES: list[dict[str, object]] = [
    {"embedding": 7, "hidden": 16, "rank": 8},  # nothing is padded
    {"embedding": 8, "hidden": 10, "rank": 3},
    {"embedding": 3, "hidden": 12, "output": "full"},
    {"embedding": 6, "hidden": 4, "rank": 6, "tie_target": True},
]
PAPER: dict[str, object] = {"embedding": 620, "hidden": 1000, "rank": 620}
VOCABULARY_SIZE, END = 11, 10
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True)
def on_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVNMT_OPS", "triton")


def build_model(
    coverage: CoverageConfig, order: str, cell: str, sizes: dict[str, object] = SIZES
) -> Seq2Seq:
    torch.manual_seed(0)
    settings = {"coverage": coverage, "order": order, "cell": cell, **sizes}
    config = ModelConfig.model_validate(settings)
    model = Seq2Seq(config, VOCABULARY_SIZE, VOCABULARY_SIZE)
    random_weights(model)
    return model.to(DEVICE).eval()


class SearchMoment(NamedTuple):
    """K hypotheses of each sentence somewhere in a search, or its beginning."""

    memory: EncodedSource
    state: DecoderState
    token_ids: Tensor | None


def random_moment(model: Seq2Seq, S: int, K: int, J: int, first: bool) -> SearchMoment:
    mask = ragged_mask(S, J).to(DEVICE)
    n, d = model.config.hidden, model.decoder.coverage.size
    memory = model.decoder.encode_source(torch.randn(S, J, 2 * n).to(DEVICE), mask)
    if first:
        return SearchMoment(memory, model.decoder.initial_state(memory), None)
    shapes = (S * K, n), (S * K, 2 * n), (S * K, J, d)
    state = DecoderState(*(torch.rand(shape).to(DEVICE) for shape in shapes))
    return SearchMoment(memory, state, torch.randint(VOCABULARY_SIZE, (S * K,)).to(DEVICE))


class StepOutput(NamedTuple):
    """What a step finds before any word is chosen."""

    log_probs: Tensor
    alpha: Tensor
    t: Tensor
    s: Tensor
    C: Tensor


def score_with_model(model: Seq2Seq, now: SearchMoment) -> StepOutput:
    prediction = model.step(now.memory, now.state, now.token_ids)
    return StepOutput(prediction.log_probs, prediction.alpha, *prediction.state)


def score_with_kernels(model: Seq2Seq, now: SearchMoment, dtype: torch.dtype) -> StepOutput:
    step, n = TritonDecoderStep(model.decoding_weights(), dtype), model.config.hidden
    h, keys, Phi = (tensor.to(dtype) for tensor in now.memory[:3])
    memory = EncodedSource(h, keys, Phi, now.memory.mask)
    if now.token_ids is None:
        rows, C = step.start(memory)
    else:
        y = step.weights.table[now.token_ids]
        rows = torch.cat([now.state.t.to(dtype), now.state.s.to(dtype), y], dim=1)
        C = now.state.C
    rows, C, alpha = step.advance(step.attention_source(memory), rows, C, now.token_ids is None)
    output = PaddedOutputLayer.of(model.readout)
    logits = PaddedOutputLayer(output.W.to(dtype), output.b.to(dtype)).logits(step.features(rows))
    log_probs = torch.log_softmax(logits.float(), dim=-1)[:, :VOCABULARY_SIZE]
    return StepOutput(log_probs, alpha, rows[:, :n], rows[:, n : 3 * n], C)


def assert_near(actual: StepOutput, expected: StepOutput, tolerance: float) -> None:
    for name, ours, theirs in zip(StepOutput._fields, actual, expected, strict=True):
        error = torch.linalg.vector_norm(ours.float() - theirs) / max(1.0, theirs.norm().item())
        assert error < tolerance, f"{name}: {error:.1e}"


@pytest.mark.parametrize("K", [1, 3, 10])
@pytest.mark.parametrize(("order", "cell"), VARIANTS)
@pytest.mark.parametrize("kind", COVERAGES)
@torch.no_grad()
def test_fused_step_equals_model_step(
    kind: str, order: str, cell: str, K: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_model(COVERAGES[kind], order, cell)
    for first in (False, True)[: 2 if K == 1 else 1]:
        now = random_moment(model, 2, K, 5, first)
        expected = score_with_model(model, now)
        with monkeypatch.context() as patch:
            poison(patch)
            assert_near(
                score_with_kernels(model, now, torch.float32), expected, TOLERANCE[torch.float32]
            )


@pytest.mark.parametrize("sizes", OTHER_SIZES)
@torch.no_grad()
def test_fused_step_equals_model_step_at_other_sizes(
    sizes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that several programs share, as they do at the paper's size."""
    monkeypatch.setattr(triton_step, "BLOCK", 8)
    model = build_model(COVERAGES["gru2"], "code", "exact", sizes)
    now = random_moment(model, 3, 2, 7, first=False)
    assert_near(
        score_with_kernels(model, now, torch.float32),
        score_with_model(model, now),
        TOLERANCE[torch.float32],
    )


@pytest.mark.parametrize(("order", "cell"), VARIANTS)
@torch.no_grad()
def test_fused_step_in_bfloat16_is_close_to_float32(order: str, cell: str) -> None:
    model = build_model(COVERAGES["gru2"], order, cell)
    now = random_moment(model, 2, 3, 5, first=False)
    assert_near(
        score_with_kernels(model, now, torch.bfloat16),
        score_with_model(model, now),
        TOLERANCE[torch.bfloat16],
    )


@pytest.mark.skipif(not ON_GPU, reason="minutes in the interpreter")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", ["none", "fertility-subtract", "gru10"])
@torch.no_grad()
def test_fused_step_equals_model_step_at_paper_size(kind: str, dtype: torch.dtype) -> None:
    model = build_model(COVERAGES[kind], "code", "exact", PAPER)
    for parameter in model.parameters():
        parameter.mul_(0.1)
    for S, K, J in [(1, 10, 32), (33, 3, 130), (128, 10, 32)]:
        now = random_moment(model, S, K, J, first=False)
        assert_near(
            score_with_kernels(model, now, dtype), score_with_model(model, now), TOLERANCE[dtype]
        )


@pytest.mark.parametrize("block", [triton_step.BLOCK, 16])  # 16: several programs and rounds
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kind", ["none", "gru10"])
@torch.no_grad()
def test_fused_step_extends_the_beam_like_the_plain_step(
    kind: str, first: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, coverage and attention are those of the plain step, with the new tokens."""
    monkeypatch.setattr(triton_step, "BLOCK", block)
    model = build_model(COVERAGES[kind], "code", "exact")
    S, K, J, n = 2, 3, 16, model.config.hidden
    step, mask = (
        TritonDecoderStep(model.decoding_weights(), torch.float32),
        ragged_mask(S, J).to(DEVICE),
    )
    memory = model.decoder.encode_source(torch.randn(S, J, 2 * n).to(DEVICE), mask)
    parents = torch.randint(S if first else S * K, (S * K,)).to(DEVICE)
    words = torch.randint(VOCABULARY_SIZE, (S * K,)).to(DEVICE)
    before = torch.randint(VOCABULARY_SIZE, (S * K,)).to(DEVICE)
    results: list[SearchBuffers] = []
    for decoding_step in (step, PlainDecodingStep(model)):
        buffers = SearchBuffers.allocate(model, memory, S, K, J, decoding_step.embedding_columns)
        buffers = buffers._replace(source=memory, token_ids=before.clone())
        buffers.clock.fill_(5)
        if isinstance(decoding_step, TritonDecoderStep):
            buffers.rows[:, 3 * n :] = decoding_step.weights.table[before]

        def choose(features: Tensor, chosen: Tensor = buffers.token_ids) -> Tensor:
            chosen.copy_(words)
            return parents

        decoding_step(buffers, first, choose)
        results.append(buffers)
    ours, theirs = results
    for mine, other in zip(ours.state, theirs.state, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.alpha, theirs.alpha, rtol=0, atol=1e-5)
    assert torch.equal(ours.rows[:, 3 * n :], step.weights.table[words])


@pytest.mark.parametrize("kind", ["none", "fertility-subtract", "gru2"])
@pytest.mark.parametrize(("order", "cell"), VARIANTS[::3])
def test_whole_search_with_triton_kernels_equals_reference(
    kind: str, order: str, cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Encoding, steps and choices all run in kernels."""
    monkeypatch.setattr(
        GpuBeamSearch, "_selection", lambda self, K: triton_search.select_continuations
    )
    model = build_model(COVERAGES[kind], order, cell)
    model.readout.b.data[END] += 1.0
    batch = small_batch([(length, 1) for length in (2, 5, 3)]).to(DEVICE)
    words, mask = batch.source, batch.source_mask
    config = DecodeConfig(beam=3, nbest=3, length_rules=False, max_length=4, retry=False)

    reference = TorchEngine([model], END).search_stepwise
    device = GpuBeamSearch(model, END, UNK_ID, min_capacity=1)
    assert isinstance(device._decoding_step(16), TritonDecoderStep)
    result = device.search(words, mask, reference, config)
    with torch.no_grad():
        expected = reference(words, mask, config).hypotheses
    for ours, theirs in zip(result.hypotheses, expected, strict=True):
        assert [mine.token_ids for mine in ours] == [other.token_ids for other in theirs]
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.score == pytest.approx(other.score, abs=1e-4)
            np.testing.assert_allclose(mine.attention, other.attention, atol=1e-5)


@pytest.mark.parametrize("name", WITHOUT_KERNELS)
def test_settings_without_kernels_have_no_fused_step(name: str) -> None:
    device = GpuBeamSearch(build_model(WITHOUT_KERNELS[name], "code", "exact"), END, UNK_ID)
    assert isinstance(device._decoding_step(16), PlainDecodingStep)


def test_long_sentences_and_float64_have_no_fused_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = build_model(COVERAGES["gru2"], "code", "exact")
    device = GpuBeamSearch(model, END, UNK_ID)
    assert isinstance(device._decoding_step(512), TritonDecoderStep)
    assert isinstance(device._decoding_step(528), PlainDecodingStep)
    assert isinstance(
        GpuBeamSearch(model.double(), END, UNK_ID)._decoding_step(16), PlainDecodingStep
    )
    monkeypatch.setenv("COVNMT_OPS", "reference")
    plain = GpuBeamSearch(build_model(COVERAGES["gru2"], "code", "exact"), END, UNK_ID)
    assert isinstance(plain._decoding_step(16), PlainDecodingStep)
