"""The queue: which items share a batch, when it is run, and what happens to cancelled items."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covnmt.serve.request_queue import (
    LONG_BYTES,
    SHARED_BYTES,
    ClosedError,
    QueueFullError,
    RequestQueue,
    WorkItem,
    batch_is_full,
    choose_batch,
    similar_size,
)

from .server import PATIENCE, wait_until


@dataclass(frozen=True)
class Double:
    """Work for a test: double a number."""

    number: int
    batch_key: str = ""
    size: int = 10

    @property
    def cost(self) -> float:
        return self.size


NumberItem = WorkItem[Double, int]
NumberQueue = RequestQueue[Double, int]


class Worker:
    """Doubles numbers; can be blocked, and records every batch."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.batches: list[list[int]] = []

    def run(self, items: Sequence[NumberItem]) -> list[int | Exception]:
        numbers = [item.work.number for item in items]
        self.batches.append(numbers)
        assert self.open.wait(PATIENCE)
        if 13 in numbers:
            raise RuntimeError("unlucky")
        return [ValueError("negative") if n < 0 else 2 * n for n in numbers]


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def queue(worker: Worker) -> Iterator[NumberQueue]:
    made: NumberQueue = RequestQueue(
        [worker.run], batch_size=4, max_wait=0.02, capacity=10, observe=lambda n, seconds: None
    )
    yield made
    worker.open.set()
    made.close()


def submit(queue: NumberQueue, *numbers: int, key: str = "", size: int = 10) -> list["Future[int]"]:
    items = [NumberItem(Double(number, key, size)) for number in numbers]
    queue.submit(items)
    return [item.future for item in items]


def block(worker: Worker, queue: NumberQueue) -> None:
    """Keep the thread busy with an item until the worker is unblocked."""
    worker.open.clear()
    submit(queue, 0)
    wait_until(lambda: worker.batches)


def test_every_item_gets_its_own_result(queue: NumberQueue) -> None:
    found = [future.result(PATIENCE) for future in submit(queue, *range(9))]
    assert found == [0, 2, 4, 6, 8, 10, 12, 14, 16]


def test_items_wait_for_each_other_until_the_batch_is_full(worker: Worker) -> None:
    endless = 10.0 * PATIENCE
    patient: NumberQueue = RequestQueue([worker.run], 3, endless, 10, lambda n, seconds: None)
    futures = [submit(patient, n)[0] for n in (1, 2, 3)]
    [future.result(PATIENCE) for future in futures]
    assert worker.batches == [[1, 2, 3]]
    patient.close()


def test_other_keys_and_sizes_are_not_batched_together(worker: Worker, queue: NumberQueue) -> None:
    block(worker, queue)
    futures = submit(queue, 1, key="a") + submit(queue, 2, key="b")
    futures += submit(queue, 3, key="a", size=500) + submit(queue, 4, key="a", size=12)
    worker.open.set()
    [future.result(PATIENCE) for future in futures]
    assert worker.batches[1:] == [[1, 4], [2], [3]]


def test_a_full_queue_takes_all_or_nothing(worker: Worker, queue: NumberQueue) -> None:
    block(worker, queue)
    kept = submit(queue, *range(1, 9))
    with pytest.raises(QueueFullError) as error:
        submit(queue, 20, 21, 22)
    assert int(error.value.headers["Retry-After"]) >= 1
    kept += submit(queue, 9, 10)
    worker.open.set()
    assert [future.result(PATIENCE) for future in kept] == [2 * n for n in range(1, 11)]


def test_cancelled_items_make_room_and_are_not_run(worker: Worker, queue: NumberQueue) -> None:
    block(worker, queue)
    gone = submit(queue, *range(1, 11))
    assert all(future.cancel() for future in gone)
    [kept] = submit(queue, 50)
    worker.open.set()
    assert kept.result(PATIENCE) == 100
    assert worker.batches == [[0], [50]]


def test_a_failing_batch_fails_only_the_item_that_caused_it(
    worker: Worker, queue: NumberQueue
) -> None:
    good, bad, negative = submit(queue, 1, 13, -1)
    assert good.result(PATIENCE) == 2
    with pytest.raises(RuntimeError, match="unlucky"):
        bad.result(PATIENCE)
    with pytest.raises(ValueError, match="negative"):
        negative.result(PATIENCE)


def test_close_runs_accepted_items_and_refuses_new_ones(worker: Worker, queue: NumberQueue) -> None:
    block(worker, queue)
    futures = submit(queue, *range(10))
    threading.Timer(0.05, worker.open.set).start()
    queue.close()
    assert [future.result(0) for future in futures] == [2 * n for n in range(10)]
    with pytest.raises(ClosedError):
        submit(queue, 1)


def test_many_threads_get_every_result_exactly_once(worker: Worker) -> None:
    queue: NumberQueue = RequestQueue([worker.run], 8, 0.001, 5000, lambda n, seconds: None)
    answers: Counter[int] = Counter()

    def client(first: int) -> None:
        for number in range(first, first + 100):
            [future] = submit(queue, number)
            if number % 7 == 0 and future.cancel():
                answers[number] += 1
            else:
                answers[number] += future.result(PATIENCE) == 2 * number

    starts = range(100, 1700, 200)
    threads = [threading.Thread(target=client, args=(start,)) for start in starts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    queue.close()
    assert answers == Counter(n for start in starts for n in range(start, start + 100))
    done = Counter(n for batch in worker.batches for n in batch)
    assert max(done.values()) == 1


def fits(item: NumberItem, first: NumberItem) -> bool:
    return item.work.batch_key == first.work.batch_key and similar_size(item, first)


JOBS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 300)), min_size=1, max_size=30)


@given(JOBS, st.integers(1, 8))
def test_a_batch_is_the_oldest_items_that_fit_together(
    kinds: list[tuple[str, int]], batch_size: int
) -> None:
    waiting = [NumberItem(Double(n, key, size)) for n, (key, size) in enumerate(kinds)]
    batch = choose_batch(waiting, batch_size)
    assert batch[0] is waiting[0]
    assert len(batch) <= batch_size
    numbers = [item.work.number for item in batch]
    assert numbers == sorted(numbers)
    candidates = [item for item in waiting if fits(item, batch[0])]
    assert batch == candidates[: len(batch)]
    assert len(batch) == len(candidates) or batch_is_full(batch, batch_size)
    assert not batch_is_full(batch[:-1], batch_size)


@pytest.fixture
def pair() -> Iterator[tuple[NumberQueue, Worker, Worker]]:
    """Two workers of one queue; either may take a batch."""
    first, second = Worker(), Worker()
    made: NumberQueue = RequestQueue(
        [first.run, second.run], batch_size=8, max_wait=0.02, capacity=50, observe=lambda n, s: None
    )
    yield made, first, second
    first.open.set()
    second.open.set()
    made.close()


def test_short_items_do_not_wait_for_long_ones(
    pair: tuple[NumberQueue, Worker, Worker],
) -> None:
    """One worker takes no long items, however many are waiting."""
    queue, *workers = pair
    for worker in workers:
        worker.open.clear()
    long = submit(queue, *range(20, 40), size=LONG_BYTES + 1)
    wait_until(lambda: any(worker.batches for worker in workers))
    free = next(worker for worker in workers if not worker.batches)
    free.open.set()
    short = submit(queue, 100, 101, size=LONG_BYTES)
    assert [future.result(PATIENCE) for future in short] == [200, 202]
    assert not any(future.done() for future in long)
    assert free.batches == [[100, 101]]
    for worker in workers:
        worker.open.set()
    assert [future.result(PATIENCE) for future in long] == [2 * n for n in range(20, 40)]


def test_a_single_worker_takes_long_items_too(worker: Worker, queue: NumberQueue) -> None:
    futures = submit(queue, *range(6), size=LONG_BYTES + 1)
    assert [future.result(PATIENCE) for future in futures] == [2 * n for n in range(6)]


def test_idle_workers_share_a_large_batch(pair: tuple[NumberQueue, Worker, Worker]) -> None:
    queue, *workers = pair
    wait_until(lambda: queue.idle_threads == 2)
    for worker in workers:
        worker.open.clear()
    futures = submit(queue, *range(4), size=SHARED_BYTES // 4)
    wait_until(lambda: all(worker.batches for worker in workers))
    for worker in workers:
        worker.open.set()
    [future.result(PATIENCE) for future in futures]
    assert sorted(worker.batches[0] for worker in workers) == [[0, 1], [2, 3]]


def test_a_small_batch_is_not_shared(pair: tuple[NumberQueue, Worker, Worker]) -> None:
    queue, *workers = pair
    wait_until(lambda: queue.idle_threads == 2)
    futures = submit(queue, *range(3), size=SHARED_BYTES // 3 - 1)
    assert [future.result(PATIENCE) for future in futures] == [0, 2, 4]
    assert [batch for worker in workers for batch in worker.batches] == [[0, 1, 2]]


def test_items_of_another_key_wake_the_next_idle_worker(
    pair: tuple[NumberQueue, Worker, Worker],
) -> None:
    """No new item and no finished batch wakes it."""
    queue, *workers = pair
    wait_until(lambda: queue.idle_threads == 2)
    for worker in workers:
        worker.open.clear()
    items = [NumberItem(Double(number, key)) for number, key in enumerate("ab")]
    queue.submit(items)
    wait_until(lambda: all(worker.batches for worker in workers))
    for worker in workers:
        worker.open.set()
    assert [item.future.result(PATIENCE) for item in items] == [0, 2]


def test_long_items_fill_a_batch_sooner() -> None:
    waiting = [NumberItem(Double(n, size=300)) for n in range(10)]
    assert len(choose_batch(waiting, batch_size=8)) == 3
    assert len(choose_batch(waiting[:1], batch_size=1)) == 1


def test_an_empty_queue_gives_an_empty_batch() -> None:
    assert choose_batch([], 4) == []
