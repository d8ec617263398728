"""The source side: word embeddings and a bidirectional GRU (SPEC 1.2)."""

import torch
from torch import Tensor, nn

from covnmt.base.config import CellKind
from covnmt.kernels import dispatch
from covnmt.model.cells import GruCell


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

    def __init__(self, inputs: int, hidden: int, cell: CellKind, dropout: float) -> None:
        super().__init__()
        self.hidden = hidden
        self.ahead = GruCell(inputs, hidden, cell)
        self.back = GruCell(inputs, hidden, cell)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Annotations [S, J, 2n] of embedded words [S, J, m]."""
        h: Tensor = self.dropout(dispatch.read(self, x, mask))
        return h
