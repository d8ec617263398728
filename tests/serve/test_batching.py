"""The queue: who is done with whom, when, and what becomes of those who leave."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covnmt.serve.batching import (
    LONG,
    WORTH_SHARING,
    Batcher,
    ClosedError,
    QueueFullError,
    WorkItem,
    batch_is_full,
    choose_batch,
    similar_length,
)

from .server import PATIENCE, wait_until


class Worker:
    """Doubles numbers; may be held up, and notes every batch."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.batches: list[list[int]] = []

    def run(self, jobs: Sequence[WorkItem[int, int]]) -> list[int | Exception]:
        payloads = [job.payload for job in jobs]
        self.batches.append(payloads)
        assert self.open.wait(PATIENCE)
        if 13 in payloads:
            raise RuntimeError("unlucky")
        return [ValueError("negative") if n < 0 else 2 * n for n in payloads]


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def batcher(worker: Worker) -> Iterator[Batcher[int, int]]:
    made: Batcher[int, int] = Batcher(
        [worker.run], batch_size=4, wait=0.02, capacity=10, observe=lambda n, seconds: None
    )
    yield made
    worker.open.set()
    made.close()


def submit(
    batcher: Batcher[int, int], *numbers: int, group: str = "", size: int = 10
) -> list["Future[int]"]:
    jobs: list[WorkItem[int, int]] = [WorkItem(group, number, size) for number in numbers]
    batcher.submit(jobs)
    return [job.future for job in jobs]


def held_up(worker: Worker, batcher: Batcher[int, int]) -> None:
    """The thread is busy with a job until the worker is opened."""
    worker.open.clear()
    submit(batcher, 0)
    wait_until(lambda: worker.batches)


def test_every_job_gets_its_own_result(batcher: Batcher[int, int]) -> None:
    found = [future.result(PATIENCE) for future in submit(batcher, *range(9))]
    assert found == [0, 2, 4, 6, 8, 10, 12, 14, 16]


def test_jobs_wait_for_each_other_until_the_batch_is_full(worker: Worker) -> None:
    endless = 10.0 * PATIENCE
    patient: Batcher[int, int] = Batcher([worker.run], 3, endless, 10, lambda n, seconds: None)
    futures = [submit(patient, n)[0] for n in (1, 2, 3)]
    [future.result(PATIENCE) for future in futures]
    assert worker.batches == [[1, 2, 3]]
    patient.close()


def test_groups_and_sizes_are_kept_apart(worker: Worker, batcher: Batcher[int, int]) -> None:
    held_up(worker, batcher)
    futures = submit(batcher, 1, group="a") + submit(batcher, 2, group="b")
    futures += submit(batcher, 3, group="a", size=500) + submit(batcher, 4, group="a", size=12)
    worker.open.set()
    [future.result(PATIENCE) for future in futures]
    assert worker.batches[1:] == [[1, 4], [2], [3]]


def test_a_full_queue_takes_all_or_nothing(worker: Worker, batcher: Batcher[int, int]) -> None:
    held_up(worker, batcher)
    kept = submit(batcher, *range(1, 9))
    with pytest.raises(QueueFullError) as error:
        submit(batcher, 20, 21, 22)
    assert error.value.retry_after >= 1
    kept += submit(batcher, 9, 10)
    worker.open.set()
    assert [future.result(PATIENCE) for future in kept] == [2 * n for n in range(1, 11)]


def test_cancelled_jobs_make_room_and_are_not_done(
    worker: Worker, batcher: Batcher[int, int]
) -> None:
    held_up(worker, batcher)
    gone = submit(batcher, *range(1, 11))
    assert all(future.cancel() for future in gone)
    [kept] = submit(batcher, 50)
    worker.open.set()
    assert kept.result(PATIENCE) == 100
    assert worker.batches == [[0], [50]]


def test_a_failing_batch_harms_only_the_one_to_blame(
    worker: Worker, batcher: Batcher[int, int]
) -> None:
    good, bad, negative = submit(batcher, 1, 13, -1)
    assert good.result(PATIENCE) == 2
    with pytest.raises(RuntimeError, match="unlucky"):
        bad.result(PATIENCE)
    with pytest.raises(ValueError, match="negative"):
        negative.result(PATIENCE)


def test_close_finishes_what_was_accepted(worker: Worker, batcher: Batcher[int, int]) -> None:
    held_up(worker, batcher)
    futures = submit(batcher, *range(10))
    threading.Timer(0.05, worker.open.set).start()
    batcher.close()
    assert [future.result(0) for future in futures] == [2 * n for n in range(10)]
    with pytest.raises(ClosedError):
        submit(batcher, 1)


def test_many_threads_lose_nothing_and_answer_nothing_twice(worker: Worker) -> None:
    batcher: Batcher[int, int] = Batcher([worker.run], 8, 0.001, 5000, lambda n, seconds: None)
    answers: Counter[int] = Counter()

    def client(first: int) -> None:
        for number in range(first, first + 100):
            [future] = submit(batcher, number)
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
    batcher.close()
    assert answers == Counter(n for start in starts for n in range(start, start + 100))
    done = Counter(n for batch in worker.batches for n in batch)
    assert max(done.values()) == 1


def fits(job: WorkItem[int, int], first: WorkItem[int, int]) -> bool:
    return job.group == first.group and similar_length(job, first)


JOBS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 300)), min_size=1, max_size=30)


@given(JOBS, st.integers(1, 8))
def test_choose(kinds: list[tuple[str, int]], most: int) -> None:
    waiting = [WorkItem[int, int](group, n, size) for n, (group, size) in enumerate(kinds)]
    batch = choose_batch(waiting, most)
    assert batch[0] is waiting[0]
    assert len(batch) <= most
    assert [job.payload for job in batch] == sorted(job.payload for job in batch)
    assert all(fits(job, batch[0]) for job in batch)
    could = [job for job in waiting if fits(job, batch[0])]
    assert batch == could[: len(batch)]
    assert len(batch) == len(could) or batch_is_full(batch, most)
    assert not batch_is_full(batch[:-1], most)


@pytest.fixture
def pair() -> Iterator[tuple[Batcher[int, int], Worker, Worker]]:
    """Two workers of one queue; either may be the one that takes a batch."""
    first, second = Worker(), Worker()
    made: Batcher[int, int] = Batcher(
        [first.run, second.run], batch_size=8, wait=0.02, capacity=50, observe=lambda n, s: None
    )
    yield made, first, second
    first.open.set()
    second.open.set()
    made.close()


def test_short_jobs_do_not_wait_for_long_ones(
    pair: tuple[Batcher[int, int], Worker, Worker],
) -> None:
    """However many long jobs came before: one worker stays free of them."""
    batcher, *workers = pair
    for worker in workers:
        worker.open.clear()
    long = submit(batcher, *range(20, 40), size=LONG + 1)
    wait_until(lambda: any(worker.batches for worker in workers))
    free = next(worker for worker in workers if not worker.batches)
    free.open.set()
    short = submit(batcher, 100, 101, size=LONG)
    assert [future.result(PATIENCE) for future in short] == [200, 202]
    assert not any(future.done() for future in long)
    assert free.batches == [[100, 101]]
    for worker in workers:
        worker.open.set()
    assert [future.result(PATIENCE) for future in long] == [2 * n for n in range(20, 40)]


def test_a_single_worker_takes_long_jobs_too(worker: Worker, batcher: Batcher[int, int]) -> None:
    futures = submit(batcher, *range(6), size=LONG + 1)
    assert [future.result(PATIENCE) for future in futures] == [2 * n for n in range(6)]


def test_idle_workers_share_what_waits(pair: tuple[Batcher[int, int], Worker, Worker]) -> None:
    batcher, *workers = pair
    wait_until(lambda: batcher.idle == 2)
    for worker in workers:
        worker.open.clear()
    futures = submit(batcher, *range(4), size=WORTH_SHARING // 4)
    wait_until(lambda: all(worker.batches for worker in workers))
    for worker in workers:
        worker.open.set()
    [future.result(PATIENCE) for future in futures]
    assert sorted(worker.batches[0] for worker in workers) == [[0, 1], [2, 3]]


def test_a_small_batch_is_left_to_one(pair: tuple[Batcher[int, int], Worker, Worker]) -> None:
    batcher, *workers = pair
    wait_until(lambda: batcher.idle == 2)
    futures = submit(batcher, *range(3), size=WORTH_SHARING // 3 - 1)
    assert [future.result(PATIENCE) for future in futures] == [0, 2, 4]
    assert [batch for worker in workers for batch in worker.batches] == [[0, 1, 2]]


def test_what_one_worker_leaves_the_next_one_takes(
    pair: tuple[Batcher[int, int], Worker, Worker],
) -> None:
    """Nothing arrives or ends meanwhile that would wake it."""
    batcher, *workers = pair
    wait_until(lambda: batcher.idle == 2)
    for worker in workers:
        worker.open.clear()
    jobs = [WorkItem[int, int](group, number, 10) for number, group in enumerate("ab")]
    batcher.submit(jobs)
    wait_until(lambda: all(worker.batches for worker in workers))
    for worker in workers:
        worker.open.set()
    assert [job.future.result(PATIENCE) for job in jobs] == [0, 2]


def test_long_jobs_fill_a_batch_sooner() -> None:
    waiting = [WorkItem[int, int]("", n, 300) for n in range(10)]
    assert len(choose_batch(waiting, most=8)) == 3
    assert len(choose_batch(waiting[:1], most=1)) == 1


def test_choose_from_nothing() -> None:
    assert choose_batch([], 4) == []
