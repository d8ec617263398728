"""Requests that arrive together are worked on together.

A `Batcher` is a queue and some threads, each with a worker of its own. A free thread takes the
oldest job and those of the same group and of similar size that wait behind it, so short and long
sentences never share a batch and the oldest never starves. Of several threads one is always kept
free of long batches, so short jobs need not wait for long ones. A job is cancelled by cancelling
its future: while it waits it then leaves the queue.

Sizes are bytes of UTF-8: five or six make a word, in English, Japanese and Chinese alike.
"""

import math
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

P = TypeVar("P")
R = TypeVar("R")

# A job joins the oldest where the larger is at most this many times the smaller, plus the slack.
RATIO, SLACK = 2.0, 40
# A job is long above this size; a full batch has so many times the batch size in all.
LONG, ORDINARY = 200, 100
# Idle threads share a batch from this size on: of a smaller one each would do most of the steps.
WORTH_SHARING = 600
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
class WorkItem(Generic[P, R]):
    """One piece of work and the promise of its result."""

    group: Hashable  # only jobs of one group are done together
    payload: P
    size: int
    tell: Callable[[Any], None] | None = None  # wants to know how far it has come
    name: str = ""  # before messages about it
    arrived: float = field(default_factory=time.monotonic)
    future: "Future[R]" = field(default_factory=Future)


Run = Callable[[Sequence[WorkItem[P, R]]], Sequence[R | Exception]]
Observe = Callable[[int, float], None]


class Batcher(Generic[P, R]):
    """A bounded queue, and a thread for each of the `workers`.

    A worker does a batch and gives a result or an exception for each job; `observe` is told how
    many jobs a batch had and how long it took.
    """

    def __init__(
        self,
        workers: "Sequence[Run[P, R]]",
        batch_size: int,
        wait: float,
        capacity: int,
        observe: Observe,
    ) -> None:
        self.observe = observe
        self.batch_size, self.wait, self.capacity = batch_size, wait, capacity
        self.waiting: list[WorkItem[P, R]] = []
        self.idle = 0  # threads that have nothing to do
        self.room = max(1, len(workers) - 1)  # threads that may still take a long batch
        self.seconds_per_job = 0.0
        self.closed = False
        self.changed = threading.Condition()
        self.threads = [
            threading.Thread(target=self._work, args=(run,), name="batcher", daemon=True)
            for run in workers
        ]
        for thread in self.threads:
            thread.start()

    def submit(self, jobs: Sequence[WorkItem[P, R]]) -> None:
        """Queue all of these jobs or, where there is no room, none."""
        with self.changed:
            if self.closed:
                raise ClosedError
            self._drop_cancelled()
            if len(self.waiting) + len(jobs) > self.capacity:
                seconds = len(self.waiting) * self.seconds_per_job / len(self.threads)
                raise QueueFullError(max(1, math.ceil(seconds)))
            self.waiting.extend(jobs)
            # idle threads are all alike; who takes less than all wakes the next
            self.changed.notify()

    def close(self) -> None:
        """Take nothing new, finish what was accepted, end the threads."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        for thread in self.threads:
            thread.join()

    def _work(self, run: "Run[P, R]") -> None:
        while batch := self._next():
            running = [job for job in batch if job.future.set_running_or_notify_cancel()]
            if running:
                self._do(run, running)
            self._release(batch)

    def _next(self) -> list[WorkItem[P, R]]:
        """The next batch, taken off the queue; empty when closed and nothing is left to take."""
        with self.changed:
            self.idle += 1
            while True:
                self._drop_cancelled()
                batch = choose_batch(self._allowed(), self.batch_size)
                if not batch and self.closed:
                    break
                left = batch[0].arrived + self.wait - time.monotonic() if batch else None
                ready = self.closed or batch_is_full(batch, self.batch_size)
                if left is not None and (ready or left <= 0):
                    batch = self._take(batch)
                    break
                self.changed.wait(left)
            self.idle -= 1
            return batch

    def _allowed(self) -> Sequence[WorkItem[P, R]]:
        """What a free thread may take now."""
        return self.waiting if self.room else [job for job in self.waiting if not is_long(job)]

    def _take(self, batch: list[WorkItem[P, R]]) -> list[WorkItem[P, R]]:
        """Take a batch, or this thread's share where other idle threads can help with it."""
        worth_it = sum(job.size for job in batch) >= WORTH_SHARING
        mine = batch[: math.ceil(len(batch) / self.idle)] if worth_it else batch
        taken = set(map(id, mine))
        self.waiting = [job for job in self.waiting if id(job) not in taken]
        self.room -= any(map(is_long, mine))
        if self.waiting:
            self.changed.notify()
        return mine

    def _release(self, batch: Sequence[WorkItem[P, R]]) -> None:
        with self.changed:
            self.room += any(map(is_long, batch))

    def _drop_cancelled(self) -> None:
        self.waiting = [job for job in self.waiting if not job.future.cancelled()]

    def _do(self, run: "Run[P, R]", batch: Sequence[WorkItem[P, R]]) -> None:
        began = time.monotonic()
        results = _results(run, batch)
        taken = time.monotonic() - began
        self.seconds_per_job += NEWEST * (taken / len(batch) - self.seconds_per_job)
        self.observe(len(batch), taken)
        for job, result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)


def _results(run: "Run[P, R]", batch: Sequence[WorkItem[P, R]]) -> Sequence[R | Exception]:
    """What `run` gives; where it fails, each job is tried alone, so that one harms no other."""
    try:
        return run(batch)
    except Exception as error:
        if len(batch) == 1:
            return [error]
        return [_results(run, [job])[0] for job in batch]


def choose_batch(waiting: Sequence[WorkItem[P, R]], most: int) -> list[WorkItem[P, R]]:
    """The oldest job, and what can be done with it, oldest first, until a batch is full."""
    batch: list[WorkItem[P, R]] = []
    for job in waiting:
        if batch_is_full(batch, most):
            break
        if not batch or (job.group == batch[0].group and similar_length(job, batch[0])):
            batch.append(job)
    return batch


def batch_is_full(batch: Sequence[WorkItem[P, R]], most: int) -> bool:
    """More would take longer without gain; long jobs fill a batch sooner."""
    return len(batch) >= most or sum(job.size for job in batch) >= most * ORDINARY


def is_long(job: WorkItem[P, R]) -> bool:
    """Short ones should not wait for it."""
    return job.size > LONG


def similar_length(a: WorkItem[P, R], b: WorkItem[P, R]) -> bool:
    """Little is lost by padding one to the other."""
    small, large = sorted((a.size, b.size))
    return is_long(a) == is_long(b) and large <= RATIO * small + SLACK
