"""Clipping, step and average in one pass against the optimizers of PyTorch and the plain rules."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="the fast path needs Triton")

from covnmt.base.config import ModelConfig, TrainConfig
from covnmt.kernels.triton import optimizer as triton_optimizer
from covnmt.model.seq2seq import Seq2Seq
from covnmt.training.optimizer import TorchOptimizerStep, TritonOptimizerStep, build_optimizer
from tests.kernels.compare import DEVICE, random_weights

ADAMW = {"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.1, "epsilon": 1e-8}
SETTINGS = [
    {"clip": 1.0},
    {"clip": 0.0},
    {"clip": 1.0, "ema": 0.9},
    {**ADAMW, "clip": 0.5, "warmup": 3},
    {**ADAMW, "clip": 0.0, "ema": 0.99, "schedule": "cosine", "updates": 5},
]


def build_step(
    kind: type[TritonOptimizerStep] | type[TorchOptimizerStep], config: TrainConfig
) -> tuple[Seq2Seq, Any]:
    torch.manual_seed(0)
    model = Seq2Seq(ModelConfig(embedding=3, hidden=4, rank=5), 40, 50)
    random_weights(model)
    model.to(DEVICE)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    average = {name: w.clone() for name, w in weights.items()} if config.ema else {}
    optimizer = build_optimizer(model, config)
    return model, (kind(model, optimizer, average, config), optimizer, average)


def gradients(model: Seq2Seq, update: int, spoil: float | None = None) -> None:
    generator = torch.Generator().manual_seed(update)
    for name, parameter in model.named_parameters():
        g = torch.randn(parameter.shape, generator=generator).to(DEVICE)
        # a weight that gets no gradient at all is legal too
        parameter.grad = None if name == "decoder.attention.v" else g
        if spoil is not None and name == "decoder.Cx":
            g.view(-1)[3] = spoil


def assert_close(actual: Tensor, expected: Tensor, name: str) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6, msg=name)


# the interpreter warns of inf * 0, which is thrown away
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("spoil", [None, math.nan, math.inf])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_triton_update_equals_plain_update(
    settings: dict[str, Any], spoil: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Make five updates, optionally one of them with a norm that is not finite."""
    monkeypatch.setattr(triton_optimizer, "BLOCK", 128)  # some weights need two programs
    config = TrainConfig.model_validate(settings)
    (plain, a), (fused, b) = (
        build_step(TorchOptimizerStep, config),
        build_step(TritonOptimizerStep, config),
    )
    for update in range(5):
        for model, (step, _, _) in ((plain, a), (fused, b)):
            gradients(model, update, spoil if update == 2 else None)
            step.prepare(update)
            step()
    for (name, p), q in zip(plain.named_parameters(), fused.parameters(), strict=True):
        assert_close(q, p, name)
        for key in a[1].state[p].keys() - {"step"}:
            assert_close(b[1].state[q][key], a[1].state[p][key], f"{name} {key}")
    for name, average in a[2].items():
        assert_close(b[2][name], average, f"average of {name}")


def test_optimizer_state_resumes_after_a_checkpoint() -> None:
    """The moments and the count of updates are kept in the optimizer's own state."""
    config = TrainConfig.model_validate(ADAMW)
    whole, (step, _, _) = build_step(TritonOptimizerStep, config)
    parts, (first, optimizer, _) = build_step(TritonOptimizerStep, config)
    for update in range(4):
        for model, one in ((whole, step), (parts, first)):
            if model is parts and update == 2:
                saved = optimizer.state_dict()
                fresh = build_optimizer(parts, config)
                fresh.load_state_dict(saved)
                one = first = TritonOptimizerStep(parts, fresh, {}, config)
            gradients(model, update)
            one.prepare(update)
            one()
    for p, q in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=0)
