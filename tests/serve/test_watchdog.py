"""Worker processes that are stopped or too slow are replaced; what nobody waits for is stopped."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from covnmt.inference.model import Model
from covnmt.serve.request_queue import WorkItem
from covnmt.serve.work import TranslateWork
from covnmt.serve.worker_process import (
    BEAT_SECONDS,
    BatchStoppedError,
    WorkerDiedError,
    WorkerFailure,
    WorkerProcess,
)

from .server import wait_until

Item = WorkItem[Any, Any]


@pytest.fixture
def failures() -> list[WorkerFailure]:
    return []


@pytest.fixture
def worker(tiny_model: Path, failures: list[WorkerFailure]) -> Iterator[WorkerProcess]:
    def record(failure: WorkerFailure, process: BaseProcess) -> None:
        assert process.exitcode == -signal.SIGKILL
        failures.append(failure)

    made = WorkerProcess(tiny_model, "cpu", 1, 4 * BEAT_SECONDS, record)
    made.wait_until_ready()
    yield made
    made.close()


def stop(process: BaseProcess) -> None:
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)


def long_batch(translator: Model, on_partial: Callable[[str], None]) -> list[Item]:
    """Work for minutes; `on_partial` is called when it has begun."""
    decode = translator.decode.model_copy(update={"beam": 100})
    text = " ".join(["ze muye piro sire tuye"] * 30)
    return [Item(TranslateWork((text,), decode), on_partial=on_partial) for _ in range(50)]


@pytest.mark.slow
def test_a_stopped_worker_is_replaced(worker: WorkerProcess, failures: list[WorkerFailure]) -> None:
    threading.Thread(target=worker.watch, daemon=True).start()
    first = worker.process
    stop(first)
    wait_until(lambda: worker.process is not first and worker.ready())
    assert failures == ["stalled"]


@pytest.mark.slow
def test_the_batch_of_a_stopped_worker_is_tried_again(
    worker: WorkerProcess, failures: list[WorkerFailure], translator: Model
) -> None:
    threading.Thread(target=worker.watch, daemon=True).start()
    stop(worker.process)
    [done] = worker.run([Item(TranslateWork(("ze muye",), translator.decode))])
    assert done.text == translator.translate(["ze muye"])[0].text
    assert failures == ["stalled"]


def test_a_worker_without_signs_of_life_is_not_ready(worker: WorkerProcess) -> None:
    worker.last_beat = time.monotonic()
    assert worker.ready()
    worker.last_beat -= 100
    assert not worker.ready()


def test_a_batch_that_nobody_waits_for_is_stopped(
    worker: WorkerProcess, failures: list[WorkerFailure], translator: Model
) -> None:
    def give_up(text: str) -> None:
        for item in batch:
            item.future.cancel()

    batch = long_batch(translator, give_up)
    process = worker.process
    for item in batch:
        item.future.set_running_or_notify_cancel()
    with pytest.raises(BatchStoppedError):
        worker.run(batch)
    assert worker.process is process
    assert failures == []
    [done] = worker.run([Item(TranslateWork(("ze muye",), translator.decode))])
    assert done.text == translator.translate(["ze muye"])[0].text


def test_a_worker_that_does_not_stop_is_replaced(
    worker: WorkerProcess,
    failures: list[WorkerFailure],
    translator: Model,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("covnmt.serve.worker_process.SECONDS_TO_STOP", 0.1)

    def give_up(text: str) -> None:
        stop(worker.process)
        for item in batch:
            item.future.cancel()

    batch = long_batch(translator, give_up)
    for item in batch:
        item.future.set_running_or_notify_cancel()
    with pytest.raises(WorkerDiedError):
        worker.run(batch)
    assert failures == ["overdue"]
    [done] = worker.run([Item(TranslateWork(("ze muye",), translator.decode))])
    assert done.text == translator.translate(["ze muye"])[0].text
