# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The coverage networks (paper, section 3.1.2) inside Triton kernels, forward and backward.

A program holds all J tokens of a sentence, their d units padded to 16, the least that the tensor
cores take. Padding is zero and stays zero: its weights are.

`S_t` is S t, the decoder state's share of the network's inputs; d_x the gradient of all inputs,
g d for each token (g gates: r, z and c, or only c). Derivation: docs/kernels.md.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from covnmt.kernels import gpu
from covnmt.kernels.tensors import CoverageKernel
from covnmt.kernels.triton.gru import load, sigmoid, tanh

MAX_UNITS = 16  # coverage units
STAGES = 3  # steps of the sums in progress at a time


class CoverageConstants(NamedTuple):
    """The constants of a coverage model, and how precisely Triton multiplies its matrices."""

    name: str  # none, linguistic, tanh or gru
    d: int  # coverage units
    inputs: int  # g d, the pre-activations of the coverage network for one token
    start: float  # C_0
    sign: float  # whether linguistic coverage adds or subtracts
    precision: str  # ieee or tf32

    @classmethod
    def of(cls, coverage: CoverageKernel, dtype: torch.dtype) -> "CoverageConstants":
        """Take the constants of this model; `dtype` is the precision of all other products."""
        tf32 = dtype != torch.float32 or torch.backends.cuda.matmul.fp32_precision == "tf32"
        return cls(
            coverage.kind,
            coverage.size,
            coverage.inputs,
            coverage.start,
            coverage.sign,
            "tf32" if tf32 else "ieee",
        )


@triton.jit
def load_units(pointer, j, J, D: tl.constexpr, STRIDE: tl.constexpr):
    """[BLOCK_J, 16]: D values for each token, and zeros."""
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
def network_input(Phi, S_t, j, J, gate: tl.constexpr, D: tl.constexpr, G: tl.constexpr):
    """Phi_j + S t for one gate [BLOCK_J, 16]."""
    return load_units(Phi + gate * D, j, J, D, G * D) + load_row(S_t + gate * D, D)


@triton.jit
def recurrent(C, weights, total, PRECISION: tl.constexpr):
    return tl.dot(C, tl.trans(weights), total, input_precision=PRECISION)


@triton.jit
def load_coverage_weights(
    Phi, S_t, P, gates, candidate, sentence, j, J, KIND: tl.constexpr, D: tl.constexpr
):
    """Load what the next coverage is computed from besides C and alpha.

    Of a network: inputs, P and weights, for r, z and c or only c. Kernels load them before they go
    over the units, so that nothing waits for them afterwards.
    """
    if KIND == "linguistic":
        loaded = tl.load(Phi + sentence * J + j, mask=j < J, other=1.0).to(tl.float32)
    if KIND == "tanh":
        x = network_input(Phi + sentence * J * D, S_t, j, J, 0, D, 1)
        loaded = (x, load_row(P, D), load_matrix(candidate, D))
    if KIND == "gru":
        Phi += sentence * J * 3 * D
        loaded = (
            network_input(Phi, S_t, j, J, 0, D, 3),
            network_input(Phi, S_t, j, J, 1, D, 3),
            network_input(Phi, S_t, j, J, 2, D, 3),
            load_row(P, D),
            load_row(P + D, D),
            load_row(P + 2 * D, D),
            load_matrix(gates, D),
            load_matrix(gates + D * D, D),
            load_matrix(candidate, D),
        )
    return loaded


@triton.jit
def gru_network(C, a, loaded, PRECISION: tl.constexpr):
    x_r, x_z, x_c, P_r, P_z, P_c, W_r, W_z, W_c = loaded
    r = sigmoid(recurrent(C, W_r, x_r + a[:, None] * P_r, PRECISION))
    z = sigmoid(recurrent(C, W_z, x_z + a[:, None] * P_z, PRECISION))
    c = tanh(recurrent(r * C, W_c, x_c + a[:, None] * P_c, PRECISION))
    return r, z, c


@triton.jit
def tanh_network(C, a, loaded, PRECISION: tl.constexpr):
    x, P, W = loaded
    return tanh(recurrent(C, W, x + a[:, None] * P, PRECISION))


@triton.jit
def gru_network_backward(
    d_C, C, a, loaded, d_x, d_S_t, j, J, D: tl.constexpr, PRECISION: tl.constexpr
):
    """Gradients of C_{i-1} and alpha; those of the network's inputs are written."""
    r, z, c = gru_network(C, a, loaded, PRECISION)
    _, _, _, P_r, P_z, P_c, W_r, W_z, W_c = loaded
    d_c = d_C * z * (1 - c * c)
    d_z = d_C * (c - C) * z * (1 - z)
    d_rC = tl.dot(d_c, W_c, input_precision=PRECISION)
    d_r = d_rC * C * r * (1 - r)
    d_C = d_C * (1 - z) + d_rC * r
    d_C = tl.dot(d_r, W_r, d_C, input_precision=PRECISION)
    d_C = tl.dot(d_z, W_z, d_C, input_precision=PRECISION)
    store_units(d_x, d_r, j, J, D, 3 * D)
    store_units(d_x + D, d_z, j, J, D, 3 * D)
    store_units(d_x + 2 * D, d_c, j, J, D, 3 * D)
    store_row(d_S_t, tl.sum(d_r, axis=0), D)
    store_row(d_S_t + D, tl.sum(d_z, axis=0), D)
    store_row(d_S_t + 2 * D, tl.sum(d_c, axis=0), D)
    return d_C, tl.sum(d_r * P_r + d_z * P_z + d_c * P_c, axis=1)


@triton.jit
def tanh_network_backward(
    d_C, C, a, loaded, d_x, d_S_t, j, J, D: tl.constexpr, PRECISION: tl.constexpr
):
    c = tanh_network(C, a, loaded, PRECISION)
    _, P, W = loaded
    d_c = d_C * (1 - c * c)
    store_units(d_x, d_c, j, J, D, D)
    store_row(d_S_t, tl.sum(d_c, axis=0), D)
    return tl.dot(d_c, W, input_precision=PRECISION), tl.sum(d_c * P, axis=1)


@triton.jit
def cover(C, a, loaded, sign, KIND: tl.constexpr, PRECISION: tl.constexpr):
    """C_i from C_{i-1} and alpha_i."""
    if KIND == "linguistic":
        C = C + sign * (a / loaded)[:, None]
    if KIND == "tanh":
        C = tanh_network(C, a, loaded, PRECISION)
    if KIND == "gru":
        _, z, c = gru_network(C, a, loaded, PRECISION)
        C = C + z * (c - C)
    return C


@triton.jit
def cover_backward(
    d_C, C, a, loaded, sign, d_x, d_S_t, row, j, J,
    KIND: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of C_{i-1} and alpha; d_x and those of `S_t` are written."""
    if KIND == "linguistic":
        store_units(d_x + row * J, d_C, j, J, 1, 1)
        d_a = sign * tl.sum(d_C, axis=1) / loaded
    if KIND == "tanh":
        d_x += row * J * D
        d_C, d_a = tanh_network_backward(d_C, C, a, loaded, d_x, d_S_t, j, J, D, PRECISION)
    if KIND == "gru":
        d_x += row * J * 3 * D
        d_C, d_a = gru_network_backward(d_C, C, a, loaded, d_x, d_S_t, j, J, D, PRECISION)
    return d_C, d_a


@triton.jit(do_not_specialize=["steps", "sentences", "J"])
def network_backward_kernel(
    S_t, Phi, P, gates, C, alpha, d_x, d_Phi, d_P, d_W, steps, sentences, J,
    G: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """Sums over all steps for one sentence and one gate: d_Phi, and its share of d_P and d_W."""
    b = tl.program_id(0).to(tl.int64)
    gate = tl.program_id(1)
    j = tl.arange(0, BLOCK_J)
    sum_Phi = tl.zeros([BLOCK_J, 16], tl.float32)
    sum_P = tl.zeros([BLOCK_J, 16], tl.float32)
    sum_W = tl.zeros([16, 16], tl.float32)
    if G == 3:
        W_r, P_r = load_matrix(gates, D), load_row(P, D)
    for i in range(steps):
        row = i * sentences + b
        a = load(alpha + row * J + j, j < J)
        covered = load_units(C + row * J * D, j, J, D, D)
        d_gate = load_units(d_x + row * J * G * D + gate * D, j, J, D, G * D)
        sum_Phi += d_gate
        sum_P += a[:, None] * d_gate
        # the candidate of the GRU reads r * C, everything else C itself
        if G == 3:
            x_r = network_input(Phi + b * J * 3 * D, S_t + row * WIDTH, j, J, 0, D, 3)
            r = sigmoid(recurrent(covered, W_r, x_r + a[:, None] * P_r, PRECISION))
            covered *= tl.where(gate == 2, r, 1.0)
        sum_W = tl.dot(tl.trans(d_gate), covered, sum_W, input_precision=PRECISION)
    store_units(d_Phi + b * J * G * D + gate * D, sum_Phi, j, J, D, G * D)
    store_row(d_P + b * G * D + gate * D, tl.sum(sum_P, axis=0), D)
    store_units(d_W + (b * G + gate) * D * D, sum_W, tl.arange(0, 16), D, D, D)


def network_weight_gradients(
    kind: CoverageConstants, Phi: Tensor, P: Tensor, gates: Tensor | None,
    S_t: Tensor, C: Tensor, alpha: Tensor, d_x: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Sum d_Phi [B, J, g d], d_P [g d] and those of the recurrent weights [g d, d] over all steps.

    S_t [I, B, g d] is a slice of columns, C [>= I, B, J, d], alpha [I, B, J], d_x [I, B, J, g d].
    """
    steps, B, J = alpha.shape
    d, g = kind.d, kind.inputs // kind.d
    d_Phi = torch.empty_like(Phi)
    d_P = alpha.new_empty(B, g * d)
    d_W = alpha.new_empty(B, g * d, d)
    block = max(16, triton.next_power_of_2(J))
    tile = 2 * block * 16 * alpha.element_size()  # C and d_x
    if gpu.has_tensor_memory(alpha.device):
        tile *= 2  # and both once more for the products
    network_backward_kernel[(B, g)](
        S_t, Phi, P, gates, C, alpha, d_x, d_Phi, d_P, d_W, steps, B, J, g, S_t.stride(1), d,
        kind.precision, block, num_warps=min(8, max(1, block // 32)),
        num_stages=gpu.fitting_stages(STAGES, tile, alpha.device),
    )  # fmt: skip
    return d_Phi, d_P.sum(0), d_W.sum(0)
