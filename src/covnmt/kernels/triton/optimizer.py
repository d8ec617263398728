# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Clipping, optimizer step and weight average in one pass over memory, on a GPU.

PyTorch makes several passes: one to scale the gradients, some for the step, one for the average.
At 84 million weights each costs more than a layer of the model. Here one kernel reads weight,
gradient and the optimizer's two moments once and writes them once. The norm, the rate and the
age of the average are read from device memory, so a captured update can be replayed for ever.

If the norm is not finite, a tenth of the weight replaces the gradient (docs/paper-to-code.md,
section 1.4).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
VECTOR = 4  # numbers in 16 bytes, the widest access of a thread


class UpdateScalars(NamedTuple):
    """What changes from update to update, each a scalar on the device."""

    norm: Tensor  # of all gradients
    rate: Tensor
    updates: Tensor  # done, this one included
    new_share: Tensor  # of the weights in their average


@triton.jit
def clipped(gradient, weight, norm, limit):
    """Scale the gradient to the limit (0: none), or replace it if the norm is not finite."""
    fine = (norm == norm) & (norm < float("inf"))
    scale = tl.where(limit > 0, tl.minimum(limit / (norm + 1e-6), 1.0), 1.0)
    return tl.where(fine, gradient * scale, 0.1 * weight)


@triton.jit
def load_weight(
    weights, gradients, first, second, norm, limit, vectors,
    VECTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Load a block: its place, weights, clipped gradients and the two moments.

    The mask is the same for all numbers of a vector: otherwise each would be loaded on its own.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at // VECTOR < vectors
    w = tl.load(weights + at, mask=inside, other=0.0)
    g = clipped(tl.load(gradients + at, mask=inside, other=0.0), w, tl.load(norm), limit)
    m = tl.load(first + at, mask=inside, other=0.0)
    v = tl.load(second + at, mask=inside, other=0.0)
    return at, inside, w, g, m, v


@triton.jit
def store_weight(weights, average, new, new_share, at, inside):
    tl.store(weights + at, new, mask=inside)
    if average is not None:
        old = tl.load(average + at, mask=inside, other=0.0)
        tl.store(average + at, old + tl.load(new_share) * (new - old), mask=inside)


@triton.jit
def adamw_step(w, g, m, v, t, lr, beta1, beta2, epsilon, decay):
    """Update m and v, correct their bias; the weight decay is decoupled."""
    m += (1 - beta1) * (g - m)
    v = beta2 * v + (1 - beta2) * g * g
    m_hat = m / (1 - tl.exp(t * tl.log(beta1)))
    v_hat = v / (1 - tl.exp(t * tl.log(beta2)))
    return w * (1 - lr * decay) - lr * m_hat / (tl.sqrt(v_hat) + epsilon), m, v


@triton.jit
def adadelta_step(w, g, square, moved, lr, rho, epsilon):
    """Average squared gradients in `square` and squared steps in `moved`."""
    square = rho * square + (1 - rho) * g * g
    step = tl.sqrt(moved + epsilon) / tl.sqrt(square + epsilon) * g
    return w - lr * step, square, rho * moved + (1 - rho) * step * step


@triton.jit(do_not_specialize=["vectors"])
def adamw(
    weights, gradients, first, second, average, norm, rate, updates, new_share, limit,
    beta1, beta2, epsilon, decay, vectors, VECTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at, inside, w, g, m, v = load_weight(
        weights, gradients, first, second, norm, limit, vectors, VECTOR, BLOCK
    )
    t, lr = tl.load(updates).to(tl.float32), tl.load(rate)
    new, m, v = adamw_step(w, g, m, v, t, lr, beta1, beta2, epsilon, decay)
    tl.store(first + at, m, mask=inside)
    tl.store(second + at, v, mask=inside)
    store_weight(weights, average, new, new_share, at, inside)


@triton.jit(do_not_specialize=["vectors"])
def adadelta(
    weights, gradients, first, second, average, norm, rate, updates, new_share, limit,
    rho, epsilon, vectors, VECTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at, inside, w, g, square, moved = load_weight(
        weights, gradients, first, second, norm, limit, vectors, VECTOR, BLOCK
    )
    new, square, moved = adadelta_step(w, g, square, moved, tl.load(rate), rho, epsilon)
    tl.store(first + at, square, mask=inside)
    tl.store(second + at, moved, mask=inside)
    store_weight(weights, average, new, new_share, at, inside)


def update_weights(
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
    """Update all weights in place by the kernel of an optimizer and its constants."""
    for w, g, m, v, a in zip(weights, gradients, first, second, average, strict=True):
        grid = (triton.cdiv(w.numel(), BLOCK),)
        vector = VECTOR if w.numel() % VECTOR == 0 else 1
        sizes = (w.numel() // vector, vector, BLOCK)
        kernel[grid](w, g.contiguous(), m, v, a, *scalars, limit, *constants, *sizes)
