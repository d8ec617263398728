"""Forced decoding: where does a trained model look while it is made to say a given translation?

Gives one soft matrix [I, J] per pair: attention of every target word over the source words,
without the end symbols and not renormalised (paper, section 5.3; SPEC 4).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from covnmt.checkpoint import load_model
from covnmt.data import collate
from covnmt.errors import UserError
from covnmt.model.seq2seq import Seq2Seq
from covnmt.text.codec import Codec
from covnmt.translate import pick_device

Array = NDArray[np.float32]

BATCH = 64
WINDOW = 50


@dataclass(frozen=True, eq=False)
class Alignment:
    """One pair, as the model sees it."""

    source_tokens: tuple[str, ...]
    target_tokens: tuple[str, ...]
    matrix: Array  # [I, J]
    log_prob: float  # of the target, end symbol included
    fertility: Array | None  # [J]


class Aligner:
    """A model that aligns what it is given."""

    def __init__(self, model: Seq2Seq, source: Codec, target: Codec) -> None:
        self.model, self.source, self.target = model, source, target
        self.device = next(model.parameters()).device

    @classmethod
    def load(cls, directory: Path | str, device: str = "auto") -> "Aligner":
        """Open a model directory."""
        path = Path(directory)
        model, _ = load_model(path, pick_device(device))
        return cls(model, Codec.load(path, "source"), Codec.load(path, "target"))

    def align(
        self, pairs: Iterable[tuple[str, str]], tokenized: bool = False, where: str = "pair"
    ) -> list[Alignment]:
        """Align lines; `tokenized` takes spaces as word borders, as gold alignments need.

        `where` is what to call a pair, before its number, if there is something wrong with it.
        """
        return list(self.stream(pairs, tokenized, where))

    def stream(
        self, pairs: Iterable[tuple[str, str]], tokenized: bool = False, where: str = "pair"
    ) -> Iterator[Alignment]:
        """The same, in order, a window of pairs at a time."""
        numbered = enumerate(pairs, 1)
        rows = (self._tokens(f"{where} {number}", *pair, tokenized) for number, pair in numbered)
        while window := list(islice(rows, WINDOW * BATCH)):
            order = sorted(range(len(window)), key=lambda k: sum(map(len, window[k])))
            found: dict[int, Alignment] = {}
            for start in range(0, len(order), BATCH):
                chosen = order[start : start + BATCH]
                batch = self._align_batch([window[k] for k in chosen])
                found.update(zip(chosen, batch, strict=True))
            yield from (found[k] for k in range(len(window)))

    def _tokens(
        self, name: str, source: str, target: str, tokenized: bool
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if tokenized:
            pair = (tuple(source.split()), tuple(target.split()))
        else:
            pair = (tuple(self.source.tokenize(source)), tuple(self.target.tokenize(target)))
        if not all(pair):
            raise UserError(f"{name}: one side is empty, there is nothing to align; leave it out")
        return pair

    @torch.inference_mode()
    def _align_batch(
        self, pairs: Sequence[tuple[tuple[str, ...], tuple[str, ...]]]
    ) -> list[Alignment]:
        ids = [(self.source.encode(source), self.target.encode(target)) for source, target in pairs]
        ends = (self.source.vocabulary.end, self.target.vocabulary.end)
        batch = collate(ids, *ends).to(self.device)
        forced = self.model(batch)
        log_probs = torch.log_softmax(self.model.readout.logits(forced.features).float(), dim=-1)
        said = log_probs.gather(-1, batch.target.unsqueeze(-1)).squeeze(-1)  # [B, I]
        totals = (said * batch.target_mask).sum(dim=1).tolist()
        alpha = forced.alpha.float().cpu().numpy()
        fertility = None if forced.fertility is None else forced.fertility.float().cpu().numpy()
        return [
            Alignment(
                source,
                target,
                alpha[k, : len(target), : len(source)],
                totals[k],
                None if fertility is None else fertility[k, : len(source)],
            )
            for k, (source, target) in enumerate(pairs)
        ]
