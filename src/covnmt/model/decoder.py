"""The target side, one step at a time or unrolled over a whole sentence (SPEC 1.2).

One step reads the last word and looks at the source again. Two orders are known:

    code   look(t_{i-1}) -> predict y_i from t_{i-1}, s_i -> t_i = GRU(t_{i-1}; y_i, s_i)
    paper  look(t_{i-1}) -> t_i = GRU(t_{i-1}; y_{i-1}, s_i) -> predict y_i from t_i, s_i

In the first the state absorbs the word just predicted, and attention sees it at the next step.
Both are written here as step(state, y_{i-1}): the code order puts its update off until the word
is known, at the beginning of the next step. So search and training share one loop body.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from covnmt.base.config import ModelConfig
from covnmt.kernels import dispatch
from covnmt.model.attention import Attention, AttentionStep
from covnmt.model.cells import GruCell
from covnmt.model.coverage import CoverageInputs, build_coverage


class Memory(NamedTuple):
    """What the encoder leaves for the decoder: S sentences, shared by all their hypotheses."""

    h: Tensor  # [S, J, 2n] annotations
    keys: Tensor  # [S, J, n] U_a h
    Phi: Tensor  # [S, J, *] what the coverage model knows of each word
    mask: Tensor  # [S, J] real positions

    def select(self, sentences: Tensor) -> "Memory":
        """Only these sentences."""
        return Memory(*(part[sentences] for part in self))


class DecoderState(NamedTuple):
    """Where K hypotheses of each of S sentences stand; row s*K + k is hypothesis k of s."""

    t: Tensor  # [S*K, n]
    s: Tensor  # [S*K, 2n]
    C: Tensor  # [S*K, J, d]

    def select(self, rows: Tensor) -> "DecoderState":
        """Only these rows, in this order: hypotheses take their parents' coverage along."""
        return DecoderState(*(part[rows] for part in self))


class Decoder(nn.Module):
    """GRU, attention and coverage."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        n = config.hidden
        self.coverage = build_coverage(2 * n, n, config.coverage)
        self.attention = Attention(2 * n, n, self.coverage.size)
        self.cell = GruCell(config.embedding, n, config.cell)
        self.Cx = nn.Parameter(torch.empty(3 * n, 2 * n))  # context inputs of r, z and c
        self.W_init = nn.Linear(n, n)
        self.order = config.order
        # not bound: a decoder that held itself would keep its memory until Python looks for cycles
        self._step = Decoder._code_order if config.order == "code" else Decoder._paper_order

    def remember(self, h: Tensor, mask: Tensor) -> Memory:
        """Everything about the source that does not change while decoding."""
        return Memory(h, self.attention.keys(h), self.coverage.prepare(h), mask)

    def start(self, memory: Memory) -> DecoderState:
        """t_0 = tanh(W_init backward_1 + b): from the backward state at the first word."""
        h = memory.h
        t = torch.tanh(self.W_init(h[:, 0, h.shape[-1] // 2 :]))
        return DecoderState(t, torch.zeros_like(h[:, 0]), self.coverage.initial(h).squeeze(1))

    def step(
        self, memory: Memory, state: DecoderState, y: Tensor, first: bool
    ) -> tuple[DecoderState, Tensor]:
        """One step on the last word's projection y [S*K, 3n]; gives alpha [S*K, J] too."""
        return self._step(self, memory, state, y, first)

    def unroll(self, memory: Memory, y: Tensor) -> dispatch.Unrolled:
        """Teacher-forced decoding on embedded previous words y [B, I, m] (y_0 is zero)."""
        return dispatch.unroll(self, memory, y)

    def _code_order(
        self, memory: Memory, state: DecoderState, y: Tensor, first: bool
    ) -> tuple[DecoderState, Tensor]:
        t = state.t if first else self._update(state.t, y, state.s)
        look, C = self._look(memory, t, state)
        return DecoderState(t, look.s.flatten(0, 1), C), look.alpha.flatten(0, 1)

    def _paper_order(
        self, memory: Memory, state: DecoderState, y: Tensor, first: bool
    ) -> tuple[DecoderState, Tensor]:
        look, C = self._look(memory, state.t, state)
        s = look.s.flatten(0, 1)
        return DecoderState(self._update(state.t, y, s), s, C), look.alpha.flatten(0, 1)

    def _look(self, memory: Memory, t: Tensor, state: DecoderState) -> tuple[AttentionStep, Tensor]:
        """Attend, then update the coverage; the new coverage counts from the next step on."""
        by_sentence = (memory.h.shape[0], -1)
        t = t.unflatten(0, by_sentence)  # [S, K, n]
        C = state.C.unflatten(0, by_sentence)  # [S, K, J, d]
        look = self.attention(t, C, memory.h, memory.keys, memory.mask)
        psi = CoverageInputs(t, state.s.unflatten(0, by_sentence), look.s, look.energies)
        C = self.coverage.step(C, look.alpha, memory.Phi, psi)
        return look, C.flatten(0, 1)

    def _update(self, t: Tensor, y: Tensor, s: Tensor) -> Tensor:
        updated: Tensor = self.cell(y + s @ self.Cx.T, t)
        return updated
