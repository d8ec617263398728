"""The whole model: exact parameter counts, the NumPy oracle, gradients, padding, step by step."""

from typing import cast

import numpy as np
import pytest
import torch

from covnmt.base.config import PAPER_SYSTEMS, CoverageConfig, ModelConfig
from covnmt.data.batching import Batch, collate
from covnmt.model.coverage import NeuralCoverage
from covnmt.model.seq2seq import Seq2Seq, count_parameters
from tests.paper import worked_example as paper

from . import oracle
from .small import COVERAGES, END, VOCABULARY_SIZE, small_batch, small_config, small_model


def meta_model(config: ModelConfig, vocabulary_size: int = 30_001) -> Seq2Seq:
    with torch.device("meta"):
        return Seq2Seq(config, vocabulary_size, vocabulary_size)


@pytest.mark.parametrize("system", PAPER_SYSTEMS)
def test_paper_parameter_counts(system: str) -> None:
    counts = count_parameters(meta_model(ModelConfig(coverage=PAPER_SYSTEMS[system])))
    assert counts == {**paper.BLOCKS, "coverage": paper.ADDED[system]}
    assert sum(counts.values()) == paper.TOTAL + paper.ADDED[system]


@pytest.mark.parametrize(
    ("changes", "vocabulary_size", "total"),
    [
        ({}, 30_000, 84_347_240),
        ({"output": "full"}, 30_001, None),
        ({"tie_target": True}, 30_001, None),
    ],
)
def test_parameter_counts_of_variants(
    changes: dict[str, object], vocabulary_size: int, total: int | None
) -> None:
    config = ModelConfig.model_validate(changes)
    count = sum(count_parameters(meta_model(config, vocabulary_size)).values())
    if config.output == "full":  # 500 to V instead of 500 to 620 to V
        total = paper.TOTAL - 310_000 - 30_001 * 120
    if config.tie_target:
        total = paper.TOTAL - 30_001 * 620
    assert count == total


def oracle_weights(model: Seq2Seq) -> oracle.Weights:
    return {name: weight.detach().numpy() for name, weight in model.named_parameters()}


def unpadded(batch: Batch, k: int) -> tuple[list[int], list[int]]:
    source = batch.source[k][batch.source_mask[k]].tolist()
    target = batch.target[k][batch.target_mask[k]].tolist()
    return source, target


VARIANTS = [{}, {"order": "paper"}, {"cell": "reset_after"}, {"output": "full"},
            {"tie_target": True, "rank": 5}, {"order": "paper", "cell": "reset_after"}]  # fmt: skip


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
@pytest.mark.parametrize("coverage", COVERAGES)
def test_model_equals_numpy_oracle(coverage: str, changes: dict[str, object]) -> None:
    config = small_config(COVERAGES[coverage], **changes)
    model = small_model(config)
    batch = small_batch([(4, 3), (1, 6), (7, 2)])
    forced = model(batch)
    log_probs = torch.log_softmax(model.readout.logits(forced.features), dim=-1)
    for k in range(batch.size):
        source, target = unpadded(batch, k)
        expected = oracle.forced(source, target, oracle_weights(model), config)
        rows = range(len(target))
        actual = log_probs[k, rows, target].detach().numpy()
        alpha = forced.alpha[k, : len(target), : len(source)].detach().numpy()
        np.testing.assert_allclose(actual, expected["log_probs"], atol=1e-12)
        np.testing.assert_allclose(alpha, expected["alpha"], atol=1e-12)


@pytest.mark.parametrize("order", ["code", "paper"])
@pytest.mark.parametrize("coverage", COVERAGES)
def test_step_by_step_equals_teacher_forced(coverage: str, order: str) -> None:
    model = small_model(small_config(COVERAGES[coverage], order=order))
    batch = small_batch([(5, 4), (3, 4)])
    forced = model(batch)
    expected = torch.log_softmax(model.readout.logits(forced.features), dim=-1)
    memory = model.encode(batch.source, batch.source_mask)
    state, token_ids = model.decoder.initial_state(memory), None
    for i in range(batch.target.shape[1]):
        log_probs, alpha, state = model.step(memory, state, token_ids)
        # step() gives float32 log-probabilities for the search
        torch.testing.assert_close(log_probs.double(), expected[:, i], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(alpha, forced.alpha[:, i])
        token_ids = batch.target[:, i]


@pytest.mark.parametrize("coverage", COVERAGES)
def test_hypotheses_of_a_sentence_share_its_memory(coverage: str) -> None:
    model = small_model(small_config(COVERAGES[coverage]))
    batch = small_batch([(5, 1), (3, 1)])
    memory = model.encode(batch.source, batch.source_mask)
    _, _, state = model.step(memory, model.decoder.initial_state(memory), None)
    rows = torch.tensor([0, 0, 0, 1, 1, 1])  # three hypotheses each
    token_ids = torch.tensor([1, 2, 3, 4, 5, 6])
    shared = model.step(memory, state.select(rows), token_ids)
    alone = model.step(memory.select(rows), state.select(rows), token_ids)
    torch.testing.assert_close(shared.log_probs, alone.log_probs)
    torch.testing.assert_close(shared.state.C, alone.state.C)


@pytest.mark.parametrize("changes", [{}, {"order": "paper"}, {"cell": "reset_after"}], ids=str)
@pytest.mark.parametrize("coverage", COVERAGES)
def test_nothing_depends_on_padding(coverage: str, changes: dict[str, object]) -> None:
    model = small_model(small_config(COVERAGES[coverage], **changes))
    batch = small_batch([(4, 3), (9, 8), (1, 1)])
    together = model(batch)
    for k in range(batch.size):
        source, target = unpadded(batch, k)
        alone = model(collate([(source[:-1], target[:-1])], END, END))
        I, J = len(target), len(source)
        torch.testing.assert_close(together.features[k, :I], alone.features[0])
        torch.testing.assert_close(together.alpha[k, :I, :J], alone.alpha[0])
        assert (together.alpha[k, :, J:] == 0).all()


@pytest.mark.parametrize("coverage", [name for name in COVERAGES if name != "baseline"])
def test_without_V_a_every_system_is_the_baseline(coverage: str) -> None:
    model = small_model(small_config(COVERAGES[coverage]))
    baseline = small_model(small_config(CoverageConfig()))
    with torch.no_grad():
        cast(torch.nn.Parameter, model.decoder.attention.V_a).zero_()
        for name, weight in baseline.named_parameters():
            weight.copy_(model.get_parameter(name))
    batch = small_batch([(4, 3), (6, 7)])
    torch.testing.assert_close(model(batch).features, baseline(batch).features, rtol=0, atol=0)


def test_linguistic_coverage_sums_to_the_step_number() -> None:
    model = small_model(small_config(PAPER_SYSTEMS["linguistic"]))
    batch = small_batch([(4, 6), (9, 3)])
    memory = model.encode(batch.source, batch.source_mask)
    state, token_ids = model.decoder.initial_state(memory), None
    for i in range(1, batch.target.shape[1] + 1):
        _, _, state = model.step(memory, state, token_ids)
        token_ids = batch.target[:, i - 1]
        total = (state.C.squeeze(-1) * batch.source_mask).sum(dim=1)
        torch.testing.assert_close(total, torch.full_like(total, i))


@pytest.mark.parametrize("changes", [{}, {"order": "paper"}, {"cell": "reset_after"}], ids=str)
@pytest.mark.parametrize("coverage", COVERAGES)
def test_gradients_equal_finite_differences(coverage: str, changes: dict[str, object]) -> None:
    """Check every weight in float64."""
    model = small_model(small_config(COVERAGES[coverage], **changes))
    batch = small_batch([(2, 2), (3, 1)])
    names, weights = zip(*model.named_parameters(), strict=True)

    def loss(*values: torch.Tensor) -> torch.Tensor:
        forced = torch.func.functional_call(model, dict(zip(names, values, strict=True)), (batch,))
        squares = (forced.features[batch.target_mask] ** 2).sum() + (forced.alpha**2).sum()
        return cast(torch.Tensor, squares)

    gradients = torch.autograd.grad(loss(*weights), weights, allow_unused=True)
    generator = torch.Generator().manual_seed(1)
    directions = [torch.randn(w.shape, generator=generator, dtype=w.dtype) for w in weights]
    step = 1e-6

    def moved(k: int, by: float) -> float:
        values = [w + by * (k == m) * directions[m] for m, w in enumerate(weights)]
        return loss(*values).item()

    for k, (name, gradient) in enumerate(zip(names, gradients, strict=True)):
        numeric = (moved(k, step) - moved(k, -step)) / (2 * step)
        exact = 0.0 if gradient is None else (gradient * directions[k]).sum().item()
        assert numeric == pytest.approx(exact, rel=1e-5, abs=1e-6), name


def test_dropout_is_off_in_evaluation() -> None:
    model = small_model(small_config(PAPER_SYSTEMS["gru10"], dropout=0.5))
    batch = small_batch([(4, 3)])
    torch.testing.assert_close(model(batch).features, model(batch).features)
    model.train()
    assert not torch.equal(model(batch).features, model(batch).features)


def test_attention_gradient_reaches_earlier_steps_through_coverage() -> None:
    model = small_model(small_config(CoverageConfig(kind="gru", size=2)))
    coverage = cast(NeuralCoverage, model.decoder.coverage)
    forced = model(small_batch([(3, 4)]))
    forced.alpha[:, -1, 0].sum().backward()
    assert coverage.P.grad is not None
    assert coverage.P.grad.abs().sum() > 0


def test_small_batch_ids_are_in_range() -> None:
    batch = small_batch([(4, 3)])
    assert batch.source.max() == END == VOCABULARY_SIZE - 1


@pytest.mark.parametrize("coverage", COVERAGES)
def test_attention_without_coverage_is_that_of_the_same_state_with_C_0(coverage: str) -> None:
    """In this order, the states that a step returns are those that attended."""
    model = small_model(small_config(COVERAGES[coverage], order="code"))
    batch = small_batch([(5, 4), (3, 6)])
    source, y = model.encode(batch.source, batch.source_mask), model.embed_previous(batch)
    decoder = model.decoder
    steps, C_0 = decoder.decode_stepwise(source, y), decoder.initial_state(source).C.unsqueeze(1)
    expected = [
        decoder.attention(t.unsqueeze(1), C_0, source.h, source.keys, source.mask).alpha.squeeze(1)
        for t in steps.t.unbind(1)
    ]
    alpha, without, unattended = decoder.ablate_coverage(source, y)
    assert torch.equal(alpha, steps.alpha)
    torch.testing.assert_close(without, torch.stack(expected, dim=1))
    assert torch.equal(without[:, 0], steps.alpha[:, 0])
    assert torch.equal(without, steps.alpha) == (coverage == "baseline")
    # Without attention linguistic coverage stays at C_0; neural coverage that reads more does not.
    stays = COVERAGES[coverage].kind in ("none", "linguistic", "fertility")
    assert torch.allclose(unattended, without) == (stays or coverage == "gru-attention-alone")
    reads_attention = COVERAGES[coverage].attention and coverage != "baseline"
    assert torch.allclose(unattended, alpha) != reads_attention
