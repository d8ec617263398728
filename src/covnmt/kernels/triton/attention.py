# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""One attention step on a GPU: energies, softmax, context and coverage in one Triton kernel.

One program works on one sentence and holds all its J tokens, so the softmax, the context and the
update of the coverage need no other program. Sums over tokens are products on the tensor cores,
sums over units wait for the last tile: neither makes the warps wait for each other at every tile.
The backward kernel recomputes the tanh of the energies and the gates of the coverage network.
Gradients to which every step adds (keys, V_a, v and the coverage network) wait until the loop is
over: two more kernels sum them in registers, in a fixed order and without atomics.

Letters as in `reference`; `S_t` is S t, the decoder state's share of the coverage network's
inputs, and d_x the gradient of all its inputs. Derivation and memory traffic: docs/kernels.md.
"""

import os
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from covnmt.kernels import gpu
from covnmt.kernels.triton.coverage import (
    CoverageConstants,
    cover,
    cover_backward,
    load_coverage_weights,
    load_units,
    store_units,
)
from covnmt.kernels.triton.gru import load, tanh

MAX_TOKENS = 512  # source tokens that one program can hold


class Tiling(NamedTuple):
    """How a program goes over its units: in tiles of all tokens by as many units as fit."""

    elements: int  # tokens x units of a tile of keys
    warps: int
    stages: int  # tiles that are loaded ahead at a time
    wide: int = 0  # tokens x units of a tile of annotations


# Few rows are fastest with large programs, one for each multiprocessor; many rows with small
# programs, several on each multiprocessor. In the backward pass, sentences of 33 to 64 tokens are
# faster with two programs on each, however few rows there are (measured with 25, 48 and 96). With
# more tokens four warps run out of registers: with coverage they need all 255 from 65 tokens on,
# and spill from 129 on.
FEW_ROWS_LIMIT = 256
FEW_ROWS = Tiling(4096, warps=8, stages=3, wide=16384)
MEDIUM_BACK = Tiling(4096, warps=4, stages=3, wide=8192)
MANY_ROWS = Tiling(2048, warps=4, stages=3, wide=8192)
MANY_UNITS = Tiling(1024, warps=4, stages=3, wide=8192)  # many rows forward, with V_a's product
SUMS = Tiling(1024, warps=2, stages=2)
LONG_SUMS = Tiling(2048, warps=2, stages=2)

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


class AttentionSource(NamedTuple):
    """The inputs that stay the same over all steps; weights that a model lacks are None."""

    h: Tensor  # [B, J, 2n]
    keys: Tensor  # [B, J, n]
    Phi: Tensor  # [B, J, g d] or [B, J, 1]
    mask: Tensor  # [B, J] uint8
    v: Tensor  # [n]
    V: Tensor | None  # [d, n] V_a, transposed, in the precision of the keys
    P: Tensor | None  # [g d]
    gates: Tensor | None  # [2d, d]
    candidate: Tensor | None  # [d, d]


@triton.jit
def load_tile(pointer, j, col, J, N: tl.constexpr):
    """[BLOCK_J, BLOCK_N] of a [J, N] matrix, as it is stored."""
    inside = (j < J)[:, None] & (col < N)[None, :]
    return tl.load(pointer + j[:, None] * N + col[None, :], mask=inside, other=0.0)


@triton.jit
def load_V(V, col, D: tl.constexpr, N: tl.constexpr):
    """[16, BLOCK_N] of V_a, transposed; of one unit [1, BLOCK_N]."""
    u = tl.arange(0, 1 if D == 1 else 16)
    inside = (u < D)[:, None] & (col < N)[None, :]
    return tl.load(V + u[:, None] * N + col[None, :], mask=inside, other=0.0)


@triton.jit
def product(a, b, total, PRECISION: tl.constexpr):
    """a b + total; where b is bfloat16, a is rounded to it."""
    a = a.to(b.dtype)
    if INTERPRETED:  # the interpreter cannot multiply bfloat16
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, total, input_precision=PRECISION)


@triton.jit
def weighted_sum(weights, tile, PRECISION: tl.constexpr):
    """sum_j weights_j tile_jn, the weights being one row of sixteen."""
    rows = tl.where(tl.arange(0, 16)[:, None] == 0, weights[None, :], 0.0)
    total = tl.zeros([16, tile.shape[1]], tl.float32)
    return tl.sum(product(rows, tile, total, PRECISION), axis=0)


@triton.jit
def load_coverage(C, j, J, D: tl.constexpr):
    """The coverage as `activations` takes it: one unit needs no padding and no product."""
    return load(C + j, j < J)[:, None] if D == 1 else load_units(C, j, J, D, D)


@triton.jit
def activations(q, keys, V, C, D: tl.constexpr, PRECISION: tl.constexpr, QUICK: tl.constexpr):
    """tanh(W_a t + U_a h_j + V_a C_j), all but C for a tile of units."""
    inner = keys.to(tl.float32) + q[None, :]
    if D == 1:
        inner += C * V
    if D > 1:
        inner = product(C, V, inner, PRECISION)
    if QUICK and not INTERPRETED:
        # the hardware's own, right to 11 bits
        return tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [inner], dtype=tl.float32, is_pure=True, pack=1
        )
    return tanh(inner)


@triton.jit(do_not_specialize=["J"])
def attention_forward_kernel(
    q, S_t, keys, h, mask, v, V, Phi, P, gates, candidate, C, alpha, s, C_next, sign, J,
    N: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr, KIND: tl.constexpr,
    PRECISION: tl.constexpr, S_WIDTH: tl.constexpr, HYPOTHESES: tl.constexpr,
    BLOCK_J: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """alpha_i, s_i and C_i of one row from q = W_a t, `S_t` = S t and C_{i-1}.

    HYPOTHESES rows in sequence share a sentence.
    """
    QUICK: tl.constexpr = keys.dtype.element_ty == tl.bfloat16
    b = tl.program_id(0).to(tl.int64)
    sentence = b // HYPOTHESES
    j = tl.arange(0, BLOCK_J)
    S_t += b * WIDTH
    seen = load_coverage(C + b * J * D, j, J, D) if D > 0 else 0.0
    if D > 0:
        covered = load_units(C + b * J * D, j, J, D, D)
        loaded = load_coverage_weights(Phi, S_t, P, gates, candidate, sentence, j, J, KIND, D)
    shares = tl.zeros([BLOCK_J, BLOCK_N], tl.float32)
    for start in tl.range(0, N, BLOCK_N, num_stages=STAGES):
        col = start + tl.arange(0, BLOCK_N)
        tile = load_tile(keys + sentence * J * N, j, col, J, N)
        q_tile = load(q + b * WIDTH + col, col < N)
        V_tile = load_V(V, col, D, N) if D > 0 else 0.0
        activation = activations(q_tile, tile, V_tile, seen, D, PRECISION, QUICK)
        shares += activation * load(v + col, col < N)[None, :]
    keep = tl.load(mask + sentence * J + j, mask=j < J, other=0) != 0
    e = tl.where(keep, tl.sum(shares, axis=1), float("-inf"))
    p = tl.exp(e - tl.max(e, axis=0))
    a = p / tl.sum(p, axis=0)
    tl.store(alpha + b * J + j, a, mask=j < J)
    for start in tl.range(0, 2 * N, BLOCK_H, num_stages=STAGES):
        col = start + tl.arange(0, BLOCK_H)
        tile = load_tile(h + sentence * J * 2 * N, j, col, J, 2 * N)
        tl.store(s + b * S_WIDTH + col, weighted_sum(a, tile, PRECISION), mask=col < 2 * N)
    if D > 0:
        covered = cover(covered, a, loaded, sign, KIND, PRECISION)
        store_units(C_next + b * J * D, covered, j, J, D, D)


@triton.jit(do_not_specialize=["J"])
def attention_backward_kernel(
    q, S_t, keys, h, v, V, Phi, P, gates, candidate, C, alpha, d_s, d_alpha,
    d_C, d_q, d_S_t, d_e, d_x, sign, J,
    N: tl.constexpr, WIDTH: tl.constexpr, D_WIDTH: tl.constexpr, D: tl.constexpr,
    KIND: tl.constexpr, PRECISION: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_H: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Gradients of q, `S_t`, e and the network's inputs; d_C moves from C_i to C_{i-1}."""
    QUICK: tl.constexpr = keys.dtype.element_ty == tl.bfloat16
    b = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, BLOCK_J)
    a = load(alpha + b * J + j, j < J)
    d_a = tl.zeros([BLOCK_J], tl.float32)
    if d_alpha is not None:
        d_a += load(d_alpha + b * J + j, j < J)
    seen = load_coverage(C + b * J * D, j, J, D) if D > 0 else 0.0
    if D > 0:
        covered = load_units(C + b * J * D, j, J, D, D)
        d_covered = load_units(d_C + b * J * D, j, J, D, D)
        loaded = load_coverage_weights(Phi, S_t + b * WIDTH, P, gates, candidate, b, j, J, KIND, D)
        d_S_t += b * D_WIDTH
        d_covered, through_C = cover_backward(
            d_covered, covered, a, loaded, sign, d_x, d_S_t, b, j, J, KIND, D, PRECISION
        )
        d_a += through_C
    shares = tl.zeros([BLOCK_J, BLOCK_H], tl.float32)
    for start in tl.range(0, 2 * N, BLOCK_H, num_stages=STAGES):
        col = start + tl.arange(0, BLOCK_H)
        tile = load_tile(h + b * J * 2 * N, j, col, J, 2 * N).to(tl.float32)
        shares += tile * load(d_s + b * 2 * N + col, col < 2 * N)[None, :]
    d_a += tl.sum(shares, axis=1)
    d_energy = a * (d_a - tl.sum(a * d_a, axis=0))
    tl.store(d_e + b * J + j, d_energy, mask=j < J)
    through_V = tl.zeros([BLOCK_J, BLOCK_N] if D == 1 else [16, BLOCK_J], tl.float32)
    for start in tl.range(0, N, BLOCK_N, num_stages=STAGES):
        col = start + tl.arange(0, BLOCK_N)
        tile = load_tile(keys + b * J * N, j, col, J, N)
        q_tile = load(q + b * WIDTH + col, col < N)
        V_tile = load_V(V, col, D, N) if D > 0 else 0.0
        activation = activations(q_tile, tile, V_tile, seen, D, PRECISION, QUICK)
        slope = (1 - activation * activation).to(keys.dtype.element_ty)
        v_tile = load(v + col, col < N)
        through_v = v_tile * weighted_sum(d_energy, slope, PRECISION)
        tl.store(d_q + b * D_WIDTH + col, through_v, mask=col < N)
        if D == 1:
            through_V += slope * (V_tile * v_tile[None, :])
        if D > 1:
            # with the slope on the right, the warps share its tokens instead of repeating them
            through_V = product(V_tile * v_tile[None, :], tl.trans(slope), through_V, PRECISION)
    if D == 1:
        first = (tl.arange(0, 16) == 0).to(tl.float32)
        d_covered += (tl.sum(through_V, axis=1) * d_energy)[:, None] * first[None, :]
    if D > 1:
        d_covered += tl.trans(through_V * d_energy[None, :])
    if D > 0:
        store_units(d_C + b * J * D, d_covered, j, J, D, D)


@triton.jit(do_not_specialize=["steps", "sentences", "J"])
def keys_backward_kernel(
    q, keys, v, V, C, d_e, d_keys, d_v, d_V, steps, sentences, J,
    N: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_J: tl.constexpr, BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Sums over all steps for one sentence and some units: d_keys, and its share of d_v and d_V."""
    QUICK: tl.constexpr = keys.dtype.element_ty == tl.bfloat16
    b = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, BLOCK_J)
    col = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    tile = load_tile(keys + b * J * N, j, col, J, N).to(tl.float32)
    v_tile = load(v + col, col < N)[None, :]
    V_tile = load_V(V, col, D, N) if D > 0 else 0.0
    sum_keys = tl.zeros([BLOCK_J, BLOCK_N], tl.float32)
    sum_v = tl.zeros([BLOCK_J, BLOCK_N], tl.float32)
    sum_V = tl.zeros([BLOCK_J if D == 1 else 16, BLOCK_N], tl.float32)
    seen = load_coverage(C + b * J * D, j, J, D) if D > 0 else 0.0
    for i in tl.range(0, steps, num_stages=STAGES):
        row = i * sentences + b
        if D > 0:
            after = tl.minimum(i + 1, steps - 1) * sentences + b
            # loaded while this step is computed
            prefetched = load_coverage(C + after * J * D, j, J, D)
        q_tile = load(q + row * WIDTH + col, col < N)
        activation = activations(q_tile, tile, V_tile, seen, D, PRECISION, QUICK)
        d_energy = load(d_e + row * J + j, j < J)[:, None]
        sum_v += d_energy * activation
        d_inner = d_energy * v_tile * (1 - activation * activation)
        sum_keys += d_inner
        if D == 1:
            sum_V += seen * d_inner
        if D > 1:
            sum_V = product(tl.trans(seen), d_inner.to(keys.dtype.element_ty), sum_V, PRECISION)
        if D > 0:
            seen = prefetched
    inside = (j < J)[:, None] & (col < N)[None, :]
    tl.store(d_keys + b * J * N + j[:, None] * N + col[None, :], sum_keys, mask=inside)
    tl.store(d_v + b * N + col, tl.sum(sum_v, axis=0), mask=col < N)
    if D == 1:
        tl.store(d_V + b * N + col, tl.sum(sum_V, axis=0), mask=col < N)
    if D > 1:
        u = tl.arange(0, 16)[:, None]
        inside = (u < D) & (col < N)[None, :]
        tl.store(d_V + b * D * N + u * N + col[None, :], sum_V, mask=inside)


def _block_j(J: int, d: int) -> int:
    # the product with V_a splits the tokens over four warps; fewer than 32 would be repeated
    return max(32 if d > 1 else 16, int(triton.next_power_of_2(J)))


def _blocks(block_j: int, n: int, tiling: Tiling) -> dict[str, int]:
    block_n = max(16, min(tiling.elements // block_j, triton.next_power_of_2(n)))
    # a tile has at least 16 units; long sentences then need more warps, and all the memory
    grown = max(1, block_j * block_n // tiling.elements)
    return {
        "BLOCK_J": block_j,
        "BLOCK_N": block_n,
        "STAGES": tiling.stages if block_j < 256 else 1,
        "num_warps": min(16, tiling.warps * grown),
    }


def _attention_blocks(block_j: int, keys: Tensor, tiling: Tiling) -> dict[str, int]:
    """Choose blocks with no more tiles in flight than the GPU can hold."""
    n, tile = keys.shape[2], tiling.wide * keys.element_size()
    tiling = tiling._replace(stages=gpu.fitting_stages(tiling.stages, tile, keys.device))
    block_h = max(16, min(tiling.wide // block_j, triton.next_power_of_2(2 * n)))
    return {**_blocks(block_j, n, tiling), "BLOCK_H": block_h}


def attend(
    kind: CoverageConstants, source: AttentionSource, q: Tensor, S_t: Tensor, C: Tensor,
    alpha: Tensor, s: Tensor, C_next: Tensor, hypotheses: int = 1,
) -> None:  # fmt: skip
    """Attend from q [R, n] and `S_t` [R, g d], columns of one product; write alpha, s and C_next.

    Each sentence has `hypotheses` rows, one after the other.
    """
    _, J, n = source.keys.shape
    many = MANY_UNITS if kind.d > 1 else MANY_ROWS
    tiling = FEW_ROWS if len(q) <= FEW_ROWS_LIMIT else many
    attention_forward_kernel[(len(q),)](
        q, S_t, source.keys, source.h, source.mask, source.v, source.V, source.Phi, source.P,
        source.gates, source.candidate, C, alpha, s, C_next, kind.sign, J, n, q.stride(0), kind.d,
        kind.name, kind.precision, s.stride(0), hypotheses,
        **_attention_blocks(_block_j(J, kind.d), source.keys, tiling),
    )  # fmt: skip


def attend_backward(
    kind: CoverageConstants, source: AttentionSource, q: Tensor, S_t: Tensor, C: Tensor,
    alpha: Tensor, d_s: Tensor, d_alpha: Tensor | None, d_C: Tensor, d_q: Tensor,
    d_S_t: Tensor, d_e: Tensor, d_x: Tensor,
) -> None:  # fmt: skip
    """From d_s, d_alpha and d_C of C_i compute d_q, d_S_t, d_e, d_x and d_C of C_{i-1}."""
    B, J, n = source.keys.shape
    block_j = _block_j(J, kind.d)
    few = MEDIUM_BACK if block_j == 64 else FEW_ROWS
    tiling = few if B <= FEW_ROWS_LIMIT else MANY_ROWS
    attention_backward_kernel[(B,)](
        q, S_t, source.keys, source.h, source.v, source.V, source.Phi, source.P, source.gates,
        source.candidate, C, alpha, d_s, d_alpha, d_C, d_q, d_S_t, d_e, d_x, kind.sign, J, n,
        q.stride(0), d_q.stride(0), kind.d, kind.name, kind.precision,
        **_attention_blocks(block_j, source.keys, tiling),
    )  # fmt: skip


def attention_weight_gradients(
    kind: CoverageConstants, source: AttentionSource, q: Tensor, C: Tensor, d_e: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Sum d_keys, d_v and d_V over all steps: q [I, B, n], C [>= I, B, J, d], d_e [I, B, J]."""
    B, J, n = source.keys.shape
    d_keys = torch.empty_like(source.keys)
    d_v = source.v.new_empty(B, n, dtype=torch.float32)
    d_V = None if source.V is None else d_v.new_empty(B, kind.d, n)
    block_j = _block_j(J, kind.d)
    blocks = _blocks(block_j, n, SUMS if block_j <= 32 else LONG_SUMS)
    keys_backward_kernel[(B, triton.cdiv(n, blocks["BLOCK_N"]))](
        q, source.keys, source.v, source.V, C, d_e, d_keys, d_v, d_V, q.shape[0], B, J,
        n, q.stride(1), kind.d, kind.precision, **blocks,
    )  # fmt: skip
    return d_keys, d_v.sum(0), None if d_V is None else d_V.sum(0)
