"""Run requests that arrive together as one batch.

A `RequestQueue` has some threads, each with a worker of its own. A free thread takes the
oldest item and those that may share its batch: with the same key and of similar size, so short and
long sentences are never batched together and the oldest never starves. Of several threads one is
always kept free of long batches, so short items need not wait for long ones. An item is cancelled
by cancelling its future; if it is still waiting it then leaves the queue.

Sizes are bytes of UTF-8: five or six make a word, in English, Japanese and Chinese alike.
"""

import math
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

# An item joins the oldest if the larger of the two has at most this many times the bytes of the
# smaller, plus the slack.
MAX_RATIO, SLACK_BYTES = 2.0, 40
LONG_BYTES = 200
# A batch of N items is full at this many bytes for each of the N.
MEAN_BYTES = 100
# Idle threads share a batch from this size on: of a smaller one each would do most of the steps.
SHARED_BYTES = 600
# Weight of the newest batch in the running mean of seconds per item.
NEWEST_WEIGHT = 0.2


class QueueFullError(Exception):
    """The queue has no room; there should be some after `retry_after` seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"too many requests are waiting; try again in {retry_after} s")
        self.headers = {"Retry-After": str(retry_after)}  # of the HTTP response


class ClosedError(Exception):
    """The server is stopping and accepts nothing new."""


class Batchable(Protocol):
    """Work that can share a batch with other work."""

    @property
    def batch_key(self) -> Hashable:
        """Only work with equal keys shares a batch."""

    @property
    def size(self) -> int:
        """Bytes of text."""


W = TypeVar("W", bound=Batchable)
R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class WorkItem(Generic[W, R]):
    """Queued work and the future of its result."""

    work: W
    prefix: str = ""  # of messages about it
    on_partial: Callable[[str], None] | None = None  # called with the text so far
    arrived: float = field(default_factory=time.monotonic)
    future: "Future[R]" = field(default_factory=Future)


RunBatch = Callable[[Sequence[WorkItem[W, R]]], Sequence[R | Exception]]


class RequestQueue(Generic[W, R]):
    """A bounded queue, and a thread for each of the `workers`.

    A worker runs a batch and returns a result or an exception for each item; `observe` is called
    with the number of items and the seconds that they took.
    """

    def __init__(
        self,
        workers: "Sequence[RunBatch[W, R]]",
        batch_size: int,
        max_wait: float,
        capacity: int,
        observe: Callable[[int, float], None],
    ) -> None:
        self.observe = observe
        self.batch_size, self.max_wait, self.capacity = batch_size, max_wait, capacity
        self.waiting: list[WorkItem[W, R]] = []
        self.idle_threads = 0
        self.long_batches_allowed = max(1, len(workers) - 1)
        self.seconds_per_item = 0.0
        self.closed = False
        self.changed = threading.Condition()
        self.threads = [
            threading.Thread(target=self._run_batches, args=(run,), name="queue", daemon=True)
            for run in workers
        ]
        for thread in self.threads:
            thread.start()

    def submit(self, items: Sequence[WorkItem[W, R]]) -> None:
        """Queue all of these items or, if there is no room, none."""
        with self.changed:
            if self.closed:
                raise ClosedError
            self._drop_cancelled()
            if len(self.waiting) + len(items) > self.capacity:
                seconds = len(self.waiting) * self.seconds_per_item / len(self.threads)
                raise QueueFullError(max(1, math.ceil(seconds)))
            self.waiting.extend(items)
            # idle threads are all alike; one that takes only a part wakes the next
            self.changed.notify()

    def close(self) -> None:
        """Accept nothing new, run what was accepted, end the threads."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        for thread in self.threads:
            thread.join()

    def _run_batches(self, run: "RunBatch[W, R]") -> None:
        while batch := self._next_batch():
            running = [item for item in batch if item.future.set_running_or_notify_cancel()]
            if running:
                self._run_batch(run, running)
            with self.changed:
                self.long_batches_allowed += any(map(is_long, batch))

    def _next_batch(self) -> list[WorkItem[W, R]]:
        """Take the next batch off the queue; it is empty when this is closed and all is done."""
        with self.changed:
            self.idle_threads += 1
            while True:
                self._drop_cancelled()
                allowed = self.waiting
                if not self.long_batches_allowed:
                    allowed = [item for item in allowed if not is_long(item)]
                batch = choose_batch(allowed, self.batch_size)
                if not batch and self.closed:
                    break
                seconds = batch[0].arrived + self.max_wait - time.monotonic() if batch else None
                ready = self.closed or batch_is_full(batch, self.batch_size)
                if seconds is not None and (ready or seconds <= 0):
                    batch = self._take(batch)
                    break
                self.changed.wait(seconds)
            self.idle_threads -= 1
            return batch

    def _take(self, batch: list[WorkItem[W, R]]) -> list[WorkItem[W, R]]:
        """Take a batch, or this thread's share if other idle threads can help with it."""
        if sum(item.work.size for item in batch) >= SHARED_BYTES:
            batch = batch[: math.ceil(len(batch) / self.idle_threads)]
        taken = set(map(id, batch))
        self.waiting = [item for item in self.waiting if id(item) not in taken]
        self.long_batches_allowed -= any(map(is_long, batch))
        if self.waiting:
            self.changed.notify()
        return batch

    def _drop_cancelled(self) -> None:
        self.waiting = [item for item in self.waiting if not item.future.cancelled()]

    def _run_batch(self, run: "RunBatch[W, R]", batch: Sequence[WorkItem[W, R]]) -> None:
        start = time.monotonic()
        results = _results(run, batch)
        seconds = time.monotonic() - start
        self.seconds_per_item += NEWEST_WEIGHT * (seconds / len(batch) - self.seconds_per_item)
        self.observe(len(batch), seconds)
        for item, result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                item.future.set_exception(result)
            else:
                item.future.set_result(result)


def _results(run: "RunBatch[W, R]", batch: Sequence[WorkItem[W, R]]) -> Sequence[R | Exception]:
    """Run a batch; if it fails, run each item alone, so that none fails for another."""
    try:
        return run(batch)
    except Exception as error:
        if len(batch) == 1:
            return [error]
        return [_results(run, [item])[0] for item in batch]


def choose_batch(waiting: Sequence[WorkItem[W, R]], batch_size: int) -> list[WorkItem[W, R]]:
    """Return the oldest item and those that may share its batch, oldest first, until it is full."""
    batch: list[WorkItem[W, R]] = []
    for item in waiting:
        if batch_is_full(batch, batch_size):
            break
        if not batch or (
            item.work.batch_key == batch[0].work.batch_key and similar_size(item, batch[0])
        ):
            batch.append(item)
    return batch


def batch_is_full(batch: Sequence[WorkItem[W, R]], batch_size: int) -> bool:
    """Tell whether more would take longer without gain; long items fill a batch sooner."""
    size = sum(item.work.size for item in batch)
    return len(batch) >= batch_size or size >= batch_size * MEAN_BYTES


def is_long(item: WorkItem[W, R]) -> bool:
    """Tell whether an item is so long that short ones should not wait for it."""
    return item.work.size > LONG_BYTES


def similar_size(a: WorkItem[W, R], b: WorkItem[W, R]) -> bool:
    """Tell whether little is lost by padding one to the other."""
    small, large = sorted((a.work.size, b.work.size))
    return is_long(a) == is_long(b) and large <= MAX_RATIO * small + SLACK_BYTES
