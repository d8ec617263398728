"""The whole network: encode a source, score a given target, or predict the next token."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from covnmt.base.config import ModelConfig
from covnmt.data.batching import Batch
from covnmt.kernels.dispatch import KernelModule
from covnmt.kernels.tensors import DecodingWeights, EncodedSource
from covnmt.model.decoder import Decoder, DecoderState
from covnmt.model.encoder import Embedding, Encoder
from covnmt.model.parameters import count_by_block


class TeacherForcedOutput(NamedTuple):
    """What teacher-forced decoding of a batch gives."""

    features: Tensor  # [B, I, q] the layer before the logits
    alpha: Tensor  # [B, I, J]
    fertility: Tensor | None  # [B, J]


class Prediction(NamedTuple):
    """The distribution of the next token."""

    log_probs: Tensor  # [S*K, V]
    alpha: Tensor  # [S*K, J]
    state: DecoderState


class Readout(KernelModule):
    """Deep output (docs/paper-to-code.md, section 1.2): logits of the next token.

    C_o s_i + U_o t + b_o + V_o y_{i-1}, maxout, then one or two products. The weights have the
    names of Bahdanau et al. (2015), appendix A.2.2.
    """

    def __init__(self, vocabulary_size: int, config: ModelConfig) -> None:
        super().__init__()
        m, n = config.embedding, config.hidden
        self.C_o = nn.Parameter(torch.empty(n, 2 * n))
        self.U_o = nn.Linear(n, n)
        self.V_o = nn.Parameter(torch.empty(n, m))
        width = n // 2
        self.W_1 = None
        if config.output == "factorised":
            self.W_1 = nn.Parameter(torch.empty(config.rank, width))
            width = config.rank
        self.W_2 = nn.Parameter(torch.empty(vocabulary_size, width))
        self.b = nn.Parameter(torch.zeros(vocabulary_size))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, t: Tensor, s: Tensor, y: Tensor) -> Tensor:
        """Compute the layer before the logits [..., q] from state, context and last token."""
        p: Tensor = self.dropout(self.maxout(t, s, y))
        return p if self.W_1 is None else self.kernels.linear(p, self.W_1)

    def maxout(self, t: Tensor, s: Tensor, y: Tensor) -> Tensor:
        """Take the larger of units 2k and 2k + 1, for every k [..., n / 2]."""
        o = s @ self.C_o.T + self.U_o(t) + self.kernels.linear(y, self.V_o)
        p: Tensor = o.unflatten(-1, (-1, 2)).amax(dim=-1)
        return p

    def logits(self, features: Tensor) -> Tensor:
        """Score every token of the vocabulary [..., V]."""
        return nn.functional.linear(features, self.W_2, self.b)


class Seq2Seq(nn.Module):
    """Attention translator with any of the coverage models."""

    def __init__(self, config: ModelConfig, source_size: int, target_size: int) -> None:
        """Build the network for vocabularies of these sizes; its weights are not filled."""
        super().__init__()
        self.config = config
        self.source = Embedding(source_size, config.embedding)
        self.encoder = Encoder(config.embedding, config.hidden, config.cell, config.dropout)
        self.target = Embedding(target_size, config.embedding)
        self.decoder = Decoder(config)
        self.readout = Readout(target_size, config)
        if config.tie_target:
            self.readout.W_2 = self.target.E
        self.dropout = nn.Dropout(config.dropout)

    def encode(self, source_ids: Tensor, mask: Tensor) -> EncodedSource:
        """Encode ids [S, J]; the mask is true on real positions."""
        x = self.dropout(self.source(source_ids))
        return self.decoder.encode_source(self.encoder(x, mask), mask)

    def forward(self, batch: Batch) -> TeacherForcedOutput:
        """Decode the targets of the batch, teacher-forced."""
        source = self.encode(batch.source, batch.source_mask)
        y = self.embed_previous(batch)
        steps = self.decoder.decode_teacher_forced(source, y)
        features = self.readout(steps.t, steps.s, y)
        fertility = self.decoder.coverage.fertility(source.Phi)
        return TeacherForcedOutput(features, steps.alpha, fertility)

    def embed_previous(self, batch: Batch) -> Tensor:
        """Embed the token before each target token [B, I, m]; y_0 is exactly zero."""
        y = self.dropout(self.target(batch.target[:, :-1]))
        return nn.functional.pad(y, (0, 0, 1, 0))

    def decoding_weights(self) -> DecodingWeights:
        """Collect the weights that the kernels take for a step of decoding."""
        readout = self.readout
        return DecodingWeights(
            decoder=self.decoder.weights(),
            E=self.target.E,
            E_bias=self.target.b,
            C_o=readout.C_o,
            U_o=readout.U_o.weight,
            b_o=readout.U_o.bias,
            V_o=readout.V_o,
            W_1=readout.W_1,
        )

    def step(
        self, source: EncodedSource, state: DecoderState, token_ids: Tensor | None
    ) -> Prediction:
        """Predict the token after `token_ids` [S*K], which are None at the first step."""
        features, alpha, state = self.step_features(source, state, token_ids)
        logits = self.readout.logits(features)
        return Prediction(torch.log_softmax(logits.float(), dim=-1), alpha, state)

    def step_features(
        self, source: EncodedSource, state: DecoderState, token_ids: Tensor | None
    ) -> tuple[Tensor, Tensor, DecoderState]:
        """Compute a step without logits: features [S*K, q] (their input), alpha and the state."""
        if token_ids is None:
            y = state.t.new_zeros(state.t.shape[0], self.config.embedding)
        else:
            y = self.target(token_ids)
        projected = self.decoder.cell.project(y)
        state, alpha = self.decoder.step(source, state, projected, first=token_ids is None)
        return self.readout(state.t, state.s, y), alpha, state


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Count trainable parameters by block; a shared matrix counts once."""
    return count_by_block((name, weight.numel()) for name, weight in model.named_parameters())
