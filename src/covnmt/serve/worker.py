"""Worker processes: each has a model open and runs one batch at a time.

Python runs one thread at a time, and a step of the search is many small calls: two processes do
nearly twice the work of one on two cores, two threads of one process do a third more at best.

Batches and results go through a pipe. When the server ends, in whatever way, the pipe closes and
the worker ends too; when a worker dies, it is restarted and only its batch is tried again. One that
dies idle is restarted at once too: a server that is not ready may never be given work.
"""

import gc
import multiprocessing
import signal
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from covnmt.base.errors import UserError
from covnmt.inference.model import Model
from covnmt.serve.batching import WorkItem
from covnmt.serve.work import ModelProperties, Work, run_batch, warm_up

# Forking from a process without threads is safe; what is imported there need not be imported again.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["covnmt.serve.work"])
SECONDS_TO_EXIT = 5.0
RESTART_PAUSE = 1.0  # seconds between restarts of a process that dies again and again
# What a pipe raises when its other end is gone or, the last one, when another thread closed it.
BROKEN_PIPE = (EOFError, OSError, TypeError)


class WorkerDiedError(Exception):
    """A worker process is gone, for lack of memory perhaps."""


@dataclass(frozen=True)
class Batch:
    """Work for a worker process, and the positions of which it should report partial texts."""

    work: list[Work[Any]]
    watched: frozenset[int]


@dataclass(frozen=True)
class PartialText:
    """The best translation so far at one position of a batch."""

    position: int
    text: str


@dataclass(frozen=True)
class BatchError:
    """A batch failed with an unexpected exception; the server logs it."""

    traceback: str


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
        if isinstance(reply, UserError):
            raise reply
        if isinstance(reply, BatchError):
            raise RuntimeError(reply.traceback)
        return [
            # the process knows a refused text by its position in the batch alone
            UserError(f"{item.prefix}{result}") if isinstance(result, UserError) else result
            for item, result in zip(items, reply, strict=True)
        ]

    def _exchange(self, items: Sequence[WorkItem[Work[Any], Any]]) -> Any:
        watched = frozenset(position for position, item in enumerate(items) if item.on_partial)
        try:
            self.pipe.send(Batch([item.work for item in items], watched))
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
        warm_up(model)
        freeze_gc()
        pipe.send(ModelProperties.of(model))
        while True:
            _reply(pipe, model, pipe.recv())
    except UserError as error:
        with suppress(OSError):  # the server may be gone
            pipe.send(error)
    except (EOFError, OSError):
        pass


def _reply(pipe: Connection, model: Model, batch: Batch) -> None:
    def send_partial(position: int, text: str) -> None:
        if position in batch.watched:
            pipe.send(PartialText(position, text))

    try:
        reply: Any = run_batch(batch.work, model, send_partial if batch.watched else None)
    except UserError as error:
        reply = error
    except Exception:
        reply = BatchError(traceback.format_exc())
    pipe.send(reply)


def freeze_gc() -> None:
    """Exempt all present objects from garbage collection, as they stay until the process ends.

    Otherwise every few hundred requests would wait some 40 ms for a collection of all of them.
    """
    gc.collect()
    gc.freeze()
