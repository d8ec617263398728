"""One function over many items in several processes; items of a process that dies are done again.

A function must leave the same behind however often it is called with the same item. Then nothing
is lost and nothing doubled: every item gives one result, whoever dies. Items are taken as there is
room for them, so there may be more than fit in memory.
"""

import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain, islice
from multiprocessing.queues import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

from covnmt.base.console import log
from covnmt.base.errors import UserError

T = TypeVar("T")
R = TypeVar("R")

# So often workers may die over one item: enough for accidents, too few for an item that kills.
MAX_DEATHS = 3
# Items in hand or at hand for every worker: none is idle while we are busy with results.
AHEAD = 2
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def available_cpus() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class WorkerRank(NamedTuple):
    """Which worker this process is, and of how many; a process that has none is the only one."""

    rank: int = 0
    workers: int = 1


_seat = WorkerRank()


def worker_rank() -> WorkerRank:
    """Of this process."""
    return _seat


class Chunk(NamedTuple, Generic[T]):
    """Some lines of a text, or what there is of each; messages name it without telling them."""

    first: int  # from 0
    lines: list[T]
    paused: bool = False  # no more of the text was there yet

    def __str__(self) -> str:
        return f"lines {self.first + 1:,} to {self.first + len(self.lines):,}"


def chunked(lines: Iterable[T], size: int) -> Iterator[Chunk[T]]:
    """So many lines at a time."""
    rest, first = iter(lines), 0
    while part := list(islice(rest, size)):
        yield Chunk(first, part)
        first += len(part)


def map_unordered(function: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """The results of all items, as they come; an exception in a worker is raised here."""
    return (result for _, result in _numbered(function, items, workers))


def map_in_order(function: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """The same, in the order of the items."""
    early: dict[int, R] = {}
    following = 0
    for number, result in _numbered(function, items, workers):
        early[number] = result
        while following in early:
            yield early.pop(following)
            following += 1


def map_chunks(
    function: Callable[[Chunk[T]], list[R]], items: Iterable[T], size: int, workers: int
) -> Iterator[R]:
    """What a function makes of every item, in order, when it is given so many at a time."""
    return chain.from_iterable(map_in_order(function, chunked(items, size), workers))


def _numbered(
    function: Callable[[T], R], items: Iterable[T], workers: int
) -> Iterator[tuple[int, R]]:
    """Results as they come, with the number of their item."""
    rest = enumerate(items)
    taken = dict(islice(rest, 1))  # and not done yet
    coming = _Coming(rest)
    if workers > 1 and _can_be_several():
        taken.update(coming.take())
    if len(taken) <= 1:
        for number, item in chain(taken.items(), rest):
            yield number, function(item)
        coming.end()
        return
    deaths: Counter[int] = Counter()
    while True:
        yield from _attempt(function, taken, coming, workers)
        if not taken:
            coming.end()
            return
        deaths.update(taken.keys())
        number = max(taken, key=deaths.__getitem__)
        if deaths[number] > MAX_DEATHS:
            raise UserError(
                f"{taken[number]}: workers died {MAX_DEATHS + 1} times while it was to be done; is "
                "there too little memory? Try again with more of it, or with fewer processes"
            )


def _can_be_several() -> bool:
    """Not where processes have no semaphores to share: in some containers, say."""
    try:
        multiprocessing.get_context("spawn").Lock()
    except OSError as error:
        log(
            f"processes have no semaphores here ({error.strerror}; is /dev/shm there, and may it "
            "be written to?): one does all the work"
        )
        return False
    return True


class _Coming(Generic[T]):
    """The items not taken yet. Another thread waits for the next one, which may take its time:
    what is done meanwhile is passed on."""

    def __init__(self, rest: Iterator[tuple[int, T]]) -> None:
        self.rest, self.ended = rest, False
        self.failure: BaseException | None = None
        self.following: Future[tuple[int, T] | None] | None = None

    def ask(self) -> "Future[tuple[int, T] | None]":
        """For the next one, which is the same until it is taken."""
        if self.following is None:
            self.following = Future()
            # nobody waits for this thread in the end: the next item may never come
            threading.Thread(target=self._fetch, args=(self.following,), daemon=True).start()
        return self.following

    def take(self) -> list[tuple[int, T]]:
        """The one that was asked for; none at the end, or where it cannot be had."""
        asked, self.following = self.ask(), None
        self.failure = asked.exception()
        found = None if self.failure else asked.result()
        self.ended = found is None
        return [] if found is None else [found]

    def end(self) -> None:
        """When all that came is done: raise why no more could be had, if that is so."""
        if self.failure:
            raise self.failure

    def _fetch(self, future: "Future[tuple[int, T] | None]") -> None:
        try:
            future.set_result(next(self.rest, None))
        except BaseException as error:
            future.set_exception(error)


def _attempt(
    function: Callable[[T], R], taken: dict[int, T], coming: _Coming[T], workers: int
) -> Iterator[tuple[int, R]]:
    """Results until all are there or a worker dies."""
    # a fresh interpreter each: threads and GPUs do not survive a fork
    context = multiprocessing.get_context("spawn")
    seats: SimpleQueue[WorkerRank] = context.SimpleQueue()
    for number in range(workers):
        seats.put(WorkerRank(number, workers))
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(workers, context, _begin, (seats,))
    items, futures = list(taken.items()), dict[Future[R], int]()
    try:
        while True:
            for number, item in items:
                taken[number] = item
                with defer_signals():  # it may start a worker
                    futures[pool.submit(function, item)] = number
            awaited: set[Future[Any]] = set(futures)
            if len(futures) < AHEAD * workers and not coming.ended:
                awaited.add(coming.ask())
            if not awaited:
                return
            done = wait(awaited, return_when=FIRST_COMPLETED).done
            for future in done & futures.keys():
                number, result = futures.pop(future), future.result()
                del taken[number]
                yield number, result
            items = coming.take() if coming.following in done else []
    except BrokenProcessPool:
        return
    except (KeyboardInterrupt, GeneratorExit):  # nobody waits for what they have in hand
        for process in multiprocessing.active_children():
            if process not in others:
                process.kill()
        _hang_up(pool)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _hang_up(pool: ProcessPoolExecutor) -> None:
    """Close our end of the pipe for results, the last one once the workers are gone.

    One that was killed while it sent a result left half of it there, and the pool would wait for
    the other half for ever.
    """
    results: Any = pool._result_queue
    results._writer.close()


def _begin(seats: "SimpleQueue[WorkerRank]") -> None:
    """Take a seat; leave Ctrl-C to the process that waits for us, and die of it quietly."""
    global _seat
    _seat = seats.get()
    exit_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


@contextmanager
def defer_signals() -> Iterator[None]:
    """Signals to stop wait for the end of this block, and in processes that it starts until they
    let them in: a process that is stopped while it begins ends with a traceback."""
    came: list[int] = []
    main = threading.current_thread() is threading.main_thread()
    handlers = {n: signal.signal(n, lambda n, _: came.append(n)) for n in STOP_SIGNALS if main}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # new processes have it too
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for each in came:  # told to another thread, which need not hold it back
        signal.raise_signal(each)


def exit_with_parent() -> None:
    """Have this process end when the one that started it does, however that ended."""

    def wait_and_end() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
            os._exit(1)

    threading.Thread(target=wait_and_end, daemon=True).start()
