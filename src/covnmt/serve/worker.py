"""Processes that have a model open, each with one batch in hand at a time.

Python runs one thread at a time, and a step of the search is many small calls: two processes do
nearly twice the work of one on two cores, two threads of one process do a third more at best.

Questions and answers go through a pipe. When the server ends, in whatever way, the pipe closes and
the worker ends too; when a worker dies, the next one is opened and only its batch is tried again.
"""

import gc
import multiprocessing
import signal
import traceback
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from covnmt.errors import UserError
from covnmt.serve.batching import Job
from covnmt.serve.bench import Bench, Card

# Forking from a process without threads is safe; what is imported there need not be imported again.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["covnmt.serve.bench"])
GRACE = 5.0  # seconds to end by itself


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
        self._start()

    def _start(self) -> None:
        self.pipe, theirs = CONTEXT.Pipe()
        arguments = (theirs, *self.arguments)
        self.process = CONTEXT.Process(target=work, args=arguments, name="worker", daemon=True)
        self.process.start()
        theirs.close()

    def introduce(self) -> Card:
        """Wait until the model is open and warm; what there is to know about it."""
        try:
            card = self.pipe.recv()
        except EOFError:
            card = UserError(
                f"{self.arguments[0]}: the process that opens it died; is there memory for all "
                "--workers?"
            )
        if isinstance(card, UserError):
            raise card
        assert isinstance(card, Card)
        return card

    def run(self, jobs: Sequence[Job[Any, Any]]) -> Sequence[Any]:
        """Do a batch."""
        if not self.process.is_alive():
            self._restart()
        try:
            answer = self._exchange(jobs)
        except (EOFError, OSError):
            self._restart()
            raise WorkerDiedError("a process died while it translated") from None
        if isinstance(answer, UserError):
            raise answer
        if isinstance(answer, Failure):
            raise RuntimeError(answer.traceback)
        return list(answer)

    def _exchange(self, jobs: Sequence[Job[Any, Any]]) -> Any:
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
        self.closed = True
        self.pipe.close()
        self.process.join(GRACE)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()


def work(pipe: Connection, directory: Path, device: str, threads: int) -> None:
    """The life of a worker: open the model, tell about it, do batches until the pipe closes."""
    # signals are for the server, which ends its workers when they are done
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        bench = Bench(directory, device, threads)
        bench.warm_up()
        settle()
        pipe.send(bench.card)
        while True:
            _do(bench, pipe, pipe.recv())
    except UserError as error:
        pipe.send(error)
    except (EOFError, OSError):
        pass


def settle() -> None:
    """Let the garbage collector leave alone what is here now, which stays until the process ends.

    It would look at all of it every few hundred requests, for some 40 ms in which nothing else is
    done.
    """
    gc.collect()
    gc.freeze()


def _do(bench: Bench, pipe: Connection, task: Task) -> None:
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
