"""The memory of a beam search at fixed addresses, and its steps as CUDA graphs.

A lane has room for S sentences. Its step is one function over its buffers that never looks at a
value: it runs plainly once, is then captured in a graph, and from then on replayed. Whatever the
host wants to know is copied to it without waiting.

A batch comes in one piece, a `Request`; the first step begins with taking it apart. So all of it,
reading the source included, is in the graph of that step.

Letters: S sentences and K slots of each, R = S K rows, V words, J source positions (padded), N
sentences that are in a lane; n hidden units, e columns for the last word in a row.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covnmt.base.arrays import FloatArray, IntArray
from covnmt.base.config import DecodeConfig
from covnmt.decoding.backtrace import ROOT, SearchHistory
from covnmt.decoding.penalties import forbidden_ids, step_limits
from covnmt.kernels.tensors import EncodedSource
from covnmt.model.decoder import DecoderState
from covnmt.model.seq2seq import Seq2Seq

SOURCE_MULTIPLE = 16  # source positions are padded to multiples of this
HISTORY_STEPS = 64  # steps that the trellis of a lane holds


class SearchRequest(NamedTuple):
    """A batch as the host sends it to a lane; places without a sentence have no steps."""

    table: Tensor  # [S, J + 4] source words and -1s; both limits; both banned words
    lengths: Tensor  # [N] source words
    quiet: int  # steps during which no sentence ends
    longest: int  # steps after which all have ended

    @classmethod
    def of(
        cls, words: Tensor, mask: Tensor, S: int, unk: int, config: DecodeConfig
    ) -> "SearchRequest":
        """Words [N, J] that are real where the mask is true; all on the host."""
        (N, J), lengths = words.shape, mask.sum(dim=1)
        padded = round_up(J, SOURCE_MULTIPLE)
        without_end, most = map(torch.from_numpy, step_limits(lengths.numpy(), config))
        table = words.new_zeros(S, padded + 4)
        table[:N, J:padded] = -1
        table[:N, :J] = words.masked_fill(~mask, -1)
        table[:N, padded] = without_end
        table[:N, padded + 1] = most
        table[:, padded + 2 :] = table.new_tensor(forbidden_ids(config, unk))
        return cls(table, lengths, int(without_end.min()), int(most.max()))


class SearchBuffers(NamedTuple):
    """All that a step reads and writes."""

    request: Tensor  # [S, J + 4] as in `Request`
    memory: EncodedSource  # [S, J, .]
    rows: Tensor  # [R, 3n + e] t, s and, for some steps, the last word
    C: Tensor  # [R, J, d]
    words: Tensor  # [R] chosen last
    log_probs: Tensor  # [S, K] of the open hypotheses; -inf in empty slots
    widths: Tensor  # [S] hypotheses that may be open: the beam less the finished ones
    without_end: Tensor  # [S] steps during which the end symbol is forbidden
    most: Tensor  # [S] steps
    open: Tensor  # [S] whether the sentence goes on
    banned: Tensor  # [2] words that are never generated
    clock: Tensor  # [2] steps done, and rows of the trellis among them
    choices: Tensor  # [ROWS, S, K] slot of the parent * V + word
    ended: Tensor  # [ROWS, S, K] log-probability of hypotheses that end here; -inf for others
    alpha: Tensor  # [ROWS, S, K, J] by slot of the parent

    @classmethod
    def allocate(
        cls, model: Seq2Seq, like: EncodedSource, S: int, K: int, J: int, embedded: int
    ) -> "SearchBuffers":
        """For S sentences of J words with a memory like this one, and rows with e = embedded."""
        t, n, d = like.h, model.config.hidden, model.decoder.coverage.size

        def source(part: Tensor) -> Tensor:
            # ones, because what lies behind the sentences must do no harm
            return part.new_ones(S, J, *part.shape[2:])

        def numbers(*shape: int) -> Tensor:
            return t.new_zeros(shape, dtype=torch.long)

        def scores(*shape: int) -> Tensor:
            return t.new_zeros(shape, dtype=torch.float32)

        return cls(
            request=numbers(S, J + 4),
            memory=EncodedSource(*map(source, like)),
            rows=t.new_zeros(S * K, 3 * n + embedded),
            # sums of many small attention weights: never in half precision
            C=t.new_zeros(S * K, J, d, dtype=torch.promote_types(t.dtype, torch.float32)),
            words=numbers(S * K),
            log_probs=scores(S, K),
            widths=numbers(S),
            without_end=numbers(S),
            most=numbers(S),
            open=t.new_zeros(S, dtype=torch.bool),
            banned=numbers(2),
            clock=numbers(2),
            choices=numbers(HISTORY_STEPS, S, K),
            ended=scores(HISTORY_STEPS, S, K),
            alpha=scores(HISTORY_STEPS, S, K, J),
        )

    @property
    def state(self) -> DecoderState:
        """The rows as the model knows them: views."""
        n = self.memory.keys.shape[2]
        return DecoderState(self.rows[:, :n], self.rows[:, n : 3 * n], self.C)

    def by_sentence(self) -> Iterator[Tensor]:
        """What moves with the sentences, each [S, ...]."""
        by_slot = self.log_probs.shape
        yield from self.memory
        yield from (part.unflatten(0, by_slot) for part in (self.rows, self.C, self.words))
        yield from (self.log_probs, self.widths, self.without_end, self.most, self.open)

    def begin(self) -> Tensor:
        """Take the request apart; the source words [S, J]."""
        J = self.memory.mask.shape[1]
        words, without_end, most, banned = self.request.split([J, 1, 1, 2], dim=1)
        torch.ge(words, 0, out=self.memory.mask)
        self.log_probs.fill_(-math.inf)
        self.log_probs[:, :1].masked_fill_(most > 0, 0.0)
        self.widths.fill_(self.log_probs.shape[1])
        self.without_end.copy_(without_end.squeeze(1))
        self.most.copy_(most.squeeze(1))
        self.banned.copy_(banned[0])
        self.clock.zero_()
        source: Tensor = words.clamp(min=0)
        return source

    def receive(self, other: "SearchBuffers", kept: Tensor) -> None:
        """Go on with these sentences of other buffers, at most S of them.

        Places behind them have no hypothesis, and a source that can be looked at.
        """
        N = len(kept)
        for mine, theirs in zip(self.by_sentence(), other.by_sentence(), strict=True):
            torch.index_select(theirs, 0, kept, out=mine[:N])
        self.banned.copy_(other.banned)
        self.clock.copy_(other.clock)
        self.memory.mask[N:] = True
        self.log_probs[N:] = -math.inf
        self.open[N:] = False


class CapturedStep:
    """Buffers of one size, and their step: run plainly once, then captured and replayed."""

    def __init__(
        self, buffers: SearchBuffers, advance: Callable[[SearchBuffers, bool], None], pool: Any
    ) -> None:
        self.buffers, self.advance, self.pool = buffers, advance, pool
        self._warm: set[bool] = set()
        self._replay: dict[bool, Callable[[], None]] = {}

    def step(self, first: bool = False) -> None:
        """Advance all sentences by one word."""
        if first in self._warm and first not in self._replay:
            self._replay[first] = self._captured(first)
        if first in self._replay:
            self._replay[first]()
        else:
            self.advance(self.buffers, first)
            if self.pool is not None:
                self._warm.add(first)

    def _captured(self, first: bool) -> Callable[[], None]:
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
        """The values, as soon as they are here."""
        if self._event:
            self._event.synchronize()
        array: NDArray[Any] = self._copy.numpy()
        return array


class HistorySegment(NamedTuple):
    """Steps of a search with the same sentences in the same places, on the host.

    V is the padded vocabulary size.
    """

    first_step: int
    sentences: Sequence[int]  # in the first places; other places are empty
    choices: IntArray  # [steps, S, K] slot of the parent * V + token id
    ended: FloatArray  # [steps, S, K] log-probability of hypotheses that end here; -inf for others
    alpha: FloatArray  # [steps, S, K, J] attention, by slot of the parent


class SegmentCopy(NamedTuple):
    """A segment of the history on its way to the host."""

    first_step: int
    sentences: Sequence[int]
    arrays: tuple[HostCopy, ...]

    @classmethod
    def send(
        cls, buffers: SearchBuffers, begin: int, done: int, sentences: Sequence[int]
    ) -> "SegmentCopy":
        """Start copying the steps from `begin` on; these sentences are in the first places."""
        arrays = (buffers.choices, buffers.ended, buffers.alpha)
        return cls(begin, sentences, tuple(HostCopy(array[: done - begin]) for array in arrays))

    def wait(self) -> HistorySegment:
        """Wait until the copy is complete."""
        arrays = (array.numpy() for array in self.arrays)
        return HistorySegment(self.first_step, self.sentences, *arrays)


def join_segments(segments: Sequence[HistorySegment], N: int, V: int) -> SearchHistory:
    """Make one history of segments that follow each other in time, for N sentences.

    Node (first + k) is slot k of a sentence at a step, and so is its row of attention.
    """
    first = np.full(N, ROOT)  # node of slot 0 of each sentence at the step before
    parts: list[SearchHistory] = []
    size = 0
    for segment in segments:
        steps, S, K = segment.choices.shape
        if not steps:  # the buffers had just been emptied
            continue
        sentences = np.zeros(S, dtype=np.int64)  # empty places have no hypothesis that ends
        sentences[: len(segment.sentences)] = segment.sentences
        first_here = size + np.arange(0, steps * S * K, K).reshape(steps, S)
        first_before = np.concatenate([first[sentences][None], first_here[:-1]])
        slots, token_ids = np.divmod(segment.choices, V)
        parents = first_before[:, :, None] + slots
        if segment.first_step == 0:
            parents[0] = ROOT
        shape = segment.choices.shape
        part = SearchHistory(
            sentences=np.broadcast_to(sentences[:, None], shape),
            parents=parents,
            token_ids=token_ids,
            log_probs=segment.ended,
            ended=segment.ended > -math.inf,
            attention=segment.alpha.reshape(-1, segment.alpha.shape[-1]),
            attention_rows=first_here[:, :, None] + slots,
        )
        flat = SearchHistory(*(np.ravel(array) for array in part))
        parts.append(flat._replace(attention=part.attention))
        first[segment.sentences] = first_here[-1, : len(segment.sentences)]
        size += segment.choices.size
    if len(parts) == 1:
        return parts[0]
    return SearchHistory(*map(np.concatenate, zip(*parts, strict=True)))


def round_up(number: int, step: int) -> int:
    """The next multiple."""
    return number + -number % step
