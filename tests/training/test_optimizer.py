"""Optimizers, schedules, clipping and EMA, each against a calculation by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from covnmt.base.config import CoverageConfig, TrainConfig
from covnmt.model.seq2seq import Seq2Seq
from covnmt.training.optimizer import (
    build_optimizer,
    build_optimizer_step,
    clip_gradients,
    learning_rate_factor,
    update_ema,
)
from tests.model.small import small_config, small_model

# Settings, then update (from 0) and the factor of the learning rate there.
SCHEDULES: list[tuple[dict[str, object], dict[int, float]]] = [
    ({"schedule": "constant"}, {0: 1, 1: 1, 10**6: 1}),
    ({"schedule": "constant", "warmup": 4}, {0: 0.25, 1: 0.5, 3: 1, 4: 1, 100: 1}),
    (
        {"schedule": "cosine", "updates": 100},
        {0: 1, 25: 0.5 + 0.5 * math.sqrt(0.5), 50: 0.5, 100: 0, 120: 0},
    ),
    (
        {"schedule": "cosine", "warmup": 20, "updates": 120},
        {0: 0.05, 9: 0.5, 19: 1, 20: 1, 70: 0.5, 120: 0},
    ),
    ({"schedule": "cosine", "warmup": 100, "updates": 100}, {49: 0.5, 99: 1}),
    ({"schedule": "inverse_sqrt", "warmup": 9}, {0: 1 / 9, 8: 1, 35: 0.5, 80: 1 / 3}),
    ({"schedule": "inverse_sqrt"}, {0: 1, 3: 0.5, 99: 0.1}),
]


def settings(**changes: object) -> TrainConfig:
    return TrainConfig.model_validate(changes)


def model_with_gradients(scale: float) -> Seq2Seq:
    """A small model, its gradients drawn at random."""
    model = small_model(small_config(CoverageConfig()))
    for parameter in model.parameters():
        parameter.grad = scale * torch.randn_like(parameter)
    return model


def gradients(model: Seq2Seq) -> list[np.ndarray[Any, Any]]:
    return [p.grad.numpy().copy() for p in model.parameters() if p.grad is not None]


def norm(arrays: list[np.ndarray[Any, Any]]) -> float:
    return math.sqrt(sum(float((array**2).sum()) for array in arrays))


@pytest.mark.parametrize(("changes", "expected"), SCHEDULES)
def test_learning_rate_schedules(changes: dict[str, object], expected: dict[int, float]) -> None:
    config = settings(**changes)
    factors = {update: learning_rate_factor(update, config) for update in expected}
    assert factors == pytest.approx(expected, abs=1e-12)


IN_TIME = [  # update (from 0), share of the time spent, factor
    (0, 0.9, 0.1),
    (9, 0.0, 1),
    (60, 0.1, 0.5),
    (20, 0.5, 0.5),
    (20, 1.0, 0),
    (110, 0.2, 0),
    (20, 1.2, 0),
]


@pytest.mark.parametrize(("update", "spent", "expected"), IN_TIME)
def test_cosine_in_time_ends_at_the_first_limit(update: int, spent: float, expected: float) -> None:
    config = settings(schedule="cosine_in_time", warmup=10, updates=110)
    assert learning_rate_factor(update, config, spent) == pytest.approx(expected, abs=1e-12)
    other = settings(schedule="cosine", warmup=10, updates=110)
    assert learning_rate_factor(update, other, spent) == learning_rate_factor(update, other)


def test_learning_rate_is_multiplied_by_the_schedule() -> None:
    config = settings(optimizer="adamw", learning_rate=0.3, warmup=10)
    model = small_model(small_config(CoverageConfig()))
    optimizer = build_optimizer(model, config)
    build_optimizer_step(model, optimizer, {}, config).prepare(4)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.15])


def test_adadelta_by_hand() -> None:
    rho, epsilon = 0.95, 1e-6
    model = model_with_gradients(1.0)
    weights = [p.detach().numpy().copy() for p in model.parameters()]
    squares = [np.zeros_like(w) for w in weights]
    steps = [np.zeros_like(w) for w in weights]
    optimizer = build_optimizer(model, settings())
    for _ in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        for k, g in enumerate(gradients(model)):
            squares[k] = rho * squares[k] + (1 - rho) * g**2
            step = -np.sqrt(steps[k] + epsilon) / np.sqrt(squares[k] + epsilon) * g
            steps[k] = rho * steps[k] + (1 - rho) * step**2
            weights[k] = weights[k] + step
        optimizer.step()
    for parameter, expected in zip(model.parameters(), weights, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-12, atol=1e-12)


def test_adamw_by_hand() -> None:
    config = settings(
        optimizer="adamw", learning_rate=0.01, betas=[0.8, 0.9], epsilon=1e-8, weight_decay=0.1
    )
    model = model_with_gradients(1.0)
    weight = model.readout.U_o.weight
    expected = weight.detach().numpy().copy()
    m, v = np.zeros_like(expected), np.zeros_like(expected)
    optimizer = build_optimizer(model, config)
    for n in range(1, 4):
        weight.grad = torch.randn_like(weight)
        g = weight.grad.numpy()
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
        expected = expected * (1 - 0.01 * 0.1)
        expected -= 0.01 * (m / (1 - 0.8**n)) / (np.sqrt(v / (1 - 0.9**n)) + 1e-8)
        optimizer.step()
    np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("scale", [3.0, 1e-4])
@pytest.mark.parametrize("limit", [1.0, 0.25])
def test_clipping_by_hand(scale: float, limit: float) -> None:
    model = model_with_gradients(scale)
    before = gradients(model)
    assert clip_gradients(model, limit).item() == pytest.approx(norm(before))
    factor = min(1.0, limit / norm(before))
    for after, was in zip(gradients(model), before, strict=True):
        np.testing.assert_allclose(after, was * factor, rtol=1e-5)
    assert norm(gradients(model)) <= limit


def test_clip_zero_leaves_gradients_unchanged() -> None:
    model = model_with_gradients(30.0)
    before = gradients(model)
    clip_gradients(model, 0.0)
    for after, was in zip(gradients(model), before, strict=True):
        np.testing.assert_array_equal(after, was)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("limit", [1.0, 0.0])
def test_infinite_or_nan_norm_replaces_gradients(value: float, limit: float) -> None:
    """Each gradient becomes a tenth of its weight, also the finite ones."""
    model = model_with_gradients(1.0)
    assert model.readout.C_o.grad is not None
    model.readout.C_o.grad[0, 0] = value
    assert not math.isfinite(clip_gradients(model, limit))
    for parameter in model.parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, 0.1 * parameter.detach())


def test_clipping_skips_weights_without_gradients() -> None:
    model = model_with_gradients(1.0)
    model.readout.V_o.grad = None
    expected = norm(gradients(model))
    assert clip_gradients(model, 1.0).item() == pytest.approx(expected)
    assert model.readout.V_o.grad is None


def test_ema_by_hand() -> None:
    weights = [3.0, -1.0, 2.0, 8.0, 5.0]
    average, expected = {"w": torch.tensor([1.0])}, 1.0
    for n, weight in enumerate(weights, 1):
        decay = min(0.3, (1 + n) / (10 + n))
        expected = decay * expected + (1 - decay) * weight
        update_ema(average, {"w": torch.tensor([weight])}, 0.3, n)
    assert average["w"].item() == pytest.approx(expected)
    # at first the average follows faster than the decay says
    assert (1 + 1) / (10 + 1) < 0.3 < (1 + 5) / (10 + 5)


def test_ema_of_constant_weights_is_the_weights() -> None:
    weights = {"w": torch.tensor([1.0, 2.0])}
    average = {"w": torch.tensor([1.0, 2.0])}
    for n in range(1, 20):
        update_ema(average, weights, 0.999, n)
    assert torch.equal(average["w"], weights["w"])
