"""An open model, and what can be done at it: translate sentences, align or check pairs."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from covnmt.base.config import DecodeConfig
from covnmt.base.errors import UserError
from covnmt.inference.align import Aligner, Alignment
from covnmt.inference.omissions import MAX_TOKENS, OmissionChecker, OmissionReport
from covnmt.inference.translate import Translation, Translator
from covnmt.text.codec import Codec

T = TypeVar("T")
TextPair = tuple[str, str]
# Told how far sentences have come: the number of one in its batch, and its text so far.
ProgressCallback = Callable[[int, str], None]

SHOWN = 40  # characters of a sentence that is refused
CHECK_GROUP: Final = "check"  # the group of pairs to check


@dataclass(frozen=True)
class ModelInfo:
    """What the server must know of a model."""

    coverage: str
    decode: DecodeConfig
    device: str  # cpu or cuda


class ModelRunner:
    """One model and the only thread that uses it."""

    def __init__(self, directory: Path, device: str, threads: int) -> None:
        self.translator = Translator.load(directory, device=device, threads=threads)
        [model] = self.translator.models
        self.aligner = Aligner(model, self.translator.source, self.translator.target)
        self.checker = OmissionChecker(self.translator)
        kind, engine = model.config.coverage.kind, self.translator.engine
        self.card = ModelInfo(kind, self.translator.decode, engine.device)

    def warm_up(self) -> None:
        """Translate once, so that the first request need not wait for what is made only once."""
        words = self.translator.source.decode([2, 3])
        self.run(self.card.decode, [self.translator.source.detokenize(words)], None)

    def run(
        self, group: Hashable, payloads: Sequence[Any], tell: ProgressCallback | None
    ) -> Sequence[Any]:
        """Do a batch: translate with these settings or, where there are none, check or align."""
        if isinstance(group, DecodeConfig):
            return self._translate(group, payloads, tell)
        if group == CHECK_GROUP:
            return self._check(payloads)
        return self._align(bool(group), payloads)

    def _translate(
        self, decode: DecodeConfig, lines: Sequence[str], tell: ProgressCallback | None
    ) -> list[Translation | UserError]:
        source = self.translator.source
        refused = [_too_long(line, source, decode.max_source) for line in lines]
        accepted = [k for k, no in enumerate(refused) if no is None]
        watch = None if tell is None else PartialTextWatch(tell, accepted, self.translator)
        chosen = [lines[k] for k in accepted]
        done = iter(self.translator.translate(chosen, decode, on_step=watch))
        return [no or next(done) for no in refused]

    def _align(self, tokenized: bool, pairs: Sequence[TextPair]) -> list[Alignment | UserError]:
        limit = self.card.decode.max_source
        return self._unless_long(pairs, limit, lambda each: self.aligner.align(each, tokenized))

    def _check(self, pairs: Sequence[TextPair]) -> list[OmissionReport | UserError]:
        limit = min(MAX_TOKENS, self.card.decode.max_source)
        return self._unless_long(pairs, limit, self.checker.check)

    def _unless_long(
        self, pairs: Sequence[TextPair], limit: int, do: Callable[[list[TextPair]], Iterable[T]]
    ) -> list[T | UserError]:
        """What is done with those pairs that are short enough on both sides."""
        source, target = self.translator.source, self.translator.target
        refused = [_too_long(a, source, limit) or _too_long(b, target, limit) for a, b in pairs]
        accepted = [pair for pair, no in zip(pairs, refused, strict=True) if no is None]
        done = iter(do(accepted))
        return [no or next(done) for no in refused]


class PartialTextWatch:
    """Passes on what the search says of its best hypotheses, as text, and only what is new."""

    def __init__(
        self, tell: ProgressCallback, places: Sequence[int], translator: Translator
    ) -> None:
        self.tell, self.places, self.target = tell, places, translator.target
        self.told: dict[int, str] = {}

    def __call__(self, line: int, tokens: tuple[str, ...]) -> None:
        """After a step: the number of a line, and its best tokens so far."""
        text = self.target.detokenize(tokens)
        if text != self.told.get(line):
            self.told[line] = text
            self.tell(self.places[line], text)


def _too_long(text: str, side: Codec, limit: int) -> UserError | None:
    tokens = len(side.tokenize(text))
    return (
        None if tokens <= limit else UserError(too_long_message(text, f"{tokens:,} tokens", limit))
    )


def too_long_message(text: str, size: str, limit: int) -> str:
    """Why a sentence is refused, and how it begins."""
    shown = text if len(text) <= SHOWN else f"{text[:SHOWN].rstrip()}…"
    return f'"{shown}" has {size}, where a sentence may have {limit:,}; split it'
