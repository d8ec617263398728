"""Run requests that arrive together as one batch.

A `RequestQueue` has some threads, each with a worker of its own. A free thread takes the item
whose turn it is and those that may share its batch: with the same key and of similar size, so short
and long sentences are never batched together. Clients take turns, and so do the requests of a
client (`Turns`): who sends a little need not wait for who sends much. Of several threads one is
always kept free of long batches, so short items need not wait for long ones. An item is cancelled
by cancelling its future; if it is still waiting it then leaves the queue.

Sizes are bytes of UTF-8: five or six make a word, in English, Japanese and Chinese alike.
"""

import heapq
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

# An item joins the batch of the first in turn if the larger of the two has at most this many times
# the bytes of the smaller, plus the slack.
MAX_RATIO, SLACK_BYTES = 2.0, 40
LONG_BYTES = 200
# A batch of up to N items is full at N times this many bytes.
MEAN_BYTES = 100
# Idle threads share a batch from this size on: of a smaller one each would do most of the steps.
SHARED_BYTES = 600
HALF_LIFE = 5.0  # seconds of work after which earlier batches count half in the throughput
MAX_RETRY_AFTER = 60
# Clients and requests without waiting items that are remembered, for each that has some.
MAX_REMEMBERED = 10


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

    @property
    def cost(self) -> float:
        """How long it takes, in any unit: size and width of the beam."""


W = TypeVar("W", bound=Batchable)
R = TypeVar("R")


class WorkFuture(Future[R]):
    """A result that a client waits for; it may stop waiting while a worker is at it."""

    def __init__(self) -> None:
        super().__init__()
        self.abandoned = False

    def cancel(self) -> bool:
        """Cancel what has not begun; what has begun is finished only for others in its batch."""
        self.abandoned = True
        return super().cancel()


@dataclass(frozen=True, eq=False)
class WorkItem(Generic[W, R]):
    """Queued work and the future of its result."""

    work: W
    prefix: str = ""  # of messages about it
    on_partial: Callable[[str], None] | None = None  # called with the text so far
    client: Hashable = None
    request: Hashable = None
    arrived: float = field(default_factory=time.monotonic)
    future: WorkFuture[R] = field(default_factory=WorkFuture)

    @property
    def abandoned(self) -> bool:
        """Whether nobody waits for the result any more."""
        return self.future.abandoned


RunBatch = Callable[[Sequence[WorkItem[W, R]]], Sequence[R | Exception]]


class Turns:
    """Whose turn it is: the client that has cost least, and of its requests the one that has.

    Costs are compared from the moment on that a client has something waiting: who comes back after
    a pause has saved up nothing.
    """

    def __init__(self) -> None:
        self.clients: dict[Hashable, float] = {}  # cost so far
        self.requests: dict[Hashable, float] = {}  # by client and request

    def enter(
        self, new: Iterable[WorkItem[Any, Any]], waiting: Iterable[WorkItem[Any, Any]]
    ) -> None:
        """Let clients and requests begin where those that wait already are."""
        waiting_clients = {item.client for item in waiting}
        requests = {(item.client, item.request) for item in waiting}
        if not requests:
            self.clients, self.requests = {}, {}
        least = min((self.clients[client] for client in waiting_clients), default=0.0)
        self._forget(waiting_clients, requests, least)
        for client, request in dict.fromkeys((item.client, item.request) for item in new):
            if client not in waiting_clients:
                self.clients[client] = max(self.clients.get(client, 0.0), least)
            if (client, request) not in requests:
                siblings = (self.requests[key] for key in requests if key[0] == client)
                begin = max(self.requests.get((client, request), 0.0), min(siblings, default=0.0))
                self.requests[client, request] = begin

    def order(self, waiting: Iterable[WorkItem[W, R]]) -> Iterator[WorkItem[W, R]]:
        """Yield items in the order of their turns; items of a request keep theirs."""
        queues: dict[Hashable, dict[Hashable, deque[WorkItem[W, R]]]] = {}
        for item in waiting:
            requests = queues.setdefault(item.client, {})
            requests.setdefault(item.request, deque()).append(item)
        # of equal costs the one that came first; its number keeps the heaps from comparing names
        clients = [(self.clients[client], n, client) for n, client in enumerate(queues)]
        heaps = {
            client: [(self.requests[client, request], n, request) for n, request in enumerate(each)]
            for client, each in queues.items()
        }
        for heap in (clients, *heaps.values()):
            heapq.heapify(heap)
        while clients:
            spent, number, client = heapq.heappop(clients)
            spent_on_request, request_number, request = heapq.heappop(heaps[client])
            items = queues[client][request]
            item = items.popleft()
            yield item
            if items:
                entry = (spent_on_request + item.work.cost, request_number, request)
                heapq.heappush(heaps[client], entry)
            if heaps[client]:
                heapq.heappush(clients, (spent + item.work.cost, number, client))

    def charge(self, taken: Iterable[WorkItem[Any, Any]]) -> None:
        """Add the cost of items that are run."""
        for item in taken:
            self.clients[item.client] += item.work.cost
            self.requests[item.client, item.request] += item.work.cost

    def _forget(
        self, clients: Collection[Hashable], requests: Collection[Hashable], least: float
    ) -> None:
        """Forget those that have nothing waiting, if they are many."""
        if len(self.requests) > MAX_REMEMBERED * (1 + len(requests)):
            self.requests = {k: cost for k, cost in self.requests.items() if k in requests}
            self.clients = {
                k: cost for k, cost in self.clients.items() if k in clients or cost > least
            }


class RequestQueue(Generic[W, R]):
    """A bounded queue, and a thread for each of the `workers`.

    A client that has nothing waiting finds a place also where others have filled the queue, until
    it is twice full.

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
        self.turns = Turns()
        self.running: set[WorkItem[W, R]] = set()
        # the cost of the batches so far and the seconds for them, of all threads together; of
        # earlier ones only a share
        self.seconds = self.cost = 0.0
        self.running_batches, self.counted_until = 0, 0.0
        self.closed = False
        self.changed = threading.Condition()
        self.threads = [
            threading.Thread(target=self._run_batches, args=(run,), name="queue", daemon=True)
            for run in workers
        ]
        for thread in self.threads:
            thread.start()

    def submit(self, items: Sequence[WorkItem[W, R]]) -> None:
        """Queue all of these items or, if there is no room, none; they have one client."""
        with self.changed:
            if self.closed:
                raise ClosedError
            self._drop_cancelled()
            has_some = any(item.client == new.client for item in self.waiting for new in items[:1])
            excess = len(self.waiting) + len(items) - self.capacity * (1 if has_some else 2)
            if excess > 0:
                raise QueueFullError(self._seconds_until_room(excess))
            self.turns.enter(items, self.waiting)
            self.waiting.extend(items)
            # idle threads are all alike; one that takes only a part wakes the next
            self.changed.notify()

    def _seconds_until_room(self, excess: int) -> int:
        """Return how long it takes until so many items have left the queue, by the throughput of
        the last batches; at least a second and at most a minute."""
        seconds_per_cost = self.seconds / self.cost if self.cost else 0.0
        cost = sum(item.work.cost for item in self.waiting) / max(1, len(self.waiting))
        seconds = math.ceil(excess * cost * seconds_per_cost)
        return min(MAX_RETRY_AFTER, max(1, seconds))

    def close(self) -> None:
        """Accept nothing new, run what was accepted, end the threads."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        for thread in self.threads:
            thread.join()

    def abort(self) -> None:
        """Accept nothing new, and let all that was accepted fail with a ClosedError."""
        with self.changed:
            self.closed = True
            items, self.waiting = [*self.waiting, *self.running], []
            for item in items:
                item.future.abandoned = True
                with suppress(InvalidStateError):  # it was done or cancelled meanwhile
                    item.future.set_exception(ClosedError())
            self.changed.notify_all()

    def _run_batches(self, run: "RunBatch[W, R]") -> None:
        while batch := self._next_batch():
            if running := [item for item in batch if item in self.running]:
                self._run_batch(run, running)
            with self.changed:
                self.running.difference_update(batch)
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
                batch = choose_batch(self.turns.order(allowed), self.batch_size)
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
        taken = set(batch)
        self.waiting = [item for item in self.waiting if item not in taken]
        self.turns.charge(batch)
        self.long_batches_allowed -= any(map(is_long, batch))
        if self.waiting:
            self.changed.notify()
        # the others have been cancelled meanwhile
        self.running.update(i for i in batch if i.future.set_running_or_notify_cancel())
        return batch

    def _drop_cancelled(self) -> None:
        self.waiting = [item for item in self.waiting if not item.future.cancelled()]

    def _run_batch(self, run: "RunBatch[W, R]", batch: Sequence[WorkItem[W, R]]) -> None:
        start = time.monotonic()
        with self.changed:
            self.running_batches += 1
            if self.running_batches == 1:  # the threads were all idle
                self.counted_until = start
        results = _results(run, batch)
        end = time.monotonic()
        self.observe(len(batch), end - start)
        with self.changed:
            self.running_batches -= 1
            elapsed, self.counted_until = end - self.counted_until, end
            earlier = 0.5 ** (elapsed / HALF_LIFE)
            self.seconds = earlier * self.seconds + elapsed
            self.cost = earlier * self.cost + sum(item.work.cost for item in batch)
        for item, result in zip(batch, results, strict=True):
            with suppress(InvalidStateError):  # `abort` was faster
                if isinstance(result, Exception):
                    item.future.set_exception(result)
                else:
                    item.future.set_result(result)


def _results(run: "RunBatch[W, R]", batch: Sequence[WorkItem[W, R]]) -> Sequence[R | Exception]:
    """Run a batch; if it fails, run each item alone, so that none fails for another."""
    try:
        return run(batch)
    except Exception as error:
        failure = error
    if len(batch) == 1:
        return [failure]
    return [failure if item.abandoned else _results(run, [item])[0] for item in batch]


def choose_batch(ordered: Iterable[WorkItem[W, R]], batch_size: int) -> list[WorkItem[W, R]]:
    """Return the first item and those that may share its batch, in this order, until it is full."""
    batch: list[WorkItem[W, R]] = []
    for item in ordered:
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
