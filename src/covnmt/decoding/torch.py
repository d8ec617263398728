"""PyTorch as the engine: on a CPU step by step, on a GPU by its own search where there is one.

Letters: S sentences, K hypotheses of each, R = S K rows, V words, J source positions.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from covnmt.base.arrays import FloatArray, IntArray
from covnmt.base.config import DecodeConfig
from covnmt.base.errors import UserError
from covnmt.data.batching import Batch
from covnmt.data.padding import PaddedIds
from covnmt.decoding.beam_search import Proposal, SearchResult, StepCallback, beam_search
from covnmt.decoding.gpu.beam_search import GpuBeamSearch
from covnmt.decoding.protocol import ForcedDecoding
from covnmt.kernels import gpu
from covnmt.kernels.tensors import EncodedSource
from covnmt.model.decoder import DecoderState
from covnmt.model.seq2seq import Seq2Seq
from covnmt.text.vocabulary import UNK_ID


class TorchStates(NamedTuple):
    """Where every model stands, kept in step."""

    each: tuple[DecoderState, ...]

    def select(self, rows: IntArray) -> "TorchStates":
        """The same rows of every state."""
        index = torch.from_numpy(rows).to(self.each[0].t.device)
        return TorchStates(tuple(state.select(index) for state in self.each))


class TorchScorer:
    """Models that have read certain sentences, as the search sees them.

    Of several, the mean of their probabilities and of their attention counts.
    """

    def __init__(
        self, models: Sequence[Seq2Seq], memories: Sequence[EncodedSource], end: int
    ) -> None:
        self.models, self.memories, self.end, self.unk = models, memories, end, UNK_ID

    @classmethod
    def read(
        cls, models: Sequence[Seq2Seq], words: Tensor, mask: Tensor, end: int
    ) -> tuple["TorchScorer", TorchStates]:
        """Let every model read the source [S, J]; the scorer and its first state."""
        memories = [model.encode(words, mask) for model in models]
        starts = (
            model.decoder.initial_state(memory)
            for model, memory in zip(models, memories, strict=True)
        )
        return cls(models, memories, end), TorchStates(tuple(starts))

    def step(self, state: TorchStates, words: IntArray | None, k: int) -> Proposal[TorchStates]:
        """Propose the k best next words of every row."""
        last = None if words is None else torch.from_numpy(words).to(state.each[0].t.device)
        members = zip(self.models, self.memories, state.each, strict=True)
        found = [model.step(memory, own, last) for model, memory, own in members]
        log_probs, attention = found[0].log_probs, found[0].alpha
        if len(found) > 1:
            every = torch.stack([each.log_probs for each in found])
            log_probs = every.logsumexp(0) - math.log(len(found))
            attention = torch.stack([each.alpha for each in found]).mean(0)
        best, numbers = top_k(log_probs, k)
        return Proposal(
            best.cpu().numpy(),
            numbers.cpu().numpy(),
            attention.float().cpu().numpy(),
            TorchStates(tuple(each.state for each in found)),
        )

    def keep(self, sentences: IntArray) -> "TorchScorer":
        """The same for fewer sentences."""
        index = torch.from_numpy(sentences).to(self.memories[0].h.device)
        return TorchScorer(self.models, [m.select(index) for m in self.memories], self.end)

    def fertility(self) -> FloatArray | None:
        """Expected target words [S, J]; the mean where several models predict them."""
        pairs = zip(self.models, self.memories, strict=True)
        predicted = [model.decoder.coverage.fertility(memory.Phi) for model, memory in pairs]
        known = [fertility for fertility in predicted if fertility is not None]
        if len(known) < len(predicted):
            return None
        mean: FloatArray = torch.stack(known).mean(dim=0).float().cpu().numpy()
        return mean


def top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest of every row [R, N] with their positions; equal scores go to the lower one.

    `torch.topk` leaves ties open and a stable sort of all N is slow, so two small sorts do it. The
    row is cut into blocks: whatever belongs to the k highest lies in one of the k blocks with the
    highest maxima (each better block holds a better score), or in the rest behind the last block.
    """
    N = scores.shape[1]
    size = max(1, math.isqrt(N // k))
    whole = N - N % size
    maxima = scores[:, :whole].view(-1, whole // size, size).amax(2)  # [R, blocks]
    blocks = maxima.sort(dim=1, descending=True, stable=True).indices[:, :k].sort(dim=1).values
    inside = torch.arange(size, device=scores.device)
    rest = torch.arange(whole, N, device=scores.device).expand(len(scores), -1)
    positions = torch.cat(((blocks[:, :, None] * size + inside).flatten(1), rest), dim=1)
    ranked = scores.gather(1, positions).sort(dim=1, descending=True, stable=True)
    return ranked.values[:, :k], positions.gather(1, ranked.indices[:, :k])


class TorchEngine:
    """Models in PyTorch, on the device where their weights are."""

    def __init__(self, models: Sequence[Seq2Seq], end: int) -> None:
        self.models, self.end = models, end
        self._place = next(models[0].parameters()).device
        self.device = self._place.type

    @torch.inference_mode()
    def search(
        self, source: PaddedIds, decode: DecodeConfig, watch: StepCallback | None
    ) -> SearchResult:
        """Translate; on a GPU one model has a search of its own, which tells only its results."""
        words, mask = map(torch.from_numpy, source)
        if len(self.models) > 1 or self.device != "cuda":
            return self.search_stepwise(words, mask, decode, watch)
        found = self._on_device.search(words, mask, self.search_stepwise, decode)
        if watch is not None:
            for sentence, (best, *_) in enumerate(found.hypotheses):
                watch(sentence, best.token_ids)
        return found

    @torch.inference_mode()
    def search_stepwise(
        self, words: Tensor, mask: Tensor, decode: DecodeConfig, watch: StepCallback | None = None
    ) -> SearchResult:
        """What `search.search` finds, on any device, for words [S, J] that may be anywhere."""
        place = (words.to(self._place), mask.to(self._place))
        scorer, start = TorchScorer.read(self.models, *place, self.end)
        lengths = mask.sum(dim=1).cpu().numpy()
        return SearchResult(beam_search(scorer, start, lengths, decode, watch), scorer.fertility())

    @cached_property
    def _on_device(self) -> GpuBeamSearch:
        """The search for one model on a GPU, which keeps its graphs from batch to batch."""
        precision = torch.bfloat16 if gpu.has_bf16(self._place) else None
        return GpuBeamSearch(self.models[0], self.end, UNK_ID, precision)

    @torch.inference_mode()
    def force_decode(self, source: PaddedIds, target: PaddedIds) -> ForcedDecoding:
        """Decode these targets with the first model."""
        batch = Batch(*map(torch.from_numpy, (*source, *target))).to(self._place)
        model = self.models[0]
        forced = model(batch)
        log_probs = torch.log_softmax(model.readout.logits(forced.features).float(), dim=-1)
        said = log_probs.gather(-1, batch.target.unsqueeze(-1)).squeeze(-1)  # [S, I]
        fertility = forced.fertility
        return ForcedDecoding(
            alpha=forced.alpha.float().cpu().numpy(),
            log_probs=(said * batch.target_mask).sum(dim=1).cpu().numpy(),
            fertility=None if fertility is None else fertility.float().cpu().numpy(),
        )


def pick_device(name: str) -> torch.device:
    """`auto` is the GPU if there is one; anything else is torch's name of a CPU or a GPU here.

    A GPU that has a number becomes the current one: kernels and graphs run there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):  # torch knows more, such as mps
        raise UserError(f"{name!r}: no such device; say auto, cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("no GPU that PyTorch can use; say --device cpu")
    if device.type == "cuda" and device.index is not None:
        if device.index >= (number := torch.cuda.device_count()):
            raise UserError(f"{name}: no such GPU; there are {number}, numbered from 0")
        torch.cuda.set_device(device)
    return device
