"""A model at work: its processes and their queue, for translating, aligning and checking."""

import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from covnmt.base.config import DecodeConfig
from covnmt.base.errors import UserError
from covnmt.inference.align import Alignment
from covnmt.inference.omissions import OmissionReport
from covnmt.inference.translate import Translation
from covnmt.model.directory import BUNDLED_MODELS, find_model
from covnmt.serve.batching import Batcher, WorkItem
from covnmt.serve.model_runner import (
    CHECK_GROUP,
    ModelInfo,
    ProgressCallback,
    TextPair,
    too_long_message,
)
from covnmt.serve.settings import ServeSettings
from covnmt.serve.worker import Worker

# Longer sentences are refused before they are even split into tokens.
CHARACTERS_PER_TOKEN = 25
BYTES_PER_WORD = 5

SPEC = re.compile(r"(?:(?P<name>[^=/:]+)(?::(?P<source>[a-z]+)-(?P<target>[a-z]+))?=)?(?P<path>.+)")
NAME = re.compile(r"[\w.+-]{1,64}")


@dataclass(frozen=True)
class ModelSpec:
    """Which model, under which name, and from which language to which."""

    name: str
    directory: Path
    source: str = "source"
    target: str = "target"


def parse_spec(text: str) -> ModelSpec:
    """`DIR`, `NAME=DIR` or `NAME:ja-en=DIR`; a DIR that is not there is looked for in runs/, and
    among the models that come along."""
    found = SPEC.fullmatch(text)
    if found is None:
        raise UserError("--model is empty; name a model directory")
    directory = find_model(found["path"])
    if not directory.exists() and (Path("runs") / directory).is_dir():
        directory = Path("runs") / directory
    name = found["name"] or directory.resolve().name
    if not NAME.fullmatch(name):
        raise UserError(
            f"{name!r} cannot be the name of a model; say --model some-name={directory}"
        )
    known = (
        directory.name.split("-") if directory.parent == BUNDLED_MODELS else ("source", "target")
    )
    source, target = (found["source"], found["target"]) if found["source"] else known
    return ModelSpec(name, directory, source, target)


class ServedModel:
    """A model, the processes that have it open, and their queue."""

    def __init__(
        self,
        spec: ModelSpec,
        workers: Sequence[Worker],
        card: ModelInfo,
        settings: ServeSettings,
        observe: Callable[[str, int, float], None],
    ) -> None:
        self.spec, self.workers, self.card = spec, workers, card
        self.decode = card.decode.model_copy(update={"batch_size": settings.batch_size})
        self.longest = CHARACTERS_PER_TOKEN * self.decode.max_source
        limits = (settings.batch_size, settings.wait, settings.queue)
        runs = [worker.run for worker in workers]
        self.queue: Batcher[Any, Any] = Batcher(runs, *limits, partial(observe, spec.name))
        for worker in workers:
            threading.Thread(target=worker.watch, name="watch", daemon=True).start()

    def translate(
        self,
        sentences: Sequence[str],
        names: Sequence[str],
        decode: DecodeConfig,
        tell: ProgressCallback | None = None,
    ) -> list[Future[Translation]]:
        """Queue these sentences; each must have at least one character that is no space.

        `names` are what messages call them. `tell` is called, from another thread, with the number
        of a sentence and what there is of its translation so far.
        """
        for sentence, name in zip(sentences, names, strict=True):
            self._check(sentence, name)
        jobs = [
            WorkItem[Any, Any](
                decode, sentence, byte_length(sentence), tell and partial(tell, number), name
            )
            for number, (sentence, name) in enumerate(zip(sentences, names, strict=True))
        ]
        self.queue.submit(jobs)
        return [job.future for job in jobs]

    def align(self, pairs: Sequence[TextPair], tokenized: bool) -> list[Future[Alignment]]:
        """Queue these pairs."""
        named = list(zip(pairs, message_prefixes("pair", len(pairs)), strict=True))
        for pair, name in named:
            for side in pair:
                self._check(side, name)
        jobs = [
            WorkItem[Any, Any](tokenized, pair, max(map(byte_length, pair)), name=name)
            for pair, name in named
        ]
        self.queue.submit(jobs)
        return [job.future for job in jobs]

    def check(self, pair: TextPair, name: str) -> Future[OmissionReport]:
        """Queue this pair; it is as much work as many sentences."""
        for side in pair:
            self._check(side, name)
        job = WorkItem[Any, Any](
            CHECK_GROUP, pair, max(map(byte_length, pair)) * decodings_per_check(pair[0]), name=name
        )
        self.queue.submit([job])
        return job.future

    def alive(self) -> bool:
        """Is every process there?"""
        return all(worker.process.is_alive() for worker in self.workers)

    def close(self) -> None:
        """Finish what was accepted."""
        self.queue.close()
        self.abandon()

    def abandon(self) -> None:
        """Finish nothing."""
        for worker in self.workers:
            worker.close()

    def _check(self, sentence: str, name: str) -> None:
        if len(sentence) > self.longest:
            characters = f"{len(sentence):,} characters"
            raise UserError(name + too_long_message(sentence, characters, self.longest))


def message_prefixes(what: str, count: int) -> list[str]:
    """What messages call each of several; one alone needs no number."""
    return [f"{what} {n}: " for n in range(1, count + 1)] if count > 1 else [""] * count


def byte_length(text: str) -> int:
    """Bytes, which are more alike across scripts than characters are."""
    return len(text.encode())


def decodings_per_check(source: str) -> int:
    """How many a check takes, or about: two of the sentence, and two without each word."""
    return 2 * (1 + byte_length(source) // BYTES_PER_WORD)


def open_models(
    specs: Sequence[ModelSpec],
    device: str,
    settings: ServeSettings,
    observe: Callable[[str, int, float], None],
) -> dict[str, ServedModel]:
    """Open every model, warm; two of one name are an error."""
    names = [spec.name for spec in specs]
    for spec in specs:
        if names.count(spec.name) > 1:
            raise UserError(
                f"two models are called {spec.name}; say --model other-name={spec.directory}"
            )
    with ExitStack() as opened:
        engines = [_open(spec, device, settings, observe, opened) for spec in specs]
        opened.pop_all()
    return {engine.spec.name: engine for engine in engines}


def _open(
    spec: ModelSpec,
    device: str,
    settings: ServeSettings,
    observe: Callable[[str, int, float], None],
    opened: ExitStack,
) -> ServedModel:
    """The first process tells whether there is a GPU; more than one is for CPUs."""

    def start() -> Worker:
        worker = Worker(spec.directory, device, settings.threads)
        opened.callback(worker.close)
        return worker

    first = start()
    card = first.introduce()
    others = [start() for _ in range(settings.workers - 1 if card.device == "cpu" else 0)]
    for worker in others:
        worker.introduce()
    return ServedModel(spec, [first, *others], card, settings, observe)
