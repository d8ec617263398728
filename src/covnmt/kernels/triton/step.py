# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""One step of decoding on a GPU, without gradients: from the last tokens to the next features.

A hypothesis is one row that has everything the products read, side by side:

    t (n) | s (2n) | y = E[w] + b (m) | 1 | zeros up to whole 16 bytes

So each product reads a slice of columns and nothing is copied together, and the column that is
always 1 has the biases as its weights:

    inputs   [R; G; 0] t + Cx s + W y + b    of r and z, and of c without its recurrent share
    attend   [W_a; S] t                      q and `S_t` of `triton_attention`
    readout  U_o t + C_o s + V_o y + b_o

The paper's order attends, then updates; the code's order updates, then attends. Launches and
memory traffic: docs/kernels.md. Letters as in `reference`; S sentences with K rows each, R = S K.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from covnmt.kernels import reference
from covnmt.kernels.tensors import BeamBuffers, DecodingWeights, EncodedSource
from covnmt.kernels.triton import attention as triton_attention
from covnmt.kernels.triton.attention import AttentionSource
from covnmt.kernels.triton.coverage import CoverageConstants
from covnmt.kernels.triton.gru import load, sigmoid, tanh, unit_block
from covnmt.kernels.triton.products import ROW_MULTIPLE

BLOCK = 1024  # columns of one program


@triton.jit
def row_index():
    return tl.program_id(0).to(tl.int64)


@triton.jit
def reset_kernel(rows, inputs, rt, N: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """r * t, which the exact cell multiplies with U."""
    col, inside = unit_block(N, BLOCK)
    r = sigmoid(load(inputs + row_index() * 3 * N + col, inside))
    t = load(rows + row_index() * WIDTH + col, inside)
    tl.store(rt + row_index() * N + col, r * t, mask=inside)


@triton.jit
def update_kernel(
    rows, inputs, product, updated,
    N: tl.constexpr, WIDTH: tl.constexpr, RESET_AFTER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows with the next state; product is U (r * t), or U t where the reset acts after."""
    col, inside = unit_block(WIDTH, BLOCK)
    is_state = col < N
    inputs += row_index() * 3 * N
    recurrent = load(product + row_index() * N + col, is_state)
    if RESET_AFTER:
        recurrent *= sigmoid(load(inputs + col, is_state))
    z = sigmoid(load(inputs + N + col, is_state))
    c = tanh(load(inputs + 2 * N + col, is_state) + recurrent)
    old = load(rows + row_index() * WIDTH + col, inside)
    new = tl.where(is_state, old + z * (c - old), old)
    tl.store(updated + row_index() * WIDTH + col, new, mask=inside)


@triton.jit
def maxout_kernel(o, p, N: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """The larger of units 2k and 2k + 1; zeros after the last."""
    col, inside = unit_block(WIDTH, BLOCK)
    pair = o + row_index() * N + 2 * col
    best = tl.maximum(load(pair, col < N // 2), load(pair + 1, col < N // 2))
    tl.store(p + row_index() * WIDTH + col, best, mask=inside)


@triton.jit(do_not_specialize=["slots_before", "J"])
def extend_beam_kernel(
    attended, C_attended, alpha, parents, token_ids, table, clock, rows, C, record, slots_before, J,
    N: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy a row of the next beam from its parent's, with its own token; record its attention."""
    col, inside = unit_block(WIDTH, BLOCK)
    parent = tl.load(parents + row_index())
    token = tl.load(token_ids + row_index()) * (WIDTH - 3 * N)
    carried = tl.load(attended + parent * WIDTH + col, mask=col < 3 * N, other=0.0)
    y = tl.load(table + token + col - 3 * N, mask=inside & (col >= 3 * N), other=0.0)
    tl.store(rows + row_index() * WIDTH + col, tl.where(col < 3 * N, carried, y), mask=inside)
    for start in range(tl.program_id(1) * BLOCK, J * D, tl.num_programs(1) * BLOCK):
        unit = start + tl.arange(0, BLOCK)
        covered = tl.load(C_attended + parent * J * D + unit, mask=unit < J * D)
        tl.store(C + row_index() * J * D + unit, covered, mask=unit < J * D)
    # J is less than a block, so only the first program of a row has these
    row = tl.load(clock + 1) * tl.num_programs(0) + row_index()
    attention = tl.load(alpha + row_index() // slots_before * J + col, mask=col < J)
    tl.store(record + row * J + col, attention, mask=col < J)


def _pad_columns(matrix: Tensor) -> Tensor:
    """Append columns of zeros, so that rows have whole 16 bytes."""
    return pad(matrix, (0, -matrix.shape[1] % ROW_MULTIPLE))


def _pad_rows(matrix: Tensor) -> Tensor:
    """Append rows of zeros, so that rows of products have whole 16 bytes."""
    return pad(matrix, (0, 0, 0, -len(matrix) % ROW_MULTIPLE))


def _append_bias(matrix: Tensor, weights: Tensor) -> Tensor:
    """Append the weights of the column that is always 1 to a matrix [., m]."""
    return _pad_columns(torch.cat([matrix, weights.unsqueeze(1)], dim=1))


class PackedWeights(NamedTuple):
    """A model's weights as the products want them: packed, padded and in their precision."""

    table: Tensor  # [V, e] the tokens' y, each with its 1 and zeros
    inputs: Tensor  # [3n, 3n + e]
    U: Tensor  # [n, n]
    attend: Tensor  # [n + g d padded, n]
    readout: Tensor  # [n, 3n + e]
    W_1: Tensor | None  # [q padded, n / 2 padded]

    @classmethod
    def of(cls, weights: DecodingWeights, dtype: torch.dtype) -> "PackedWeights":
        """Pack the weights as they are now."""
        decoder, cell, E = weights.decoder, weights.decoder.cell, weights.E
        n = len(cell.candidate)
        S = None if decoder.coverage is None else decoder.coverage.S

        def packed(matrix: Tensor) -> Tensor:
            return matrix.detach().to(dtype).contiguous()

        token_inputs = _append_bias(cell.W, cell.bias)
        token_readout = _append_bias(weights.V_o, weights.b_o)
        S = E.new_empty(0, n) if S is None else S
        return cls(
            table=packed(_append_bias(E + weights.E_bias, E.new_ones(len(E)))),
            inputs=packed(torch.cat([pad(cell.gates, (0, 0, 0, n)), decoder.Cx, token_inputs], 1)),
            U=packed(cell.candidate),
            attend=packed(torch.cat([decoder.W_a, _pad_rows(S)])),
            readout=packed(torch.cat([weights.U_o, weights.C_o, token_readout], 1)),
            W_1=None if weights.W_1 is None else packed(_pad_columns(_pad_rows(weights.W_1))),
        )


class TritonDecoderStep:
    """A model's step in this precision; `decoder.supports` says for which coverage models."""

    def __init__(self, weights: DecodingWeights, dtype: torch.dtype) -> None:
        self.decoder, coverage = weights.decoder, weights.decoder.coverage
        assert coverage is not None
        self.n = len(self.decoder.cell.candidate)
        self.weights = PackedWeights.of(weights, dtype)
        self.kind = CoverageConstants.of(coverage, dtype)
        V_a = self.decoder.V_a
        V = None if V_a is None else V_a.detach().T.contiguous().to(dtype)
        # what the attention kernel reads itself
        self.small_weights = self.decoder.v, V, coverage.P, coverage.gates, coverage.candidate
        self.one = 3 * self.n + weights.E.shape[1]  # the column that is always 1
        self.embedding_columns = self.weights.table.shape[1]

    def supports_length(self, J: int) -> bool:
        """Return whether sentences may have J tokens."""
        return J <= triton_attention.MAX_TOKENS

    def __call__(
        self, buffers: BeamBuffers, first: bool, select: Callable[[Tensor], Tensor]
    ) -> None:
        """Score the rows, let `select` turn features into parent rows, and extend the beam."""
        source = self.attention_source(buffers.source)
        rows, C = self.start(buffers.source) if first else (buffers.rows, buffers.C)
        rows, C, alpha = self.advance(source, rows, C, first)
        self.extend_beam(buffers, rows, C, alpha, select(self.features(rows)))

    def attention_source(self, source: EncodedSource) -> AttentionSource:
        """Collect what attention reads besides the rows."""
        mask = source.mask.view(torch.uint8)
        return AttentionSource(source.h, source.keys, source.Phi, mask, *self.small_weights)

    def start(self, source: EncodedSource) -> tuple[Tensor, Tensor]:
        """Rows and coverage before the first step, one row for each sentence; y is zero."""
        S, J = source.mask.shape
        rows = source.h.new_zeros(S, 3 * self.n + self.embedding_columns)
        W_init, b_init = self.decoder.W_init, self.decoder.b_init
        rows[:, : self.n] = reference.initial_state(source.h, W_init, b_init)
        rows[:, self.one] = 1
        C = rows.new_full((S, J, self.kind.d), self.kind.start, dtype=torch.float32)
        return rows, C

    def advance(
        self, source: AttentionSource, rows: Tensor, C: Tensor, first: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows that predict the next token, their coverage, and alpha [R, J].

        In the paper's order the old rows get the new contexts, too.
        """
        if self.decoder.order == "paper":
            C, alpha = self.attend(source, rows, C)
            return self.update(rows), C, alpha
        if not first:
            rows = self.update(rows)
        return rows, *self.attend(source, rows, C)

    def update(self, rows: Tensor) -> Tensor:
        """Return new rows with the next state instead of the last."""
        n, grid = self.n, (len(rows), triton.cdiv(self.n, BLOCK))
        inputs = rows @ self.weights.inputs.T  # [R, 3n]
        t = rows[:, :n]
        if not self.decoder.cell.reset_after:
            t = rows.new_empty(len(rows), n)
            reset_kernel[grid](rows, inputs, t, n, rows.shape[1], BLOCK)
        product = t @ self.weights.U.T
        updated = torch.empty_like(rows)
        update_kernel[(len(rows), triton.cdiv(rows.shape[1], BLOCK))](
            rows, inputs, product, updated, n, rows.shape[1], self.decoder.cell.reset_after, BLOCK
        )
        return updated

    def attend(self, source: AttentionSource, rows: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
        """Return the new coverage and alpha; write the contexts to the rows."""
        n = self.n
        product = rows[:, :n] @ self.weights.attend.T
        C_next = torch.empty_like(C)
        alpha = rows.new_empty(len(rows), source.mask.shape[1], dtype=torch.float32)
        triton_attention.attend(
            self.kind, source, product[:, :n], product[:, n:], C, alpha,
            rows[:, n : 3 * n], C_next, hypotheses=len(rows) // len(source.h),
        )  # fmt: skip
        return C_next, alpha

    def features(self, rows: Tensor) -> Tensor:
        """Compute the layer before the logits [R, q], with zeros up to whole 16 bytes."""
        width = self.n // 2 + -(self.n // 2) % ROW_MULTIPLE
        o = rows @ self.weights.readout.T  # [R, n]
        p = rows.new_empty(len(rows), width)
        maxout_kernel[(len(rows), triton.cdiv(width, BLOCK))](o, p, self.n, width, BLOCK)
        return p if self.weights.W_1 is None else p @ self.weights.W_1.T

    def extend_beam(
        self, buffers: BeamBuffers, rows: Tensor, C: Tensor, alpha: Tensor, parents: Tensor
    ) -> None:
        """Write the beam that continues these rows [R] with the tokens just chosen."""
        R, width = buffers.rows.shape
        extend_beam_kernel[(R, triton.cdiv(width, BLOCK))](
            rows, C, alpha, parents, buffers.token_ids, self.weights.table, buffers.clock,
            buffers.rows, buffers.C, buffers.alpha, R // len(rows), C.shape[1],
            self.n, width, self.kind.d, BLOCK,
        )  # fmt: skip
