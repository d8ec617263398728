"""Turns of clients and requests in the queue, its limits, and what becomes of it at the end."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from covnmt.serve.request_queue import (
    ClosedError,
    QueueFullError,
    RequestQueue,
    Turns,
    WorkItem,
)

from .server import PATIENCE, wait_until


@dataclass(frozen=True)
class Letter:
    """Work for a test: return a letter."""

    letter: str
    cost: float = 1.0
    batch_key: str = ""
    size: int = 10


LetterItem = WorkItem[Letter, str]


def items(letters: str, client: str, request: int = 0, cost: float = 1.0) -> list[LetterItem]:
    return [LetterItem(Letter(each, cost), client=client, request=request) for each in letters]


def order(turns: Turns, *groups: list[LetterItem]) -> str:
    waiting: list[LetterItem] = []
    for group in groups:
        turns.enter(group, waiting)
        waiting += group
    return "".join(item.work.letter for item in turns.order(waiting))


def test_clients_take_turns() -> None:
    assert order(Turns(), items("abcdef", "one"), items("xy", "two")) == "axbycdef"


def test_requests_of_a_client_take_turns() -> None:
    assert order(Turns(), items("abcd", "one", 1), items("xy", "one", 2)) == "axbycd"


def test_a_client_is_charged_for_what_its_work_costs() -> None:
    assert order(Turns(), items("abc", "one", cost=3), items("uvwxyz", "two")) == "auvwbxyzc"


def test_more_requests_are_not_more_turns() -> None:
    many = [items(letter, "one", number) for number, letter in enumerate("abcd")]
    assert order(Turns(), *many, items("xy", "two")) == "axbycd"


def test_what_was_run_counts_while_something_waits() -> None:
    turns, first, rest = Turns(), items("ab", "one"), items("cd", "two")
    turns.enter(first, [])
    turns.enter(rest, first)
    turns.charge(first[:1])
    assert "".join(item.work.letter for item in turns.order([*first[1:], *rest])) == "cbd"


def test_a_pause_saves_up_nothing() -> None:
    turns, busy = Turns(), items("abcdef", "busy")
    turns.enter(busy, [])
    turns.charge(busy[:5])
    late = items("xyz", "late")
    turns.enter(late, busy[5:])
    assert "".join(item.work.letter for item in turns.order([*busy[5:], *late])) == "fxyz"


def test_clients_that_are_gone_are_forgotten() -> None:
    turns, waiting = Turns(), items("a", "patient")
    turns.enter(waiting, [])
    for number in range(200):
        turns.enter(items("b", f"client {number}", number), waiting)
    assert len(turns.clients) + len(turns.requests) < 100


class SlowQueue:
    """A queue of single items whose worker waits until the test lets it go on."""

    def __init__(self, capacity: int = 6) -> None:
        self.open, self.batches = threading.Event(), list[str]()
        self.queue: RequestQueue[Letter, str] = RequestQueue(
            [self.run], 1, 0.0, capacity, lambda n, seconds: None
        )
        self.first = items("0", "first")
        self.queue.submit(self.first)
        wait_until(lambda: self.batches)  # the worker is busy from here on

    def run(self, batch: Sequence[LetterItem]) -> list[str | Exception]:
        self.batches += [item.work.letter for item in batch]
        assert self.open.wait(PATIENCE)
        return [item.work.letter for item in batch]

    def close(self) -> None:
        self.open.set()
        self.queue.close()


def test_a_short_request_is_run_before_the_rest_of_a_long_one() -> None:
    slow = SlowQueue()
    slow.queue.submit(items("abcde", "long"))
    slow.queue.submit(items("x", "short"))
    slow.close()
    assert slow.batches == list("0axbcde")


def test_a_client_with_nothing_waiting_finds_a_place_in_a_full_queue() -> None:
    slow = SlowQueue()
    slow.queue.submit(items("abcdef", "long"))
    with pytest.raises(QueueFullError):
        slow.queue.submit(items("g", "long", 2))
    slow.queue.submit(items("xyz", "new"))
    with pytest.raises(QueueFullError):
        slow.queue.submit(items("1234", "newer"))
    slow.close()


@pytest.mark.parametrize(("seconds", "cost", "expected"), [(9e9, 1, 60), (2, 1, 6), (0, 0, 1)])
def test_retry_after_is_the_time_until_there_is_room_but_at_most_a_minute(
    seconds: float, cost: float, expected: int
) -> None:
    slow = SlowQueue()
    slow.queue.submit(items("abcdef", "long"))
    slow.queue.seconds, slow.queue.cost = seconds, cost
    with pytest.raises(QueueFullError) as error:
        slow.queue.submit(items("ghi", "long"))  # three must leave before these have room
    assert int(error.value.headers["Retry-After"]) == expected
    slow.close()


def test_throughput_is_that_of_all_threads_together() -> None:
    def work(batch: Sequence[LetterItem]) -> list[str]:
        time.sleep(0.1)
        return [item.work.letter for item in batch]

    queue = RequestQueue([work] * 4, 1, 0.0, 99, lambda n, seconds: None)
    queue.submit(items("a" * 20, "one"))
    queue.close()
    assert 0.02 < queue.seconds / queue.cost < 0.1  # 0.1 / 4, on a busy machine more


def test_what_runs_and_what_waits_fails_when_the_queue_is_aborted() -> None:
    slow = SlowQueue()
    waiting = items("a", "one")
    slow.queue.submit(waiting)
    slow.queue.abort()
    for item in (*slow.first, *waiting):
        assert isinstance(item.future.exception(PATIENCE), ClosedError)
        assert item.abandoned
    with pytest.raises(ClosedError):
        slow.queue.submit(items("b", "one"))
    slow.close()
    assert slow.batches == ["0"]


def test_a_failed_batch_is_not_tried_again_for_those_who_do_not_wait() -> None:
    tried: list[str] = []

    def fail(batch: Sequence[LetterItem]) -> list[str | Exception]:
        tried.append("".join(item.work.letter for item in batch))
        if len(batch) > 1:
            batch[0].future.cancel()
            raise RuntimeError
        return [item.work.letter for item in batch]

    queue: RequestQueue[Letter, str] = RequestQueue([fail], 2, PATIENCE, 9, lambda n, seconds: None)
    both = items("ab", "one")
    queue.submit(both)
    assert both[1].future.result(PATIENCE) == "b"
    assert tried == ["ab", "b"]
    queue.close()
