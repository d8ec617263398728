"""Mapping over worker processes: results, order, errors, and workers that die."""

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.synchronize import SemLock
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from covnmt.base import processes
from covnmt.base.errors import UserError
from covnmt.base.processes import (
    SUBMITTED_PER_WORKER,
    WorkerPool,
    WorkerRank,
    map_in_order,
    map_unordered,
    worker_rank,
)
from covnmt.base.signals import STOP_SIGNALS
from tests.system.workers import alive

PATIENCE = 60  # seconds


class Job(NamedTuple):
    """A file to write, and how often the worker dies before it succeeds."""

    path: Path
    deaths: int = 0


def work(job: Job) -> tuple[str, WorkerRank]:
    """Append a mark to the file for every attempt."""
    with job.path.open("a") as stream:
        stream.write("x")
    if len(job.path.read_text()) <= job.deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return job.path.name, worker_rank()


def slow_at_first(number: int) -> int:
    time.sleep(0.4 if number == 0 else 0)
    return number


def refuse(job: Job) -> None:
    raise UserError(f"{job.path}, line 7: bad")


def stuck_while_sending(job: Job) -> str:
    """Send half of the second result, once the first has been received."""

    def send_half(connection: Connection, content: bytes) -> None:
        os.write(connection.fileno(), content[:2])
        (job.path.parent / "half").touch()
        time.sleep(PATIENCE)

    if job.path.name == "second":
        wait_for(job.path.parent / "seen")
        Connection._send = send_half  # type: ignore[attr-defined]
    return job.path.name


def wait_for(path: Path) -> None:
    until = time.monotonic() + PATIENCE
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_every_item_is_done_once(count: int, tmp_path: Path) -> None:
    jobs = [Job(tmp_path / str(k)) for k in range(count)]
    found = list(map_unordered(work, jobs, workers=2))
    assert sorted(name for name, _ in found) == [job.path.name for job in jobs]
    assert {path.read_text() for path in tmp_path.iterdir()} <= {"x"}
    several = count > 1
    assert {where for _, where in found} <= {WorkerRank(k, 1 + several) for k in range(1 + several)}


def test_map_in_order_keeps_the_order_of_items() -> None:
    assert list(map_in_order(slow_at_first, range(9), workers=2)) == list(range(9))


def test_items_are_taken_only_as_workers_have_room() -> None:
    """The iterator may be endless."""
    taken: list[int] = []

    def items() -> Iterator[int]:
        while True:
            taken.append(len(taken))
            yield taken[-1]

    results = map_unordered(abs, items(), workers=2)
    assert len({next(results) for _ in range(20)}) == 20
    assert len(taken) <= 20 + SUBMITTED_PER_WORKER * 2
    results.close()  # type: ignore[attr-defined]


def test_closing_does_not_wait_for_half_sent_results(tmp_path: Path) -> None:
    """`covnmt translate file | head` kills workers while they send results."""
    results = map_unordered(
        stuck_while_sending, [Job(tmp_path / n) for n in ("first", "second")], 2
    )
    assert next(results) == "first"
    (tmp_path / "seen").touch()
    wait_for(tmp_path / "half")
    leaving = threading.Thread(target=results.close, daemon=True)  # type: ignore[attr-defined]
    leaving.start()
    leaving.join(PATIENCE)
    assert not leaving.is_alive()


def test_results_are_yielded_while_the_next_item_is_awaited() -> None:
    """The next item may depend on the result of the last."""
    seen = [threading.Event() for _ in range(6)]

    def items() -> Iterator[int]:
        yield 0
        for number in range(1, 6):
            yield number
            assert seen[number].wait(300)

    results = map_in_order(abs, items(), workers=2)
    for number in results:
        seen[number].set()
    assert all(event.is_set() for event in seen)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("good", range(4))
def test_items_before_a_failing_iterator_are_done(good: int, workers: int) -> None:
    """With one worker and with several."""

    def items() -> Iterator[int]:
        yield from range(good)
        raise UserError("text, line 7: bad")

    results = map_in_order(slow_at_first, items(), workers)
    assert list(islice(results, good)) == list(range(good))
    with pytest.raises(UserError, match="line 7: bad"):
        next(results)


def test_one_worker_is_the_calling_process(tmp_path: Path) -> None:
    assert list(map_unordered(lambda item: item + 1, [1, 2], workers=1)) == [2, 3]


def test_without_semaphores_the_calling_process_works_and_logs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in containers where /dev/shm is not writable."""

    def no_semaphore(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("_multiprocessing.SemLock", no_semaphore)
    jobs = [Job(tmp_path / name) for name in ("first", "second")]
    assert list(map_unordered(work, jobs, workers=2)) == [
        ("first", WorkerRank()),
        ("second", WorkerRank()),
    ]
    told = capsys.readouterr().err
    assert "/dev/shm" in told
    assert len(told.splitlines()) == 1


def test_a_signal_while_a_semaphore_is_made_comes_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that is only half made cannot be cleaned up: Python prints a traceback."""
    make, made = SemLock._make_name, list[str]()  # type: ignore[attr-defined]

    def signal_and_make() -> str:
        signal.raise_signal(signal.SIGINT)
        made.append(make())
        return made[-1]

    monkeypatch.setattr(SemLock, "_make_name", staticmethod(signal_and_make))
    with pytest.raises(KeyboardInterrupt):
        list(map_unordered(abs, [1, 2], workers=2))
    assert made


def test_a_signal_while_results_are_awaited_breaks_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raised within Python's locks, it gives tracebacks of other threads."""
    ended: list[object] = []

    def signal_and_wait(*arguments: Any) -> object:
        signal.raise_signal(signal.SIGINT)
        ended.append(wait(*arguments))
        return ended[-1]

    monkeypatch.setattr(processes, "wait", signal_and_wait)
    with pytest.raises(KeyboardInterrupt):
        list(map_unordered(abs, range(4), workers=2))
    assert len(ended) == 1


def test_items_of_a_dead_worker_are_done_again(tmp_path: Path) -> None:
    """Nothing is lost, and finished items are not done again."""
    jobs = [Job(tmp_path / str(k), deaths=2 * (k == 8)) for k in range(9)]
    assert [name for name, _ in map_in_order(work, jobs, workers=2)] == list("012345678")
    *others, last = [job.path.read_text() for job in jobs]
    assert last == "xxx"
    assert others.count("x") > len(others) - SUBMITTED_PER_WORKER * 2
    # at most three others were submitted with the last one


def process_id(number: int) -> int:
    return os.getpid()


def blocked_signals(number: int) -> set[int]:
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def test_a_pool_keeps_its_workers_for_the_next_call() -> None:
    with WorkerPool(2) as pool:
        first = set(pool.map_unordered(process_id, range(40)))
        assert os.getpid() not in first
        assert set(pool.map_unordered(process_id, range(40))) <= first
        for process in multiprocessing.active_children():
            process.kill()
        assert set(pool.map_unordered(process_id, range(40))).isdisjoint(first)
    assert not multiprocessing.active_children()


def test_an_error_leaves_a_pool_usable(tmp_path: Path) -> None:
    with WorkerPool(2) as pool:
        with pytest.raises(UserError, match="line 7: bad"):
            list(pool.map_unordered(refuse, [Job(tmp_path / "a"), Job(tmp_path / "b")]))
        assert list(pool.map_in_order(slow_at_first, range(4))) == list(range(4))


def test_workers_receive_signals_once_they_have_begun() -> None:
    blocked = map_unordered(blocked_signals, range(4), workers=2)
    assert not set().union(*blocked) & set(STOP_SIGNALS)


def test_an_item_that_always_kills_its_worker_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "MAX_RETRIES", 1)
    jobs = [Job(tmp_path / str(k), deaths=9 * (k == 0)) for k in range(2)]
    with pytest.raises(UserError, match=r"/0.*: 2 worker processes died on it.* fewer processes"):
        list(map_unordered(work, jobs, workers=2))
    assert (tmp_path / "0").read_text() == "xx"


def test_an_error_in_a_worker_is_raised_in_the_caller(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="line 7: bad"):
        list(map_unordered(refuse, [Job(tmp_path / "a"), Job(tmp_path / "b")], workers=2))


def endless(job: Job) -> None:
    job.path.write_text(str(os.getpid()))
    time.sleep(600)


def keep_busy(directory: Path) -> None:
    for _ in map_unordered(endless, [Job(directory / name) for name in "ab"], workers=2):
        pass


def test_closing_kills_no_other_process(tmp_path: Path) -> None:
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
    other.start()
    results = map_unordered(work, [Job(tmp_path / str(k)) for k in range(9)], workers=2)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert other.is_alive()
    other.kill()
    other.join()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_parent_process(number: signal.Signals, tmp_path: Path) -> None:
    """Whatever signal ended it, and though only it received the signal."""
    code = f"from tests.base.test_processes import *; keep_busy(Path({str(tmp_path)!r}))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], stderr=subprocess.DEVNULL
    )
    marks = [tmp_path / name for name in "ab"]
    while not all(mark.exists() and mark.read_text() for mark in marks):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait(120) != 0
    workers = [int(mark.read_text()) for mark in marks]
    for _ in range(12_000):
        if not any(map(alive, workers)):
            return
        time.sleep(0.01)
    for worker in filter(alive, workers):
        os.kill(worker, signal.SIGKILL)
    raise AssertionError("workers were left behind")


def test_workers_start_with_signals_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are started later."""
    process = multiprocessing.get_context("spawn").Process
    start, blocked = process.start, list[set[signal.Signals]]()

    def noting(self: multiprocessing.Process) -> None:
        blocked.append({signal.Signals(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, ())})
        start(self)

    monkeypatch.setattr(process, "start", noting)
    assert sorted(map_unordered(slow_at_first, range(6), workers=2)) == list(range(6))
    assert blocked
    assert all(each >= set(STOP_SIGNALS) for each in blocked)
