"""The source side: word embeddings and a bidirectional GRU (SPEC 1.2)."""

from typing import Literal

import torch
from torch import Tensor, nn

from covnmt.model.cells import Cell


class Embedding(nn.Module):
    """E[w] + b. The bias is redundant, but the paper's parameter count has it."""

    def __init__(self, words: int, size: int) -> None:
        super().__init__()
        self.E = nn.Parameter(torch.empty(words, size))
        self.b = nn.Parameter(torch.zeros(size))

    def forward(self, words: Tensor) -> Tensor:
        return nn.functional.embedding(words, self.E) + self.b


class Encoder(nn.Module):
    """h_j = [forward_j ; backward_j]; both directions read the same embeddings."""

    def __init__(
        self, inputs: int, hidden: int, cell: Literal["exact", "reset_after"], dropout: float
    ) -> None:
        super().__init__()
        self.hidden = hidden
        self.ahead = Cell(inputs, hidden, cell)
        self.back = Cell(inputs, hidden, cell)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Annotations [S, J, 2n] of embedded words [S, J, m]."""
        ahead = self._run(self.ahead, x, mask, range(x.shape[1]))
        back = self._run(self.back, x, mask, range(x.shape[1] - 1, -1, -1))
        h: Tensor = self.dropout(torch.cat([ahead, back], dim=-1))
        return h

    def _run(self, cell: Cell, x: Tensor, mask: Tensor, positions: range) -> Tensor:
        projected = cell.project(x).unbind(1)
        keep = mask.unsqueeze(-1).unbind(1)
        h = projected[0].new_zeros(x.shape[0], self.hidden)
        states = [h] * len(positions)
        for j in positions:
            # padding copies the state, so nothing depends on how far a batch is padded
            h = torch.where(keep[j], cell(projected[j], h), h)
            states[j] = h
        return torch.stack(states, dim=1)
