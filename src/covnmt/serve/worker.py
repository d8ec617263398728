"""Processes that have a model open, each with one batch in hand at a time.

Python runs one thread at a time, and a step of the search is many small calls: two processes do
nearly twice the work of one on two cores, two threads of one process do a third more at best.

Questions and answers go through a pipe. When the server ends, in whatever way, the pipe closes and
the worker ends too; when a worker dies, the next one is opened and only its batch is tried again.
One that dies idle is replaced at once too: a server that is not ready may never be given work.
"""

import gc
import multiprocessing
import signal
import threading
import time
import traceback
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from covnmt.base.errors import UserError
from covnmt.serve.batching import WorkItem
from covnmt.serve.model_runner import ModelInfo, ModelRunner

# Forking from a process without threads is safe; what is imported there need not be imported again.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["covnmt.serve.model_runner"])
GRACE = 5.0  # seconds to end by itself
# What a pipe says whose other end is gone or, the last one, that another thread closed meanwhile.
BROKEN = (EOFError, OSError, TypeError)
PAUSE = 1.0  # seconds between tries to replace those that die again and again


class WorkerDiedError(Exception):
    """The process that translated is gone, for lack of memory perhaps."""


@dataclass(frozen=True)
class Task:
    """A batch, and the places of those who want to know how far it has come."""

    group: Hashable
    payloads: list[Any]
    watched: frozenset[int]


@dataclass(frozen=True)
class Partial:
    """How far one of a batch has come."""

    place: int
    text: str


@dataclass(frozen=True)
class Failure:
    """What went wrong with a batch, for the log."""

    traceback: str


class Worker:
    """One process, and this end of the pipe to it."""

    def __init__(self, directory: Path, device: str, threads: int) -> None:
        self.arguments = (directory, device, threads)
        self.closed = False
        self.busy = threading.Lock()  # held by whoever uses the pipe
        self.opening = threading.Lock()  # so that none is opened after `close`
        self._start()

    def _start(self) -> None:
        with self.opening:
            if self.closed:
                raise WorkerDiedError("the server is stopping")
            ours, theirs = CONTEXT.Pipe()
            arguments = (theirs, *self.arguments)
            process = CONTEXT.Process(target=run_worker, args=arguments, name="worker", daemon=True)
            process.start()
            theirs.close()
            self.pipe, self.process = ours, process  # other threads may ask whether it lives

    def watch(self) -> None:
        """Replace the process whenever it dies idle; ends when this is closed."""
        while not self.closed:
            process = self.process
            wait([process.sentinel])
            # where the next one cannot be opened either, batches are told so
            with self.busy, suppress(WorkerDiedError, EOFError, OSError):
                if self.process is process:
                    self._restart()
            time.sleep(PAUSE)

    def introduce(self) -> ModelInfo:
        """Wait until the model is open and warm; what there is to know about it."""
        try:
            card = self.pipe.recv()
        except BROKEN:
            card = UserError(
                f"{self.arguments[0]}: the process that opens it died; is there memory for all "
                "--workers?"
            )
        if isinstance(card, UserError):
            raise card
        assert isinstance(card, ModelInfo)
        return card

    def run(self, jobs: Sequence[WorkItem[Any, Any]]) -> Sequence[Any]:
        """Do a batch; where the process dies over a single job, a second one tries it."""
        with self.busy:
            if not self.process.is_alive():
                self._restart()
            try:
                answer = self._answer(jobs)
            except WorkerDiedError:
                if len(jobs) > 1:  # each is tried alone by whoever asked
                    raise
                answer = self._answer(jobs)
        if isinstance(answer, UserError):
            raise answer
        if isinstance(answer, Failure):
            raise RuntimeError(answer.traceback)
        return [with_prefix(job.name, each) for job, each in zip(jobs, answer, strict=True)]

    def _answer(self, jobs: Sequence[WorkItem[Any, Any]]) -> Any:
        try:
            return self._exchange(jobs)
        except BROKEN:
            self._restart()
            raise WorkerDiedError("a process died while it translated") from None

    def _exchange(self, jobs: Sequence[WorkItem[Any, Any]]) -> Any:
        watched = frozenset(place for place, job in enumerate(jobs) if job.tell)
        self.pipe.send(Task(jobs[0].group, [job.payload for job in jobs], watched))
        while isinstance(answer := self.pipe.recv(), Partial):
            if tell := jobs[answer.place].tell:
                tell(answer.text)
        return answer

    def _restart(self) -> None:
        if self.closed:
            return
        self.pipe.close()
        self.process.join(GRACE)
        self._start()
        try:
            self.introduce()
        except UserError as error:
            raise WorkerDiedError(str(error)) from None

    def close(self) -> None:
        """End the process; what it has in hand is lost."""
        with self.opening:
            self.closed = True
        self.pipe.close()
        self.process.join(GRACE)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()


def with_prefix(name: str, result: Any) -> Any:
    """A refusal says what was refused; the process knows it by its place in a batch alone."""
    return UserError(f"{name}{result}") if isinstance(result, UserError) else result


def run_worker(pipe: Connection, directory: Path, device: str, threads: int) -> None:
    """The life of a worker: open the model, tell about it, do batches until the pipe closes."""
    # signals are for the server, which ends its workers when they are done
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        bench = ModelRunner(directory, device, threads)
        bench.warm_up()
        freeze_gc()
        pipe.send(bench.card)
        while True:
            _do(bench, pipe, pipe.recv())
    except UserError as error:
        with suppress(OSError):  # nobody may be there any more
            pipe.send(error)
    except (EOFError, OSError):
        pass


def freeze_gc() -> None:
    """Let the garbage collector leave alone what is here now, which stays until the process ends.

    It would look at all of it every few hundred requests, for some 40 ms in which nothing else is
    done.
    """
    gc.collect()
    gc.freeze()


def _do(bench: ModelRunner, pipe: Connection, task: Task) -> None:
    def tell(place: int, text: str) -> None:
        if place in task.watched:
            pipe.send(Partial(place, text))

    try:
        answer = bench.run(task.group, task.payloads, tell if task.watched else None)
    except UserError as error:
        pipe.send(error)
    except Exception:
        pipe.send(Failure(traceback.format_exc()))
    else:
        pipe.send(answer)
