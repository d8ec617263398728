"""One step of the GPU's beam search: functions over static buffers that a CUDA graph can capture.

None of them looks at a value on the host, and every shape is fixed. The beam does not shrink as in
`covnmt.decoding.beam_search`: hypotheses that ended leave an empty slot with log-probability -inf.

Notation: S sentences and K slots of each, R = S K rows, V vocabulary size (padded to whole blocks),
q width of the layer before the output layer, J source positions (padded).
"""

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from covnmt.decoding.array_functions import top_k
from covnmt.decoding.gpu.buffers import SearchBuffers, round_up
from covnmt.decoding.search_rules import judge_continuations
from covnmt.model.seq2seq import Readout, Seq2Seq

BLOCK = 128  # tokens of the vocabulary whose maximum is taken first (see `top_k`)
MAX_BEAM = BLOCK  # at the first step even the smallest vocabulary, one block, fills such a beam


class PaddedOutputLayer(NamedTuple):
    """The output layer, padded with zeros and with tokens of no probability.

    Products want rows of whole 16 bytes, and `top_k` whole blocks of tokens.
    """

    W: Tensor  # [V, q]
    b: Tensor  # [V]

    @classmethod
    def of(cls, readout: Readout) -> "PaddedOutputLayer":
        """Copy the model's weights as they are now."""
        vocabulary_size, q = readout.W_2.shape
        missing = round_up(vocabulary_size, BLOCK) - vocabulary_size
        W = nn.functional.pad(readout.W_2.detach(), (0, -q % 8, 0, missing))
        return cls(W, nn.functional.pad(readout.b.detach(), (0, missing), value=-math.inf))

    def logits(self, features: Tensor) -> Tensor:
        """Return logits [R, V] of the layer before [R, q]."""
        missing = self.W.shape[1] - features.shape[1]
        padded = nn.functional.pad(features, (0, missing)) if missing else features
        return nn.functional.linear(padded, self.W, self.b)


def encode_sources(model: Seq2Seq, buffers: SearchBuffers) -> None:
    """Unpack the request and encode its source sentences."""
    source_ids = buffers.unpack_request()
    encoded = model.encode(source_ids, buffers.source.mask)
    for buffer, values in zip(buffers.source[:3], encoded[:3], strict=True):
        buffer.copy_(values)


class DecodingStep(Protocol):
    """One step of the decoder for all hypotheses; the first has one row for each sentence."""

    embedding_columns: int  # columns that it needs for the last token in `SearchBuffers.rows`

    def __call__(
        self, buffers: SearchBuffers, first: bool, select: Callable[[Tensor], Tensor]
    ) -> None:
        """Advance by a token.

        `select` takes the layer before the output layer, chooses the best continuations, and
        returns the rows [R] that they continue.
        """


class PlainDecodingStep:
    """The model's own step, in PyTorch."""

    embedding_columns = 0

    def __init__(self, model: Seq2Seq) -> None:
        self.model = model

    def __call__(
        self, buffers: SearchBuffers, first: bool, select: Callable[[Tensor], Tensor]
    ) -> None:
        """Compute a step from the buffers, and write the rows of the next beam to them."""
        if first:
            state = self.model.decoder.initial_state(buffers.source)
            state = state._replace(C=state.C.to(buffers.C.dtype))
        else:
            state = buffers.state
        last_ids = None if first else buffers.token_ids
        features, alpha, state = self.model.step_features(buffers.source, state, last_ids)
        parents = select(features)
        rows = torch.cat([state.t, state.s], dim=1)
        for buffer, values in ((buffers.rows, rows), (buffers.C, state.C)):
            torch.index_select(values.to(buffer.dtype), 0, parents, out=buffer)
        S, K = buffers.log_probs.shape
        attention = alpha.float().unflatten(0, (S, -1)).expand(S, K, -1)
        buffers.alpha.index_copy_(0, buffers.clock[1:], attention[None])


def select_continuations(buffers: SearchBuffers, logits: Tensor, end_id: int) -> Tensor:
    """Choose from logits [S, slots, V] and record it; return the rows [R] that are continued.

    There are K slots, or one at the first step. A Triton kernel does the same
    (`covnmt.kernels.triton.search`).
    """
    log_probs = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    mask_forbidden(buffers, log_probs, end_id)
    S, slots, V = log_probs.shape
    K = buffers.log_probs.shape[1]
    scores, choices = top_k(log_probs.view(S, -1), K, BLOCK, buffers.log_probs[:, :slots])
    record_continuations(buffers, scores, choices, choices % V, end_id)
    first_rows = torch.arange(0, S * slots, slots, device=logits.device)
    return (choices // V + first_rows[:, None]).flatten()


def mask_forbidden(buffers: SearchBuffers, log_probs: Tensor, end_id: int) -> None:
    """Set log-probabilities [S, slots, V] of forbidden tokens to -inf."""
    log_probs.index_fill_(2, buffers.forbidden_ids, -math.inf)
    early = buffers.min_steps > buffers.clock[0]
    log_probs[:, :, end_id].masked_fill_(early[:, None], -math.inf)


def record_continuations(
    buffers: SearchBuffers, scores: Tensor, choices: Tensor, token_ids: Tensor, end_id: int
) -> None:
    """Decide which of the chosen continuations [S, K] end; update the beam and the history."""
    step, history_row = buffers.clock[0], buffers.clock[1:]
    ranks = torch.arange(scores.shape[1], device=scores.device)
    finished, ended, live = judge_continuations(
        scores, token_ids, ranks, buffers.widths, buffers.max_steps, step, end_id
    )
    buffers.widths.sub_(finished.sum(1))
    buffers.log_probs.copy_(torch.where(live, scores, -math.inf))
    buffers.ended.index_copy_(0, history_row, torch.where(ended, scores, -math.inf)[None])
    buffers.choices.index_copy_(0, history_row, choices[None])
    # an empty slot may have a padding id, which comes after the end symbol
    torch.clamp(token_ids, max=end_id, out=buffers.token_ids.view_as(token_ids))
    torch.any(live, dim=1, out=buffers.live)
