"""The objective: token loss against torch's cross-entropy, and the fertility term by hand."""

import numpy as np
import pytest
import torch
from torch import Tensor

from covnmt.base.config import CoverageConfig, TrainConfig
from covnmt.model.seq2seq import Seq2Seq, TeacherForcedOutput
from covnmt.training.loss import batch_loss, fertility_loss, token_loss
from tests.model.small import VOCABULARY_SIZE, small_batch, small_config, small_model

LENGTHS = [(3, 4), (6, 2), (1, 1), (5, 7)]


def settings(**changes: object) -> TrainConfig:
    return TrainConfig.model_validate(changes)


def fertility_model() -> Seq2Seq:
    return small_model(small_config(CoverageConfig(kind="fertility")))


def gradient(loss: Tensor, model: Seq2Seq) -> dict[str, Tensor | None]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    actual = torch.autograd.grad(loss, parameters, allow_unused=True)
    return dict(zip(names, actual, strict=True))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_token_loss_equals_cross_entropy_of_torch(smoothing: float) -> None:
    model, batch = fertility_model(), small_batch(LENGTHS)
    features = model(batch).features
    loss, nll = token_loss(model.readout, features, batch.target, batch.target_mask, smoothing)
    logits = model.readout.logits(features).reshape(-1, VOCABULARY_SIZE).float()
    target = torch.where(batch.target_mask, batch.target, -100).reshape(-1)  # -100: ignored
    for actual, epsilon in ((loss, smoothing), (nll, 0.0)):
        expected = torch.nn.functional.cross_entropy(
            logits, target, reduction="sum", label_smoothing=epsilon
        )
        torch.testing.assert_close(actual, expected)
    assert not nll.requires_grad


def test_loss_of_a_batch_is_the_sum_over_its_pairs() -> None:
    """Neither padding nor the other pairs change the loss of a pair."""
    model, batch = fertility_model(), small_batch(LENGTHS)
    config = settings(fertility_weight=0.7, label_smoothing=0.1)
    alone = []
    for k, (source, target) in enumerate(LENGTHS):
        one = type(batch)(
            batch.source[k : k + 1, : source + 1],
            batch.source_mask[k : k + 1, : source + 1],
            batch.target[k : k + 1, : target + 1],
            batch.target_mask[k : k + 1, : target + 1],
        )
        alone.append(batch_loss(model, one, config)[0])
    for same in (batch, batch.pad_to_multiples(8, 4)):
        torch.testing.assert_close(batch_loss(model, same, config)[0], torch.stack(alone).sum())


@pytest.mark.parametrize("predicted", [True, False])
def test_fertility_objective_by_hand(predicted: bool) -> None:
    batch = small_batch(LENGTHS)
    pairs, target_length = batch.target.shape
    source_length = batch.source.shape[1]
    rng = np.random.default_rng(3)
    alpha = rng.random((pairs, target_length, source_length))
    Phi = 2 * rng.random((pairs, source_length))
    expected = 0.0
    for b, (source, target) in enumerate(LENGTHS):
        for j in range(source + 1):
            received = sum(alpha[b, i, j] for i in range(target + 1))
            expected += ((Phi[b, j] if predicted else 1.0) - received) ** 2
    fertility = torch.tensor(Phi) if predicted else None
    forced = TeacherForcedOutput(torch.zeros(0), torch.tensor(alpha), fertility)
    for detach in (True, False):
        assert fertility_loss(forced, batch, detach).item() == pytest.approx(expected)


def test_fertility_weight_scales_the_fertility_objective() -> None:
    model, batch = fertility_model(), small_batch(LENGTHS)
    plain, nll = batch_loss(model, batch, settings())
    weighted, same = batch_loss(model, batch, settings(fertility_weight=0.5))
    term = fertility_loss(model(batch), batch, detach=False)
    torch.testing.assert_close(weighted, plain + 0.5 * term, check_dtype=False)
    assert torch.equal(nll, same)


def test_detached_fertility_objective_has_no_gradient_in_the_attention() -> None:
    """Only U_f and the encoder, which feed Phi, get a gradient."""
    model, batch = fertility_model(), small_batch(LENGTHS)
    moved = {}
    for detach in (False, True):
        actual = gradient(fertility_loss(model(batch), batch, detach), model)
        moved[detach] = {name for name, g in actual.items() if g is not None and g.abs().sum() > 0}
    assert {name for name in moved[True] if name.startswith(("decoder", "target", "readout"))} == {
        "decoder.coverage.U_f"
    }
    assert "decoder.attention.U_a" in moved[False]
    assert moved[True] < moved[False]


def test_detached_fertility_objective_does_nothing_without_fertility() -> None:
    model = small_model(small_config(CoverageConfig(kind="linguistic")))
    batch = small_batch(LENGTHS)
    assert not fertility_loss(model(batch), batch, detach=True).requires_grad
    plain = gradient(batch_loss(model, batch, settings())[0], model)
    detached = settings(fertility_weight=2.0, fertility_detach=True)
    for name, actual in gradient(batch_loss(model, batch, detached)[0], model).items():
        assert actual is not None
        torch.testing.assert_close(actual, plain[name], msg=name)
