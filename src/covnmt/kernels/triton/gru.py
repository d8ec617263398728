# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""One step of the GRU on a GPU: Triton kernels for everything between its matrix products.

Encoder and decoder share them. G cells run side by side (both directions of the encoder, or the
one decoder) on B rows each, so every tensor is [G, B, .]. What a step keeps for the backward
pass, its tape, is a view of buffers of all steps: row b of cell g is `g * skip + b` rows from its
first, where `skip` is the distance in rows from one cell's step to the other's. Other tensors are
dense: program g * B + b reads and writes row g * B + b. Kernels write the new state twice: in
float32 to `h`, for the next step, and in the products' precision to `stored`, on the tape.

    exact        r, z = sigmoid(x + recurrent)     c = tanh(x_c + U (r * h))
    reset_after  r, z = sigmoid(x + recurrent)     c = tanh(x_c + r * (U h))

    h' = z * c + (1 - z) * h, or h where a source token is padding

Derivation and memory traffic: docs/kernels.md.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512  # units of one program


class GruTape(NamedTuple):
    """What one step keeps for the backward pass, each [G, B, .] with the same row layout."""

    gates: Tensor  # [G, B, 2n] pre-activations of r and z from the state; r and z afterwards
    Uh: Tensor | None  # [G, B, n] U h, where the reset acts after the product
    rh: Tensor | None  # [G, B, n] r * h, where it acts before
    c: Tensor  # [G, B, n]
    h: Tensor  # [G, B, n] the state after the step, for the products


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def tanh(x):
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@triton.jit
def load(pointer, inside):
    return tl.load(pointer, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def unit_block(N: tl.constexpr, BLOCK: tl.constexpr):
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    return col, col < N


@triton.jit
def tape_row(rows, skip):
    row = tl.program_id(0).to(tl.int64)
    return row // rows * skip + row % rows


@triton.jit
def input_share(x, context, gate: tl.constexpr, col, inside, row, N: tl.constexpr):
    """Sum the share of one gate that does not come from the state."""
    total = load(x + row * 3 * N + gate * N + col, inside)
    if context is not None:
        total += load(context + tl.program_id(0).to(tl.int64) * 3 * N + gate * N + col, inside)
    return total


@triton.jit
def reset_and_update(x, context, at, col, inside, row, N: tl.constexpr):
    """Gates r and z; their share from the state is stored at `at`."""
    r = sigmoid(load(at, inside) + input_share(x, context, 0, col, inside, row, N))
    z = sigmoid(load(at + N, inside) + input_share(x, context, 1, col, inside, row, N))
    return r, z


@triton.jit
def next_state(z, c, h, keep, row):
    new = h + z * (c - h)
    if keep is not None:
        new = tl.where(tl.load(keep + row) != 0, new, h)
    return new


@triton.jit(do_not_specialize=["rows", "skip"])
def gates_forward(
    x, context, gates, h, rh, rows, skip,
    N: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """exact, before the product with U: r and z in place of their pre-activations, and r * h."""
    col, inside = unit_block(N, BLOCK)
    row = tape_row(rows, skip)
    at = gates + row * WIDTH + col
    r, z = reset_and_update(x, context, at, col, inside, row, N)
    state = load(h + tl.program_id(0).to(tl.int64) * N + col, inside)
    tl.store(at, r, mask=inside)
    tl.store(at + N, z, mask=inside)
    tl.store(rh + row * N + col, r * state, mask=inside)


@triton.jit(do_not_specialize=["rows", "skip"])
def candidate_forward(
    x, context, product, gates, h, c, stored, keep, rows, skip,
    N: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """exact, after the product U (r * h): the candidate and the new state."""
    col, inside = unit_block(N, BLOCK)
    row = tape_row(rows, skip)
    dense = tl.program_id(0).to(tl.int64) * N + col
    new = tanh(load(product + dense, inside) + input_share(x, context, 2, col, inside, row, N))
    z = load(gates + row * WIDTH + N + col, inside)
    state = next_state(z, new, load(h + dense, inside), keep, row)
    tl.store(c + row * N + col, new, mask=inside)
    tl.store(h + dense, state, mask=inside)
    tl.store(stored + row * N + col, state, mask=inside)


@triton.jit(do_not_specialize=["rows", "skip"])
def reset_after_forward(
    x, context, gates, Uh, h, c, stored, keep, rows, skip,
    N: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """reset_after: the whole step."""
    col, inside = unit_block(N, BLOCK)
    row = tape_row(rows, skip)
    at = gates + row * WIDTH + col
    dense = tl.program_id(0).to(tl.int64) * N + col
    r, z = reset_and_update(x, context, at, col, inside, row, N)
    product = load(Uh + row * WIDTH + col, inside)
    new = tanh(input_share(x, context, 2, col, inside, row, N) + r * product)
    state = next_state(z, new, load(h + dense, inside), keep, row)
    tl.store(at, r, mask=inside)
    tl.store(at + N, z, mask=inside)
    tl.store(c + row * N + col, new, mask=inside)
    tl.store(h + dense, state, mask=inside)
    tl.store(stored + row * N + col, state, mask=inside)


@triton.jit
def through_candidate(d_state, z, c, h, keep, row):
    """Gradients of z's and c's pre-activations, and of h as far as h' = ... + (1 - z) h."""
    d_new = d_state
    if keep is not None:
        d_new = tl.where(tl.load(keep + row) != 0, d_state, 0.0)
    return d_new * (c - h) * z * (1 - z), d_new * z * (1 - c * c), d_state - d_new * z


@triton.jit(do_not_specialize=["rows", "skip", "skip_before"])
def candidate_backward(
    d_h, carried, gates, c, before, keep, d_pre, rows, skip, skip_before,
    N: tl.constexpr, WIDTH: tl.constexpr, D_WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """exact, before the product with U: d_pre of z and c, and what h gets directly."""
    col, inside = unit_block(N, BLOCK)
    row = tape_row(rows, skip)
    dense = tl.program_id(0).to(tl.int64) * N + col
    d_state = load(carried + dense, inside) + load(d_h + row * N + col, inside)
    z = load(gates + row * WIDTH + N + col, inside)
    new = load(c + row * N + col, inside)
    h = load(before + tape_row(rows, skip_before) * N + col, inside)
    d_z, d_c, d_direct = through_candidate(d_state, z, new, h, keep, row)
    tl.store(d_pre + row * D_WIDTH + N + col, d_z, mask=inside)
    tl.store(d_pre + row * D_WIDTH + 2 * N + col, d_c, mask=inside)
    tl.store(carried + dense, d_direct, mask=inside)


@triton.jit(do_not_specialize=["rows", "skip", "skip_before"])
def gates_backward(
    product, carried, gates, before, d_pre, rows, skip, skip_before,
    N: tl.constexpr, WIDTH: tl.constexpr, D_WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """exact, after the product with U: d_pre of r, and what h gets through r * h."""
    col, inside = unit_block(N, BLOCK)
    row = tape_row(rows, skip)
    dense = tl.program_id(0).to(tl.int64) * N + col
    d_rh = load(product + dense, inside)
    r = load(gates + row * WIDTH + col, inside)
    h = load(before + tape_row(rows, skip_before) * N + col, inside)
    tl.store(d_pre + row * D_WIDTH + col, d_rh * h * r * (1 - r), mask=inside)
    tl.store(carried + dense, load(carried + dense, inside) + d_rh * r, mask=inside)


@triton.jit(do_not_specialize=["rows", "skip", "skip_before"])
def reset_after_backward(
    d_h, carried, gates, Uh, c, before, keep, d_pre, d_Uh, rows, skip, skip_before,
    N: tl.constexpr, WIDTH: tl.constexpr, D_WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """reset_after: d_pre of r, z and c, of U h, and what h gets directly."""
    col, inside = unit_block(N, BLOCK)
    row = tape_row(rows, skip)
    dense = tl.program_id(0).to(tl.int64) * N + col
    d_state = load(carried + dense, inside) + load(d_h + row * N + col, inside)
    r = load(gates + row * WIDTH + col, inside)
    z = load(gates + row * WIDTH + N + col, inside)
    new = load(c + row * N + col, inside)
    h = load(before + tape_row(rows, skip_before) * N + col, inside)
    d_z, d_c, d_direct = through_candidate(d_state, z, new, h, keep, row)
    d_r = d_c * load(Uh + row * WIDTH + col, inside) * r * (1 - r)
    at = d_pre + row * D_WIDTH + col
    tl.store(at, d_r, mask=inside)
    tl.store(at + N, d_z, mask=inside)
    tl.store(at + 2 * N, d_c, mask=inside)
    tl.store(d_Uh + row * D_WIDTH + col, d_c * r, mask=inside)
    tl.store(carried + dense, d_direct, mask=inside)


def _grid(h: Tensor) -> tuple[int, int]:
    groups, rows, n = h.shape
    return groups * rows, triton.cdiv(n, BLOCK)


def _tape_stride(stored: Tensor) -> int:
    return stored.stride(0) // stored.shape[-1]


def gru_forward(
    x: Tensor,
    context: Tensor | None,
    tape: GruTape,
    U: Tensor | None,
    h: Tensor,
    keep: Tensor | None,
) -> None:
    """One step of all cells: h [G, B, n] in float32 moves on, and the tape is filled.

    x [G, B, 3n] is the input's share of r, z and c, stored like the tape; context [G, B, 3n] more
    of the same, dense; U [G, n, n] of the exact cell; keep [G, B] is 0 where the state is copied.
    """
    _, rows, n = h.shape
    skip, width = _tape_stride(tape.c), tape.gates.stride(1)
    if tape.Uh is not None:
        reset_after_forward[_grid(h)](
            x, context, tape.gates, tape.Uh, h, tape.c, tape.h, keep, rows, skip, n, width, BLOCK
        )
        return
    assert U is not None
    assert tape.rh is not None
    gates_forward[_grid(h)](x, context, tape.gates, h, tape.rh, rows, skip, n, width, BLOCK)
    product = torch.bmm(tape.rh, U.mT)
    candidate_forward[_grid(h)](
        x, context, product, tape.gates, h, tape.c, tape.h, keep, rows, skip, n, width, BLOCK
    )


def gru_backward(
    d_h: Tensor, carried: Tensor, tape: GruTape, before: Tensor, U: Tensor | None,
    keep: Tensor | None, d_pre: Tensor, d_Uh: Tensor | None,
) -> None:  # fmt: skip
    """One step back: `carried` [G, B, n] float32 becomes the direct gradient of the old state.

    The gradient of the new state is carried + d_h; `before` is the old state from the tape of the
    step before. Fills d_pre [G, B, 3n], the gradients of the pre-activations of r, z and c, and
    d_Uh [G, B, n] where the reset acts after. What reaches the old state through the recurrent
    gates (and U h) is left to a product of the caller's.
    """
    _, rows, n = carried.shape
    skip, skip_before = _tape_stride(tape.c), _tape_stride(before)
    sizes = (rows, skip, skip_before, n, tape.gates.stride(1), d_pre.stride(1), BLOCK)
    grid = _grid(carried)
    if tape.Uh is not None:
        reset_after_backward[grid](
            d_h, carried, tape.gates, tape.Uh, tape.c, before, keep, d_pre, d_Uh, *sizes
        )
        return
    assert U is not None
    candidate_backward[grid](d_h, carried, tape.gates, tape.c, before, keep, d_pre, *sizes)
    product = torch.bmm(d_pre[..., 2 * n :], U)
    gates_backward[grid](product, carried, tape.gates, before, d_pre, *sizes)
