"""What clients ask of a model: translate a sentence, align a pair, check a pair for omissions.

Each kind of work is one class. The server queues it; a worker process, which has the model open,
runs a batch of it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, Self, TypeVar

from covnmt.base.config import DecodeConfig
from covnmt.base.errors import UserError
from covnmt.inference.align import Alignment, EmptySideError
from covnmt.inference.check_settings import MAX_TOKENS
from covnmt.inference.model import Model, OverlongTextError
from covnmt.inference.omissions import OmissionReport, SkippedPair
from covnmt.inference.translate import Translation
from covnmt.text.codec import Codec

R = TypeVar("R")
# Called during a search with the position of a sentence and its best translation so far.
ProgressCallback = Callable[[int, str], None]

BYTES_PER_WORD = 5
OVERHEAD_BYTES = 30  # what the shortest sentence costs
DOUBLING_BYTES = 500  # a sentence so long takes twice the time for each of its bytes
USUAL_BEAM = 10
# Measured: a sentence that is checked too takes 2.5 to 3.5 times the time, the check of a given
# translation 2 to 8 times.
CHECKED_FACTOR, CHECK_FACTOR = 3, 5
SHOWN_CHARACTERS = 40  # of a sentence that is refused


@dataclass(frozen=True)
class Work(ABC, Generic[R]):
    """A sentence, or a source and its translation, to work on; the result is an `R`."""

    texts: tuple[str, ...]

    @cached_property
    def batch_key(self) -> Hashable:
        """What work must have in common to share a batch: its kind and settings."""
        return replace(self, texts=())

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest text: they measure cost alike in all scripts."""
        return max(len(text.encode()) for text in self.texts)

    @property
    def size(self) -> int:
        """Estimate the bytes of a sentence that takes as long to translate."""
        return self.longest

    @property
    def cost(self) -> float:
        """Estimate the time that it takes, as bytes of a sentence translated with a usual beam."""
        return (OVERHEAD_BYTES + self.longest) * (1 + self.longest / DOUBLING_BYTES)

    @classmethod
    @abstractmethod
    def run(
        cls, batch: Sequence[Self], model: Model, on_partial: ProgressCallback | None
    ) -> Sequence[R]:
        """Run work that shares a key, in order; raise an OverlongTextError for texts too long."""


@dataclass(frozen=True)
class TranslateWork(Work[Translation]):
    """Translate a sentence, which must have at least one character that is not a space."""

    decode: DecodeConfig
    check: bool = False  # check the translations for omissions too

    @property
    def size(self) -> int:
        return self.longest * (CHECKED_FACTOR if self.check else 1)

    @property
    def cost(self) -> float:
        # a step takes longer with a wider beam, though not in proportion
        beam = (1 + 3 * self.decode.beam / USUAL_BEAM) / 4
        return super().cost * beam * (CHECKED_FACTOR if self.check else 1)

    @classmethod
    def run(
        cls, batch: Sequence[Self], model: Model, on_partial: ProgressCallback | None
    ) -> Sequence[Translation]:
        sentences = [sentence for work in batch for sentence in work.texts]
        on_step = ChangedText(on_partial, model.target) if on_partial else None
        done = model.translate(sentences, batch[0].decode, "raise", on_step)
        if not batch[0].check:
            return done
        reports = model.check_stream([(t.source, t.text) for t in done], words=True)
        return [
            replace(
                translation,
                omissions=None if isinstance(report, SkippedPair) else report.omissions,
                may_repeat=model.checker.may_repeat(translation),
            )
            for translation, report in zip(done, reports, strict=True)
        ]


@dataclass(frozen=True)
class AlignWork(Work[Alignment]):
    """Align a sentence and its translation; if `tokenized`, by the words between spaces."""

    tokenized: bool

    @classmethod
    def run(
        cls, batch: Sequence[Self], model: Model, on_partial: ProgressCallback | None
    ) -> Sequence[Alignment]:
        pairs = _short_pairs(batch, model, model.decode.max_source)
        return model.align(pairs, batch[0].tokenized)


@dataclass(frozen=True)
class CheckWork(Work[OmissionReport]):
    """Check what a translation leaves out of its source."""

    @property
    def size(self) -> int:
        # at most: the pair and, for each word, the pair without it; a pair counts as two sentences
        words = len(self.texts[0].encode()) // BYTES_PER_WORD
        return self.longest * 2 * (1 + words)

    @property
    def cost(self) -> float:
        # most words are judged by the lexicon, without a decoding
        return super().cost * CHECK_FACTOR

    @classmethod
    def run(
        cls, batch: Sequence[Self], model: Model, on_partial: ProgressCallback | None
    ) -> Sequence[OmissionReport]:
        pairs = _short_pairs(batch, model, min(MAX_TOKENS, model.decode.max_source))
        translations = model.translate([source for source, _ in pairs], split_sentences=True)
        return [
            replace(report, model_translation=translation.text)
            for report, translation in zip(
                model.check(pairs, words=True), translations, strict=True
            )
        ]


def _short_pairs(
    batch: Sequence[AlignWork | CheckWork], model: Model, limit: int
) -> list[tuple[str, str]]:
    """Return the pairs; raise an OverlongTextError if some sides have too many tokens."""
    pairs = [(source, target) for source, target in (work.texts for work in batch)]
    overlong = {}
    for index, (source, target) in enumerate(pairs):
        # the message names the source if both sides are too long
        for codec, text in ((model.target, target), (model.source, source)):
            if (tokens := len(codec.tokenize(text))) > limit:
                overlong[index] = (text, tokens)
    if overlong:
        raise OverlongTextError(overlong, limit)
    return pairs


def run_batch(
    batch: Sequence[Work[R]], model: Model, on_partial: ProgressCallback | None
) -> list[R | UserError]:
    """Run work that shares a key; return results, and errors for texts that are refused."""
    answers: dict[int, R | UserError] = {}
    accepted = list(range(len(batch)))

    def on_accepted(position: int, text: str) -> None:
        if on_partial:
            on_partial(accepted[position], text)

    while accepted:
        try:
            results = type(batch[0]).run(
                [batch[k] for k in accepted], model, on_partial and on_accepted
            )
            answers |= zip(accepted, results, strict=True)
            break
        except OverlongTextError as error:
            refused = {
                accepted[k]: UserError(too_long_message(text, f"{tokens:,} tokens", error.limit))
                for k, (text, tokens) in error.texts.items()
            }
        except EmptySideError as error:
            refused = {accepted[error.index]: UserError(error.reason)}
        answers |= refused
        accepted = [k for k in accepted if k not in refused]
    return [answers[k] for k in range(len(batch))]


class ChangedText:
    """Pass on the best hypotheses of a search as text, and only when the text has changed."""

    def __init__(self, on_partial: ProgressCallback, target: Codec) -> None:
        self.on_partial, self.target = on_partial, target
        self.last: dict[int, str] = {}

    def __call__(self, position: int, tokens: tuple[str, ...]) -> None:
        """Receive the tokens of a hypothesis after a step of the search."""
        text = self.target.detokenize(tokens)
        if text != self.last.get(position):
            self.last[position] = text
            self.on_partial(position, text)


def too_long_message(text: str, size: str, limit: int) -> str:
    """Say why a sentence is refused, and how it begins."""
    start = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS].rstrip()}…"
    return f'"{start}" has {size}, where a sentence may have {limit:,}; split it'
