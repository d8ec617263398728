"""Compare Triton kernels with the reference: outputs and every gradient, in three precisions.

The truth is the reference in float64. The kernels may be at most twice as far from it as the
reference in the same precision, plus a floor of a few roundings: where the reference happens to
hit the truth, twice nothing would be nothing.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = DEVICE.type == "cuda"

# Roundings of size 1 that the kernels may be off by, whatever the reference does. For some seeds
# too few in the interpreter, which truncates bfloat16 where a GPU rounds.
FLOOR = {torch.float32: 32 * 2.0**-24, torch.bfloat16: 2.0**-8}

Results = dict[str, Tensor]
Run = Callable[[torch.dtype], Results]
M = TypeVar("M", bound=nn.Module)


@contextmanager
def precision(dtype: torch.dtype) -> Iterator[None]:
    """bfloat16 means what training does with it: float32 weights under autocast."""
    with torch.autocast(DEVICE.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
        yield


def storage(dtype: torch.dtype) -> torch.dtype:
    """The type of weights and inputs."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


def copy_on_device(module: M, dtype: torch.dtype) -> M:
    return copy.deepcopy(module).to(DEVICE, storage(dtype))


def new_leaf(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy on the device that gets a gradient."""
    return x.to(DEVICE, storage(dtype), copy=True).requires_grad_()


def random_weights(module: nn.Module, std: float = 0.4) -> None:
    """Large enough that everything matters, small enough that little saturates."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=std)


def ragged_mask(B: int, J: int) -> Tensor:
    """Sentences of random lengths from 1 to J, at least one of them J."""
    lengths = torch.randint(1, J + 1, (B,))
    lengths[torch.randint(B, ())] = J
    return torch.arange(J) < lengths.unsqueeze(1)


def gather(outputs: Results, module: nn.Module, inputs: Results) -> Results:
    """Outputs and all gradients, in float64 and by name."""
    gradients = {f"d {name}": x.grad for name, x in inputs.items()}
    gradients |= {f"d {name}": p.grad for name, p in module.named_parameters()}
    present = outputs | {name: g for name, g in gradients.items() if g is not None}
    return {name: x.detach().double().cpu() for name, x in present.items() if x.numel()}


def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uninitialized memory holds NaN, so that reading it is noticed."""

    def poisoned(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def make_poisoned(*args: object, **options: object) -> Tensor:
            x = make(*args, **options)
            return x.fill_(float("nan")) if x.is_floating_point() else x

        return make_poisoned

    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))
    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned(torch.Tensor.new_empty))


def check_against_reference(run: Run, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the kernels with the reference by the rule above."""
    monkeypatch.setenv("COVNMT_OPS", "reference")
    truth, plain = run(torch.float64), run(dtype)
    monkeypatch.setenv("COVNMT_OPS", "triton")
    with monkeypatch.context() as patch:
        poison(patch)
        fast = run(dtype)
    missing = {name for name in truth.keys() - fast.keys() if truth[name].any()}
    assert not missing
    for name, expected in truth.items():
        output = fast.get(name, torch.zeros_like(expected))
        allowed = 2 * (plain[name] - expected).norm()
        size = torch.maximum(expected.norm(), torch.tensor(expected.numel()).sqrt())
        error = (output - expected).norm()
        assert error <= allowed + FLOOR[dtype] * size, f"{name}: {error:.2e}, {allowed:.2e} allowed"
