"""Compare output layer and loss in one with the float64 reference, gradients included."""

from typing import NamedTuple

import pytest
import torch
from torch import nn

pytest.importorskip("triton", reason="the fast path needs Triton")

from covnmt.kernels.dispatch import select_kernels
from covnmt.kernels.triton import loss as triton_loss
from tests.kernels import compare
from tests.kernels.compare import DEVICE, ON_GPU, Results, check_against_reference


class Shape(NamedTuple):
    B: int
    I: int
    q: int
    V: int


SHAPES = [Shape(1, 1, 1, 2), Shape(3, 4, 5, 13), Shape(2, 7, 8, 65), Shape(5, 3, 7, 64)]
GPU_SHAPES = [Shape(7, 17, 33, 1001), Shape(80, 28, 620, 30_001)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shape", SHAPES + GPU_SHAPES * ON_GPU, ids=str)
def test_loss_kernel_equals_reference(
    shape: Shape, smoothing: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of a few rows and blocks of a few logits make sure that several are summed."""
    B, I, q, V = shape
    torch.manual_seed(sum(shape))
    output = nn.Linear(q, V)
    features, target = torch.randn(B, I, q), torch.randint(0, V, (B, I))
    mask = torch.rand(B, I) < 0.7
    if B < 80:
        monkeypatch.setattr(triton_loss, "CHUNK", 3 * V)
        monkeypatch.setattr(triton_loss, "BLOCK", 32)

    def run(dtype: torch.dtype) -> Results:
        layer, x = compare.copy_on_device(output, dtype), compare.new_leaf(features, dtype)
        with compare.precision(dtype):
            loss, nll = select_kernels(DEVICE).cross_entropy(
                x, layer.weight, layer.bias, target.to(DEVICE), mask.to(DEVICE), smoothing
            )
        (0.5 * loss).backward()
        return compare.gather({"loss": loss, "nll": nll}, layer, {"features": x})

    check_against_reference(run, dtype, monkeypatch)


def test_loss_gives_padding_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVNMT_OPS", "triton")
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, device=DEVICE, requires_grad=True)
    mask = torch.tensor([[True, True, False], [False, False, False]], device=DEVICE)
    target = torch.zeros(2, 3, dtype=torch.long, device=DEVICE)
    W = torch.randn(9, 5, device=DEVICE)
    kernels, b = select_kernels(DEVICE), torch.zeros(9, device=DEVICE)
    loss, _ = kernels.cross_entropy(x, W, b, target, mask, 0.1)
    loss.backward()
    assert x.grad is not None
    assert ((x.grad != 0).any(dim=-1) == mask).all()


def test_validation_computes_logits_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same loss as in training, without the two products that only gradients need."""
    monkeypatch.setenv("COVNMT_OPS", "triton")
    torch.manual_seed(0)
    x, W, b = torch.randn(2, 3, 5), torch.randn(70, 5, requires_grad=True), torch.randn(70)
    inputs = (x.to(DEVICE), W.to(DEVICE), b.to(DEVICE))
    target = torch.randint(0, 70, (2, 3), device=DEVICE)
    mask = torch.tensor([[True, True, False], [True, False, False]], device=DEVICE)
    cross_entropy = select_kernels(DEVICE).cross_entropy
    training = cross_entropy(*inputs, target, mask, 0.1)

    def no_product(*args: object, **options: object) -> None:
        raise AssertionError("a product for a gradient")

    monkeypatch.setattr(torch, "mm", no_product)
    with pytest.raises(AssertionError, match="for a gradient"):
        cross_entropy(*inputs, target, mask, 0.1)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            validation = cross_entropy(*inputs, target, mask, 0.1)
        for expected, actual in zip(training, validation, strict=True):
            torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize(("inner", "outer"), [(8, 16), (5, 16), (8, 7), (5, 7)])
def test_padded_products_equal_plain_products(
    inner: int, outer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, inner, device=DEVICE, requires_grad=True)
    layer = nn.Linear(inner, outer).to(DEVICE)
    results = {}
    for choice in ("reference", "triton"):
        monkeypatch.setenv("COVNMT_OPS", choice)
        with compare.precision(torch.bfloat16):
            y = select_kernels(DEVICE).linear(x, layer.weight, layer.bias)
        assert y.shape == (2, 3, outer)
        gradients = torch.autograd.grad(y.float().square().sum(), (x, *layer.parameters()))
        results[choice] = (y, *gradients)
    for plain, fast in zip(*results.values(), strict=True):
        torch.testing.assert_close(fast, plain, rtol=2e-2, atol=2e-2)
