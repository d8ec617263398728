"""The target side: one step at a time, or a whole sentence (docs/paper-to-code.md, section 1.2).

A step reads the last token and attends to the source. There are two orders:

    code   attend(t_{i-1}) -> predict y_i from t_{i-1}, s_i -> t_i = GRU(t_{i-1}; y_i, s_i)
    paper  attend(t_{i-1}) -> t_i = GRU(t_{i-1}; y_{i-1}, s_i) -> predict y_i from t_i, s_i

In the first the state absorbs the token just predicted, and attention sees it at the next step.
Both are written here as step(state, y_{i-1}): in the code order a step first makes the state
update for y_{i-1}, then attends. So search and training share one loop body.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from covnmt.base.config import ModelConfig
from covnmt.kernels import reference
from covnmt.kernels.dispatch import KernelModule
from covnmt.kernels.tensors import DecoderSteps, DecoderWeights, EncodedSource
from covnmt.model.attention import Attention
from covnmt.model.cells import GruCell
from covnmt.model.coverage import CoverageInputs, build_coverage


class DecoderState(NamedTuple):
    """The state of K hypotheses of each of S sentences; row i*K + k is hypothesis k of i."""

    t: Tensor  # [S*K, n]
    s: Tensor  # [S*K, 2n]
    C: Tensor  # [S*K, J, d]

    def select(self, rows: Tensor) -> "DecoderState":
        """Keep these rows, in this order: hypotheses take their parents' coverage along."""
        return DecoderState(*(tensor[rows] for tensor in self))


class Decoder(KernelModule):
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

    def encode_source(self, h: Tensor, mask: Tensor) -> EncodedSource:
        """Compute from the annotations h [S, J, 2n] all that does not change while decoding."""
        return EncodedSource(h, self.attention.keys(h), self.coverage.prepare(h), mask)

    def initial_state(self, source: EncodedSource) -> DecoderState:
        """Start with t_0 from the backward state at the first token, a zero context, and C_0."""
        h = source.h
        t = reference.initial_state(h, self.W_init.weight, self.W_init.bias)
        return DecoderState(t, torch.zeros_like(h[:, 0]), self.coverage.initial(h).squeeze(1))

    def step(
        self, source: EncodedSource, state: DecoderState, y: Tensor, first: bool
    ) -> tuple[DecoderState, Tensor]:
        """Take one step on the last token's projection y [S*K, 3n]; return alpha [S*K, J] too."""
        t, alpha, inputs = self._attend(source, state, y, first)
        return self._advance(source, state.C, t, y, alpha, inputs), alpha.flatten(0, 1)

    def _attend(
        self, source: EncodedSource, state: DecoderState, y: Tensor, first: bool
    ) -> tuple[Tensor, Tensor, CoverageInputs]:
        """Return the state t [S*K, n] that attends, alpha [S, K, J], and what coverage may read."""
        t = state.t
        if self.order == "code" and not first:
            t = self._update(t, y, state.s)
        by_sentence = (source.h.shape[0], -1)
        attending = t.unflatten(0, by_sentence)  # [S, K, n]
        C = state.C.unflatten(0, by_sentence)  # [S, K, J, d]
        alpha, s, e = self.attention(attending, C, source.h, source.keys, source.mask)
        return t, alpha, CoverageInputs(attending, state.s.unflatten(0, by_sentence), s, e)

    def _advance(
        self,
        source: EncodedSource,
        C: Tensor,
        t: Tensor,
        y: Tensor,
        alpha: Tensor,
        inputs: CoverageInputs,
    ) -> DecoderState:
        """Return the state after attending, with the coverage C [S*K, J, d] updated."""
        # attention reads the new coverage from the next step on
        C = self.coverage.step(C.unflatten(0, alpha.shape[:2]), alpha, source.Phi, inputs)
        s = inputs.s.flatten(0, 1)
        if self.order == "paper":
            t = self._update(t, y, s)
        return DecoderState(t, s, C.flatten(0, 1))

    def _update(self, t: Tensor, y: Tensor, s: Tensor) -> Tensor:
        updated: Tensor = self.cell(y + s @ self.Cx.T, t)
        return updated

    def decode_teacher_forced(self, source: EncodedSource, y: Tensor) -> DecoderSteps:
        """Decode on embedded previous tokens y [B, I, m], of which the first is zero."""
        steps = self.kernels.decode_teacher_forced(self.weights(), source, y)
        return self.decode_stepwise(source, y) if steps is None else steps

    def decode_stepwise(self, source: EncodedSource, y: Tensor) -> DecoderSteps:
        """Decode in the same steps that a search takes: the reference for the kernels."""
        state = self.initial_state(source)
        states, alphas = [], []
        for i, projected in enumerate(self.cell.project(y).unbind(1)):
            state, alpha = self.step(source, state, projected, first=i == 0)
            states.append(state)
            alphas.append(alpha)
        return DecoderSteps(
            t=torch.stack([state.t for state in states], dim=1),
            s=torch.stack([state.s for state in states], dim=1),
            alpha=torch.stack(alphas, dim=1),
            C=state.C,
        )

    def ablate_coverage(self, source: EncodedSource, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Attend with the coverage C_{i-1}, and at the same steps with two others; all [B, I, J].

        The others are C_0, and the coverage at this step of words that were never attended to.
        States and contexts are those of the model as it is.
        """
        state = first = self.initial_state(source)
        unattended = first.C.unsqueeze(1)  # [B, 1, J, d]
        steps = []
        for i, projected in enumerate(self.cell.project(y).unbind(1)):
            ablated = [
                self._attend(source, state._replace(C=C), projected, first=i == 0)[1]
                for C in (first.C, unattended.squeeze(1))
            ]
            t, alpha, inputs = self._attend(source, state, projected, first=i == 0)
            steps.append((alpha, *ablated))
            nothing = torch.zeros_like(alpha)
            unattended = self.coverage.step(unattended, nothing, source.Phi, inputs)
            state = self._advance(source, state.C, t, projected, alpha, inputs)
        with_coverage, without, as_unattended = (
            torch.cat(alphas, dim=1) for alphas in zip(*steps, strict=True)
        )
        return with_coverage, without, as_unattended

    def weights(self) -> DecoderWeights:
        """Collect the weights that the kernels take."""
        attention = self.attention
        return DecoderWeights(
            cell=self.cell.weights(),
            Cx=self.Cx,
            W_init=self.W_init.weight,
            b_init=self.W_init.bias,
            W_a=attention.W_a,
            V_a=attention.V_a,
            v=attention.v,
            coverage=self.coverage.kernel_spec(),
            order=self.order,
        )
