"""Served models: each has a queue of requests, and worker processes that have the model open.

Python runs one thread at a time, and a step of the search is many small calls: two processes do
nearly twice the work of one on two cores, two threads of one process do a third more at best.

Batches and results go through a pipe. When the server ends, in whatever way, the pipe closes and
the worker ends too; when a worker dies, it is restarted and only its batch is tried again. One that
dies idle is restarted at once too: a server that is not ready may never be given work.
"""

import gc
import multiprocessing
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from covnmt.base.config import DecodeConfig, read_settings
from covnmt.base.errors import UserError
from covnmt.inference.model import Model
from covnmt.model.directory import BUNDLED_MODELS, find_model
from covnmt.serve.request_queue import RequestQueue, WorkItem
from covnmt.serve.settings import ServeSettings
from covnmt.serve.work import (
    ProgressCallback,
    R,
    TranslateWork,
    Work,
    run_batch,
    too_long_message,
)
from covnmt.text.codec import SIDES
from covnmt.text.tokenize import TokenizerSettings

# A text with more characters for each allowed token is refused before it is tokenized.
CHARACTERS_PER_TOKEN = 25

MODEL_OPTION = re.compile(
    r"(?:(?P<name>[^=/:]+)(?::(?P<source>[a-z]+)-(?P<target>[a-z]+))?=)?(?P<path>.+)"
)
NAME = re.compile(r"[\w.+-]{1,64}")

# Forking from a process without threads is safe; what is imported there need not be imported again.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])
SECONDS_TO_EXIT = 5.0
RESTART_PAUSE = 1.0  # seconds between restarts of a process that dies again and again
# What a pipe raises when its other end is gone or, the last one, when another thread closed it.
BROKEN_PIPE = (EOFError, OSError, TypeError)


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
        with suppress(OSError, UnicodeDecodeError):
            lines = (self.directory / "README.md").read_text("utf-8").splitlines()
            return next((line[2:].strip()[:200] for line in lines if line.startswith("# ")), None)
        return None


def parse_spec(text: str) -> ModelSpec:
    """Parse `DIR`, `NAME=DIR` or `NAME:ja-en=DIR`.

    A DIR that does not exist is looked for in runs/ and among the bundled models.
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
    if languages := _stored_languages(directory):
        return ModelSpec(name, directory, *languages)
    if directory.parent == BUNDLED_MODELS:
        return ModelSpec(name, directory, *directory.name.split("-"))
    return ModelSpec(name, directory)


def _stored_languages(directory: Path) -> tuple[str, str] | None:
    """Return the languages that a model was prepared with, if it has them.

    Without --source-language and --target-language both sides are `en`, which says nothing.
    """
    try:
        source, target = (
            read_settings(directory / f"{side}.json", TokenizerSettings).language for side in SIDES
        )
    except UserError:  # whoever opens the model will say what is wrong
        return None
    return (source, target) if source != target else None


@dataclass(frozen=True)
class ModelProperties:
    """What the server must know of a model that its workers have open."""

    coverage_kind: str
    decode: DecodeConfig
    device: str  # cpu or cuda
    plain_text: bool  # text as people write it, not split into words


class ServedModel:
    """A model, the worker processes that have it open, and their queue."""

    def __init__(
        self,
        spec: ModelSpec,
        workers: "Sequence[WorkerProcess]",
        properties: ModelProperties,
        settings: ServeSettings,
        observe: Callable[[str, int, float], None],
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

    def close(self, finish: bool = True) -> None:
        """End the processes; `finish` what was accepted before."""
        if finish:
            self.queue.close()
        for worker in self.workers:
            worker.close()


def open_models(
    specs: Sequence[ModelSpec],
    device: str,
    settings: ServeSettings,
    observe: Callable[[str, int, float], None],
) -> dict[str, ServedModel]:
    """Open and warm up every model; they are keyed by name.

    `observe` is called with the model, the number of sentences and the seconds of every batch.
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
            start = partial(WorkerProcess, spec.directory, device, settings.threads)
            # the first process reports the device; on a GPU it stays the only one
            workers = [stack.enter_context(closing(start()))]
            properties = workers[0].wait_until_ready()
            for _ in range(settings.workers - 1 if properties.device == "cpu" else 0):
                workers.append(stack.enter_context(closing(start())))
            for worker in workers[1:]:
                worker.wait_until_ready()
            models[spec.name] = ServedModel(spec, workers, properties, settings, observe)
        stack.pop_all()
    return models


class WorkerDiedError(Exception):
    """A worker process is gone, for lack of memory perhaps."""


@dataclass(frozen=True)
class PartialText:
    """The best translation so far at one position of a batch."""

    position: int
    text: str


class WorkerProcess:
    """A process that runs batches, and this end of the pipe to it."""

    def __init__(self, directory: Path, device: str, threads: int) -> None:
        self.arguments = (directory, device, threads)
        self.closed = False
        self.pipe_lock = threading.Lock()
        self.start_lock = threading.Lock()  # no process is started after `close`
        self._start()

    def _start(self) -> None:
        with self.start_lock:
            if self.closed:
                raise WorkerDiedError("the server is stopping")
            ours, theirs = CONTEXT.Pipe()
            arguments = (theirs, *self.arguments)
            process = CONTEXT.Process(target=run_worker, args=arguments, name="worker", daemon=True)
            process.start()
            theirs.close()
            self.pipe, self.process = ours, process  # other threads may ask whether it is alive

    def wait_until_ready(self) -> ModelProperties:
        """Wait until the model is open and warm."""
        try:
            properties = self.pipe.recv()
        except BROKEN_PIPE:
            properties = UserError(
                f"{self.arguments[0]}: the process that opens it died; is there memory for all "
                "--workers?"
            )
        if isinstance(properties, UserError):
            raise properties
        assert isinstance(properties, ModelProperties)
        return properties

    def restart_when_dead(self) -> None:
        """Restart the process whenever it dies idle; return when this is closed."""
        while not self.closed:
            process = self.process
            wait([process.sentinel])
            # if the next one cannot be started either, the batches that need it raise the error
            with self.pipe_lock, suppress(WorkerDiedError, EOFError, OSError):
                if self.process is process:
                    self._restart()
            time.sleep(RESTART_PAUSE)

    def run(self, items: Sequence[WorkItem[Work[Any], Any]]) -> Sequence[Any]:
        """Run a batch; if the process dies over a single item, try that a second time."""
        with self.pipe_lock:
            if not self.process.is_alive():
                self._restart()
            try:
                reply = self._exchange(items)
            except WorkerDiedError:
                if len(items) > 1:  # the caller tries each alone
                    raise
                reply = self._exchange(items)
        if isinstance(reply, Exception):
            raise reply
        return [
            # the process knows a refused text by its position in the batch alone
            UserError(f"{item.prefix}{result}") if isinstance(result, UserError) else result
            for item, result in zip(items, reply, strict=True)
        ]

    def _exchange(self, items: Sequence[WorkItem[Work[Any], Any]]) -> Any:
        watched = frozenset(position for position, item in enumerate(items) if item.on_partial)
        try:
            self.pipe.send(([item.work for item in items], watched))
            while isinstance(reply := self.pipe.recv(), PartialText):
                if on_partial := items[reply.position].on_partial:
                    on_partial(reply.text)
        except BROKEN_PIPE:
            self._restart()
            raise WorkerDiedError("a process died while it translated") from None
        return reply

    def _restart(self) -> None:
        if self.closed:
            return
        self.pipe.close()
        self.process.join(SECONDS_TO_EXIT)
        self._start()
        try:
            self.wait_until_ready()
        except UserError as error:
            raise WorkerDiedError(str(error)) from None

    def close(self) -> None:
        """End the process; the batch it is running is lost."""
        with self.start_lock:
            self.closed = True
        self.pipe.close()
        self.process.join(SECONDS_TO_EXIT)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()


def run_worker(pipe: Connection, directory: Path, device: str, threads: int) -> None:
    """Open the model, report its properties, then run batches until the pipe closes."""
    # signals are for the server, which ends its workers when they are done
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        model = Model.load(directory, device=device, threads=threads)
        # the first search compiles and allocates what later ones reuse
        sentence = model.source.detokenize(model.source.vocabulary.decode([2, 3]))
        run_batch([TranslateWork((sentence,), model.decode)], model, None)
        freeze_gc()
        kind, device = model.config.coverage.kind, model.engine.device
        plain_text = model.source.settings.kind != "whitespace"
        pipe.send(ModelProperties(kind, model.decode, device, plain_text))
        while True:
            _run_and_reply(pipe, model, *pipe.recv())
    except UserError as error:
        with suppress(OSError):  # the server may be gone
            pipe.send(error)
    except (EOFError, OSError):
        pass


def _run_and_reply(
    pipe: Connection, model: Model, work: list[Work[Any]], watched: frozenset[int]
) -> None:
    """Send partial texts of the watched positions, then all results, or why there are none."""

    def send_partial(position: int, text: str) -> None:
        if position in watched:
            pipe.send(PartialText(position, text))

    try:
        reply: Any = run_batch(work, model, send_partial if watched else None)
    except UserError as error:
        reply = error
    except Exception:
        reply = RuntimeError(traceback.format_exc())  # for the server's log
    pipe.send(reply)


def freeze_gc() -> None:
    """Exempt all present objects from garbage collection, as they stay until the process ends.

    Otherwise every few hundred requests would wait some 40 ms for a collection of all of them.
    """
    gc.collect()
    gc.freeze()
