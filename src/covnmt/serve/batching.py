"""Requests that arrive together are worked on together.

A `Batcher` is a queue and one thread. The thread takes the oldest job and those of the same group
and of similar size that wait behind it, so short and long sentences never share a batch and the
oldest never starves. A job is cancelled by cancelling its future: while it waits it then leaves
the queue.
"""

import math
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

P = TypeVar("P")
R = TypeVar("R")

# Jobs share a batch where the larger is at most this many times the smaller, plus the slack.
RATIO, SLACK = 2.0, 40
# Weight of the newest batch in the running mean of seconds per job.
NEWEST = 0.2


class QueueFullError(Exception):
    """No room; try again after so many seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"too many requests are waiting; try again in {retry_after} s")
        self.retry_after = retry_after


class ClosedError(Exception):
    """The server is stopping and takes nothing new."""


@dataclass(frozen=True, eq=False)
class Job(Generic[P, R]):
    """One piece of work and the promise of its result."""

    group: Hashable  # only jobs of one group are done together
    payload: P
    size: int
    arrived: float = field(default_factory=time.monotonic)
    future: "Future[R]" = field(default_factory=Future)


Run = Callable[[Hashable, Sequence[P]], Sequence[R | Exception]]
Observe = Callable[[int, float], None]


class Batcher(Generic[P, R]):
    """A bounded queue and the thread that empties it.

    `run` does a batch and gives a result or an exception for each payload; `observe` is told how
    many jobs a batch had and how long it took.
    """

    def __init__(
        self, run: "Run[P, R]", batch_size: int, wait: float, capacity: int, observe: Observe
    ) -> None:
        self.run, self.observe = run, observe
        self.batch_size, self.wait, self.capacity = batch_size, wait, capacity
        self.waiting: list[Job[P, R]] = []
        self.seconds_per_job = 0.0
        self.closed = False
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._work, name="batcher", daemon=True)
        self.thread.start()

    def submit(self, jobs: Sequence[Job[P, R]]) -> None:
        """Queue all of these jobs or, where there is no room, none."""
        with self.changed:
            if self.closed:
                raise ClosedError
            self._drop_cancelled()
            if len(self.waiting) + len(jobs) > self.capacity:
                raise QueueFullError(max(1, math.ceil(len(self.waiting) * self.seconds_per_job)))
            self.waiting.extend(jobs)
            self.changed.notify()

    def close(self) -> None:
        """Take nothing new, finish what was accepted, end the thread."""
        with self.changed:
            self.closed = True
            self.changed.notify()
        self.thread.join()

    def _work(self) -> None:
        while batch := self._next():
            running = [job for job in batch if job.future.set_running_or_notify_cancel()]
            if running:
                self._do(running)

    def _next(self) -> list[Job[P, R]]:
        """The next batch, taken off the queue; empty when closed and done."""
        with self.changed:
            while True:
                self._drop_cancelled()
                batch = choose(self.waiting, self.batch_size)
                if not batch and self.closed:
                    return []
                left = batch[0].arrived + self.wait - time.monotonic() if batch else None
                ready = self.closed or len(batch) == self.batch_size
                if left is not None and (ready or left <= 0):
                    taken = set(map(id, batch))
                    self.waiting = [job for job in self.waiting if id(job) not in taken]
                    return batch
                self.changed.wait(left)

    def _drop_cancelled(self) -> None:
        self.waiting = [job for job in self.waiting if not job.future.cancelled()]

    def _do(self, batch: Sequence[Job[P, R]]) -> None:
        began = time.monotonic()
        results = self._results(batch)
        taken = time.monotonic() - began
        self.seconds_per_job += NEWEST * (taken / len(batch) - self.seconds_per_job)
        self.observe(len(batch), taken)
        for job, result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)

    def _results(self, batch: Sequence[Job[P, R]]) -> Sequence[R | Exception]:
        """What `run` gives; where it fails, each job is tried alone, so that one harms no other."""
        try:
            return self.run(batch[0].group, [job.payload for job in batch])
        except Exception as error:
            if len(batch) == 1:
                return [error]
            return [self._results([job])[0] for job in batch]


def choose(waiting: Sequence[Job[P, R]], most: int) -> list[Job[P, R]]:
    """The oldest job, and what can be done with it, oldest first."""
    if not waiting:
        return []
    first = waiting[0]
    fitting = (job for job in waiting if job.group == first.group and similar(job.size, first.size))
    return [job for job, _ in zip(fitting, range(most), strict=False)]


def similar(a: int, b: int) -> bool:
    """Little is lost by padding one to the other."""
    return max(a, b) <= RATIO * min(a, b) + SLACK
