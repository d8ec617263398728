"""Do the Triton kernels fit other GPUs? Compiles them for each, without having one.

    python benchmarks/other_gpus.py                  # all kernels for all of them: half an hour
    python benchmarks/other_gpus.py --arch 86        # for some
    python benchmarks/other_gpus.py --arch 86 --heaviest

Training and beam search run as on a GPU, but on meta tensors and with a driver that only names the
GPU; a launch ends when its kernel is compiled, ptxas included. So the tilings are those that the
launch code chooses for that GPU. What each launch would need, shared memory and on some GPUs tensor
memory, is compared with the GPU's limits. Correctness and speed are not tested.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import product
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from harness import argument_parser, save
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from covnmt.base.config import CoverageConfig, ModelConfig
from covnmt.decoding.gpu.beam_search import copy_in_precision
from covnmt.decoding.gpu.buffers import SearchBuffers
from covnmt.decoding.gpu.step import PaddedOutputLayer
from covnmt.kernels import gpu
from covnmt.kernels.tensors import EncodedSource
from covnmt.kernels.triton import decoder as triton_decoder
from covnmt.kernels.triton import encoder as triton_encoder
from covnmt.kernels.triton import loss as triton_loss
from covnmt.kernels.triton import optimizer as triton_optimizer
from covnmt.kernels.triton import search as triton_search
from covnmt.kernels.triton.step import TritonDecoderStep
from covnmt.model.seq2seq import Seq2Seq

# Shared memory that one program may have, in KiB, and some GPUs of the kind.
LIMITS = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
TENSOR_MEMORY = 512  # columns, where a GPU has such memory
META = torch.device("meta")
WORDS = 30_001

COVERAGES = {
    "none": CoverageConfig(),
    "linguistic": CoverageConfig(kind="linguistic"),
    "tanh1": CoverageConfig(kind="tanh"),
    "gru1": CoverageConfig(kind="gru"),
    "tanh10": CoverageConfig(kind="tanh", size=10),
    "gru10": CoverageConfig(kind="gru", size=10),
    "gru16": CoverageConfig(kind="gru", size=16),
}


class Case(NamedTuple):
    """A model, its precision, and the shape of a batch."""

    coverage: str
    precision: str  # bf16, fp32, or tf32: fp32 with shorter products
    hidden: int = 1000
    cell: str = "exact"
    sentences: int = 80
    words: int = 25

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of keys, states and annotations."""
        return torch.bfloat16 if self.precision == "bf16" else torch.float32


LENGTHS = (10, 25, 60, 128, 200, 400)  # one for each power of two of a tile
PRECISIONS = ("bf16", "fp32")


def cases() -> Iterator[Case]:
    """Yield all lengths for two models, and some lengths for what else changes tilings."""
    for precision in PRECISIONS:
        for coverage, words in product(("none", "gru10"), LENGTHS):
            yield Case(coverage, precision, words=words)
        for coverage, words in product(("linguistic", "tanh1", "gru1", "gru16"), (25, 400)):
            yield Case(coverage, precision, words=words)
        for words in (25, 128, 400):
            yield Case("gru10", precision, sentences=512, words=words)
        for hidden in (38, 256, 512):
            yield Case("gru10", precision, hidden)
        yield Case("none", precision, cell="reset_after")
    for words in (25, 400):
        yield Case("gru10", "tf32", words=words)


WHOLE = [
    Case(coverage, precision, cell=cell)
    for coverage, cell in (("none", "exact"), ("none", "reset_after"), ("gru10", "exact"))
    for precision in PRECISIONS
]
HEAVIEST = [Case("none", "fp32", words=128), Case("tanh10", "fp32", words=400)]


class Driver:
    """A driver that only names the GPU. Triton caches kernels by device, so its number is arch."""

    def __init__(self, arch: int) -> None:
        self.arch = arch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        return self.arch

    def get_current_stream(self, device: int) -> int:
        return 0


class Compiled(NamedTuple):
    """What one compiled kernel needs, and the tiling it was compiled with."""

    kernel: str
    case: Case
    choices: dict[str, int]
    shared: int  # bytes
    tensor_memory: int  # columns


class Record:
    """Compiles every launched kernel instead of running it."""

    def __init__(self) -> None:
        self.compiled: dict[int, Compiled] = {}  # by kernel, each of which has many launches
        self.failed: list[tuple[str, Case, str]] = []
        self.case = HEAVIEST[0]

    def launch(self, kernel: JITFunction, *args: object, grid: object, **options: Any) -> None:
        """Replace `JITFunction.run`."""
        name = kernel.fn.__name__
        try:
            compiled = RUN(kernel, *args, grid=grid, **{**options, "warmup": True})
        except Exception as error:
            self.failed.append((name, self.case, f"{type(error).__name__}: {error}"[:300]))
            return
        choices = {key: value for key, value in options.items() if isinstance(value, int)}
        del choices["warmup"]
        shared, columns = (
            compiled.metadata.shared,
            getattr(compiled.metadata, "tmem_size", None) or 0,
        )
        self.compiled.setdefault(id(compiled), Compiled(name, self.case, choices, shared, columns))


RUN = JITFunction.run


@contextmanager
def pretend_gpu(arch: int) -> Iterator[Record]:
    """Pretend to have such a GPU, on which kernels are compiled and not run."""
    record = Record()
    driver.set_active(Driver(arch))

    def run(kernel: JITFunction, *args: object, **options: Any) -> None:
        record.launch(kernel, *args, **options)

    with ExitStack() as stack:
        stack.enter_context(patch.object(JITFunction, "run", run))
        stack.enter_context(patch.object(gpu, "shared_memory", lambda _: LIMITS[arch] * 1024))
        stack.enter_context(patch.object(gpu, "has_tensor_memory", lambda _: arch == 100))
        # meta tensors have no autocast; the precision is passed explicitly here
        stack.enter_context(patch.object(torch, "autocast", lambda *_, **__: nullcontext()))
        stack.enter_context(patch.object(torch, "is_autocast_enabled", lambda _: False))
        yield record


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def build(case: Case) -> Seq2Seq:
    """Build the model on the meta device."""
    config = ModelConfig.model_validate(
        {"hidden": case.hidden, "cell": case.cell, "coverage": COVERAGES[case.coverage]}
    )
    with META:
        return Seq2Seq(config, WORDS, WORDS)


def encoded_source(case: Case, model: Seq2Seq) -> EncodedSource:
    """Return an encoded source."""
    h = empty(case.sentences, case.words, 2 * case.hidden, dtype=model.readout.W_2.dtype)
    return model.decoder.encode_source(h, empty(*h.shape[:2], dtype=torch.bool))


def decode(case: Case) -> None:
    """Run teacher-forced decoding forward and backward: all kernels whose tiles depend on it."""
    model = build(case)
    memory = encoded_source(case, model)
    y = empty(case.sentences, 2, model.config.embedding)
    result = triton_decoder.decode_teacher_forced(model.decoder.weights(), memory, y, case.dtype)
    (result.t.sum() + result.s.sum() + result.alpha.sum()).backward()


def update(case: Case) -> None:
    """Run the rest of an update: encoder, loss and optimizer."""
    model = build(case)
    x, mask = empty(case.sentences, 2, model.config.embedding), empty(case.sentences, 2)
    ahead, back = model.encoder.ahead.weights(), model.encoder.back.weights()
    triton_encoder.encode(ahead, back, x, mask.bool(), case.dtype).sum().backward()
    rows = empty(4, 2, model.readout.W_2.shape[1])
    target = empty(4, 2, dtype=torch.long)
    W, b = model.readout.W_2, model.readout.b
    for smoothing, with_gradient in ((0.1, True), (0.0, False)):
        with torch.set_grad_enabled(with_gradient):
            triton_loss.cross_entropy(
                rows, W, b, target, target == 0, smoothing, precision=case.dtype
            )
    scalars = triton_optimizer.UpdateScalars(empty(), empty(), empty(), empty())
    kinds = (
        (triton_optimizer.adamw, (0.9, 0.98, 1e-8, 0.01)),
        (triton_optimizer.adadelta, (0.95, 1e-6)),
    )
    for kind, w in product(kinds, (W, b)):  # b has an odd number of weights
        for average in (None, w):
            triton_optimizer.update_weights([w], [w], [w], [w], [average], scalars, 1.0, *kind)


def search(case: Case, beam: int = 10) -> None:
    """Run a step of beam search."""
    model = copy_in_precision(build(case), case.dtype)
    memory = encoded_source(case, model)
    step, output = (
        TritonDecoderStep(model.decoding_weights(), case.dtype),
        PaddedOutputLayer.of(model.readout),
    )
    buffers = SearchBuffers.allocate(
        model, memory, case.sentences, beam, case.words, step.embedding_columns
    )

    def choose(features: Tensor) -> Tensor:
        logits = output.logits(features).unflatten(0, (case.sentences, -1))
        return triton_search.select_continuations(buffers, logits, WORDS - 1)

    with torch.inference_mode():
        step(buffers, False, choose)


def compile_for(arch: int, cases: list[Case], rest: list[Case]) -> Record:
    """Compile all that these cases launch on such a GPU, and for `rest` everything else too."""
    with pretend_gpu(arch) as record:
        for number, case in enumerate(cases, 1):
            record.case = case
            tf32 = case.precision == "tf32"
            torch.backends.cuda.matmul.fp32_precision = "tf32" if tf32 else "ieee"
            decode(case)
            if case in rest:
                update(case)
                search(case)
            print(f"sm_{arch}: {number} of {len(cases)} cases", end="\r", file=sys.stderr)
    return record


def rows(arch: int, record: Record) -> list[dict[str, Any]]:
    """Return for each kernel the most it needs, in which case, and where it does not fit."""
    compiled, limit = list(record.compiled.values()), LIMITS[arch] * 1024
    result = []
    for kernel in sorted({c.kernel for c in compiled} | {name for name, *_ in record.failed}):
        of_kernel = sorted(
            (c for c in compiled if c.kernel == kernel),
            key=lambda c: c.shared,
        )
        over = [c for c in of_kernel if c.shared > limit or c.tensor_memory > TENSOR_MEMORY]
        result.append({
            "arch": f"sm_{arch}",
            "kernel": kernel,
            "compiled": len(of_kernel),
            "limit": limit,
            "shared": {c.case.precision: c.shared for c in of_kernel},  # the last: the most
            "at": {**of_kernel[-1].case._asdict(), **of_kernel[-1].choices} if of_kernel else None,
            "tensor_memory": max((c.tensor_memory for c in of_kernel), default=0),
            "over": [{**c.case._asdict(), "shared": c.shared} for c in over],
            "errors": dict(Counter(error for name, _, error in record.failed if name == kernel)),
        })  # fmt: skip
    return result


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument(
        "--arch",
        type=int,
        nargs="*",
        choices=LIMITS,
        default=list(LIMITS),
        help="compute capability",
    )
    parser.add_argument("--heaviest", action="store_true", help="only the kernels that need most")
    args = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("unset TRITON_INTERPRET: the interpreter compiles nothing")
    chosen = HEAVIEST if args.heaviest else list(cases())
    table = []
    for arch in args.arch:
        table += rows(arch, compile_for(arch, chosen, [] if args.heaviest else WHOLE))
    for row in table:
        state = "errors" if row["errors"] else "too much" if row["over"] else "fits"
        most = max(row["shared"].values(), default=0)
        print(f"{row['arch']:7} {row['kernel']:22} {most:7} of {row['limit']} bytes: {state}")
    save(
        "other-gpus",
        {"settings": {"arch": args.arch, "heaviest": args.heaviest}, "kernels": table},
        args,
    )


if __name__ == "__main__":
    main()
