"""Compare the Triton choice of a beam search with the plain one, on logits with many ties."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="the kernels need Triton")

from covnmt.base.config import DecodeConfig
from covnmt.decoding.gpu.beam_search import GpuBeamSearch
from covnmt.decoding.gpu.buffers import HISTORY_STEPS, SearchBuffers
from covnmt.decoding.gpu.step import BLOCK, select_continuations
from covnmt.decoding.torch import TorchEngine
from covnmt.kernels.tensors import EncodedSource
from covnmt.kernels.triton import search as triton_search
from covnmt.text.vocabulary import UNK_ID
from tests.kernels.compare import DEVICE
from tests.model.small import COVERAGES, END, small_batch, small_config, small_model

# words, blocks of them, sentences, beam
SHAPES = [(128, 1, 1, 1), (250, 2, 2, 3), (700, 6, 3, 10), (2500, 20, 2, 5), (400, 4, 1, 16)]


def random_buffers(S: int, K: int, end: int, generator: torch.Generator) -> SearchBuffers:
    """A beam in the middle of a search, some of its slots empty."""

    def integers(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator).to(DEVICE)

    beam = integers(-4, 0, S, K) / 2.0
    beam[integers(0, 3, S, K) == 0] = -math.inf
    nothing = torch.zeros(0, device=DEVICE)
    return SearchBuffers(
        request=nothing,
        source=EncodedSource(nothing, nothing, nothing, nothing),
        rows=nothing,
        C=nothing,
        token_ids=integers(0, 1, S * K),
        log_probs=beam,
        widths=integers(1, K + 1, S),
        min_steps=integers(2, 6, S),
        max_steps=integers(3, 7, S),
        live=torch.ones(S, dtype=torch.bool, device=DEVICE),
        forbidden_ids=torch.tensor([0, 1], device=DEVICE),
        clock=torch.tensor([3, 2], device=DEVICE),
        choices=integers(0, 1, HISTORY_STEPS, S, K),
        ended=torch.zeros(HISTORY_STEPS, S, K, device=DEVICE),
        alpha=nothing,
    )


def coarse_logits(words: int, blocks: int, rows: int, end: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-8, 5, (rows, blocks * BLOCK), generator=generator) / 4
    logits[:, end] += 1.5
    logits[:, words:] = -math.inf
    return logits.to(DEVICE)


def copy_written(buffers: SearchBuffers) -> SearchBuffers:
    """Copy every tensor that a choice writes to."""
    return buffers._replace(
        token_ids=buffers.token_ids.clone(),
        log_probs=buffers.log_probs.clone(),
        widths=buffers.widths.clone(),
        live=buffers.live.clone(),
        choices=buffers.choices.clone(),
        ended=buffers.ended.clone(),
    )


def assert_same_choice(buffers: SearchBuffers, logits: torch.Tensor, end: int) -> None:
    ours, theirs = copy_written(buffers), copy_written(buffers)
    rows = triton_search.select_continuations(ours, logits, end)
    expected = select_continuations(theirs, logits, end)
    torch.testing.assert_close(ours.log_probs, theirs.log_probs)
    torch.testing.assert_close(ours.ended, theirs.ended)
    for name in ("widths", "live"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    # what empty slots hold is of no consequence
    used = (theirs.log_probs > -math.inf) | (theirs.ended[2] > -math.inf)
    assert torch.equal(ours.choices[2][used], theirs.choices[2][used])
    assert torch.equal(ours.token_ids.view_as(used)[used], theirs.token_ids.view_as(used)[used])
    assert torch.equal(rows.view_as(used)[used], expected.view_as(used)[used])
    assert int(rows.max()) < logits.shape[0] * logits.shape[1]
    assert int(ours.token_ids.max()) <= end


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(("words", "blocks", "S", "K"), SHAPES)
def test_choice_equals_plain_choice_at_fixed_shapes(
    words: int, blocks: int, S: int, K: int, first: bool
) -> None:
    end = words - 1
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        buffers = random_buffers(S, K, end, generator)
        slots = 1 if first else K
        logits = coarse_logits(words, blocks, S * slots, end, seed).view(S, slots, -1)
        assert_same_choice(buffers, logits, end)


@settings(max_examples=15)
@given(S=st.integers(1, 3), K=st.integers(1, 9), words=st.integers(10, 380), seed=st.integers(0))
def test_choice_equals_plain_choice_at_random_shapes(S: int, K: int, words: int, seed: int) -> None:
    seed %= 2**32
    end = words - 1
    buffers = random_buffers(S, K, end, torch.Generator().manual_seed(seed))
    logits = coarse_logits(words, -(-words // BLOCK), S * K, end, seed).view(S, K, -1)
    assert_same_choice(buffers, logits.bfloat16(), end)


def test_empty_beam_stays_empty() -> None:
    buffers = random_buffers(2, 3, 99, torch.Generator().manual_seed(0))
    buffers.log_probs.fill_(-math.inf)
    assert_same_choice(buffers, coarse_logits(100, 1, 6, 99, 0).view(2, 3, -1), 99)


@pytest.mark.parametrize("beam", [1, 4])
def test_whole_search_with_triton_choice_equals_reference(
    beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        GpuBeamSearch, "_selection", lambda self, K: triton_search.select_continuations
    )
    model = small_model(small_config(COVERAGES["fertility"])).to(DEVICE)
    model.readout.b.data[END] += 2.5
    source = small_batch([(length, 1) for length in (2, 5, 3)]).to(DEVICE)
    words, mask = source.source, source.source_mask
    config = DecodeConfig(beam=beam, nbest=beam, coverage_penalty=0.2)

    reference = TorchEngine([model], END).search_stepwise
    result = GpuBeamSearch(model, END, UNK_ID).search(words, mask, reference, config)
    with torch.no_grad():
        expected = reference(words, mask, config).hypotheses
    for ours, theirs in zip(result.hypotheses, expected, strict=True):
        assert [mine.token_ids for mine in ours] == [other.token_ids for other in theirs]
        scores = [other.score for other in theirs]
        assert [mine.score for mine in ours] == pytest.approx(scores, abs=1e-4)


def test_fits_beam_limits_width_and_vocabulary() -> None:
    assert triton_search.fits_beam(10, 30_080)
    assert not triton_search.fits_beam(100, 30_080)
