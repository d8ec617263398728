"""What the decoder remembers of its attention: the coverage models of the paper (section 3.1).

    C_i,j = g_update(C_{i-1,j}, alpha_i,j, Phi(h_j), Psi)

Every model here is one choice of g_update and Phi. C is [S, K, J, d]: S sentences, K hypotheses
of each, J source tokens, d coverage units. Phi is [S, J, *], computed once per sentence.
"""

from abc import ABC, abstractmethod
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from covnmt.base.config import CoverageConfig
from covnmt.kernels import reference
from covnmt.kernels.tensors import CoverageKernel


class CoverageInputs(NamedTuple):
    """The auxiliary inputs Psi of one step: what else a coverage model may read."""

    t: Tensor  # [S, K, n] the decoder state that attended
    s_previous: Tensor  # [S, K, 2n] the context before this step
    s: Tensor  # [S, K, 2n] the context of this step
    energies: Tensor  # [S, K, J] attention before its softmax


class Coverage(nn.Module, ABC):
    """What attention needs of a coverage model.

    A subclass gives `size` and the first three methods, the others where they apply.
    """

    size: int  # d, the coverage units of one source token; 0 for the baseline
    sums_attention = False  # C has no bound: `initialize_weights` draws what reads it near zero

    @abstractmethod
    def prepare(self, h: Tensor) -> Tensor:
        """Compute Phi(h) [S, J, *] from the annotations [S, J, 2n], once per sentence."""

    @abstractmethod
    def initial(self, h: Tensor) -> Tensor:
        """Return C_0 [S, 1, J, d]."""

    @abstractmethod
    def step(self, C: Tensor, alpha: Tensor, Phi: Tensor, auxiliary: CoverageInputs) -> Tensor:
        """Compute C_i from C_{i-1} [S, K, J, d] and alpha_i [S, K, J]."""

    def fertility(self, Phi: Tensor) -> Tensor | None:
        """Return how many target tokens each source token gets [S, J], where this is predicted."""
        return None

    def kernel_spec(self) -> CoverageKernel | None:
        """Describe the model to the Triton kernels; without a kernel it runs in plain PyTorch."""
        return None


class NoCoverage(Coverage):
    """The attention baseline: nothing is remembered."""

    size = 0

    def prepare(self, h: Tensor) -> Tensor:
        return h.new_empty(*h.shape[:2], 0)

    def initial(self, h: Tensor) -> Tensor:
        return h.new_empty(h.shape[0], 1, h.shape[1], 0)

    def step(self, C: Tensor, alpha: Tensor, Phi: Tensor, auxiliary: CoverageInputs) -> Tensor:
        return C.expand(-1, alpha.shape[1], -1, -1)

    def kernel_spec(self) -> CoverageKernel:
        return CoverageKernel("none")


class LinguisticCoverage(Coverage):
    """How much of each source token has been translated: attention summed up (section 3.1.1).

    With fertility, a token counts as translated after Phi_j = N sigmoid(U_f h_j) target tokens;
    without, after one.
    """

    size = 1
    sums_attention = True

    def __init__(self, annotation: int, config: CoverageConfig) -> None:
        super().__init__()
        self.N = config.max_fertility
        self.start, self.sign = (0.0, 1.0) if config.accumulate == "add" else (1.0, -1.0)
        self.U_f = nn.Parameter(torch.empty(annotation)) if config.kind == "fertility" else None

    def prepare(self, h: Tensor) -> Tensor:
        if self.U_f is None:
            return h.new_ones(*h.shape[:2], 1)
        return self.N * torch.sigmoid(h @ self.U_f).unsqueeze(-1)

    def initial(self, h: Tensor) -> Tensor:
        return h.new_full((h.shape[0], 1, h.shape[1], 1), self.start)

    def step(self, C: Tensor, alpha: Tensor, Phi: Tensor, auxiliary: CoverageInputs) -> Tensor:
        return reference.accumulate(C, alpha, Phi, self.sign)

    def fertility(self, Phi: Tensor) -> Tensor | None:
        return None if self.U_f is None else Phi.squeeze(-1)

    def kernel_spec(self) -> CoverageKernel:
        return CoverageKernel("linguistic", 1, self.start, self.sign)


class NeuralCoverage(Coverage):
    """A small recurrent network for each source token (section 3.1.2), with gates or without.

    It reads the attention (P), the token's annotation (Q) and the decoder state (S), unless they
    are disabled, and optionally the previous and the current context and the energies. g is 3
    with gates (r, z, c) and 1 without.
    """

    def __init__(self, annotation: int, hidden: int, config: CoverageConfig) -> None:
        super().__init__()
        self.size = d = config.size
        gated = config.kind == "gru"
        g = 3 if gated else 1
        self.P = _input_weights(config.attention, g * d)
        self.Q = _input_weights(config.annotation, g * d, annotation)
        self.S = _input_weights(config.state, g * d, hidden)
        self.gates = nn.Parameter(torch.empty(2 * d, d)) if gated else None
        self.candidate = nn.Parameter(torch.empty(d, d))
        self.b = nn.Parameter(torch.zeros(g * d)) if config.bias else None
        self.from_context = (
            nn.Parameter(torch.empty(g * d, annotation)) if config.previous_context else None
        )
        self.from_current = (
            nn.Parameter(torch.empty(g * d, annotation)) if config.current_context else None
        )
        self.from_energies = nn.Parameter(torch.empty(g * d)) if config.energies else None

    def prepare(self, h: Tensor) -> Tensor:
        return nn.functional.linear(h, self.Q, self.b)

    def initial(self, h: Tensor) -> Tensor:
        return h.new_zeros(h.shape[0], 1, h.shape[1], self.size)

    def step(self, C: Tensor, alpha: Tensor, Phi: Tensor, auxiliary: CoverageInputs) -> Tensor:
        shared = auxiliary.t @ self.S.T  # [S, K, gd]
        if self.from_context is not None:
            shared = shared + auxiliary.s_previous @ self.from_context.T
        if self.from_current is not None:
            shared = shared + auxiliary.s @ self.from_current.T
        inputs = alpha.unsqueeze(-1) * self.P + shared.unsqueeze(2) + Phi.unsqueeze(1)
        if self.from_energies is not None:
            inputs = inputs + auxiliary.energies.unsqueeze(-1) * self.from_energies
        # inputs [S, K, J, gd]
        if self.gates is None:
            return reference.tanh_coverage(C, inputs, self.candidate)
        return reference.exact_gru(inputs, C, self.gates, self.candidate)

    def kernel_spec(self) -> CoverageKernel | None:
        if any(W is not None for W in (self.from_context, self.from_current, self.from_energies)):
            return None  # the kernels know no further inputs
        kind: Literal["gru", "tanh"] = "tanh" if self.gates is None else "gru"
        return CoverageKernel(
            kind, self.size, S=self.S, P=self.P, gates=self.gates, candidate=self.candidate
        )


def _input_weights(enabled: bool, *shape: int) -> Tensor:
    """Weights of one input. A disabled input is a zero buffer, neither trained nor saved."""
    return nn.Parameter(torch.empty(shape)) if enabled else nn.Buffer(torch.zeros(shape))


def build_coverage(annotation: int, hidden: int, config: CoverageConfig) -> Coverage:
    """Choose the coverage model. This is the only place that knows them all."""
    if config.kind == "none":
        return NoCoverage()
    if config.kind in ("linguistic", "fertility"):
        return LinguisticCoverage(annotation, config)
    return NeuralCoverage(annotation, hidden, config)
