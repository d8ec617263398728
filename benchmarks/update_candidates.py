# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Candidates for a faster GPU update, each a patch of the package; `update.py` measures them.

A candidate moves into the package if it saves at least 3% of an update, and is deleted otherwise.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from itertools import accumulate
from typing import Any
from unittest.mock import patch

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear as plain_linear

from covnmt.kernels.triton import decoder, loss, optimizer, products
from covnmt.kernels.triton.optimizer import UpdateScalars, adadelta_step, adamw_step, clipped
from covnmt.training.optimizer import TritonOptimizerStep

Candidate = Callable[[], AbstractContextManager[None]]

# ---- before: the narrow accesses that the package had


@triton.jit
def load_logits_narrowly(logits, col, V, WIDTH: tl.constexpr):
    return tl.load(logits + col, mask=col < V, other=float("-inf")).to(tl.float32)


@contextmanager
def loss_tiling(block: int, warps: int, stages: int) -> Iterator[None]:
    """Give the loss another tiling."""
    with patch.multiple(loss, BLOCK=block, WARPS=warps, STAGES=stages):
        yield


@cache
def another_loss_kernel() -> Any:
    """Return a new kernel object: the package's may be compiled already."""
    return triton.jit(loss.loss_and_gradient_kernel.fn)


@contextmanager
def narrow_loss() -> Iterator[None]:
    """Read logits 2 bytes at a time."""
    kernel = another_loss_kernel()
    with (
        patch.multiple(loss, load_logits=load_logits_narrowly, loss_and_gradient_kernel=kernel),
        loss_tiling(4096, 8, 1),
    ):
        yield


@contextmanager
def narrow_optimizer() -> Iterator[None]:
    """Read and write optimizer state 4 bytes at a time."""
    with patch.object(optimizer, "VECTOR", 1):
        yield


@contextmanager
def before() -> Iterator[None]:
    """Both."""
    with narrow_loss(), narrow_optimizer():
        yield


# ---- one launch of the optimizer for all weights


@triton.jit
def address_kernel(
    weights, gradients, first, second, average, table,
    COUNT: tl.constexpr, AVERAGE: tl.constexpr,
):  # fmt: skip
    """Write the addresses of all tensors to a table [COUNT, 5]."""
    for i in tl.static_range(COUNT):
        tl.store(table + 5 * i, weights[i].to(tl.int64))
        tl.store(table + 5 * i + 1, gradients[i].to(tl.int64))
        tl.store(table + 5 * i + 2, first[i].to(tl.int64))
        tl.store(table + 5 * i + 3, second[i].to(tl.int64))
        if AVERAGE:
            tl.store(table + 5 * i + 4, average[i].to(tl.int64))


@triton.jit
def read_address(table, i):
    return tl.multiple_of(tl.load(table + i).to(tl.pointer_type(tl.float32)), 16)


@triton.jit
def load_of_all(
    table, norm, limit, STARTS: tl.constexpr, SIZES: tl.constexpr, COUNT: tl.constexpr,
    VECTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """As `optimizer.load_weight`, for the weight i with STARTS[i] <= program < STARTS[i + 1]."""
    p = tl.program_id(0)
    row = table
    start = 0
    size = SIZES[0]
    for i in tl.static_range(1, COUNT):
        row = tl.where(p >= STARTS[i], table + 5 * i, row)
        start = tl.where(p >= STARTS[i], STARTS[i], start)
        size = tl.where(p >= STARTS[i], SIZES[i], size)
    at = (p - start) * BLOCK + tl.arange(0, BLOCK)
    inside = at // VECTOR < size // VECTOR
    w = tl.load(read_address(row, 0) + at, mask=inside, other=0.0)
    g = tl.load(read_address(row, 1) + at, mask=inside, other=0.0)
    m = tl.load(read_address(row, 2) + at, mask=inside, other=0.0)
    v = tl.load(read_address(row, 3) + at, mask=inside, other=0.0)
    return row, at, inside, w, clipped(g, w, tl.load(norm), limit), m, v


@triton.jit
def store_of_all(row, at, inside, new, m, v, new_share, AVERAGE: tl.constexpr):
    tl.store(read_address(row, 2) + at, m, mask=inside)
    tl.store(read_address(row, 3) + at, v, mask=inside)
    average = read_address(row, 4) if AVERAGE else None
    optimizer.store_weight(read_address(row, 0), average, new, new_share, at, inside)


@triton.jit
def adamw_of_all(
    table, norm, rate, updates, new_share, limit, beta1, beta2, epsilon, decay,
    STARTS: tl.constexpr, SIZES: tl.constexpr, COUNT: tl.constexpr, AVERAGE: tl.constexpr,
    VECTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, at, inside, w, g, m, v = load_of_all(
        table, norm, limit, STARTS, SIZES, COUNT, VECTOR, BLOCK
    )  # fmt: skip
    t, lr = tl.load(updates).to(tl.float32), tl.load(rate)
    new, m, v = adamw_step(w, g, m, v, t, lr, beta1, beta2, epsilon, decay)
    store_of_all(row, at, inside, new, m, v, new_share, AVERAGE)


@triton.jit
def adadelta_of_all(
    table, norm, rate, updates, new_share, limit, rho, epsilon,
    STARTS: tl.constexpr, SIZES: tl.constexpr, COUNT: tl.constexpr, AVERAGE: tl.constexpr,
    VECTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, at, inside, w, g, square, moved = load_of_all(
        table, norm, limit, STARTS, SIZES, COUNT, VECTOR, BLOCK
    )  # fmt: skip
    new, square, moved = adadelta_step(w, g, square, moved, tl.load(rate), rho, epsilon)
    store_of_all(row, at, inside, new, square, moved, new_share, AVERAGE)


ONE_LAUNCH = {id(optimizer.adamw): adamw_of_all, id(optimizer.adadelta): adadelta_of_all}
update_weights_one_by_one = optimizer.update_weights


def update_weights_at_once(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    average: Sequence[Tensor | None],
    scalars: UpdateScalars,
    limit: float,
    kernel: Any,
    constants: Sequence[float],
) -> None:
    """Replace `optimizer.update_weights`; the few matrices with other alignment go one by one."""
    states = list(
        zip(weights, [g.contiguous() for g in gradients], first, second, average, strict=True)
    )
    aligned = [state for state in states if is_aligned(state)]
    others = [state for state in states if not is_aligned(state)]
    if others:
        w, g, m, v, a = zip(*others, strict=True)
        update_weights_one_by_one(w, g, m, v, a, scalars, limit, kernel, constants)
    if aligned:
        tensors, count = tuple(zip(*aligned, strict=True)), len(aligned)
        with_average = average[0] is not None
        table = torch.empty(count, 5, device=weights[0].device, dtype=torch.int64)
        address_kernel[(1,)](*tensors, table, count, with_average, num_warps=1)
        sizes = tuple(state[0].numel() for state in aligned)
        block = ONE_LAUNCH_BLOCK
        starts = (0, *accumulate(triton.cdiv(size, block) for size in sizes))
        ONE_LAUNCH[id(kernel)][(starts[-1],)](
            table, *scalars, limit, *constants, starts, sizes, count, with_average,
            optimizer.VECTOR, block, num_warps=max(1, block // 256),
        )  # fmt: skip


def is_aligned(state: Sequence[Tensor | None]) -> bool:
    """Whether all tensors of a weight can be read and written 16 bytes at a time."""
    tensors = [tensor for tensor in state if tensor is not None]
    aligned = all(tensor.data_ptr() % 16 == 0 for tensor in tensors)
    return aligned and tensors[0].numel() % optimizer.VECTOR == 0


ONE_LAUNCH_BLOCK = 1024


@contextmanager
def one_launch_block(block: int) -> Iterator[None]:
    """Update all weights in one launch, with another block size."""
    with one_launch(), patch.dict(globals(), ONE_LAUNCH_BLOCK=block):
        yield


@contextmanager
def one_launch() -> Iterator[None]:
    """Update all weights in one launch."""
    with patch.object(optimizer, "update_weights", update_weights_at_once):
        yield


# ---- gradients of the output layer's weights in one product into float32


def add_product(total: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """Return total + a b in float32, from one product. CPUs have none from bf16 into float32."""
    if not a.is_cuda or a.dtype == torch.float32:
        product = a.float() @ b.float()
        return product if total is None else total + product
    if total is None:
        return torch.mm(a, b, out_dtype=torch.float32)
    return torch.addmm(total, a, b, out_dtype=torch.float32)


class CrossEntropy(loss.CrossEntropy):
    """As in the package, but for d_output."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        W: Tensor,
        b: Tensor,
        target: Tensor,
        weight: Tensor,
        smoothing: float,
        precision: torch.dtype,
        with_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        assert with_gradient
        R, (V, q) = features.shape[0], W.shape
        width = V + -V % loss.VOCABULARY_MULTIPLE
        x = loss._padded(features, 1.0, R, precision)
        output = loss._padded(W, b, width, precision)
        losses, nll = torch.empty(2, R, device=x.device, dtype=torch.float32)
        d_x = torch.empty_like(x)
        d_output = None
        size = max(1, loss.CHUNK // width)
        for start in range(0, R, size):
            rows = slice(start, min(start + size, R))
            logits = x[rows] @ output.T  # [rows, width]
            loss.loss_and_gradient_kernel[(len(logits),)](
                logits, target[rows], weight[rows], losses[rows], nll[rows], smoothing, V,
                width, loss.BLOCK, loss.STAGES, True, num_warps=loss.WARPS,
            )  # fmt: skip
            torch.mm(logits, output, out=d_x[rows])
            d_output = add_product(d_output, logits.T, x[rows])
        assert d_output is not None
        ctx.save_for_backward(d_x[:, :q], d_output[:V, :q], d_output[:V, q])
        ctx.dtypes = (features.dtype, W.dtype, b.dtype)
        total = nll.sum()
        ctx.mark_non_differentiable(total)
        return losses.sum(), total


@contextmanager
def float32_output_gradient() -> Iterator[None]:
    """Sum the output layer's weight gradients in float32, without a bf16 copy."""
    with patch.object(loss, "CrossEntropy", CrossEntropy):
        yield


# ---- gradients of embeddings


@triton.jit(do_not_specialize=["N"])
def rank_kernel(ids, order, sorted_ids, N, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Sort N ids by counting for each those that come before it; equal ones keep their order."""
    p = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = tl.load(ids + p, mask=p < N, other=0)
    key = token * N + p
    rank = tl.zeros([ROWS], tl.int32)
    for start in range(0, N, COLS):
        q = start + tl.arange(0, COLS)
        other = tl.load(ids + q, mask=q < N, other=0) * N + q
        comes_before = (other[None, :] < key[:, None]) & (q < N)[None, :]
        rank += tl.sum(comes_before.to(tl.int32), axis=1)
    tl.store(order + rank, p, mask=p < N)
    tl.store(sorted_ids + rank, token, mask=p < N)


@triton.jit(do_not_specialize=["N"])
def embedding_rows_kernel(
    ids, order, d_y, out, table, N,
    M: tl.constexpr, COMPACT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Sum the gradients of equal ids, in their order; ids are sorted, `order` has their places.

    COMPACT writes row p if ids[p] is the first of its kind, and `table` says where; other rows of
    `out` [N, M] become zero. Otherwise `out` [V, M] is dense, and was zero before.
    """
    p = tl.program_id(0)
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)
    token = tl.load(ids + p)
    previous = tl.load(ids + p - 1, mask=p > 0, other=-1)
    total = tl.zeros([COLS], tl.float32)
    is_first = token != previous
    if is_first:
        at = p
        found = ROWS
        while found == ROWS:
            place = at + tl.arange(0, ROWS)
            same = tl.load(ids + place, mask=place < N, other=-1) == token
            row = tl.load(order + place, mask=same, other=0).to(tl.int64)
            inside = same[:, None] & (col < M)[None, :]
            tile = tl.load(d_y + row[:, None] * M + col[None, :], mask=inside, other=0.0)
            total += tl.sum(tile.to(tl.float32), axis=0)
            found = tl.sum(same.to(tl.int32))
            at += ROWS
        if COMPACT:
            if tl.program_id(1) == 0:
                tl.store(table + token, p)
        else:
            tl.store(out + token * M + col, total, mask=col < M)
    if COMPACT:
        tl.store(out + p.to(tl.int64) * M + col, total, mask=col < M)


def sort_ids(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ids in ascending order and the place that each had."""
    (N,) = ids.shape
    order, in_order = torch.empty(N, device=ids.device, dtype=torch.int32), torch.empty_like(ids)
    rank_kernel[(triton.cdiv(N, 16),)](ids, order, in_order, N, 16, 256)
    return in_order, order


def sum_rows(ids: Tensor, d_y: Tensor, out: Tensor, table: Tensor | None) -> None:
    """Sum the gradients d_y [N, m] of the embedded ids [N] into `out`."""
    (N, M), (in_order, order) = d_y.shape, sort_ids(ids)
    embedding_rows_kernel[(N, triton.cdiv(M, 64))](
        in_order, order, d_y, out, table, N, M, table is not None, 32, 64, num_warps=2
    )


def dense_gradient(ids: Tensor, d_y: Tensor, V: int) -> Tensor:
    """Return the gradient of an embedding matrix [V, m]."""
    out = d_y.new_zeros(V, d_y.shape[1], dtype=torch.float32)
    sum_rows(ids, d_y, out, None)
    return out


def compact_gradient(ids: Tensor, d_y: Tensor, V: int) -> tuple[Tensor, Tensor]:
    """Return rows [N, m], and for each token the row that is its gradient, or -1 [V]."""
    out = torch.empty_like(d_y, dtype=torch.float32)
    table = torch.full((V,), -1, device=ids.device, dtype=torch.int32)
    sum_rows(ids, d_y, out, table)
    return out, table


@triton.jit
def load_row(
    weights, rows, table, first, second, norm, limit, M: tl.constexpr, BLOCK: tl.constexpr
):
    """Load a row of an embedding matrix; its gradient is zero where the table has no row."""
    col = tl.arange(0, BLOCK)
    token = tl.program_id(0).to(tl.int64)
    row = tl.load(table + token).to(tl.int64)
    at = token * M + col
    inside = col < M
    w = tl.load(weights + at, mask=inside, other=0.0)
    g = tl.load(rows + row * M + col, mask=inside & (row >= 0), other=0.0)
    m = tl.load(first + at, mask=inside, other=0.0)
    v = tl.load(second + at, mask=inside, other=0.0)
    return at, inside, w, clipped(g, w, tl.load(norm), limit), m, v


@triton.jit
def adamw_rows(
    weights, rows, table, first, second, average, norm, rate, updates, new_share, limit,
    beta1, beta2, epsilon, decay, M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at, inside, w, g, m, v = load_row(
        weights, rows, table, first, second, norm, limit, M, BLOCK
    )  # fmt: skip
    t, lr = tl.load(updates).to(tl.float32), tl.load(rate)
    new, m, v = adamw_step(w, g, m, v, t, lr, beta1, beta2, epsilon, decay)
    tl.store(first + at, m, mask=inside)
    tl.store(second + at, v, mask=inside)
    optimizer.store_weight(weights, average, new, new_share, at, inside)


@triton.jit
def adadelta_rows(
    weights, rows, table, first, second, average, norm, rate, updates, new_share, limit,
    rho, epsilon, M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at, inside, w, g, square, moved = load_row(
        weights, rows, table, first, second, norm, limit, M, BLOCK
    )  # fmt: skip
    new, square, moved = adadelta_step(w, g, square, moved, tl.load(rate), rho, epsilon)
    tl.store(first + at, square, mask=inside)
    tl.store(second + at, moved, mask=inside)
    optimizer.store_weight(weights, average, new, new_share, at, inside)


ROW_KERNELS = {"adamw": adamw_rows, "adadelta": adadelta_rows}


class Embedding(torch.autograd.Function):
    """`nn.functional.embedding` with a gradient of our own.

    A compact one goes to `compact`, by the address of the matrix, whose `.grad` stays None.
    """

    @staticmethod
    def forward(
        ctx: Any, ids: Tensor, E: Tensor, compact: dict[int, tuple[Tensor, Tensor]] | None
    ) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.compact, ctx.V, ctx.address = compact, len(E), E.data_ptr()
        y: Tensor = torch.ops.aten.embedding(E, ids)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ids = ctx.saved_tensors[0].flatten().contiguous()
        d_y = gradients[0].flatten(0, -2).contiguous()
        if ctx.compact is None:
            return None, dense_gradient(ids, d_y, ctx.V), None
        ctx.compact[ctx.address] = compact_gradient(ids, d_y, ctx.V)
        return None, None, None


@contextmanager
def own_embedding_gradient() -> Iterator[None]:
    """Sum gradients of embeddings with our own kernels, into dense matrices."""

    def embed(ids: Tensor, E: Tensor) -> Tensor:
        return Embedding.apply(ids, E, None)  # type: ignore[no-untyped-call, no-any-return]

    with patch.object(torch.nn.functional, "embedding", embed):
        yield


@contextmanager
def compact_embedding_gradient() -> Iterator[None]:
    """Keep rows and a table instead of dense gradients of embeddings."""
    compact: dict[int, tuple[Tensor, Tensor]] = {}

    def embed(ids: Tensor, E: Tensor) -> Tensor:
        return Embedding.apply(ids, E, compact)  # type: ignore[no-untyped-call, no-any-return]

    with (
        patch.object(torch.nn.functional, "embedding", embed),
        patch.object(TritonOptimizerStep, "__call__", lambda step: step_compactly(step, compact)),
    ):
        yield


@torch.no_grad()
def step_compactly(step: TritonOptimizerStep, compact: dict[int, tuple[Tensor, Tensor]]) -> None:
    """Replace `TritonOptimizerStep.__call__`: some gradients are rows with a table."""
    step.updates += 1
    config = step.config
    states = [state for state in step.parameter_states if state[0].grad is not None]
    weights, first, second, ema = zip(*states, strict=True)
    gradients = [weight.grad for weight in weights]
    # rows that are no token's are zero
    norm = torch.nn.utils.get_total_norm([*gradients, *(rows for rows, _ in compact.values())])
    scalars = UpdateScalars(norm, step.learning_rate, step.updates, step.ema_new_share)
    kernel, constants = optimizer.adadelta, [config.rho, config.epsilon]
    if config.optimizer == "adamw":
        kernel, constants = (
            optimizer.adamw,
            [*config.betas, config.epsilon, config.weight_decay],
        )
    optimizer.update_weights(
        weights, gradients, first, second, ema, scalars, config.clip, kernel, constants
    )
    for weight, m, v, average in step.parameter_states:
        if weight.data_ptr() in compact:
            V, M = weight.shape
            ROW_KERNELS[config.optimizer][(V,)](
                weight, *compact[weight.data_ptr()], m, v, average, *scalars, config.clip,
                *constants, M, triton.next_power_of_2(M),
            )  # fmt: skip


# ---- padding and conversion in one copy


class PaddedCopy(torch.autograd.Function):
    """x in another precision, with zeros to the right and below; the gradient in one copy, too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, right: int, below: int, dtype: torch.dtype) -> Tensor:
        *batch, rows, cols = x.shape
        ctx.like = x.dtype, rows, cols
        out = x.new_empty(*batch, rows + below, cols + right, dtype=dtype)
        if right:
            out[..., cols:] = 0
        if below:
            out[..., rows:, :] = 0
        out[..., :rows, :cols].copy_(x)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        dtype, rows, cols = ctx.like
        d_x = gradients[0][..., :rows, :cols]
        return d_x.to(dtype, memory_format=torch.contiguous_format), None, None, None


def linear(x: Tensor, W: Tensor, b: Tensor | None, precision: torch.dtype) -> Tensor:
    """Replace `products.linear`."""
    inner, outer = -W.shape[1] % products.ROW_MULTIPLE, -W.shape[0] % products.ROW_MULTIPLE
    is_training = torch.is_grad_enabled() and precision == torch.bfloat16
    if not (inner or outer) or not is_training:
        return plain_linear(x, W, b)
    x = PaddedCopy.apply(x, inner, 0, precision)  # type: ignore[no-untyped-call]
    padded = PaddedCopy.apply(W, inner, outer, precision)  # type: ignore[no-untyped-call]
    bias = None if b is None else torch.nn.functional.pad(b, (0, outer))
    y: Tensor = plain_linear(x, padded, bias)[..., : W.shape[0]]
    return y


@contextmanager
def padded_copies() -> Iterator[None]:
    """Convert and pad what products read in one copy."""
    with patch.object(products, "linear", linear), patch.object(decoder, "linear", linear):
        yield


def together(*candidates: Candidate) -> Candidate:
    """Combine candidates."""

    @contextmanager
    def combined() -> Iterator[None]:
        with ExitStack() as stack:
            for candidate in candidates:
                stack.enter_context(candidate())
            yield

    return combined


CANDIDATES: dict[str, Candidate] = {
    "before": before,
    "package": together(),
    "package again": together(),
    "one launch": one_launch,
    "float32 output gradient": float32_output_gradient,
    "own embedding gradient": own_embedding_gradient,
    "compact embedding gradient": compact_embedding_gradient,
    "padded copies": padded_copies,
    "all": together(one_launch, float32_output_gradient, compact_embedding_gradient, padded_copies),
}
