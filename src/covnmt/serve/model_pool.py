"""Served models: each has its worker processes and a queue."""

import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from covnmt.base.errors import UserError
from covnmt.model.directory import BUNDLED_MODELS, find_model
from covnmt.serve.batching import Batcher, WorkItem
from covnmt.serve.settings import ServeSettings
from covnmt.serve.work import ModelProperties, ProgressCallback, R, Work, too_long_message
from covnmt.serve.worker import WorkerProcess

# A text with more characters for each allowed token is refused before it is tokenized.
CHARACTERS_PER_TOKEN = 25

SPEC = re.compile(r"(?:(?P<name>[^=/:]+)(?::(?P<source>[a-z]+)-(?P<target>[a-z]+))?=)?(?P<path>.+)")
NAME = re.compile(r"[\w.+-]{1,64}")


@dataclass(frozen=True)
class ModelSpec:
    """A model directory, the name that clients use for it, and its languages."""

    name: str
    directory: Path
    source: str = "source"
    target: str = "target"


def parse_spec(text: str) -> ModelSpec:
    """Parse `DIR`, `NAME=DIR` or `NAME:ja-en=DIR`.

    A DIR that does not exist is looked for in runs/ and among the bundled models.
    """
    match = SPEC.fullmatch(text)
    if match is None:
        raise UserError("--model is empty; name a model directory")
    directory = find_model(match["path"])
    if not directory.exists() and (Path("runs") / directory).is_dir():
        directory = Path("runs") / directory
    name = match["name"] or directory.resolve().name
    if not NAME.fullmatch(name):
        raise UserError(f"{name!r} cannot name a model; write --model some-name={directory}")
    if match["source"]:
        return ModelSpec(name, directory, match["source"], match["target"])
    if directory.parent == BUNDLED_MODELS:
        return ModelSpec(name, directory, *directory.name.split("-"))
    return ModelSpec(name, directory)


class ServedModel:
    """A model, the worker processes that have it open, and their queue."""

    def __init__(
        self,
        spec: ModelSpec,
        workers: Sequence[WorkerProcess],
        properties: ModelProperties,
        settings: ServeSettings,
        observe: Callable[[str, int, float], None],
    ) -> None:
        self.spec, self.workers, self.properties = spec, workers, properties
        self.decode = properties.decode.model_copy(update={"batch_size": settings.batch_size})
        self.max_characters = CHARACTERS_PER_TOKEN * self.decode.max_source
        # what a batch returns depends on the kind of work, so the queue itself is not typed by it
        self.queue: Batcher[Work[Any], Any] = Batcher(
            [worker.run for worker in workers],
            settings.batch_size,
            settings.wait,
            settings.queue,
            partial(observe, spec.name),
        )
        for worker in workers:
            threading.Thread(target=worker.restart_when_dead, name="restart", daemon=True).start()

    def submit(
        self,
        work: Sequence[Work[R]],
        prefixes: Sequence[str],
        on_partial: ProgressCallback | None = None,
    ) -> list[Future[R]]:
        """Queue all of this work, or none.

        Messages about an item begin with its prefix. `on_partial` is called from another thread.
        """
        items: list[WorkItem[Work[Any], R]] = []
        for number, (entry, prefix) in enumerate(zip(work, prefixes, strict=True)):
            for text in entry.texts:
                if len(text) > self.max_characters:
                    size = f"{len(text):,} characters"
                    raise UserError(prefix + too_long_message(text, size, self.max_characters))
            items.append(WorkItem(entry, prefix, on_partial and partial(on_partial, number)))
        self.queue.submit(items)
        return [item.future for item in items]

    def ready(self) -> bool:
        """Tell whether every worker process is alive."""
        return all(worker.process.is_alive() for worker in self.workers)

    def close(self) -> None:
        """Finish what was accepted, then end the processes."""
        self.queue.close()
        self.abandon()

    def abandon(self) -> None:
        """End the processes at once."""
        for worker in self.workers:
            worker.close()


def numbered_prefixes(noun: str, count: int) -> list[str]:
    """Return `noun 1: `, `noun 2: `, ...: beginnings of messages; a single thing has no number."""
    return [f"{noun} {n}: " for n in range(1, count + 1)] if count > 1 else [""] * count


def open_models(
    specs: Sequence[ModelSpec],
    device: str,
    settings: ServeSettings,
    observe: Callable[[str, int, float], None],
) -> dict[str, ServedModel]:
    """Open and warm up every model; they are keyed by name."""
    names = [spec.name for spec in specs]
    for spec in specs:
        if names.count(spec.name) > 1:
            raise UserError(
                f"two models are named {spec.name}; write --model other-name={spec.directory}"
            )
    with ExitStack() as workers:
        models = [_open_model(spec, device, settings, observe, workers) for spec in specs]
        workers.pop_all()
    return {model.spec.name: model for model in models}


def _open_model(
    spec: ModelSpec,
    device: str,
    settings: ServeSettings,
    observe: Callable[[str, int, float], None],
    workers: ExitStack,
) -> ServedModel:
    """Start one process, which reports the device, and on a CPU the others."""

    def start() -> WorkerProcess:
        worker = WorkerProcess(spec.directory, device, settings.threads)
        workers.callback(worker.close)
        return worker

    first = start()
    properties = first.wait_until_ready()
    others = [start() for _ in range(settings.workers - 1 if properties.device == "cpu" else 0)]
    for worker in others:
        worker.wait_until_ready()
    return ServedModel(spec, [first, *others], properties, settings, observe)
