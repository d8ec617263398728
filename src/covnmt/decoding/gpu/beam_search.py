"""Beam search for one model on a GPU: the rules of `search`, at fixed shapes and addresses.

One step, `GpuBeamSearch.advance`, is a fixed sequence of tensor operations over the buffers of a
lane, so that it can be captured. The beam does not shrink as in `search`: hypotheses that ended
leave an empty slot, which has log-probability -inf. Finished sentences stay until half of a lane
is done; then the others move to a smaller lane.

The host works one step ahead of what it knows: it waits for the flags of a step only when the next
one is already on its way, and asks for none before a sentence can have ended. Everything else comes
back at the end: a trellis in which every step has a row, read backwards from the hypotheses that
ended.

Where the device search has no advantage (ensembles, very wide beams, the second attempt at
sentences that did not end) `search.search` does the work. On a CPU the same code runs uncaptured,
and the tests hold it to `search.search`.

Letters: S sentences and K slots of each in a lane, R = S K rows, V words (padded to whole blocks),
J source positions (padded), N sentences of a batch.
"""

import copy
import math
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from covnmt.base.config import DecodeConfig
from covnmt.decoding.array_functions import top_k
from covnmt.decoding.backtrace import Hypothesis
from covnmt.decoding.gpu.buffers import (
    SOURCE_MULTIPLE,
    CapturedStep,
    HostCopy,
    SearchBuffers,
    SearchRequest,
    SegmentCopy,
    join_segments,
    round_up,
)
from covnmt.decoding.penalties import judge_continuations, search_attempts
from covnmt.decoding.protocol import SearchResult
from covnmt.kernels import dispatch
from covnmt.kernels.tensors import EncodedSource
from covnmt.model.decoder import DecoderState
from covnmt.model.seq2seq import Readout, Seq2Seq

BLOCK = 128  # words whose best is found first; also the widest beam of this search
MAX_CAPTURED_STEPS = 24  # lanes kept, with their graphs; the one unused for longest goes first
MIN_CAPACITY = 8  # sentences in the smallest lane worth moving to


class PaddedOutputLayer(NamedTuple):
    """The output layer, padded with zeros and with words of no probability.

    Products want rows of whole 16 bytes, and `best` whole blocks of words.
    """

    W: Tensor  # [V, q]
    b: Tensor  # [V]

    @classmethod
    def of(cls, readout: Readout) -> "PaddedOutputLayer":
        """The model's, as it is now."""
        words, q = readout.W_2.shape
        extra = round_up(words, BLOCK) - words
        W = nn.functional.pad(readout.W_2.detach(), (0, -q % 8, 0, extra))
        return cls(W, nn.functional.pad(readout.b.detach(), (0, extra), value=-math.inf))

    def logits(self, features: Tensor) -> Tensor:
        """A score for every word [R, V] from the layer before them [R, q]."""
        extra = self.W.shape[1] - features.shape[1]
        padded = nn.functional.pad(features, (0, extra)) if extra else features
        return nn.functional.linear(padded, self.W, self.b)


def choose_continuations(buffers: SearchBuffers, logits: Tensor, end: int) -> Tensor:
    """Choose from logits [S, slots, V] and settle; the rows [S*K] that the new beam continues.

    There are K slots, or one at the first step.
    """
    log_probs = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    mask_forbidden(buffers, log_probs, end)
    S, slots, V = log_probs.shape
    K = buffers.log_probs.shape[1]
    scores, choices = top_k(log_probs.view(S, -1), K, BLOCK, buffers.log_probs[:, :slots])
    record_step(buffers, scores, choices, choices % V, end)
    first = torch.arange(0, S * slots, slots, device=logits.device)
    return (choices // V + first[:, None]).flatten()


def mask_forbidden(buffers: SearchBuffers, log_probs: Tensor, end: int) -> None:
    """Take the probability from what must not follow; log_probs is [S, slots, V]."""
    log_probs.index_fill_(2, buffers.banned, -math.inf)
    early = buffers.without_end > buffers.clock[0]
    log_probs[:, :, end].masked_fill_(early[:, None], -math.inf)


def record_step(
    buffers: SearchBuffers, scores: Tensor, choices: Tensor, words: Tensor, end: int
) -> None:
    """See which of the chosen continuations [S, K] end, and note it."""
    step, row = buffers.clock[0], buffers.clock[1:]
    ranks = torch.arange(scores.shape[1], device=scores.device)
    finished, ended, live = judge_continuations(
        scores, words, ranks, buffers.widths, buffers.most, step, end
    )
    buffers.widths.sub_(finished.sum(1))
    buffers.log_probs.copy_(torch.where(live, scores, -math.inf))
    buffers.ended.index_copy_(0, row, torch.where(ended, scores, -math.inf)[None])
    buffers.choices.index_copy_(0, row, choices[None])
    # an empty slot may have a word of the padding, which lies behind the end symbol
    torch.clamp(words, max=end, out=buffers.words.view_as(words))
    torch.any(live, dim=1, out=buffers.open)


class DecodingStep(Protocol):
    """One step of the model for all sentences of a lane, the first with one row for each."""

    embedded: int  # columns that it wants in a row behind t and s

    def __call__(
        self, buffers: SearchBuffers, first: bool, choose: Callable[[Tensor], Tensor]
    ) -> None:
        """Move on by a word; `choose` turns the layer before the words into rows to go on with."""


class PlainDecodingStep:
    """The model's own step."""

    embedded = 0

    def __init__(self, model: Seq2Seq) -> None:
        self.model = model

    def __call__(
        self, buffers: SearchBuffers, first: bool, choose: Callable[[Tensor], Tensor]
    ) -> None:
        """Score, choose and follow."""
        state, words = (self._start(buffers), None) if first else (buffers.state, buffers.words)
        features, alpha, state = self.model.step_features(buffers.memory, state, words)
        rows = choose(features)
        both = torch.cat([state.t, state.s], dim=1)
        for mine, theirs in ((buffers.rows, both), (buffers.C, state.C)):
            torch.index_select(theirs.to(mine.dtype), 0, rows, out=mine)
        S, K = buffers.log_probs.shape
        looks = alpha.float().unflatten(0, (S, -1)).expand(S, K, -1)
        buffers.alpha.index_copy_(0, buffers.clock[1:], looks[None])

    def _start(self, buffers: SearchBuffers) -> DecoderState:
        state = self.model.decoder.initial_state(buffers.memory)
        return state._replace(C=state.C.to(buffers.C.dtype))


# Searches for source words [N, J] and their mask as `search.search` does.
FallbackSearch = Callable[[Tensor, Tensor, DecodeConfig], SearchResult]


class GpuBeamSearch:
    """Beam search with one model, whose weights must not change any more; for one thread.

    In another `precision` the steps use a copy of the model; coverage and log-probabilities never
    have fewer than 32 bits. Lanes of fewer than `smallest` sentences are not worth moving to.
    """

    def __init__(
        self,
        model: Seq2Seq,
        end: int,
        unk: int,
        precision: torch.dtype | None = None,
        smallest: int = MIN_CAPACITY,
    ) -> None:
        weights = next(model.parameters())
        self.dtype = precision or weights.dtype
        self.half = self.dtype.itemsize < 4
        as_it_is = self.dtype == weights.dtype and not self.half
        self.model = model if as_it_is else copy_in_precision(model, self.dtype)
        self.output = PaddedOutputLayer.of(self.model.readout)
        self.end, self.unk, self.smallest, self.device = end, unk, smallest, weights.device
        self._memory = self._example()
        self._plain = PlainDecodingStep(self.model)
        self._uses_triton = dispatch.uses_triton(self.device)
        self._fused = model.decoder.kernels.decoding_step(model.decoding_weights(), self.dtype)
        self._pool = torch.cuda.graph_pool_handle() if weights.is_cuda else None
        self._lanes: OrderedDict[tuple[int, ...], CapturedStep] = OrderedDict()

    @torch.inference_mode()
    def search(
        self, words: Tensor, mask: Tensor, reference: FallbackSearch, config: DecodeConfig
    ) -> SearchResult:
        """What `search.search` finds for source words [N, J], best on the host already.

        The reference does what is left to that one, with the model as it is.
        """
        if not len(words):
            return SearchResult([], None)
        if config.beam > BLOCK:
            return reference(words, mask, config)
        found = self._first_attempt(words.cpu(), mask.cpu(), config)
        pending = [k for k, (top, *_) in enumerate(found.hypotheses) if not top.finished]
        for wider in islice(search_attempts(config), 1, 2) if pending else ():
            again = reference(words[pending], mask[pending], wider)
            hypotheses = replace_at(found.hypotheses, pending, again.hypotheses)
            found = found._replace(hypotheses=hypotheses)
        return found

    def _first_attempt(self, words: Tensor, mask: Tensor, config: DecodeConfig) -> SearchResult:
        N, J = words.shape
        request = SearchRequest.of(words, mask, round_up_capacity(N), self.unk, config)
        with torch.cuda.device_of(self._memory.h):
            lane = self._lane(round_up_capacity(N), config.beam, round_up(J, SOURCE_MULTIPLE))
            lane.buffers.request.copy_(self._send(request.table))
            lane.step(first=True)
            fertility = self.model.decoder.coverage.fertility(lane.buffers.memory.Phi[:N, :J])
            expected = None if fertility is None else HostCopy(fertility.float())
            segments = [segment.wait() for segment in self._explore(lane, request)]
        history = join_segments(segments, N, len(self.output.b))
        hypotheses = history.hypotheses(request.lengths.tolist(), self.end, config)
        return SearchResult(hypotheses, None if expected is None else expected.numpy())

    def advance(self, buffers: SearchBuffers, first: bool) -> None:
        """One step of all sentences of a lane; the first reads them before."""
        S, K = buffers.log_probs.shape
        best_of = self._choose(K)

        def choose(features: Tensor) -> Tensor:
            logits = self.output.logits(features)
            return best_of(buffers, logits.unflatten(0, (S, -1)), self.end)

        with self._precision():
            if first:
                self._read(buffers)
            self._step(buffers.memory.mask.shape[1])(buffers, first, choose)
        buffers.clock.add_(1)

    def _read(self, buffers: SearchBuffers) -> None:
        memory = self.model.encode(buffers.begin(), buffers.memory.mask)
        for mine, theirs in zip(buffers.memory[:3], memory[:3], strict=True):
            mine.copy_(theirs)

    def _choose(self, K: int) -> Callable[[SearchBuffers, Tensor, int], Tensor]:
        if not self._uses_triton:
            return choose_continuations
        from covnmt.kernels.triton import search as triton_search

        return (
            triton_search.select_continuations
            if triton_search.fits_beam(K, len(self.output.b))
            else choose_continuations
        )

    def _step(self, J: int) -> DecodingStep:
        return (
            self._fused
            if self._fused is not None and self._fused.supports_length(J)
            else self._plain
        )

    def _precision(self) -> torch.autocast:
        kind = self.device.type
        return torch.autocast(kind, self.dtype, enabled=self.half, cache_enabled=False)

    @torch.inference_mode()
    def _example(self) -> EncodedSource:
        """The memory of one word; lanes get their shapes and types from it."""
        h = self.output.W.new_zeros(1, 1, 2 * self.model.config.hidden)
        with self._precision():
            return self.model.decoder.encode_source(h, h[:, :, 0] == 0)

    def _explore(self, lane: CapturedStep, request: SearchRequest) -> list[SegmentCopy]:
        """Search until every sentence is done; the trellis in parts, on its way to the host."""
        numbers: Sequence[int] = range(len(request.lengths))
        K, J = lane.buffers.log_probs.shape[1], lane.buffers.memory.mask.shape[1]
        sent: list[SegmentCopy] = []
        begin, done = 0, 1
        while done < request.longest:
            flags = HostCopy(lane.buffers.open) if done > request.quiet else None
            lane.step()
            done += 1
            places = flags.numpy().nonzero()[0].tolist() if flags else range(len(numbers))
            if not places:
                break
            size = max(self.smallest, round_up_capacity(len(places)))
            move = 2 * size <= len(lane.buffers.open)
            if move or done - begin == len(lane.buffers.choices):
                sent.append(SegmentCopy.send(lane.buffers, begin, done, numbers))
                lane.buffers.clock[1] = 0
                begin = done
            if move:
                smaller = self._lane(size, K, J)
                smaller.buffers.receive(lane.buffers, self._send(torch.tensor(places)))
                lane, numbers = smaller, [numbers[place] for place in places]
        return [*sent, SegmentCopy.send(lane.buffers, begin, done, numbers)]

    def _lane(self, S: int, K: int, J: int) -> CapturedStep:
        key = (S, K, J)
        if key not in self._lanes:
            if len(self._lanes) == MAX_CAPTURED_STEPS:
                self._lanes.popitem(last=False)
            embedded = self._step(J).embedded
            buffers = SearchBuffers.allocate(self.model, self._memory, S, K, J, embedded)
            # lanes that held their search would keep its memory on the GPU, validation after
            # validation, until Python looks for cycles
            search = weakref.proxy(self)
            self._lanes[key] = CapturedStep(buffers, lambda *now: search.advance(*now), self._pool)
        self._lanes.move_to_end(key)
        return self._lanes[key]

    def _send(self, values: Tensor) -> Tensor:
        """Numbers on the device, without waiting for it."""
        if self.device.type == "cpu":
            return values
        return values.pin_memory().to(self.device, non_blocking=True)


def copy_in_precision(model: Seq2Seq, precision: torch.dtype) -> Seq2Seq:
    """A copy in this precision; what meets the coverage outside of products has 32 bits or more.

    Source words get some zeros, so that products read rows of whole 16 bytes.
    """
    made = copy.deepcopy(model).to(precision)
    for name, weight in (*made.named_parameters(), *made.named_buffers()):
        if name.startswith("decoder.coverage.") and weight.dim() == 1:
            weight.data = weight.data.to(torch.promote_types(precision, torch.float32))
    words, cells = made.source, (made.encoder.ahead, made.encoder.back)
    for parameter in (words.E, words.b, *(cell.W for cell in cells)):
        parameter.data = nn.functional.pad(parameter.data, (0, -model.config.embedding % 8))
    return made


def round_up_capacity(sentences: int) -> int:
    """The next 2^i or 3 * 2^i: few sizes, and at most a third of a lane is empty."""
    power = 1 << (sentences - 1).bit_length()
    return power * 3 // 4 if power >= 4 and sentences <= power * 3 // 4 else power


def replace_at(
    found: Sequence[list[Hypothesis]], numbers: Sequence[int], again: Sequence[list[Hypothesis]]
) -> list[list[Hypothesis]]:
    """The lists with those of these numbers exchanged."""
    changed = dict(zip(numbers, again, strict=True))
    return [changed.get(number, hypotheses) for number, hypotheses in enumerate(found)]
