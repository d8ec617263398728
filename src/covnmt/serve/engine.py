"""A model at work: one thread and its queue, for translating and for aligning."""

import re
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from covnmt.align import Aligner, Alignment
from covnmt.config import DecodeConfig
from covnmt.errors import UserError
from covnmt.serve.batching import Batcher, Job
from covnmt.serve.settings import ServeSettings
from covnmt.translate import Translation, Translator

# Longer sentences are refused before they are even split into tokens.
CHARACTERS_PER_TOKEN = 25

SPEC = re.compile(r"(?:(?P<name>[^=/:]+)(?::(?P<source>[a-z]+)-(?P<target>[a-z]+))?=)?(?P<path>.+)")
NAME = re.compile(r"[\w.+-]{1,64}")

Pair = tuple[str, str]


@dataclass(frozen=True)
class ModelSpec:
    """Which model, under which name, and from which language to which."""

    name: str
    directory: Path
    source: str = "source"
    target: str = "target"


def parse_spec(text: str) -> ModelSpec:
    """`DIR`, `NAME=DIR` or `NAME:ja-en=DIR`; a DIR that is not there is looked for in runs/."""
    found = SPEC.fullmatch(text)
    if found is None:
        raise UserError("--model is empty; name a model directory")
    directory = Path(found["path"])
    if not directory.exists() and (Path("runs") / directory).is_dir():
        directory = Path("runs") / directory
    name = found["name"] or directory.resolve().name
    if not NAME.fullmatch(name):
        raise UserError(
            f"{name!r} cannot be the name of a model; say --model some-name={directory}"
        )
    return ModelSpec(name, directory, found["source"] or "source", found["target"] or "target")


class Engine:
    """One model and the only thread that uses it."""

    def __init__(
        self,
        spec: ModelSpec,
        translator: Translator,
        settings: ServeSettings,
        observe: Callable[[str, int, float], None],
    ) -> None:
        self.spec, self.translator = spec, translator
        self.aligner = Aligner(translator.models[0], translator.source, translator.target)
        self.decode = translator.decode.model_copy(update={"batch_size": settings.batch_size})
        self.longest = CHARACTERS_PER_TOKEN * self.decode.max_source
        limits = (settings.batch_size, settings.wait, settings.queue)
        self.queue: Batcher[Any, Any] = Batcher(self._run, *limits, partial(observe, spec.name))

    def translate(
        self, sentences: Sequence[str], decode: DecodeConfig
    ) -> list[Future[Translation]]:
        """Queue these sentences; each must have at least one character that is no space."""
        for sentence in sentences:
            self._check(sentence)
        jobs = [Job[Any, Any](decode, sentence, len(sentence)) for sentence in sentences]
        self.queue.submit(jobs)
        return [job.future for job in jobs]

    def align(self, pairs: Sequence[Pair], tokenized: bool) -> list[Future[Alignment]]:
        """Queue these pairs."""
        for side in (side for pair in pairs for side in pair):
            self._check(side)
        jobs = [Job[Any, Any](tokenized, pair, max(map(len, pair))) for pair in pairs]
        self.queue.submit(jobs)
        return [job.future for job in jobs]

    def warm_up(self) -> None:
        """Translate once, so that the first request need not wait for what is made only once."""
        words = self.translator.source.decode([2, 3])
        text = self.translator.source.detokenize(words)
        job = Job[Any, Any](self.decode, text, len(text), arrived=0.0)  # waits for no other
        self.queue.submit([job])
        job.future.result()

    def close(self) -> None:
        """Finish what was accepted."""
        self.queue.close()

    def _check(self, sentence: str) -> None:
        if len(sentence) > self.longest:
            raise UserError(
                f"a sentence of {len(sentence):,} characters; at most {self.longest:,} can be "
                "translated at once, split it"
            )

    def _run(self, group: Hashable, payloads: Sequence[Any]) -> Sequence[Any]:
        if isinstance(group, DecodeConfig):
            return self._translate(group, payloads)
        return self._align(bool(group), payloads)

    def _translate(
        self, decode: DecodeConfig, lines: Sequence[str]
    ) -> list[Translation | UserError]:
        refused = [self._refusal(line, decode.max_source) for line in lines]
        accepted = [line for line, no in zip(lines, refused, strict=True) if no is None]
        done = iter(self.translator.translate(accepted, decode))
        return [no or next(done) for no in refused]

    def _align(self, tokenized: bool, pairs: Sequence[Pair]) -> list[Alignment | UserError]:
        limit = self.decode.max_source
        source, target = self.translator.source, self.translator.target
        refused = [
            _too_long(len(source.tokenize(a)), limit) or _too_long(len(target.tokenize(b)), limit)
            for a, b in pairs
        ]
        accepted = [pair for pair, no in zip(pairs, refused, strict=True) if no is None]
        done = iter(self.aligner.align(accepted, tokenized))
        return [no or next(done) for no in refused]

    def _refusal(self, line: str, limit: int) -> UserError | None:
        return _too_long(len(self.translator.source.tokenize(line)), limit)


def _too_long(tokens: int, limit: int) -> UserError | None:
    if tokens <= limit:
        return None
    return UserError(f"a sentence of {tokens:,} tokens; this model takes {limit}, split it")


def load_engines(
    specs: Sequence[ModelSpec],
    device: str,
    settings: ServeSettings,
    observe: Callable[[str, int, float], None],
) -> dict[str, Engine]:
    """Open every model; two of one name are an error."""
    engines: dict[str, Engine] = {}
    for spec in specs:
        if spec.name in engines:
            raise UserError(
                f"two models are called {spec.name}; say --model other-name={spec.directory}"
            )
        translator = Translator.load(spec.directory, device=device)
        engines[spec.name] = Engine(spec, translator, settings, observe)
    return engines
