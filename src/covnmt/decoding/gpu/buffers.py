"""The memory of the GPU's beam search at fixed addresses, its captured steps, and its history.

The buffers have room for S sentences. A step is one function over them that never looks at a value:
it runs plainly once, is then captured as a CUDA graph, and from then on replayed. What the host
wants to know is copied to it without waiting.

A batch is sent as one array, a `SearchRequest`; the first step unpacks it. So all of it, encoding
the source included, is in the graph of that step.

Notation: S sentences and K slots of each, R = S K rows, V vocabulary size, J source positions
(padded), N sentences of a batch; n hidden units, e columns for the last token in a row.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covnmt.base.config import DecodeConfig
from covnmt.decoding.backtrace import ROOT, SearchHistory
from covnmt.decoding.search_rules import forbidden_ids, step_limits
from covnmt.kernels.tensors import EncodedSource
from covnmt.model.decoder import DecoderState
from covnmt.model.seq2seq import Seq2Seq

SOURCE_MULTIPLE = 16  # source positions are padded to multiples of this
HISTORY_STEPS = 64  # steps of the search's history that the buffers hold


class SearchRequest(NamedTuple):
    """A batch as the host sends it; rows of the table without a sentence allow no steps."""

    table: Tensor  # [S, J + 4] source ids and -1s, both step limits, both forbidden ids
    lengths: Tensor  # [N] source positions
    min_steps: int  # no sentence ends before
    max_steps: int  # all sentences have ended after

    @classmethod
    def pack(
        cls, source_ids: Tensor, mask: Tensor, S: int, unk_id: int, config: DecodeConfig
    ) -> "SearchRequest":
        """Pack source ids [N, J], real where the mask is true, into S places; all on the host."""
        (N, J), lengths = source_ids.shape, mask.sum(dim=1)
        padded = round_up(J, SOURCE_MULTIPLE)
        min_steps, max_steps = map(torch.from_numpy, step_limits(lengths.numpy(), config))
        table = source_ids.new_zeros(S, padded + 4)
        table[:N, J:padded] = -1
        table[:N, :J] = source_ids.masked_fill(~mask, -1)
        table[:N, padded] = min_steps
        table[:N, padded + 1] = max_steps
        table[:, padded + 2 :] = table.new_tensor(forbidden_ids(config, unk_id))
        return cls(table, lengths, int(min_steps.min()), int(max_steps.max()))


class SearchBuffers(NamedTuple):
    """All that a step reads and writes."""

    request: Tensor  # [S, J + 4] see `SearchRequest`
    source: EncodedSource  # [S, J, .]
    rows: Tensor  # [R, 3n + e] t, s and, for some steps, the last token
    C: Tensor  # [R, J, d]
    token_ids: Tensor  # [R] chosen last
    log_probs: Tensor  # [S, K] of the open hypotheses; -inf in empty slots
    widths: Tensor  # [S] hypotheses that may be open: the beam less the finished ones
    min_steps: Tensor  # [S] steps in which the end symbol is forbidden
    max_steps: Tensor  # [S]
    live: Tensor  # [S] whether the sentence has open hypotheses
    forbidden_ids: Tensor  # [2] tokens that are never generated
    clock: Tensor  # [2] steps done, and those of them in the history
    choices: Tensor  # [steps, S, K] slot of the parent * V + token id
    ended: Tensor  # [steps, S, K] log-probability of hypotheses that end here; -inf for others
    alpha: Tensor  # [steps, S, K, J] by slot of the parent

    @classmethod
    def allocate(
        cls, model: Seq2Seq, like: EncodedSource, S: int, K: int, J: int, embedding_columns: int
    ) -> "SearchBuffers":
        """Allocate buffers for sources of J positions like this one; e is `embedding_columns`."""
        t, n, d = like.h, model.config.hidden, model.decoder.coverage.size

        def source(tensor: Tensor) -> Tensor:
            # ones, not zeros: unused slots are computed too, and must not give NaN
            return tensor.new_ones(S, J, *tensor.shape[2:])

        def integers(*shape: int) -> Tensor:
            return t.new_zeros(shape, dtype=torch.long)

        def floats(*shape: int) -> Tensor:
            return t.new_zeros(shape, dtype=torch.float32)

        return cls(
            request=integers(S, J + 4),
            source=EncodedSource(*map(source, like)),
            rows=t.new_zeros(S * K, 3 * n + embedding_columns),
            # sums of many small attention weights: never in half precision
            C=t.new_zeros(S * K, J, d, dtype=torch.promote_types(t.dtype, torch.float32)),
            token_ids=integers(S * K),
            log_probs=floats(S, K),
            widths=integers(S),
            min_steps=integers(S),
            max_steps=integers(S),
            live=t.new_zeros(S, dtype=torch.bool),
            forbidden_ids=integers(2),
            clock=integers(2),
            choices=integers(HISTORY_STEPS, S, K),
            ended=floats(HISTORY_STEPS, S, K),
            alpha=floats(HISTORY_STEPS, S, K, J),
        )

    @property
    def state(self) -> DecoderState:
        """The rows as the model knows them: views."""
        n = self.source.keys.shape[2]
        return DecoderState(self.rows[:, :n], self.rows[:, n : 3 * n], self.C)

    def by_sentence(self) -> Iterator[Tensor]:
        """Yield what moves with the sentences, each [S, ...]."""
        beam_shape = self.log_probs.shape
        yield from self.source
        yield from (rows.unflatten(0, beam_shape) for rows in (self.rows, self.C, self.token_ids))
        yield from (self.log_probs, self.widths, self.min_steps, self.max_steps, self.live)

    def unpack_request(self) -> Tensor:
        """Begin the search that was requested; return the source ids [S, J]."""
        J = self.source.mask.shape[1]
        ids, min_steps, max_steps, forbidden = self.request.split([J, 1, 1, 2], dim=1)
        torch.ge(ids, 0, out=self.source.mask)
        self.log_probs.fill_(-math.inf)
        self.log_probs[:, :1].masked_fill_(max_steps > 0, 0.0)
        self.widths.fill_(self.log_probs.shape[1])
        self.min_steps.copy_(min_steps.squeeze(1))
        self.max_steps.copy_(max_steps.squeeze(1))
        self.forbidden_ids.copy_(forbidden[0])
        self.clock.zero_()
        source_ids: Tensor = ids.clamp(min=0)
        return source_ids

    def receive(self, other: "SearchBuffers", kept: Tensor) -> None:
        """Continue with these sentences of other buffers, at most S of them.

        The places after them get no hypothesis, and a source without a mask: attention to nothing
        would be NaN.
        """
        N = len(kept)
        for own, others in zip(self.by_sentence(), other.by_sentence(), strict=True):
            torch.index_select(others, 0, kept, out=own[:N])
        self.forbidden_ids.copy_(other.forbidden_ids)
        self.clock.copy_(other.clock)
        self.source.mask[N:] = True
        self.log_probs[N:] = -math.inf
        self.live[N:] = False


class CapturedStep:
    """A step over buffers of one size: run plainly once, then captured and replayed."""

    def __init__(
        self, buffers: SearchBuffers, advance: Callable[[SearchBuffers, bool], None], pool: Any
    ) -> None:
        self.buffers, self.advance, self.pool = buffers, advance, pool
        self._warm: set[bool] = set()
        self._replay: dict[bool, Callable[[], None]] = {}

    def run(self, first: bool = False) -> None:
        """Advance all sentences by one token."""
        if first in self._warm and first not in self._replay:
            self._replay[first] = self._capture(first)
        if first in self._replay:
            self._replay[first]()
        else:
            self.advance(self.buffers, first)
            if self.pool is not None:
                self._warm.add(first)

    def _capture(self, first: bool) -> Callable[[], None]:
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                self.advance(self.buffers, first)
        except RuntimeError:
            return partial(self.advance, self.buffers, first)
        return graph.replay


class HostCopy:
    """A tensor on its way to the host."""

    def __init__(self, tensor: Tensor) -> None:
        self._event = torch.cuda.Event() if tensor.is_cuda else None
        self._copy = tensor.to("cpu", non_blocking=True) if self._event else tensor.clone()
        if self._event:
            self._event.record()

    def numpy(self) -> NDArray[Any]:
        """Wait for the copy and return it."""
        if self._event:
            self._event.synchronize()
        array: NDArray[Any] = self._copy.numpy()
        return array


class HistorySegment(NamedTuple):
    """Steps of a search with the same sentences in the same places, on their way to the host."""

    first_step: int
    sentences: Sequence[int]  # in the first places; other places are empty
    choices: HostCopy  # [steps, S, K] slot of the parent * V + token id
    ended: HostCopy  # [steps, S, K] log-probability of hypotheses that end here; -inf for others
    alpha: HostCopy  # [steps, S, K, J] attention, by slot of the parent

    @classmethod
    def send(
        cls, buffers: SearchBuffers, begin: int, done: int, sentences: Sequence[int]
    ) -> "HistorySegment":
        """Start copying the steps from `begin` on; these sentences are in the first places."""
        arrays = (buffers.choices, buffers.ended, buffers.alpha)
        return cls(begin, sentences, *(HostCopy(array[: done - begin]) for array in arrays))


def join_segments(segments: Sequence[HistorySegment], N: int, V: int) -> SearchHistory:
    """Make one history of segments that follow each other in time, for N sentences.

    V is the padded vocabulary size.
    Node (first + k) is slot k of a sentence at a step, and so is its row of attention.
    """
    first = np.full(N, ROOT)  # node of slot 0 of each sentence at the step before
    histories: list[SearchHistory] = []
    size = 0
    for segment in segments:
        choices, ended, alpha = (copy.numpy() for copy in segment[2:])
        steps, S, K = choices.shape
        if not steps:  # the buffers had just been emptied
            continue
        sentences = np.zeros(S, dtype=np.int64)  # empty places have no hypothesis that ends
        sentences[: len(segment.sentences)] = segment.sentences
        first_here = size + np.arange(0, steps * S * K, K).reshape(steps, S)
        first_before = np.concatenate([first[sentences][None], first_here[:-1]])
        slots, token_ids = np.divmod(choices, V)
        parents = first_before[:, :, None] + slots
        if segment.first_step == 0:
            parents[0] = ROOT
        nodes = SearchHistory(
            sentences=np.broadcast_to(sentences[:, None], choices.shape),
            parents=parents,
            token_ids=token_ids,
            log_probs=ended,
            ended=ended > -math.inf,
            attention=alpha.reshape(-1, alpha.shape[-1]),
            attention_rows=first_here[:, :, None] + slots,
        )
        flat = SearchHistory(*(np.ravel(array) for array in nodes))
        histories.append(flat._replace(attention=nodes.attention))
        first[segment.sentences] = first_here[-1, : len(segment.sentences)]
        size += choices.size
    if len(histories) == 1:
        return histories[0]
    return SearchHistory(*map(np.concatenate, zip(*histories, strict=True)))


def round_up(number: int, multiple: int) -> int:
    """Return the next multiple."""
    return number + -number % multiple
