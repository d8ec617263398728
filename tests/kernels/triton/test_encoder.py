"""Compare the encoder's kernels with the float64 reference, every gradient included."""

from typing import NamedTuple

import pytest
import torch

pytest.importorskip("triton", reason="the fast path needs Triton")

from covnmt.base.config import CellKind
from covnmt.model.encoder import Encoder
from tests.kernels import compare
from tests.kernels.compare import DEVICE, ON_GPU, Results, check_against_reference


class Shape(NamedTuple):
    B: int
    J: int
    n: int


SHAPES = [Shape(2, 4, 5), Shape(1, 1, 1), Shape(3, 2, 17)]
GPU_SHAPES = [Shape(7, 17, 33), Shape(130, 63, 130), Shape(17, 130, 63), Shape(63, 2, 1000)]
CELLS: tuple[CellKind, ...] = ("exact", "reset_after")
PRECISIONS = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("shape", SHAPES + GPU_SHAPES * ON_GPU, ids=str)
def test_encoder_kernels_equal_reference(
    shape: Shape, cell: CellKind, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(shape.B + shape.J + shape.n)
    B, J, n = shape
    encoder = Encoder(3, n, cell, dropout=0.0)
    compare.random_weights(encoder, std=min(0.4, n**-0.5))
    x, weight = torch.randn(B, J, 3), torch.randn(B, J, 2 * n)
    mask = compare.ragged_mask(B, J)

    def run(dtype: torch.dtype) -> Results:
        module = compare.copy_on_device(encoder, dtype)
        embedded = compare.new_leaf(x, dtype)
        with compare.precision(dtype):
            h = module(embedded, mask.to(DEVICE))
        (h * weight.to(h)).sum().backward()
        return compare.gather({"h": h}, module, {"x": embedded})

    check_against_reference(run, dtype, monkeypatch)
