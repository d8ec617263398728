"""The recurrent cell of encoder and decoder (SPEC 1.2): a GRU whose only bias is the candidate's.

`torch.nn.GRU` computes something else: it resets after the recurrent product, swaps the roles of
z and 1 - z, and has biases on every gate.
"""

import torch
from torch import Tensor, nn

from covnmt.base.config import CellKind
from covnmt.kernels import dispatch, reference

ADVANCE = {"exact": reference.exact_gru, "reset_after": reference.reset_after_gru}


class GruCell(nn.Module):
    """The weights of one GRU, and the step that the settings ask for."""

    def __init__(self, inputs: int, hidden: int, kind: CellKind) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.empty(3 * hidden, inputs))  # W_r, W_z, W
        self.b = nn.Parameter(torch.zeros(hidden))
        self.gates = nn.Parameter(torch.empty(2 * hidden, hidden))  # R, G
        self.candidate = nn.Parameter(torch.empty(hidden, hidden))  # U
        self.advance = ADVANCE[kind]

    def project(self, x: Tensor) -> Tensor:
        """The inputs' share of r, z and c; computed for all time steps at once."""
        hidden = self.b.shape[0]
        return dispatch.linear(x, self.W, nn.functional.pad(self.b, (2 * hidden, 0)))

    def forward(self, projected: Tensor, h: Tensor) -> Tensor:
        """One step from `h` [B, n] on projected inputs [B, 3n]."""
        return self.advance(projected, h, self.gates, self.candidate)
