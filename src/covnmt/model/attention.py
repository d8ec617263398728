"""Additive attention that also reads the coverage (paper, sections 2 and 3.2). Stateless."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from covnmt.kernels import reference


class AttentionStep(NamedTuple):
    """Weights, context and energies of one attention step."""

    alpha: Tensor  # [S, K, J]
    s: Tensor  # [S, K, 2n]
    energies: Tensor  # [S, K, J]


class Attention(nn.Module):
    """e_ij = v . tanh(W_a t_{i-1} + U_a h_j + V_a C_{i-1,j}), without biases."""

    def __init__(self, annotation: int, hidden: int, coverage: int) -> None:
        super().__init__()
        self.W_a = nn.Parameter(torch.empty(hidden, hidden))
        self.U_a = nn.Parameter(torch.empty(hidden, annotation))
        self.V_a = nn.Parameter(torch.empty(hidden, coverage)) if coverage else None
        self.v = nn.Parameter(torch.empty(hidden))

    def keys(self, h: Tensor) -> Tensor:
        """Compute U_a h [S, J, n], once per sentence."""
        return h @ self.U_a.T

    def forward(self, t: Tensor, C: Tensor, h: Tensor, keys: Tensor, mask: Tensor) -> AttentionStep:
        """Attend to h [S, J, 2n] from states t [S, K, n] with coverage C [S, K, J, d]."""
        covered = None if self.V_a is None else C @ self.V_a.T  # [S, K, J, n]
        e = reference.energies(t @ self.W_a.T, keys, covered, self.v)
        alpha = reference.masked_softmax(e, mask)
        return AttentionStep(alpha, reference.context(alpha, h), e)
