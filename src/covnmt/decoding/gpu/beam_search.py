"""Beam search with one model on a GPU: the rules of the CPU's search at fixed shapes and addresses.

One step, `GpuBeamSearch.advance`, is a fixed sequence of tensor operations over the buffers of a
`CapturedStep` (see `step`), captured as a CUDA graph and replayed. Finished sentences stay until
half of the buffers is done; then the others move to smaller buffers.

The host launches a step before it reads which sentences the last one finished, and reads nothing
while no sentence can have reached its minimum length. Everything else comes back at the end: the
history of the search, from which the hypotheses are read backwards.

Where this search has no advantage (ensembles, very wide beams, retries of sentences that did not
end) `covnmt.decoding.beam_search` does the work. On a CPU the same code runs
uncaptured, and the tests hold it to that search.

Notation: S sentences and K slots of each in the buffers, R = S K rows, V vocabulary size (padded to
whole blocks), J source positions (padded), N sentences of a batch.
"""

import copy
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from covnmt.base.config import DecodeConfig
from covnmt.decoding.backtrace import Hypothesis
from covnmt.decoding.beam_search import worth_retrying
from covnmt.decoding.engines import SearchResult
from covnmt.decoding.gpu.buffers import (
    SOURCE_MULTIPLE,
    CapturedStep,
    HistorySegment,
    HostCopy,
    SearchBuffers,
    SearchRequest,
    join_segments,
    round_up,
)
from covnmt.decoding.gpu.step import (
    MAX_BEAM,
    DecodingStep,
    PaddedOutputLayer,
    PlainDecodingStep,
    encode_sources,
    select_continuations,
)
from covnmt.kernels import dispatch
from covnmt.kernels.tensors import EncodedSource
from covnmt.model.seq2seq import Seq2Seq

MAX_CAPTURED_STEPS = 24  # kept with their graphs; the least recently used goes first
MIN_CAPACITY = 8  # sentences in the smallest buffers worth moving to


class FallbackSearch(Protocol):
    """The CPU's search."""

    def __call__(
        self,
        ids: Tensor,
        mask: Tensor,
        decode: DecodeConfig,
        /,
        *,
        first_results: Sequence[list[Hypothesis]] = (),
    ) -> SearchResult:
        """Translate source ids [N, J], or retry them: see `decoding.beam_search.beam_search`."""


class GpuBeamSearch:
    """Beam search with one model, whose weights must not change any more; for one thread.

    In another `precision` the steps use a copy of the model; coverage and log-probabilities never
    have fewer than 32 bits.
    """

    def __init__(
        self,
        model: Seq2Seq,
        end_id: int,
        unk_id: int,
        precision: torch.dtype | None = None,
        min_capacity: int = MIN_CAPACITY,
    ) -> None:
        weights = next(model.parameters())
        self.dtype = precision or weights.dtype
        self.is_low_precision = self.dtype.itemsize < 4
        usable = self.dtype == weights.dtype and not self.is_low_precision
        self.model = model if usable else copy_in_precision(model, self.dtype)
        self.output = PaddedOutputLayer.of(self.model.readout)
        self.end_id, self.unk_id, self.min_capacity = end_id, unk_id, min_capacity
        self.device = weights.device
        self._example = self._example_source()
        self._plain_step = PlainDecodingStep(self.model)
        self._uses_triton = dispatch.uses_triton(self.device)
        self._triton_step = model.decoder.kernels.decoding_step(
            model.decoding_weights(), self.dtype
        )
        self._graph_pool = torch.cuda.graph_pool_handle() if weights.is_cuda else None
        self._captured: OrderedDict[tuple[int, ...], CapturedStep] = OrderedDict()

    @torch.inference_mode()
    def search(
        self, source_ids: Tensor, mask: Tensor, fallback: FallbackSearch, config: DecodeConfig
    ) -> SearchResult:
        """Translate source ids [N, J], which are best given on the host."""
        if not len(source_ids):
            return SearchResult([], None)
        if config.beam > MAX_BEAM:
            return fallback(source_ids, mask, config)
        result = self._first_attempt(source_ids.cpu(), mask.cpu(), config)
        unfinished = [n for n, (b, *_) in enumerate(result.hypotheses) if worth_retrying(b, config)]
        if unfinished and config.retry:
            first_results = [result.hypotheses[n] for n in unfinished]
            retried = fallback(
                source_ids[unfinished], mask[unfinished], config, first_results=first_results
            )
            for n, hypotheses in zip(unfinished, retried.hypotheses, strict=True):
                result.hypotheses[n] = hypotheses
        return result

    def _first_attempt(
        self, source_ids: Tensor, mask: Tensor, config: DecodeConfig
    ) -> SearchResult:
        N, J = source_ids.shape
        S = round_up_capacity(N)
        request = SearchRequest.pack(source_ids, mask, S, self.unk_id, config)
        with torch.cuda.device_of(self._example.h):
            step = self._captured_step(S, config.beam, round_up(J, SOURCE_MULTIPLE))
            step.buffers.request.copy_(self._to_device(request.table))
            step.run(first=True)
            fertility = self.model.decoder.coverage.fertility(step.buffers.source.Phi[:N, :J])
            fertility_copy = None if fertility is None else HostCopy(fertility.float())
            segments = self._explore(step, request)
        history = join_segments(segments, N, len(self.output.b))
        hypotheses = history.hypotheses(request.lengths.tolist(), self.end_id, config)
        return SearchResult(hypotheses, None if fertility_copy is None else fertility_copy.numpy())

    def _explore(self, step: CapturedStep, request: SearchRequest) -> list[HistorySegment]:
        """Search until every sentence is done; return the history, on its way to the host."""
        sentences: Sequence[int] = range(len(request.lengths))
        K, J = step.buffers.log_probs.shape[1], step.buffers.source.mask.shape[1]
        segments: list[HistorySegment] = []
        begin, done = 0, 1
        while done < request.max_steps:
            flags = HostCopy(step.buffers.live) if done > request.min_steps else None
            step.run()
            done += 1
            live = flags.numpy().nonzero()[0].tolist() if flags else range(len(sentences))
            if not live:
                break
            capacity = max(self.min_capacity, round_up_capacity(len(live)))
            move = 2 * capacity <= len(step.buffers.live)
            if move or done - begin == len(step.buffers.choices):
                segments.append(HistorySegment.send(step.buffers, begin, done, sentences))
                step.buffers.clock[1] = 0
                begin = done
            if move:
                smaller = self._captured_step(capacity, K, J)
                smaller.buffers.receive(step.buffers, self._to_device(torch.tensor(live)))
                step, sentences = smaller, [sentences[place] for place in live]
        return [*segments, HistorySegment.send(step.buffers, begin, done, sentences)]

    def advance(self, buffers: SearchBuffers, first: bool) -> None:
        """Advance all sentences by one token; the first step encodes them before."""
        (S, K), J = buffers.log_probs.shape, buffers.source.mask.shape[1]
        decoding_step, select_best = self._decoding_step(J), self._selection(K)

        def select(features: Tensor) -> Tensor:
            logits = self.output.logits(features)
            return select_best(buffers, logits.unflatten(0, (S, -1)), self.end_id)

        with self._autocast():
            if first:
                encode_sources(self.model, buffers)
            decoding_step(buffers, first, select)
        buffers.clock.add_(1)

    def _decoding_step(self, J: int) -> DecodingStep:
        fused = self._triton_step
        return fused if fused is not None and fused.supports_length(J) else self._plain_step

    def _selection(self, K: int) -> Callable[[SearchBuffers, Tensor, int], Tensor]:
        if not self._uses_triton:
            return select_continuations
        from covnmt.kernels.triton import search as triton_search

        fits = triton_search.fits_beam(K, len(self.output.b))
        return triton_search.select_continuations if fits else select_continuations

    def _autocast(self) -> torch.autocast:
        kind = self.device.type
        return torch.autocast(kind, self.dtype, enabled=self.is_low_precision, cache_enabled=False)

    @torch.inference_mode()
    def _example_source(self) -> EncodedSource:
        """Return what steps read of a source of one token, for the shapes and types of buffers."""
        h = self.output.W.new_zeros(1, 1, 2 * self.model.config.hidden)
        with self._autocast():
            return self.model.decoder.encode_source(h, h[:, :, 0] == 0)

    def _captured_step(self, S: int, K: int, J: int) -> CapturedStep:
        key = (S, K, J)
        if key not in self._captured:
            if len(self._captured) == MAX_CAPTURED_STEPS:
                self._captured.popitem(last=False)
            columns = self._decoding_step(J).embedding_columns
            buffers = SearchBuffers.allocate(self.model, self._example, S, K, J, columns)
            # a strong reference back to this search would keep its memory on the GPU, validation
            # after validation, until Python looks for cycles
            search = weakref.proxy(self)
            self._captured[key] = CapturedStep(
                buffers, lambda *arguments: search.advance(*arguments), self._graph_pool
            )
        self._captured.move_to_end(key)
        return self._captured[key]

    def _to_device(self, values: Tensor) -> Tensor:
        """Copy to the device without waiting for it."""
        if self.device.type == "cpu":
            return values
        return values.pin_memory().to(self.device, non_blocking=True)


def copy_in_precision(model: Seq2Seq, precision: torch.dtype) -> Seq2Seq:
    """Copy a model; what meets the coverage outside of products has 32 bits or more.

    Source embeddings get some zeros, so that products read rows of whole 16 bytes.
    """
    converted = copy.deepcopy(model).to(precision)
    for name, weight in (*converted.named_parameters(), *converted.named_buffers()):
        if name.startswith("decoder.coverage.") and weight.dim() == 1:
            weight.data = weight.data.to(torch.promote_types(precision, torch.float32))
    source, cells = converted.source, (converted.encoder.ahead, converted.encoder.back)
    for parameter in (source.E, source.b, *(cell.W for cell in cells)):
        parameter.data = nn.functional.pad(parameter.data, (0, -model.config.embedding % 8))
    return converted


def round_up_capacity(sentences: int) -> int:
    """Return the next 2^i or 3 * 2^i: few sizes, and at most a third of the buffers is empty."""
    power = 1 << (sentences - 1).bit_length()
    return power * 3 // 4 if power >= 4 and sentences <= power * 3 // 4 else power
