"""What clients ask of a model: translate a sentence, align a pair, check a pair for omissions.

Each kind of work is one class. The server queues it; a worker process, which has the model open,
runs a batch of it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Generic, Self, TypeVar

from covnmt.base.config import DecodeConfig
from covnmt.base.errors import UserError
from covnmt.inference.align import Alignment
from covnmt.inference.model import load
from covnmt.inference.omissions import MAX_TOKENS, OmissionReport
from covnmt.inference.translate import Translation
from covnmt.text.codec import Codec

R = TypeVar("R")
# Called during a search with the position of a sentence and its best translation so far.
ProgressCallback = Callable[[int, str], None]

BYTES_PER_WORD = 5
SHOWN_CHARACTERS = 40  # of a sentence that is refused


@dataclass(frozen=True)
class ModelProperties:
    """What the server must know of a model that its workers have open."""

    coverage: str
    decode: DecodeConfig
    device: str  # cpu or cuda


class OpenModel:
    """A model in a worker process, ready for every kind of work."""

    def __init__(self, directory: Path, device: str, threads: int) -> None:
        self.model = load(directory, device=device, threads=threads)
        self.source, self.target = self.model.source, self.model.target
        kind, device = self.model.config.coverage.kind, self.model.engine.device
        self.properties = ModelProperties(kind, self.model.decode, device)

    def warm_up(self) -> None:
        """Translate once: the first search compiles and allocates what later ones reuse."""
        sentence = self.source.detokenize(self.source.decode([2, 3]))
        run_batch([TranslateWork((sentence,), self.properties.decode)], self, None)

    def refusal(self, work: "Work[R]") -> UserError | None:
        """Refuse work with a text of too many tokens."""
        limit = work.max_tokens(self.properties.decode)
        for text, side in zip(work.texts, (self.source, self.target), strict=False):
            if (tokens := len(side.tokenize(text))) > limit:
                return UserError(too_long_message(text, f"{tokens:,} tokens", limit))
        return None


@dataclass(frozen=True)
class Work(ABC, Generic[R]):
    """A sentence, or a source and its translation, to work on; the result is an `R`."""

    texts: tuple[str, ...]

    @property
    @abstractmethod
    def batch_key(self) -> Hashable:
        """Return what work must have in common to share a batch."""

    @cached_property
    def size(self) -> int:
        """Return the bytes of the longest text: they measure cost alike in all scripts."""
        return max(len(text.encode()) for text in self.texts)

    def max_tokens(self, decode: DecodeConfig) -> int:
        """Return how many tokens a text may have, given the settings of the model."""
        return decode.max_source

    @classmethod
    @abstractmethod
    def run(
        cls, batch: Sequence[Self], model: OpenModel, on_partial: ProgressCallback | None
    ) -> Sequence[R]:
        """Run work that shares a key; the results are in order."""


@dataclass(frozen=True)
class TranslateWork(Work[Translation]):
    """Translate a sentence, which must have at least one character that is not a space."""

    decode: DecodeConfig

    @property
    def batch_key(self) -> Hashable:
        return self.decode

    @classmethod
    def run(
        cls, batch: Sequence[Self], model: OpenModel, on_partial: ProgressCallback | None
    ) -> Sequence[Translation]:
        sentences = [sentence for work in batch for sentence in work.texts]
        watch = ChangedText(on_partial, model.target) if on_partial else None
        return model.model.translate(sentences, batch[0].decode, on_step=watch)


@dataclass(frozen=True)
class AlignWork(Work[Alignment]):
    """Align a sentence and its translation; if `tokenized`, by the words between spaces."""

    tokenized: bool

    @property
    def batch_key(self) -> Hashable:
        return ("align", self.tokenized)

    @classmethod
    def run(
        cls, batch: Sequence[Self], model: OpenModel, on_partial: ProgressCallback | None
    ) -> Sequence[Alignment]:
        pairs = [(source, target) for source, target in (work.texts for work in batch)]
        return model.model.align(pairs, batch[0].tokenized)


@dataclass(frozen=True)
class CheckWork(Work[OmissionReport]):
    """Check what a translation leaves out of its source."""

    @property
    def batch_key(self) -> Hashable:
        return "check"

    @cached_property
    def size(self) -> int:
        """Return about the bytes of all sentences that the check decodes."""
        return max(len(text.encode()) for text in self.texts) * decodings_per_check(self.texts[0])

    def max_tokens(self, decode: DecodeConfig) -> int:
        return min(MAX_TOKENS, decode.max_source)

    @classmethod
    def run(
        cls, batch: Sequence[Self], model: OpenModel, on_partial: ProgressCallback | None
    ) -> Sequence[OmissionReport]:
        pairs = [(source, target) for source, target in (work.texts for work in batch)]
        return model.model.check(pairs)


def decodings_per_check(source: str) -> int:
    """Estimate how many decodings a check takes: two of the sentence, and two without each word."""
    return 2 * (1 + len(source.encode()) // BYTES_PER_WORD)


def run_batch(
    batch: Sequence[Work[R]], model: OpenModel, on_partial: ProgressCallback | None
) -> list[R | UserError]:
    """Run work that shares a key, except where a text is too long; return results and refusals."""
    refusals = [model.refusal(work) for work in batch]
    accepted = [k for k, refusal in enumerate(refusals) if refusal is None]
    if not accepted:
        return [refusal for refusal in refusals if refusal]

    def on_accepted(position: int, text: str) -> None:
        if on_partial:
            on_partial(accepted[position], text)

    chosen = [batch[k] for k in accepted]
    results = iter(type(batch[0]).run(chosen, model, on_accepted if on_partial else None))
    return [refusal or next(results) for refusal in refusals]


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
