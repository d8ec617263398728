"""Compare the decoder's kernels with the float64 reference, every gradient included."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="the fast path needs Triton")

from covnmt.base.config import CoverageConfig, ModelConfig
from covnmt.kernels.tensors import DecoderSteps
from covnmt.kernels.triton import attention as triton_attention
from covnmt.kernels.triton import gru as triton_gru
from covnmt.model.decoder import Decoder
from tests.kernels import compare
from tests.kernels.compare import DEVICE, ON_GPU, Results, check_against_reference


class Shape(NamedTuple):
    B: int
    J: int
    I: int
    n: int


SMALL = Shape(2, 5, 3, 6)
COVERAGES = {
    "none": CoverageConfig(),
    "linguistic": CoverageConfig(kind="linguistic"),
    "subtract": CoverageConfig(kind="linguistic", accumulate="subtract"),
    "fertility": CoverageConfig(kind="fertility"),
    "fertility-subtract": CoverageConfig(kind="fertility", accumulate="subtract"),
    "tanh1": CoverageConfig(kind="tanh"),
    "tanh3": CoverageConfig(kind="tanh", size=3, bias=True),
    "tanh16": CoverageConfig(kind="tanh", size=16),
    "gru1": CoverageConfig(kind="gru"),
    "gru2": CoverageConfig(kind="gru", size=2, bias=True),
    "gru10": CoverageConfig(kind="gru", size=10),
    "gru16": CoverageConfig(kind="gru", size=16),
    "gru2-attention": CoverageConfig(kind="gru", size=2, annotation=False, state=False),
    "tanh2-state": CoverageConfig(kind="tanh", size=2, attention=False, annotation=False),
}
# Every kind with every cell and order at the small shape; some of them at the others.
VARIANTS = [(order, cell) for order in ("code", "paper") for cell in ("exact", "reset_after")]
BASE = ["none", "fertility", "tanh3", "gru2"]
SHAPES = [Shape(1, 1, 1, 1), Shape(1, 33, 2, 7), Shape(2, 2, 2, 17)]
GPU_SHAPES = [
    Shape(7, 17, 7, 33), Shape(33, 63, 17, 130), Shape(130, 7, 33, 63), Shape(2, 130, 63, 17),
    Shape(17, 256, 3, 130), Shape(3, 400, 2, 40), Shape(300, 25, 2, 40),
]  # fmt: skip
# Compiling takes seconds for a case, so not all combinations: each shape meets five coverage
# models with changing order, cell and precision, and paper size the systems that are reported.
GPU_CASES = [
    (shape, list(COVERAGES)[(5 * k + m) % len(COVERAGES)], *VARIANTS[(k + m) % 4], dtype)
    for k, shape in enumerate(GPU_SHAPES)
    for m, dtype in enumerate([torch.float32, torch.bfloat16] * 2 + [torch.float32])
] + [
    (Shape(63, 25, 28, 1000), coverage, "code", "exact", dtype)
    for coverage in ("none", "fertility", "gru10")
    for dtype in (torch.float32, torch.bfloat16)
]


class Case(NamedTuple):
    """A decoder with inputs for it, all drawn from one seed."""

    decoder: Decoder
    h: Tensor
    y: Tensor
    mask: Tensor
    upstream: tuple[Tensor | None, ...]  # gradients of t, s and alpha; None for no gradient

    def run(self, dtype: torch.dtype) -> Results:
        decoder = compare.copy_on_device(self.decoder, dtype)
        h, y = compare.new_leaf(self.h, dtype), compare.new_leaf(self.y, dtype)
        with compare.precision(dtype):
            steps = decoder.decode_teacher_forced(decoder.encode_source(h, self.mask.to(DEVICE)), y)
        self.loss(steps).backward()
        return compare.gather(steps._asdict(), decoder, {"h": h, "y": y})

    def loss(self, steps: DecoderSteps) -> Tensor:
        pairs = zip(steps[:3], self.upstream, strict=True)
        return torch.stack([(x * g.to(x)).sum().double() for x, g in pairs if g is not None]).sum()


def make_case(
    coverage: CoverageConfig, shape: Shape, order: str = "code", cell: str = "exact"
) -> Case:
    torch.manual_seed(sum(shape))
    B, J, I, n = shape
    settings = {"embedding": 4, "order": order, "cell": cell, "coverage": coverage}
    # only the maxout of the readout needs an even n
    config = ModelConfig.model_validate(settings).model_copy(update={"hidden": n})
    decoder = Decoder(config)
    compare.random_weights(decoder, std=min(0.4, n**-0.5))
    y = torch.randn(B, I, 4)
    y[:, 0] = 0
    upstream = (torch.randn(B, I, n), torch.randn(B, I, 2 * n), torch.randn(B, I, J))
    h = torch.randn(B, J, 2 * n)
    return Case(decoder, h, y, compare.ragged_mask(B, J), upstream)


@pytest.mark.parametrize(("order", "cell"), VARIANTS)
@pytest.mark.parametrize("coverage", BASE)
def test_decoder_kernels_equal_reference_for_every_order_and_cell(
    coverage: str, order: str, cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make_case(COVERAGES[coverage], SMALL, order, cell)
    check_against_reference(case.run, torch.float32, monkeypatch)


@pytest.mark.parametrize("coverage", [name for name in COVERAGES if name not in BASE])
def test_decoder_kernels_equal_reference_for_every_coverage_model(
    coverage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make_case(COVERAGES[coverage], SMALL)
    check_against_reference(case.run, torch.float32, monkeypatch)


@pytest.mark.parametrize("coverage", ["fertility", "gru10"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_decoder_kernels_equal_reference_on_odd_shapes(
    shape: Shape, coverage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make_case(COVERAGES[coverage], shape)
    check_against_reference(case.run, torch.float32, monkeypatch)


@pytest.mark.parametrize("coverage", ["linguistic", "gru2"])
def test_decoder_kernels_equal_reference_with_several_tiles(
    coverage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = triton_attention.Tiling(256, warps=4, stages=2, wide=256)  # 16 units at a time
    for name in ("FEW_ROWS", "SUMS"):
        monkeypatch.setattr(triton_attention, name, few)
    monkeypatch.setattr(triton_gru, "BLOCK", 16)
    case = make_case(COVERAGES[coverage], Shape(2, 7, 2, 33))
    check_against_reference(case.run, torch.float32, monkeypatch)


@pytest.mark.parametrize("coverage", ["linguistic", "gru10"])
def test_decoder_kernels_equal_reference_in_bfloat16(
    coverage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make_case(COVERAGES[coverage], Shape(2, 7, 3, 17))
    check_against_reference(case.run, torch.bfloat16, monkeypatch)


@pytest.mark.parametrize("present", [(True, False, False), (False, True, False)])
def test_decoder_kernels_accept_missing_output_gradients(
    present: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make_case(COVERAGES["gru2"], Shape(2, 4, 2, 6))
    upstream = tuple(g if on else None for g, on in zip(case.upstream, present, strict=True))
    check_against_reference(case._replace(upstream=upstream).run, torch.float32, monkeypatch)


def test_decoder_kernels_are_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVNMT_OPS", "triton")
    case = make_case(COVERAGES["gru10"], Shape(130, 63, 17, 130) if ON_GPU else SMALL)
    first, second = case.run(torch.float32), case.run(torch.float32)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU: minutes in the interpreter")
@pytest.mark.parametrize(
    ("shape", "coverage", "order", "cell", "dtype"), GPU_CASES[: None if ON_GPU else 1], ids=str
)
def test_decoder_kernels_equal_reference_on_gpu(
    shape: Shape,
    coverage: str,
    order: str,
    cell: str,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = make_case(COVERAGES[coverage], shape, order, cell)
    check_against_reference(case.run, dtype, monkeypatch)


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU: CUDA graphs")
def test_decoder_kernels_run_in_a_cuda_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVNMT_OPS", "triton")
    case = make_case(COVERAGES["gru10"], Shape(7, 17, 7, 64))
    decoder = compare.copy_on_device(case.decoder, torch.float32)
    h, y = (compare.new_leaf(x, torch.float32) for x in (case.h, case.y))
    mask = case.mask.to(DEVICE)
    upstream = [g.to(DEVICE) for g in case.upstream if g is not None]

    def step() -> tuple[Tensor, ...]:
        steps = decoder.decode_teacher_forced(decoder.encode_source(h, mask), y)
        return torch.autograd.grad(steps[:3], (h, y, decoder.Cx), upstream)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        expected = [g.clone() for g in step()]
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    for replayed, eager in zip(captured, expected, strict=True):
        torch.testing.assert_close(replayed, eager)
