"""Worker processes: each has a model open and runs batches.

Python runs one thread at a time, and a step of the search is many small calls: two processes do
nearly twice the work of one on two cores, two threads of one process do a third more at best.

Batches and results go through a pipe. When the server ends, in whatever way, its workers end too.
When a worker dies, or shows no sign of life for some seconds, it is replaced and only its batch is
tried again. That happens to idle workers too: a server that is not ready may never be given work.
A batch that nobody waits for any more is stopped before its next decoding step.
A worker without work for some time may end, to be started again for the next batch.
"""

import gc
import multiprocessing
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

from covnmt.base.config import DecodeConfig
from covnmt.base.errors import UserError
from covnmt.base.processes import exit_with_parent
from covnmt.base.signals import STOP_SIGNALS, defer_signals
from covnmt.inference.domain import DomainStatistics
from covnmt.inference.model import Model
from covnmt.serve.request_queue import WorkItem
from covnmt.serve.work import TranslateWork, Work, run_batch

# Forking from a process without threads is safe; what is imported there need not be imported again.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])
BEAT_SECONDS = 1.0  # between signs of life of a worker
LATE_BEATS = 5  # a worker without a sign for so long is not ready
STALL_SECONDS = 15.0
SECONDS_TO_STOP = 5.0  # for a batch that is to be stopped
SECONDS_TO_EXIT = 5.0
POLL_SECONDS = 0.1  # between looks whether to stop a batch
RESTART_PAUSE = 1.0  # seconds between restarts of a process that dies again and again
# What a pipe raises when its other end is gone or, the last one, when another thread closed it.
BROKEN_PIPE = (EOFError, OSError, TypeError)

# Why a process was replaced: it died, showed no sign of life, or did not stop a batch.
WorkerFailure = Literal["died", "stalled", "overdue"]


class WorkerDiedError(Exception):
    """A worker process is gone, for lack of memory perhaps."""


class BatchStoppedError(Exception):
    """The batch was stopped, as nobody waits for it any more."""


@dataclass(frozen=True)
class ModelProperties:
    """What the server must know of a model that its workers have open."""

    coverage_kind: str
    decode: DecodeConfig
    device: str  # cpu or cuda
    plain_text: bool  # text as people write it, not split into words
    domain: DomainStatistics | None = None  # what it was trained on


@dataclass(frozen=True)
class PartialText:
    """The best translation so far at one position of a batch."""

    position: int
    text: str


def do_not_interrupt() -> None:
    """Let a process take its time to open the model."""


class WorkerProcess:
    """A process that runs batches, and this end of the pipes to it.

    `on_failure` is called with a process that failed, and how; another one is then started. After
    `unload_after` seconds without work, if not 0, the process ends until there is some.
    """

    def __init__(
        self,
        directory: Path,
        device: str,
        threads: int,
        stall_seconds: float = STALL_SECONDS,
        on_failure: Callable[[WorkerFailure, BaseProcess], None] = lambda failure, process: None,
        unload_after: float = 0.0,
    ) -> None:
        self.arguments = (directory, device, threads)
        self.stall_seconds, self.on_failure = stall_seconds, on_failure
        self.unload_after, self.last_used, self.unloaded = unload_after, time.monotonic(), False
        self.closed = False
        self.pipe_lock = threading.Lock()
        self.start_lock = threading.Lock()  # no process is started after `close`
        self._start()

    def _start(self) -> None:
        with self.start_lock:
            if self.closed:
                raise WorkerDiedError("the server is stopping")
            ours, theirs = CONTEXT.Pipe()
            beats, send_beats = CONTEXT.Pipe(duplex=False)
            arguments = (theirs, send_beats, *self.arguments)
            process = CONTEXT.Process(target=run_worker, args=arguments, name="worker", daemon=True)
            # The process that forks others is started here too, and Ctrl-C must not end it. The
            # resource tracker comes first, as starting it unblocks the signals.
            resource_tracker.ensure_running()
            with defer_signals():
                process.start()
            theirs.close()
            send_beats.close()
            self.opened, self.failure = False, None
            self.last_beat = time.monotonic()
            # other threads may ask whether it is alive
            self.pipe, self.beats, self.process = ours, beats, process

    opened: bool  # whether the model is open
    failure: WorkerFailure | None  # why this process was killed

    def wait_until_ready(
        self, check_interrupt: Callable[[], None] = do_not_interrupt
    ) -> ModelProperties:
        """Wait until the model is open and warm; `check_interrupt` may raise to stop waiting."""
        try:
            while not self.pipe.poll(POLL_SECONDS):
                check_interrupt()
            properties = self.pipe.recv()
        except BROKEN_PIPE:
            properties = UserError(
                f"{self.arguments[0]}: the process that opens it died; is there memory for all "
                "--workers?"
            )
        if isinstance(properties, UserError):
            raise properties
        assert isinstance(properties, ModelProperties)
        self.opened = True
        return properties

    def ready(self) -> bool:
        """Tell whether the process has the model open and shows signs of life, or need not yet."""
        if self.unloaded:
            return True
        late = time.monotonic() - self.last_beat > min(
            LATE_BEATS * BEAT_SECONDS, self.stall_seconds
        )
        return self.opened and self.process.is_alive() and not late

    def watch(self) -> None:
        """Replace the process whenever it dies or stalls; return when this is closed."""
        while not self.closed:
            if self.unloaded:
                time.sleep(POLL_SECONDS)
                continue
            process, beats = self.process, self.beats
            silent = time.monotonic() - self.last_beat
            try:
                ready = wait([process.sentinel, beats], max(0.0, self.stall_seconds - silent))
                if ready == [beats]:
                    beats.recv_bytes()
                    self.last_beat = time.monotonic()
                    self._unload_if_idle()
                    continue
            except (*BROKEN_PIPE, ValueError):  # it is being replaced, or dying
                time.sleep(POLL_SECONDS)
                if process.is_alive() and self.process is process:
                    continue
                ready = [process.sentinel]
            if not ready:
                self._kill(process, "stalled")
            self._replace(process)

    def _replace(self, process: BaseProcess) -> None:
        """Replace a process that died, unless the batch that it was running has seen to that."""
        while not self.closed and self.process is process and not self.unloaded:
            if self.pipe_lock.acquire(timeout=POLL_SECONDS):
                try:
                    # if the next one cannot be started either, the batches that need it raise
                    with suppress(WorkerDiedError, EOFError, OSError):
                        if self.process is process and not self.unloaded:
                            self._restart()
                finally:
                    self.pipe_lock.release()
                time.sleep(RESTART_PAUSE)

    def _unload_if_idle(self) -> None:
        idle = time.monotonic() - self.last_used
        if not self.unload_after or not self.opened or idle < self.unload_after:
            return
        if self.pipe_lock.acquire(blocking=False):  # else it has just been given a batch
            try:
                self.unloaded = True
                self.pipe.close()
                end_process(self.process)
                self.beats.close()
            finally:
                self.pipe_lock.release()

    def _load(self) -> None:
        self._start()
        self.unloaded = False
        try:
            self.wait_until_ready()
        except UserError as error:
            raise WorkerDiedError(str(error)) from None

    def run(self, items: Sequence[WorkItem[Work[Any], Any]]) -> Sequence[Any]:
        """Run a batch; if the process dies over a single item, try that a second time."""
        with self.pipe_lock:
            if self.unloaded:
                self._load()
            elif not self.process.is_alive():
                self._restart()
            try:
                reply = self._exchange(items)
            except WorkerDiedError:
                if len(items) > 1 or items[0].abandoned:  # the caller tries each alone
                    raise
                reply = self._exchange(items)
            finally:
                self.last_used = time.monotonic()
        if isinstance(reply, Exception):
            raise reply
        return [
            # the process knows a refused text by its position in the batch alone
            UserError(f"{item.prefix}{result}") if isinstance(result, UserError) else result
            for item, result in zip(items, reply, strict=True)
        ]

    def _exchange(self, items: Sequence[WorkItem[Work[Any], Any]]) -> Any:
        watched = frozenset(position for position, item in enumerate(items) if item.on_partial)
        process, stopped = self.process, 0.0
        try:
            self.pipe.send(([item.work for item in items], watched))
            while True:
                if self.pipe.poll(POLL_SECONDS):
                    if not isinstance(reply := self.pipe.recv(), PartialText):
                        return reply
                    if on_partial := items[reply.position].on_partial:
                        on_partial(reply.text)
                now = time.monotonic()
                if not stopped and all(item.abandoned for item in items):
                    self.pipe.send(None)
                    stopped = now
                if stopped and now - stopped > SECONDS_TO_STOP:
                    self._kill(process, "overdue")
        except BROKEN_PIPE:
            self._restart()
            raise WorkerDiedError("a process died while it translated") from None

    def _kill(self, process: BaseProcess, failure: WorkerFailure) -> None:
        if self.process is process and not self.closed:
            self.failure = self.failure or failure
        process.kill()

    def _restart(self) -> None:
        if self.closed:
            return
        process = self.process
        self.pipe.close()
        end_process(process)
        self.on_failure(self.failure or "died", process)
        self.beats.close()
        self._load()

    def begin_to_close(self) -> None:
        """Tell the process to end; the batch it is running is lost."""
        with self.start_lock:
            self.closed = True
        self.pipe.close()

    def close(self) -> None:
        """End the process, in a few seconds at most."""
        self.begin_to_close()
        end_process(self.process)


def end_process(process: BaseProcess) -> None:
    """Wait until a process whose pipe is closed has ended; kill it if it takes too long."""
    process.join(SECONDS_TO_EXIT)
    if process.exitcode is None:
        process.kill()
        process.join()


def run_worker(
    pipe: Connection, beats: Connection, directory: Path, device: str, threads: int
) -> None:
    """Open the model, report its properties, then run batches until the pipe closes."""
    # signals are for the server, which ends its workers when they are done
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    exit_with_parent()
    threading.Thread(target=send_beats, args=(beats,), daemon=True).start()
    try:
        model = Model.load(directory, device=device, threads=threads)
        # the first search compiles and allocates what later ones reuse
        sentence = model.source.detokenize(model.source.vocabulary.decode([2, 3]))
        run_batch([TranslateWork((sentence,), model.decode)], model, None)
        freeze_gc()
        kind, device = model.config.coverage.kind, model.engine.device
        plain_text = model.source.settings.kind != "whitespace"
        model.engine.before_step = StopCheck(pipe)
        domain = model.calibration.domain if model.calibration else None
        pipe.send(ModelProperties(kind, model.decode, device, plain_text, domain))
        while True:
            if batch := pipe.recv():  # else the order to stop one that was already done
                _run_and_reply(pipe, model, *batch)
    except UserError as error:
        with suppress(OSError):  # the server may be gone
            pipe.send(error)
    except (EOFError, OSError):
        pass


def send_beats(beats: Connection) -> None:
    """Show that this process is alive, until nobody looks any more."""
    with suppress(OSError):
        while True:
            beats.send_bytes(b".")
            time.sleep(BEAT_SECONDS)


class StopCheck:
    """Raises an error when the server wants the batch stopped, or is gone."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe, self.last = pipe, 0.0

    def __call__(self) -> None:
        """Look for the order to stop, not too often."""
        if (now := time.monotonic()) - self.last > POLL_SECONDS:
            self.last = now
            if self.pipe.poll():
                self.pipe.recv()
                raise BatchStoppedError


def _run_and_reply(
    pipe: Connection, model: Model, work: list[Work[Any]], watched: frozenset[int]
) -> None:
    """Send partial texts of the watched positions, then all results, or why there are none."""

    def send_partial(position: int, text: str) -> None:
        if position in watched:
            pipe.send(PartialText(position, text))

    try:
        reply: Any = run_batch(work, model, send_partial if watched else None)
    except (UserError, BatchStoppedError) as error:
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
