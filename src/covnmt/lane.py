"""The memory of a beam search at fixed addresses, and its steps as CUDA graphs.

A lane has room for S sentences. Its step is one function over its buffers that never looks at a
value: it runs plainly once, is then captured in a graph, and from then on replayed. Whatever the
host wants to know is copied to it without waiting.

Letters: S sentences and K slots of each, R = S K rows, V words, J source positions (padded), N
sentences that are in a lane.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from covnmt.config import DecodeConfig
from covnmt.model.decoder import DecoderState, Memory
from covnmt.model.seq2seq import Seq2Seq
from covnmt.search import step_limits
from covnmt.trellis import Segment

SOURCE = 16  # source positions are padded to multiples of this
ROWS = 64  # steps that the trellis of a lane holds


class Buffers(NamedTuple):
    """All that a step reads and writes."""

    memory: Memory  # [S, J, .]
    state: DecoderState  # [R, .]
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
    def allocate(cls, model: Seq2Seq, memory: Memory, S: int, K: int) -> "Buffers":
        """Buffers for S sentences like those of the memory."""
        t = next(model.parameters())
        J, n = round_up(memory.mask.shape[1], SOURCE), model.config.hidden
        # sums of many small attention weights: never in half precision
        C = torch.promote_types(t.dtype, torch.float32)

        def source(part: Tensor) -> Tensor:
            # ones, because what lies behind the sentences and words must do no harm
            dtype = t.dtype if part.is_floating_point() else part.dtype
            return t.new_ones(S, J, *part.shape[2:], dtype=dtype)

        def numbers(*shape: int) -> Tensor:
            return t.new_zeros(shape, dtype=torch.long)

        def scores(*shape: int) -> Tensor:
            return t.new_zeros(shape, dtype=torch.float32)

        return cls(
            memory=Memory(*map(source, memory)),
            state=DecoderState(
                t.new_zeros(S * K, n),
                t.new_zeros(S * K, 2 * n),
                t.new_zeros(S * K, J, model.decoder.coverage.size, dtype=C),
            ),
            words=numbers(S * K),
            log_probs=scores(S, K),
            widths=numbers(S),
            without_end=numbers(S),
            most=numbers(S),
            open=t.new_zeros(S, dtype=torch.bool),
            banned=numbers(2),
            clock=numbers(2),
            choices=numbers(ROWS, S, K),
            ended=scores(ROWS, S, K),
            alpha=scores(ROWS, S, K, J),
        )

    def by_sentence(self) -> Iterator[Tensor]:
        """What moves with the sentences, each [S, ...]."""
        S, K = self.log_probs.shape
        yield from self.memory
        yield from (part.unflatten(0, (S, K)) for part in self.state)
        yield self.words.unflatten(0, (S, K))
        yield from (self.log_probs, self.widths, self.without_end, self.most, self.open)

    def load(self, memory: Memory, lengths: Tensor, banned: Tensor, config: DecodeConfig) -> None:
        """Begin with these sentences, at most S of them."""
        N, J = memory.mask.shape
        for mine, theirs in zip(self.memory, memory, strict=True):
            mine[:N, :J].copy_(theirs)
        self.memory.mask[:N, J:] = False
        self.log_probs.fill_(-math.inf)
        self.log_probs[:N, 0] = 0.0
        self.widths.fill_(config.beam)
        without_end, most = step_limits(lengths, config)
        self.without_end[:N].copy_(without_end)
        self.most[:N].copy_(most)
        self.banned.copy_(banned)
        self.clock.zero_()
        self._clear(N)

    def receive(self, other: "Buffers", kept: Tensor) -> None:
        """Go on with these sentences of other buffers, at most S of them."""
        for mine, theirs in zip(self.by_sentence(), other.by_sentence(), strict=True):
            torch.index_select(theirs, 0, kept, out=mine[: len(kept)])
        self.banned.copy_(other.banned)
        self.clock.copy_(other.clock)
        self._clear(len(kept))

    def _clear(self, N: int) -> None:
        """Places behind the N sentences have no hypothesis, and a source that can be looked at."""
        self.memory.mask[N:] = True
        self.log_probs[N:] = -math.inf
        self.open[N:] = False


class Lane:
    """Buffers of one size, and their step: run plainly once, then captured and replayed."""

    def __init__(
        self, buffers: Buffers, advance: Callable[[Buffers, bool], None], pool: Any
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
            return lambda: self.advance(self.buffers, first)
        return graph.replay


class Fetched:
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


class Rows(NamedTuple):
    """A segment of the trellis on its way to the host."""

    first: int
    numbers: Sequence[int]
    parts: tuple[Fetched, ...]

    @classmethod
    def send(cls, buffers: Buffers, begin: int, done: int, numbers: Sequence[int]) -> "Rows":
        """The steps from `begin` on, of a lane that has these sentences in its first places."""
        parts = (buffers.choices, buffers.ended, buffers.alpha)
        return cls(begin, numbers, tuple(Fetched(part[: done - begin]) for part in parts))

    def arrived(self) -> Segment:
        """The segment, as soon as it is here."""
        return Segment(self.first, self.numbers, *(part.numpy() for part in self.parts))


def round_up(number: int, step: int) -> int:
    """The next multiple."""
    return number + -number % step
