"""What the model hands to the kernels and gets back: tuples of tensors.

Letters as in `reference`.
"""

from typing import Literal, NamedTuple, Protocol

from torch import Tensor
from torch.nn.functional import pad


class EncodedSource(NamedTuple):
    """What the decoder reads of S sentences, shared by all their hypotheses."""

    h: Tensor  # [S, J, 2n] annotations
    keys: Tensor  # [S, J, n] U_a h
    Phi: Tensor  # [S, J, *] what the coverage model precomputes for each source token
    mask: Tensor  # [S, J] true on real positions

    def select(self, sentences: Tensor) -> "EncodedSource":
        """Keep only these sentences."""
        return EncodedSource(*(tensor[sentences] for tensor in self))


class GruWeights(NamedTuple):
    """One GRU; the candidate alone has a bias."""

    W: Tensor  # [3n, m] of the inputs, for r, z and c
    b: Tensor  # [n]
    gates: Tensor  # [2n, n] R, G
    candidate: Tensor  # [n, n] U
    reset_after: bool  # whether r acts after the product with U, as in cuDNN

    @property
    def bias(self) -> Tensor:
        """Biases of r, z and c [3n]."""
        return pad(self.b, (2 * self.b.shape[0], 0))


class CoverageKernel(NamedTuple):
    """A coverage model that the kernels have code for; tensors that it does not use are None."""

    kind: Literal["none", "linguistic", "tanh", "gru"]
    size: int = 0  # d
    start: float = 0.0  # C_0
    sign: float = 0.0  # +1 or -1: whether linguistic coverage adds attention or subtracts it
    S: Tensor | None = None  # [g d, n]
    P: Tensor | None = None  # [g d]
    gates: Tensor | None = None  # [2d, d]
    candidate: Tensor | None = None  # [d, d]

    @property
    def inputs(self) -> int:
        """Return g d, the pre-activations of the coverage network for one source token."""
        return {"gru": 3, "tanh": 1}.get(self.kind, 0) * self.size


class DecoderWeights(NamedTuple):
    """Attention, GRU and coverage; the coverage is None where it has no kernel."""

    cell: GruWeights
    Cx: Tensor  # [3n, 2n] of the context, for r, z and c
    W_init: Tensor  # [n, n]
    b_init: Tensor  # [n]
    W_a: Tensor  # [n, n]
    V_a: Tensor | None  # [n, d]
    v: Tensor  # [n]
    coverage: CoverageKernel | None
    order: Literal["code", "paper"]


class DecodingWeights(NamedTuple):
    """All that a step of decoding computes with, up to the layer before the logits."""

    decoder: DecoderWeights
    E: Tensor  # [V, m] target embeddings
    E_bias: Tensor  # [m]
    C_o: Tensor  # [n, 2n]
    U_o: Tensor  # [n, n]
    b_o: Tensor  # [n]
    V_o: Tensor  # [n, m]
    W_1: Tensor | None  # [q, n / 2]


class DecoderSteps(NamedTuple):
    """All steps of teacher-forced decoding."""

    t: Tensor  # [B, I, n] the states that predict
    s: Tensor  # [B, I, 2n]
    alpha: Tensor  # [B, I, J]
    C: Tensor  # [B, J, d] coverage after the last step


class BeamBuffers(Protocol):
    """The tensors of a beam search that its kernels read and write.

    S sentences with K slots each, R = S K rows; e columns for the embedding of the last token.
    """

    @property
    def source(self) -> EncodedSource: ...
    @property
    def rows(self) -> Tensor: ...  # [R, 3n + e]
    @property
    def C(self) -> Tensor: ...  # [R, J, d]
    @property
    def token_ids(self) -> Tensor: ...  # [R] chosen last
    @property
    def log_probs(self) -> Tensor: ...  # [S, K] of the open hypotheses; -inf in empty slots
    @property
    def widths(self) -> Tensor: ...  # [S] hypotheses that may be open
    @property
    def min_steps(self) -> Tensor: ...  # [S] steps during which the end symbol is forbidden
    @property
    def max_steps(self) -> Tensor: ...  # [S]
    @property
    def live(self) -> Tensor: ...  # [S] whether the sentence is still decoded
    @property
    def forbidden_ids(self) -> Tensor: ...  # [2] tokens that are never generated
    @property
    def clock(self) -> Tensor: ...  # [2] steps done, and those of them in the history
    @property
    def choices(self) -> Tensor: ...  # [steps, S, K] slot of the parent * V + token
    @property
    def ended(self) -> Tensor: ...  # [steps, S, K] log-probability of hypotheses that end
    @property
    def alpha(self) -> Tensor: ...  # [steps, S, K, J] by slot of the parent
