"""One function over many items in several processes; items of a process that dies are done again.

A function must leave the same behind however often it is called with the same item. Then nothing
is lost and nothing doubled: every item gives one result, whoever dies.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.queues import SimpleQueue
from typing import TypeVar

from covnmt.errors import UserError

T = TypeVar("T")
R = TypeVar("R")

# So often workers may die in one job: enough for accidents, too few for an item that kills.
DEATHS = 3

_number = 0


def cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def number() -> int:
    """Which of the workers this process is, from 0; the process that has none is 0 too."""
    return _number


def spread(function: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """The results of all items, as they come; an exception in a worker is raised here."""
    waiting = list(items)
    if min(workers, len(waiting)) <= 1:
        yield from map(function, waiting)
        return
    for _ in range(DEATHS + 1):
        for item, result in _attempt(function, list(waiting), workers):
            waiting.remove(item)
            yield result
        if not waiting:
            return
    raise UserError(
        f"workers died {DEATHS + 1} times, and {len(waiting)} files are left, {waiting[0]} among "
        "them; is there too little memory? Give the same command again with fewer --workers"
    )


def _attempt(function: Callable[[T], R], items: list[T], workers: int) -> Iterator[tuple[T, R]]:
    """Items and their results, until all are there or a worker dies."""
    # a fresh interpreter each: threads and GPUs do not survive a fork
    context = multiprocessing.get_context("spawn")
    numbers: SimpleQueue[int] = context.SimpleQueue()
    workers = min(workers, len(items))
    for k in range(workers):
        numbers.put(k)
    pool = ProcessPoolExecutor(workers, context, _begin, (numbers,))
    try:
        futures = {pool.submit(function, item): item for item in items}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool:
        return
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(numbers: "SimpleQueue[int]") -> None:
    """Take a number; leave Ctrl-C to the process that waits for us, and die of it quietly."""
    global _number
    _number = numbers.get()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
