"""Served models: each has a queue of requests, and worker processes that have the model open."""

import re
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, get_args

from covnmt.base.errors import UserError
from covnmt.model.directory import BUNDLED_MODELS, find_model, model_title
from covnmt.serve.monitoring import ServerMetrics, log_event
from covnmt.serve.request_queue import RequestQueue, WorkItem
from covnmt.serve.settings import ServeSettings
from covnmt.serve.work import ProgressCallback, R, Work, too_long_message
from covnmt.serve.worker_process import (
    ModelProperties,
    WorkerFailure,
    WorkerProcess,
    do_not_interrupt,
)
from covnmt.text.codec import stored_languages

# A text with more characters for each allowed token is refused before it is tokenized.
CHARACTERS_PER_TOKEN = 25

MODEL_OPTION = re.compile(
    r"(?:(?P<name>[^=/:]+)(?::(?P<source>[a-z]+)-(?P<target>[a-z]+))?=)?(?P<path>.+)"
)
NAME = re.compile(r"[\w.+-]{1,64}")


@dataclass(frozen=True)
class ModelSpec:
    """A model directory, the name that clients use for it, and its languages."""

    name: str
    directory: Path
    source: str = "source"
    target: str = "target"

    @cached_property
    def description(self) -> str | None:
        """What the model translates: the first heading of the README.md in its directory."""
        title = model_title(self.directory)
        return title and title[:200]


def parse_spec(text: str) -> ModelSpec:
    """Parse `DIR`, `NAME=DIR` or `NAME:ja-en=DIR`.

    A DIR that does not exist is looked for among the bundled models and on the hub, then in runs/.
    """
    match = MODEL_OPTION.fullmatch(text)
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
    with suppress(UserError):  # whoever opens the model will say what is wrong
        if languages := stored_languages(directory):
            return ModelSpec(name, directory, *languages)
    if directory.parent == BUNDLED_MODELS:
        return ModelSpec(name, directory, *directory.name.split("-"))
    return ModelSpec(name, directory)


class ServedModel:
    """A model, the worker processes that have it open, and their queue."""

    def __init__(
        self,
        spec: ModelSpec,
        workers: "Sequence[WorkerProcess]",
        properties: ModelProperties,
        settings: ServeSettings,
        metrics: ServerMetrics,
    ) -> None:
        self.spec, self.workers, self.properties = spec, workers, properties
        self.decode = properties.decode.model_copy(
            update={
                "batch_size": settings.batch_size,
                "max_retry_beam": settings.max_beam,
                "stop_loops": True,
            }
        )
        self.max_characters = CHARACTERS_PER_TOKEN * self.decode.max_source
        # what a batch returns depends on the kind of work, so the queue itself is not typed by it
        self.queue: RequestQueue[Work[Any], Any] = RequestQueue(
            [worker.run for worker in workers],
            settings.batch_size,
            settings.wait,
            settings.queue,
            partial(metrics.observe_batch, spec.name),
        )
        metrics.add_model(spec.name, get_args(WorkerFailure))
        for worker in workers:
            threading.Thread(target=worker.watch, name="watch", daemon=True).start()

    def submit(
        self,
        work: Sequence[Work[R]],
        prefixes: Sequence[str],
        on_partial: ProgressCallback | None = None,
        client: Hashable = None,
        request: Hashable = None,
    ) -> list[Future[R]]:
        """Queue all of this work, or none; clients take turns, and requests of a client too.

        Messages about an item begin with its prefix. `on_partial` is called from another thread.
        """
        items: list[WorkItem[Work[Any], R]] = []
        for number, (entry, prefix) in enumerate(zip(work, prefixes, strict=True)):
            for text in entry.texts:
                if len(text) > self.max_characters:
                    size = f"{len(text):,} characters"
                    raise UserError(prefix + too_long_message(text, size, self.max_characters))
            on_news = on_partial and partial(on_partial, number)
            items.append(WorkItem(entry, prefix, on_news, client, request))
        self.queue.submit(items)
        return [item.future for item in items]

    def ready(self) -> bool:
        """Tell whether every worker process has the model open and is responsive."""
        return all(worker.ready() for worker in self.workers)

    def abort(self) -> None:
        """Let all that was accepted fail, and stop what is being run."""
        self.queue.abort()

    def close(self, finish: bool = True) -> None:
        """End the processes; `finish` what was accepted before."""
        if finish:
            self.queue.close()
        for worker in self.workers:
            worker.begin_to_close()
        for worker in self.workers:
            worker.close()


def open_models(
    specs: Sequence[ModelSpec],
    device: str,
    settings: ServeSettings,
    metrics: ServerMetrics,
    check_interrupt: Callable[[], None] = do_not_interrupt,
) -> dict[str, ServedModel]:
    """Open and warm up every model; they are keyed by name.

    `check_interrupt` is called again and again; it may raise to give up.
    """
    names = [spec.name for spec in specs]
    for spec in specs:
        if names.count(spec.name) > 1:
            raise UserError(
                f"two models are named {spec.name}; write --model other-name={spec.directory}"
            )
    models = {}
    with ExitStack() as stack:
        for spec in specs:
            start = partial(
                WorkerProcess,
                spec.directory,
                device,
                settings.threads,
                settings.stall_timeout,
                partial(report_failure, metrics, spec.name),
                settings.unload_after,
            )
            # the first process reports the device; on a GPU it stays the only one
            workers = [stack.enter_context(closing(start()))]
            properties = workers[0].wait_until_ready(check_interrupt)
            for _ in range(settings.workers - 1 if properties.device == "cpu" else 0):
                workers.append(stack.enter_context(closing(start())))
            for worker in workers[1:]:
                worker.wait_until_ready(check_interrupt)
            models[spec.name] = ServedModel(spec, workers, properties, settings, metrics)
        stack.pop_all()
    return models


def report_failure(
    metrics: ServerMetrics, model: str, failure: WorkerFailure, process: BaseProcess
) -> None:
    """Count and log a worker process that is replaced."""
    metrics.worker_restarts.labels(model, failure).inc()
    log_event(
        "worker process replaced",
        model=model,
        reason=failure,
        pid=process.pid,
        exit_code=process.exitcode,
    )
