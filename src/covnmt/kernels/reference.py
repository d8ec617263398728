"""The paper's equations as pure PyTorch functions; the oracle for every faster implementation.

Letters, as in the paper: h source annotations, t decoder states, s attention contexts,
alpha attention weights, e their energies before the softmax, C coverage, Phi what the coverage
model knows of a source token; n hidden units, d coverage units, J source and I target positions.

The decoder may hold several hypotheses (beams) of one sentence. They share the sentence's
annotations, so attention works on [S, K, ...]: S sentences, K hypotheses each. Training has K = 1.
"""

import torch
from torch import Tensor, nn


def exact_gru(x: Tensor, h: Tensor, gates: Tensor, candidate: Tensor) -> Tensor:
    """One step of the paper's GRU: the reset gate acts before the recurrent product.

        r = sigmoid(x_r + R h)    z = sigmoid(x_z + G h)
        c = tanh(x_c + U (r * h))
        h' = z * c + (1 - z) * h

    x holds the input's share of r, z and c [B, 3n]; gates is [R; G] [2n, n], candidate U [n, n].
    """
    n = h.shape[-1]
    r, z = torch.sigmoid(x[..., : 2 * n] + h @ gates.T).chunk(2, dim=-1)  # [B, n] each
    c = torch.tanh(x[..., 2 * n :] + (r * h) @ candidate.T)  # [B, n]
    return _between(h, c, z)


def reset_after_gru(x: Tensor, h: Tensor, gates: Tensor, candidate: Tensor) -> Tensor:
    """The cuDNN form: c = tanh(x_c + r * (U h)), so one product serves all three."""
    n = h.shape[-1]
    recurrent = h @ torch.cat([gates, candidate]).T  # [B, 3n]
    r, z = torch.sigmoid(x[..., : 2 * n] + recurrent[..., : 2 * n]).chunk(2, dim=-1)
    c = torch.tanh(x[..., 2 * n :] + r * recurrent[..., 2 * n :])
    return _between(h, c, z)


def _between(h: Tensor, c: Tensor, z: Tensor) -> Tensor:
    """z * c + (1 - z) * h; mixed precision may have given the three different types."""
    return torch.lerp(h.to(c.dtype), c, z.to(c.dtype))


def energies(query: Tensor, keys: Tensor, covered: Tensor | None, v: Tensor) -> Tensor:
    """e_ij = v . tanh(W_a t_{i-1} + U_a h_j + V_a C_{i-1,j})  (section 3.2).

    query is W_a t [S, K, n], keys U_a h [S, J, n], covered V_a C [S, K, J, n] or nothing.
    """
    inner = query.unsqueeze(2) + keys.unsqueeze(1)  # [S, K, J, n]
    if covered is not None:
        inner = inner + covered
    return torch.tanh(inner) @ v  # [S, K, J]


def masked_softmax(e: Tensor, mask: Tensor) -> Tensor:
    """alpha over the real source positions; exactly zero on padding."""
    return torch.softmax(e.masked_fill(~mask.unsqueeze(1), float("-inf")), dim=-1)


def context(alpha: Tensor, h: Tensor) -> Tensor:
    """s_i = sum_j alpha_ij h_j: [S, K, J] and [S, J, 2n] give [S, K, 2n]."""
    return torch.bmm(alpha, h)


def accumulate(C: Tensor, alpha: Tensor, Phi: Tensor, sign: float) -> Tensor:
    """Linguistic coverage: C_i = C_{i-1} + alpha_i / Phi, or minus when it counts down.

    C is [S, K, J, 1], alpha [S, K, J], Phi the fertility [S, J, 1].
    """
    return C + sign * alpha.unsqueeze(-1) / Phi.unsqueeze(1)


def tanh_coverage(C: Tensor, inputs: Tensor, recurrent: Tensor) -> Tensor:
    """Neural coverage without gates: C_i = tanh(W C_{i-1} + inputs), all [S, K, J, d]."""
    return torch.tanh(C @ recurrent.T + inputs)


def initial_state(h: Tensor, W: Tensor, b: Tensor) -> Tensor:
    """t_0 = tanh(W_init backward_1 + b) [S, n], from the backward state at the first token."""
    return torch.tanh(nn.functional.linear(h[:, 0, h.shape[-1] // 2 :], W, b))


def cross_entropy(
    features: Tensor, W: Tensor, b: Tensor, target: Tensor, mask: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Output layer and loss: summed with label smoothing, and without.

    features [B, I, q] times W [V, q], against target ids [B, I] where the mask is true.
    """
    logits = nn.functional.linear(features[mask], W, b).float()  # [real positions, V]
    log_probs = torch.log_softmax(logits, dim=-1)
    nll = nn.functional.nll_loss(log_probs, target[mask], reduction="sum")
    if smoothing == 0:
        return nll, nll.detach()
    uniform = -log_probs.mean(dim=-1).sum()
    return (1 - smoothing) * nll + smoothing * uniform, nll.detach()
