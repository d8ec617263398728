# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The coverage networks (paper, section 3.1.2) inside Triton kernels, forward and backward.

A program holds all J words of a sentence, their d units padded to 16, the least that the tensor
cores take. Padding is zero and stays zero: its weights are.

`given` is S t, the decoder state's share of the network's inputs; d_x the gradient of all inputs,
g d for each word (g gates: r, z and c, or only c). Derivation: docs/kernels.md.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from covnmt.ops.triton_gru import load, sigmoid, tanh

WIDEST = 16  # coverage units


class Kind(NamedTuple):
    """Which coverage model, and how precisely Triton multiplies its matrices."""

    name: str  # none, linguistic, tanh or gru
    d: int  # coverage units
    start: float  # C_0
    sign: float  # whether linguistic coverage adds or subtracts
    precision: str  # ieee or tf32

    @property
    def inputs(self) -> int:
        """g d, the pre-activations of the coverage network for one word."""
        return {"gru": 3, "tanh": 1}.get(self.name, 0) * self.d


@triton.jit
def load_units(pointer, j, J, D: tl.constexpr, STRIDE: tl.constexpr):
    """[BLOCK_J, 16]: D values for each word, and zeros."""
    u = tl.arange(0, 16)
    inside = (j < J)[:, None] & (u < D)[None, :]
    return load(pointer + j[:, None] * STRIDE + u[None, :], inside)


@triton.jit
def store_units(pointer, value, j, J, D: tl.constexpr, STRIDE: tl.constexpr):
    u = tl.arange(0, 16)
    inside = (j < J)[:, None] & (u < D)[None, :]
    tl.store(pointer + j[:, None] * STRIDE + u[None, :], value, mask=inside)


@triton.jit
def load_row(pointer, D: tl.constexpr):
    """[1, 16]: D values, and zeros."""
    u = tl.arange(0, 16)
    return load(pointer + u, u < D)[None, :]


@triton.jit
def store_row(pointer, value, D: tl.constexpr):
    u = tl.arange(0, 16)
    tl.store(pointer + u, value, mask=u < D)


@triton.jit
def load_matrix(pointer, D: tl.constexpr):
    """[16, 16]: a D x D matrix, and zeros."""
    u = tl.arange(0, 16)
    inside = (u < D)[:, None] & (u < D)[None, :]
    return load(pointer + u[:, None] * D + u[None, :], inside)


@triton.jit
def network_input(Phi, given, P, a, j, J, gate: tl.constexpr, D: tl.constexpr, G: tl.constexpr):
    """P alpha + Phi_j + S t for one gate [BLOCK_J, 16]."""
    own = load_units(Phi + gate * D, j, J, D, G * D)
    return own + load_row(given + gate * D, D) + a[:, None] * load_row(P + gate * D, D)


@triton.jit
def recurrent(C, weights, D: tl.constexpr, PRECISION: tl.constexpr):
    return tl.dot(C, tl.trans(load_matrix(weights, D)), input_precision=PRECISION)


@triton.jit
def reset_gate(C, a, Phi, given, P, gates, j, J, D: tl.constexpr, PRECISION: tl.constexpr):
    return sigmoid(
        network_input(Phi, given, P, a, j, J, 0, D, 3) + recurrent(C, gates, D, PRECISION)
    )


@triton.jit
def gru_network(
    C, a, Phi, given, P, gates, candidate, j, J, D: tl.constexpr, PRECISION: tl.constexpr
):
    r = reset_gate(C, a, Phi, given, P, gates, j, J, D, PRECISION)
    z = sigmoid(
        network_input(Phi, given, P, a, j, J, 1, D, 3) + recurrent(C, gates + D * D, D, PRECISION)
    )
    c = tanh(
        network_input(Phi, given, P, a, j, J, 2, D, 3) + recurrent(r * C, candidate, D, PRECISION)
    )
    return r, z, c


@triton.jit
def tanh_network(C, a, Phi, given, P, candidate, j, J, D: tl.constexpr, PRECISION: tl.constexpr):
    return tanh(
        network_input(Phi, given, P, a, j, J, 0, D, 1) + recurrent(C, candidate, D, PRECISION)
    )


@triton.jit
def gru_network_backward(
    d_C, C, a, Phi, given, P, gates, candidate, d_x, d_given, j, J,
    D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of C_{i-1} and alpha; those of the network's inputs are written."""
    r, z, c = gru_network(C, a, Phi, given, P, gates, candidate, j, J, D, PRECISION)
    d_c = d_C * z * (1 - c * c)
    d_z = d_C * (c - C) * z * (1 - z)
    d_rC = tl.dot(d_c, load_matrix(candidate, D), input_precision=PRECISION)
    d_r = d_rC * C * r * (1 - r)
    d_C = d_C * (1 - z) + d_rC * r
    d_C = tl.dot(d_r, load_matrix(gates, D), d_C, input_precision=PRECISION)
    d_C = tl.dot(d_z, load_matrix(gates + D * D, D), d_C, input_precision=PRECISION)
    store_units(d_x, d_r, j, J, D, 3 * D)
    store_units(d_x + D, d_z, j, J, D, 3 * D)
    store_units(d_x + 2 * D, d_c, j, J, D, 3 * D)
    store_row(d_given, tl.sum(d_r, axis=0), D)
    store_row(d_given + D, tl.sum(d_z, axis=0), D)
    store_row(d_given + 2 * D, tl.sum(d_c, axis=0), D)
    through_P = d_r * load_row(P, D) + d_z * load_row(P + D, D) + d_c * load_row(P + 2 * D, D)
    return d_C, tl.sum(through_P, axis=1)


@triton.jit
def tanh_network_backward(
    d_C, C, a, Phi, given, P, candidate, d_x, d_given, j, J,
    D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    c = tanh_network(C, a, Phi, given, P, candidate, j, J, D, PRECISION)
    d_c = d_C * (1 - c * c)
    store_units(d_x, d_c, j, J, D, D)
    store_row(d_given, tl.sum(d_c, axis=0), D)
    d_C = tl.dot(d_c, load_matrix(candidate, D), input_precision=PRECISION)
    return d_C, tl.sum(d_c * load_row(P, D), axis=1)


@triton.jit(do_not_specialize=["steps", "sentences", "J"])
def network_backward(
    given, Phi, P, gates, C, alpha, d_x, d_Phi, d_P, d_W, steps, sentences, J,
    G: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """Sums over all steps for one sentence and one gate: d_Phi, and its share of d_P and d_W."""
    b = tl.program_id(0).to(tl.int64)
    gate = tl.program_id(1)
    j = tl.arange(0, BLOCK_J)
    sum_Phi = tl.zeros([BLOCK_J, 16], tl.float32)
    sum_P = tl.zeros([16], tl.float32)
    sum_W = tl.zeros([16, 16], tl.float32)
    for i in range(steps):
        row = i * sentences + b
        a = load(alpha + row * J + j, j < J)
        covered = load_units(C + row * J * D, j, J, D, D)
        d_gate = load_units(d_x + row * J * G * D + gate * D, j, J, D, G * D)
        sum_Phi += d_gate
        sum_P += tl.sum(a[:, None] * d_gate, axis=0)
        # the candidate of the GRU reads r * C, everything else C itself
        if G == 3:
            at, now = Phi + b * J * 3 * D, given + row * WIDTH
            r = reset_gate(covered, a, at, now, P, gates, j, J, D, PRECISION)
            covered *= tl.where(gate == 2, r, 1.0)
        sum_W = tl.dot(tl.trans(d_gate), covered, sum_W, input_precision=PRECISION)
    store_units(d_Phi + b * J * G * D + gate * D, sum_Phi, j, J, D, G * D)
    store_row(d_P + b * G * D + gate * D, sum_P, D)
    store_units(d_W + (b * G + gate) * D * D, sum_W, tl.arange(0, 16), D, D, D)


def sums(
    kind: Kind, Phi: Tensor, P: Tensor, gates: Tensor | None,
    given: Tensor, C: Tensor, alpha: Tensor, d_x: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """d_Phi [B, J, g d], d_P [g d] and the recurrent weights' [g d, d] over all steps.

    given [I, B, g d] is a slice of columns, C [>= I, B, J, d], alpha [I, B, J], d_x [I, B, J, g d].
    """
    steps, B, J = alpha.shape
    d, g = kind.d, kind.inputs // kind.d
    d_Phi = torch.empty_like(Phi)
    d_P = alpha.new_empty(B, g * d)
    d_W = alpha.new_empty(B, g * d, d)
    block = max(16, triton.next_power_of_2(J))
    network_backward[(B, g)](
        given, Phi, P, gates, C, alpha, d_x, d_Phi, d_P, d_W, steps, B, J, g, given.stride(1), d,
        kind.precision, block, num_warps=4 if block < 128 else 8,
    )  # fmt: skip
    return d_Phi, d_P.sum(0), d_W.sum(0)
