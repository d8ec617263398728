"""The PyTorch engine: step by step on a CPU, with its own beam search on a GPU.

Notation: S sentences, K hypotheses of each, R = S K rows, V vocabulary size, I target and J source
positions.
"""

import os
from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor

from covnmt.base.arrays import FloatArray, IntArray
from covnmt.base.config import DecodeConfig
from covnmt.base.cpus import available_cpus
from covnmt.base.errors import UserError
from covnmt.data.batching import Batch
from covnmt.data.padding import PaddedIds
from covnmt.decoding.array_functions import mean, mean_log_probs, mean_or_none, top_k
from covnmt.decoding.backtrace import Hypothesis
from covnmt.decoding.beam_search import Proposal, beam_search
from covnmt.decoding.engines import (
    CoverageAblation,
    ForcedDecoding,
    SearchResult,
    StepCallback,
    do_nothing,
)
from covnmt.decoding.gpu.beam_search import GpuBeamSearch
from covnmt.kernels import gpu
from covnmt.kernels.tensors import EncodedSource
from covnmt.model.decoder import DecoderState
from covnmt.model.seq2seq import Seq2Seq
from covnmt.text.vocabulary import UNK_ID


class TorchStates(NamedTuple):
    """The decoder state of every model, whose rows are the same hypotheses."""

    states: tuple[DecoderState, ...]

    def select(self, rows: IntArray) -> "TorchStates":
        """Return the same rows of every state."""
        index = torch.from_numpy(rows).to(self.states[0].t.device)
        return TorchStates(tuple(state.select(index) for state in self.states))


class TorchScorer:
    """One model or an ensemble that has encoded certain sentences: a `Scorer`.

    The members of an ensemble vote with the mean of their probabilities and of their attention.
    """

    def __init__(
        self, models: Sequence[Seq2Seq], memories: Sequence[EncodedSource], end_id: int
    ) -> None:
        self.models, self.memories, self.end_id, self.unk_id = models, memories, end_id, UNK_ID

    @classmethod
    def encode(
        cls, models: Sequence[Seq2Seq], source: Tensor, mask: Tensor, end_id: int
    ) -> tuple["TorchScorer", TorchStates]:
        """Let every model encode the source [S, J]; return the scorer and its first state."""
        memories = [model.encode(source, mask) for model in models]
        states = (
            model.decoder.initial_state(memory)
            for model, memory in zip(models, memories, strict=True)
        )
        return cls(models, memories, end_id), TorchStates(tuple(states))

    def step(self, state: TorchStates, token_ids: IntArray | None, k: int) -> Proposal[TorchStates]:
        """Propose the k best next tokens of every row."""
        device = state.states[0].t.device
        last = None if token_ids is None else torch.from_numpy(token_ids).to(device)
        members = zip(self.models, self.memories, state.states, strict=True)
        predictions = [model.step(memory, own_state, last) for model, memory, own_state in members]
        log_probs, attention = predictions[0].log_probs, predictions[0].alpha
        if len(predictions) > 1:
            log_probs = mean_log_probs([prediction.log_probs for prediction in predictions])
            attention = mean([prediction.alpha for prediction in predictions])
        best, best_ids = top_k(log_probs, k)
        return Proposal(
            best.cpu().numpy(),
            best_ids.cpu().numpy(),
            attention.float().cpu().numpy(),
            TorchStates(tuple(prediction.state for prediction in predictions)),
        )

    def keep(self, sentences: IntArray) -> "TorchScorer":
        """Return a scorer for only these sentences."""
        index = torch.from_numpy(sentences).to(self.memories[0].h.device)
        memories = [memory.select(index) for memory in self.memories]
        return TorchScorer(self.models, memories, self.end_id)

    def fertility(self) -> FloatArray | None:
        """Return the expected number of target tokens [S, J], if all models predict it."""
        members = zip(self.models, self.memories, strict=True)
        fertility = mean_or_none(
            [m.decoder.coverage.fertility(memory.Phi) for m, memory in members]
        )
        return None if fertility is None else fertility.float().cpu().numpy()


class TorchEngine:
    """Models in PyTorch, on the device where their weights are."""

    def __init__(self, models: Sequence[Seq2Seq], end_id: int) -> None:
        self.models, self.end_id = models, end_id
        self.before_step: Callable[[], None] = do_nothing
        self._device = next(models[0].parameters()).device
        self.device = self._device.type

    @torch.inference_mode()
    def search(
        self, source: PaddedIds, decode: DecodeConfig, on_step: StepCallback | None
    ) -> SearchResult:
        """Translate; a single model on a GPU has its own search, which reports only at its end."""
        ids, mask = map(torch.from_numpy, source)
        if len(self.models) > 1 or self.device != "cuda":
            return self.search_stepwise(ids, mask, decode, on_step)
        result = self._gpu_search.search(ids, mask, self.search_stepwise, decode)
        if on_step is not None:
            for sentence, (best, *_) in enumerate(result.hypotheses):
                on_step(sentence, best.token_ids)
        return result

    @torch.inference_mode()
    def search_stepwise(
        self,
        ids: Tensor,
        mask: Tensor,
        decode: DecodeConfig,
        on_step: StepCallback | None = None,
        first_results: Sequence[list[Hypothesis]] = (),
    ) -> SearchResult:
        """Translate with `beam_search`, on any device; ids [S, J] may be on another one."""
        source = (ids.to(self._device), mask.to(self._device))
        scorer, state = TorchScorer.encode(self.models, *source, self.end_id)
        lengths = mask.sum(dim=1).cpu().numpy()
        hypotheses = beam_search(
            scorer, state, lengths, decode, on_step, self.before_step, first_results
        )
        return SearchResult(hypotheses, scorer.fertility())

    @cached_property
    def _gpu_search(self) -> GpuBeamSearch:
        """The GPU's search, which keeps its captured graphs from batch to batch."""
        precision = torch.bfloat16 if gpu.has_bf16(self._device) else None
        return GpuBeamSearch(self.models[0], self.end_id, UNK_ID, precision)

    @torch.inference_mode()
    def force_decode(self, source: PaddedIds, target: PaddedIds) -> ForcedDecoding:
        """Decode these targets with the first model."""
        self.before_step()
        batch = Batch(*map(torch.from_numpy, (*source, *target))).to(self._device)
        model = self.models[0]
        forced = model(batch)
        log_probs = torch.log_softmax(model.readout.logits(forced.features).float(), dim=-1)
        target_log_probs = log_probs.gather(-1, batch.target.unsqueeze(-1)).squeeze(-1)  # [S, I]
        target_log_probs = target_log_probs * batch.target_mask
        fertility = forced.fertility
        return ForcedDecoding(
            alpha=forced.alpha.float().cpu().numpy(),
            log_probs=target_log_probs.sum(dim=1).cpu().numpy(),
            fertility=None if fertility is None else fertility.float().cpu().numpy(),
            token_log_probs=target_log_probs.cpu().numpy(),
        )

    @torch.inference_mode()
    def ablate_coverage(self, source: PaddedIds, target: PaddedIds) -> CoverageAblation:
        """Attend with the coverage and others; the same operations on every device."""
        self.before_step()
        batch = Batch(*map(torch.from_numpy, (*source, *target))).to(self._device)
        model = self.models[0]
        encoded = model.encode(batch.source, batch.source_mask)
        attentions = model.decoder.ablate_coverage(encoded, model.embed_previous(batch))
        alpha, without, unattended = (a.float().cpu().numpy() for a in attentions)
        fertility = model.decoder.coverage.fertility(encoded.Phi)
        return CoverageAblation(
            alpha,
            without,
            unattended,
            None if fertility is None else fertility.float().cpu().numpy(),
        )


def limit_threads(threads: int = 0) -> None:
    """Compute with this many CPU threads; 0: one per core, or fewer where a container has a quota.

    A forked process computes with one: the others of its parent do not exist in it, and OpenMP
    would wait for them for ever.
    """
    torch.set_num_threads(threads or min(torch.get_num_threads(), available_cpus()))
    _use_one_thread_after_fork()


@cache
def _use_one_thread_after_fork() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))


def pick_device(name: str) -> torch.device:
    """Return the device of this name, or for `auto` the GPU if there is one.

    A numbered GPU becomes the current one, where kernels and CUDA graphs run.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):  # torch knows more, such as mps
        raise UserError(f"{name!r}: no such device; use auto, cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("no GPU that PyTorch can use; use --device cpu")
    if device.type == "cuda" and device.index is not None:
        if device.index >= (number := torch.cuda.device_count()):
            raise UserError(f"{name}: no such GPU; there are {number}, numbered from 0")
        torch.cuda.set_device(device)
    return device
