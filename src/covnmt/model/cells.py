"""The recurrent cell of encoder and decoder (docs/paper-to-code.md, section 1.2).

It is a GRU whose only bias is the candidate's. `torch.nn.GRU` computes something else: it resets
after the recurrent product, swaps the roles of z and 1 - z, and has biases on every gate.
"""

import torch
from torch import Tensor, nn

from covnmt.base.config import CellKind
from covnmt.kernels import reference
from covnmt.kernels.dispatch import KernelModule
from covnmt.kernels.tensors import GruWeights


class GruCell(KernelModule):
    """The weights of one GRU, and the step that the settings ask for."""

    def __init__(self, inputs: int, hidden: int, kind: CellKind) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.empty(3 * hidden, inputs))  # W_r, W_z, W
        self.b = nn.Parameter(torch.zeros(hidden))
        self.gates = nn.Parameter(torch.empty(2 * hidden, hidden))  # R, G
        self.candidate = nn.Parameter(torch.empty(hidden, hidden))  # U
        self.reset_after = kind == "reset_after"

    def weights(self) -> GruWeights:
        """The weights as the kernels take them."""
        return GruWeights(self.W, self.b, self.gates, self.candidate, self.reset_after)

    def project(self, x: Tensor) -> Tensor:
        """Compute the inputs' share of r, z and c, for all time steps at once."""
        return self.kernels.linear(x, self.W, self.weights().bias)

    def forward(self, projected: Tensor, h: Tensor) -> Tensor:
        """Take one step from `h` [B, n] on projected inputs [B, 3n]."""
        step = reference.reset_after_gru if self.reset_after else reference.exact_gru
        return step(projected, h, self.gates, self.candidate)
