"""The source side: embeddings and a bidirectional GRU (docs/paper-to-code.md, section 1.2)."""

import torch
from torch import Tensor, nn

from covnmt.base.config import CellKind
from covnmt.kernels.dispatch import KernelModule
from covnmt.model.cells import GruCell


class Embedding(nn.Module):
    """E[w] + b for token w. The bias is redundant, but the paper's parameter count has it."""

    def __init__(self, vocabulary_size: int, size: int) -> None:
        super().__init__()
        self.E = nn.Parameter(torch.empty(vocabulary_size, size))
        self.b = nn.Parameter(torch.zeros(size))

    def forward(self, token_ids: Tensor) -> Tensor:
        return nn.functional.embedding(token_ids, self.E) + self.b


class Encoder(KernelModule):
    """h_j = [forward_j ; backward_j]; both directions read the same embeddings.

    Stored weights have the names `ahead` (forward) and `back`: `forward` is a method of modules.
    """

    def __init__(self, inputs: int, hidden: int, cell: CellKind, dropout: float) -> None:
        super().__init__()
        self.ahead = GruCell(inputs, hidden, cell)
        self.back = GruCell(inputs, hidden, cell)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Annotate embedded tokens [S, J, m] with states of both directions [S, J, 2n]."""
        h = self.kernels.encode(self.ahead.weights(), self.back.weights(), x, mask)
        if h is None:
            h = self.encode_stepwise(x, mask)
        annotations: Tensor = self.dropout(h)
        return annotations

    def encode_stepwise(self, x: Tensor, mask: Tensor) -> Tensor:
        """Read the tokens one by one: the reference for the kernels."""
        keep = mask.unsqueeze(-1).unbind(1)
        directions = []
        for cell, order in ((self.ahead, 1), (self.back, -1)):
            projected = cell.project(x).unbind(1)
            h = projected[0].new_zeros(x.shape[0], cell.b.shape[0])
            states = [h] * len(projected)
            for j in range(len(projected))[::order]:
                # padding copies the state, so nothing depends on how far a batch is padded
                h = torch.where(keep[j], cell(projected[j], h), h)
                states[j] = h
            directions.append(torch.stack(states, dim=1))
        return torch.cat(directions, dim=-1)
