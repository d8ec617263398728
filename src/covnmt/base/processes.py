"""Map a function over items in worker processes; items of a worker that dies are retried.

The function must have the same effect however often it is called with the same item. Then:

1. Every item gives exactly one result, whichever workers die.
2. Items are taken only as workers have room for them: there may be more than fit in memory.
3. Results are passed on while the next item has not come yet, as when standard input pauses.

joblib and loky promise none of these.
"""

import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from multiprocessing.queues import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

from covnmt.base.console import log
from covnmt.base.errors import UserError
from covnmt.base.signals import STOP_SIGNALS, defer_signals

T = TypeVar("T")
R = TypeVar("R")

# How often an item is retried after workers died on it: enough for accidents, too few for an item
# that kills.
MAX_RETRIES = 3
# Items submitted per worker: none is idle while the results of others are consumed.
SUBMITTED_PER_WORKER = 2
SECONDS_PER_WAIT = 0.1  # as long as a signal may have to wait


class WorkerRank(NamedTuple):
    """The rank of a worker process and the number of workers; (0, 1) outside of a pool."""

    rank: int = 0
    workers: int = 1


_worker_rank = WorkerRank()


def worker_rank() -> WorkerRank:
    """Return this process's rank and the number of workers."""
    return _worker_rank


class Chunk(NamedTuple, Generic[T]):
    """Consecutive lines of a text; messages name their numbers, not their content."""

    first: int  # from 0
    lines: list[T]
    paused: bool = False  # by `input_chunks`: no further line was ready

    def __str__(self) -> str:
        return f"lines {self.first + 1:,} to {self.first + len(self.lines):,}"


def chunked(lines: Iterable[T], size: int) -> Iterator[Chunk[T]]:
    """Cut lines into chunks of at most `size`."""
    rest, first = iter(lines), 0
    while chunk := list(islice(rest, size)):
        yield Chunk(first, chunk)
        first += len(chunk)


def map_unordered(function: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """Yield the results of all items as they come; an exception in a worker is raised here."""
    with WorkerPool(workers) as pool:
        yield from pool.map_unordered(function, items)


def map_in_order(function: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """Yield the results of all items in the order of the items."""
    with WorkerPool(workers) as pool:
        yield from pool.map_in_order(function, items)


def map_chunks(
    function: Callable[[Chunk[T]], list[R]], lines: Iterable[T], size: int, workers: int
) -> Iterator[R]:
    """Yield one result per line, in order, of a function that takes `size` lines at a time."""
    return chain.from_iterable(map_in_order(function, chunked(lines, size), workers))


class WorkerPool:
    """Worker processes for one call after another; what functions cache in them is kept.

    They are started when there is a second item. One worker, or one item, is this process itself.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._executor: ProcessPoolExecutor | None = None

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind:
            self._kill()
        else:
            self._shut_down()

    def map_unordered(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """See `map_unordered`."""
        return (result for _, result in self._numbered_results(function, items))

    def map_in_order(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """See `map_in_order`."""
        early: dict[int, R] = {}
        following = 0
        for number, result in self._numbered_results(function, items):
            early[number] = result
            while following in early:
                yield early.pop(following)
                following += 1

    def _numbered_results(
        self, function: Callable[[T], R], items: Iterable[T]
    ) -> Iterator[tuple[int, R]]:
        """Yield results as they come, with the number of their item."""
        rest = enumerate(items)
        unfinished = dict(islice(rest, 1))  # items taken, by number
        source = _ItemSource(rest)
        if self.workers > 1 and (self._executor or have_semaphores()):
            unfinished.update(source.take())
        if len(unfinished) <= 1:
            for number, item in chain(unfinished.items(), rest):
                yield number, function(item)
            source.raise_failure()
            return
        deaths: Counter[int] = Counter()
        while True:
            yield from self._results_until_death(function, unfinished, source)
            if not unfinished:
                source.raise_failure()
                return
            deaths.update(unfinished.keys())
            number = max(unfinished, key=deaths.__getitem__)
            if deaths[number] > MAX_RETRIES:
                raise UserError(
                    f"{unfinished[number]}: {MAX_RETRIES + 1} worker processes died on it, perhaps "
                    "for lack of memory; try again with fewer processes or more memory"
                )

    def _results_until_death(
        self, function: Callable[[T], R], unfinished: dict[int, T], source: "_ItemSource[T]"
    ) -> Iterator[tuple[int, R]]:
        """Yield results until all items are done or a worker dies."""
        executor = self._executor = self._executor or _start_executor(self.workers)
        new_items, numbers = list(unfinished.items()), dict[Future[R], int]()
        try:
            while True:
                for number, item in new_items:
                    unfinished[number] = item
                    with defer_signals():  # this may start a worker
                        numbers[executor.submit(function, item)] = number
                awaited: set[Future[Any]] = set(numbers)
                if len(numbers) < SUBMITTED_PER_WORKER * self.workers and not source.ended:
                    awaited.add(source.request())
                if not awaited:
                    return
                done = _wait_for_any(awaited)
                for future in done & numbers.keys():
                    number, result = numbers.pop(future), future.result()
                    del unfinished[number]
                    yield number, result
                new_items = source.take() if source.requested in done else []
        except BrokenProcessPool:
            self._shut_down()
        except (KeyboardInterrupt, GeneratorExit):  # nobody waits for what they have in hand
            self._kill()
            raise
        except BaseException:
            self._shut_down()
            raise

    def _shut_down(self) -> None:
        """End the workers when they have finished what they have in hand."""
        if self._executor:
            self._executor.shutdown(wait=True, cancel_futures=True)
            self._executor = None

    def _kill(self) -> None:
        """End the workers now."""
        if not self._executor:
            return
        for process in list(self._executor._processes.values()):
            process.kill()
        # One that was killed while it sent a result left half of it in the pipe, and the executor
        # would wait for the other half for ever: close our end, the last one.
        results: Any = self._executor._result_queue
        results._writer.close()
        self._shut_down()


class _ItemSource(Generic[T]):
    """Items not taken yet. A thread waits for the next one, so that its delay holds up nothing."""

    def __init__(self, items: Iterator[tuple[int, T]]) -> None:
        self.items, self.ended = items, False
        self.failure: BaseException | None = None
        self.requested: Future[tuple[int, T] | None] | None = None

    def request(self) -> "Future[tuple[int, T] | None]":
        """Return the future of the next item, the same until it is taken."""
        if self.requested is None:
            self.requested = Future()
            # a daemon, which nobody joins: the next item may never come
            thread = threading.Thread(target=self._fetch, args=(self.requested,), daemon=True)
            with defer_signals():
                thread.start()
        return self.requested

    def take(self) -> list[tuple[int, T]]:
        """Wait for the next item; none at the end, or where the iterator failed."""
        future = self.request()
        _wait_for_any({future})
        self.requested, self.failure = None, future.exception()
        item = None if self.failure else future.result()
        self.ended = item is None
        return [] if item is None else [item]

    def raise_failure(self) -> None:
        """Raise what the iterator raised; for when all earlier items are done."""
        if self.failure:
            raise self.failure

    def _fetch(self, future: "Future[tuple[int, T] | None]") -> None:
        try:
            future.set_result(next(self.items, None))
        except BaseException as error:
            future.set_exception(error)


def _wait_for_any(futures: Collection[Future[Any]]) -> set[Future[Any]]:
    """Wait until some futures are done, and return them.

    KeyboardInterrupt is raised only between calls of `wait`: within, it would leave locks that
    other threads then cannot release.
    """
    while True:
        with defer_signals():
            done = wait(futures, SECONDS_PER_WAIT, FIRST_COMPLETED).done
        if done:
            return done


@defer_signals()  # Python cannot clean up a semaphore that is only half made
def have_semaphores() -> bool:
    """Check for what processes synchronize with; some containers lack it."""
    try:
        multiprocessing.get_context("spawn").Lock()
    except OSError as error:
        log(
            f"no semaphores for worker processes here ({error.strerror}; is /dev/shm there and "
            "writable?): working in a single process"
        )
        return False
    return True


@defer_signals()
def _start_executor(workers: int) -> ProcessPoolExecutor:
    # a fresh interpreter each: threads and GPUs do not survive a fork
    context = multiprocessing.get_context("spawn")
    ranks: SimpleQueue[WorkerRank] = context.SimpleQueue()
    for rank in range(workers):
        ranks.put(WorkerRank(rank, workers))
    return ProcessPoolExecutor(workers, context, _begin_worker, (ranks,))


def _begin_worker(ranks: "SimpleQueue[WorkerRank]") -> None:
    """Take a rank, and exit on Ctrl-C without a traceback: the parent process handles it."""
    global _worker_rank
    _worker_rank = ranks.get()
    exit_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def exit_with_parent() -> None:
    """Make this process end when the one that started it does, however that ended."""

    def wait_and_exit() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
            os._exit(1)

    threading.Thread(target=wait_and_exit, daemon=True).start()
