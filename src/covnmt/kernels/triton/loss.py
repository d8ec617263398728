# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Output layer and loss together on a GPU, some rows at a time: only their logits are in memory.

The gradient of a softmax is known as soon as the softmax is: each chunk's logits are turned into
their own gradient in place, and the two products that need it follow at once. So the forward pass
already has the gradients, and the backward pass only scales them. Where gradients are off
(validation), neither they nor the two products are computed.

    loss_r = w_r (lse_r - (1 - eps) x_r[y_r] - eps mean(x_r))       lse_r = log sum exp x_r
    d x_r = w_r (softmax(x_r) - (1 - eps) onehot(y_r) - eps / V)

w is 0 on padding, so shapes never depend on the data. V and q are padded to multiples for which the
tensor cores are fast: with V = 30,001, the three products take five times as long. One of the added
features is always 1 and has the bias as its weights, so the products include the bias.

Notation: R rows, V vocabulary size, q features.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from covnmt.kernels.triton.products import ROW_MULTIPLE

BLOCK = 4096  # logits that a program has in registers at a time
WARPS = 16
STAGES = 1  # blocks that are loaded ahead at a time
CHUNK = 1 << 28  # logits that exist at a time
VOCABULARY_MULTIPLE = 64  # logits of a row


@triton.jit
def load_logits(logits, col, V, WIDTH: tl.constexpr):
    """Load a block of a row; V, which is odd, would as a mask make loads 2 bytes wide."""
    x = tl.load(logits + col, mask=col < WIDTH, other=0.0).to(tl.float32)
    return tl.where(col < V, x, float("-inf"))


@triton.jit
def loss_and_gradient_kernel(
    logits, target, weight, loss, nll, smoothing, V,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    """One row: its loss, and with GRADIENT its logits replaced by theirs (0 on added columns)."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * WIDTH
    y = tl.load(target + row)
    w = tl.load(weight + row).to(tl.float32)
    # read before the sums, at which all warps wait: afterwards one may have overwritten it already
    target_logit = tl.load(logits + y).to(tl.float32)
    highest = float("-inf")
    total = 0.0
    logit_sum = 0.0
    for start in tl.range(0, WIDTH, BLOCK, num_stages=STAGES):
        col = start + tl.arange(0, BLOCK)
        x = load_logits(logits, col, V, WIDTH)
        higher = tl.maximum(highest, tl.max(x, axis=0))
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(x - higher), axis=0)
        logit_sum += tl.sum(tl.where(col < V, x, 0.0), axis=0)
        highest = higher
    lse = highest + tl.log(total)
    tl.store(nll + row, w * (lse - target_logit))
    tl.store(loss + row, w * (lse - (1 - smoothing) * target_logit - smoothing * logit_sum / V))
    if GRADIENT:
        for start in tl.range(0, WIDTH, BLOCK, num_stages=STAGES):
            col = start + tl.arange(0, BLOCK)
            x = load_logits(logits, col, V, WIDTH)
            target_probability = smoothing / V + tl.where(col == y, 1 - smoothing, 0.0)
            d_x = tl.where(col < V, w * (tl.exp(x - lse) - target_probability), 0.0)
            tl.store(logits + col, d_x, mask=col < WIDTH)


def _padded(matrix: Tensor, extra: Tensor | float, rows: int, dtype: torch.dtype) -> Tensor:
    """[rows, q + 1 up to whole 16 bytes in bf16]: the matrix, one more column, zeros."""
    q = matrix.shape[1]
    padded = torch.zeros(rows, q + 1 + -(q + 1) % ROW_MULTIPLE, device=matrix.device, dtype=dtype)
    padded[: len(matrix), :q] = matrix
    padded[: len(matrix), q] = extra
    return padded


class CrossEntropy(torch.autograd.Function):
    """Summed loss and negative log-likelihood of R rows."""

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
        R, (V, q) = features.shape[0], W.shape
        width = V + -V % VOCABULARY_MULTIPLE
        x = _padded(features, 1.0, R, precision)
        output = _padded(W, b, width, precision)
        loss, nll = torch.empty(2, R, device=x.device, dtype=torch.float32)
        if with_gradient:
            d_x = torch.empty_like(x)
            d_output = torch.zeros(output.shape, device=W.device, dtype=torch.float32)
        size = max(1, CHUNK // width)
        for start in range(0, R, size):
            rows = slice(start, min(start + size, R))
            logits = x[rows] @ output.T  # [rows, width]
            loss_and_gradient_kernel[(len(logits),)](
                logits, target[rows], weight[rows], loss[rows], nll[rows], smoothing, V,
                width, BLOCK, STAGES, with_gradient, num_warps=WARPS,
            )  # fmt: skip
            if with_gradient:
                torch.mm(logits, output, out=d_x[rows])
                d_output += logits.T @ x[rows]
        if with_gradient:
            ctx.save_for_backward(d_x[:, :q], d_output[:V, :q], d_output[:V, q])
            ctx.dtypes = (features.dtype, W.dtype, b.dtype)
        total = nll.sum()
        ctx.mark_non_differentiable(total)
        return loss.sum(), total

    @staticmethod
    def backward(ctx: Any, *scales: Tensor) -> tuple[Tensor | None, ...]:
        gradients = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        d_features, d_W, d_b = ((gradient * scales[0]).to(dtype) for gradient, dtype in gradients)
        return d_features, d_W, d_b, *[None] * 5


def cross_entropy(
    features: Tensor,
    W: Tensor,
    b: Tensor,
    target: Tensor,
    mask: Tensor,
    smoothing: float,
    *,
    precision: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Compute `reference.cross_entropy` with products in `precision`.

    Without gradients (validation), only the logits are computed.
    """
    weight = mask.flatten().to(torch.float32)
    losses: tuple[Tensor, Tensor] = CrossEntropy.apply(  # type: ignore[no-untyped-call]
        features.flatten(0, -2), W, b, target.flatten(), weight, smoothing, precision,
        torch.is_grad_enabled(),  # `forward` itself runs without
    )  # fmt: skip
    return losses
