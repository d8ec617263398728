"""Worker processes: results, signals, errors, restarts."""

import gc
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import pytest

from covnmt.base.errors import UserError
from covnmt.inference.align import Alignment
from covnmt.inference.model import Model
from covnmt.serve.request_queue import WorkItem
from covnmt.serve.work import AlignWork, TranslateWork, run_batch
from covnmt.serve.worker_process import (
    ModelProperties,
    WorkerDiedError,
    WorkerProcess,
    freeze_gc,
)

from .server import PATIENCE, wait_until


@pytest.fixture
def worker(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerProcess]:
    monkeypatch.setattr("covnmt.serve.worker_process.SECONDS_TO_EXIT", PATIENCE)
    made = WorkerProcess(tiny_model, "cpu", threads=1)
    yield made
    made.close()
    assert made.process.exitcode == 0


def texts(worker: WorkerProcess, lines: list[str], translator: Model) -> list[str]:
    items = [WorkItem[Any, Any](TranslateWork((line,), translator.decode)) for line in lines]
    return [done.text for done in worker.run(items)]


def test_a_worker_reports_its_model_and_translates(
    worker: WorkerProcess, translator: Model, lines: list[str]
) -> None:
    properties = worker.wait_until_ready()
    assert properties == ModelProperties("fertility", translator.decode, "cpu", plain_text=False)
    expected = [each.text for each in translator.translate(lines)]
    assert texts(worker, lines, translator) == expected


def test_a_pair_with_an_empty_side_is_refused_alone(translator: Model) -> None:
    pairs = [("a", "b"), ("a", " "), ("c", "d")]
    work = [AlignWork((source, target), tokenized=True) for source, target in pairs]
    first, empty, last = run_batch(work, translator, None)
    assert isinstance(empty, UserError)
    assert "pair" not in str(empty)  # the request numbers its pairs, not the batch
    for done, pair in ((first, pairs[0]), (last, pairs[2])):
        [expected] = translator.align([pair], tokenized=True)
        assert isinstance(done, Alignment)
        assert done.log_prob == pytest.approx(expected.log_prob, abs=1e-4)


def test_a_model_that_cannot_be_opened_raises_its_error(tmp_path: Path) -> None:
    worker = WorkerProcess(tmp_path, "cpu", threads=1)
    with pytest.raises(UserError, match=str(tmp_path)):
        worker.wait_until_ready()
    worker.close()


def test_an_idle_worker_ends_and_is_started_for_the_next_batch(
    tiny_model: Path, translator: Model, lines: list[str]
) -> None:
    failures: list[str] = []
    worker = WorkerProcess(
        tiny_model,
        "cpu",
        threads=1,
        on_failure=lambda failure, process: failures.append(failure),
        unload_after=0.01,
    )
    worker.wait_until_ready()
    watching = threading.Thread(target=worker.watch, daemon=True)
    watching.start()
    expected = [translator.translate(lines[:1])[0].text]
    for _ in range(2):
        process = worker.process
        wait_until(lambda: worker.unloaded and worker.process.exitcode == 0)
        assert worker.ready()
        assert texts(worker, lines[:1], translator) == expected
        assert worker.process is not process
    worker.close()
    watching.join(PATIENCE)
    assert failures == []
    assert not watching.is_alive()


def kill(process: BaseProcess) -> None:
    process.kill()
    process.join()


def test_a_worker_that_died_idle_is_restarted_for_the_next_batch(
    worker: WorkerProcess, translator: Model, lines: list[str]
) -> None:
    worker.wait_until_ready()
    kill(worker.process)
    assert texts(worker, lines[:1], translator) == [translator.translate(lines[:1])[0].text]


def test_a_worker_that_died_idle_is_restarted_without_a_batch(
    worker: WorkerProcess, translator: Model, lines: list[str]
) -> None:
    """A server that is not ready may get no requests, and would stay so."""
    worker.wait_until_ready()
    watching = threading.Thread(target=worker.watch, daemon=True)
    watching.start()
    first = worker.process
    kill(first)
    wait_until(lambda: worker.process is not first and worker.process.is_alive())
    assert texts(worker, lines[:1], translator) == [translator.translate(lines[:1])[0].text]
    worker.close()
    watching.join(PATIENCE)
    assert not watching.is_alive()


def is_another(worker: WorkerProcess, last: BaseProcess) -> bool:
    return worker.process is not last


def test_a_failed_restart_is_repeated(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("covnmt.serve.worker_process.RESTART_PAUSE", 0.01)
    directory = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    worker = WorkerProcess(directory, "cpu", threads=1)
    try:
        worker.wait_until_ready()
        threading.Thread(target=worker.watch, daemon=True).start()
        directory.rename(tmp_path / "away")
        last = worker.process
        kill(last)
        for _ in range(2):  # the first of them finds no model, and dies
            wait_until(partial(is_another, worker, last))
            last = worker.process
        (tmp_path / "away").rename(directory)
        wait_until(lambda: not worker.pipe_lock.locked() and worker.process.is_alive())
    finally:
        worker.close()


def test_a_worker_that_died_at_work_is_restarted(
    worker: WorkerProcess, translator: Model, lines: list[str]
) -> None:
    worker.wait_until_ready()
    slow = translator.decode.model_copy(update={"beam": 100})
    long = " ".join(" ".join(lines).split()[:150])
    victims = [worker.process]

    def kill_at_the_first_word(text: str) -> None:
        while victims:
            kill(victims.pop())

    work = TranslateWork((long,), slow)
    items = [WorkItem[Any, Any](work, on_partial=kill_at_the_first_word) for _ in range(50)]
    with pytest.raises(WorkerDiedError):
        worker.run(items)
    assert texts(worker, lines[:1], translator) == [translator.translate(lines[:1])[0].text]


def test_a_single_sentence_is_tried_twice(
    worker: WorkerProcess, translator: Model, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.wait_until_ready()
    deaths, exchange = 1, worker._exchange

    def die_first(items: Sequence[WorkItem[Any, Any]]) -> Any:
        nonlocal deaths
        if deaths:
            deaths -= 1
            kill(worker.process)
        return exchange(items)

    monkeypatch.setattr(worker, "_exchange", die_first)
    assert texts(worker, lines[:1], translator) == [translator.translate(lines[:1])[0].text]
    deaths = 2
    with pytest.raises(WorkerDiedError):
        texts(worker, lines[:1], translator)


def test_closing_the_pipe_while_it_is_read_raises_an_error(
    worker: WorkerProcess, translator: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading then raises a TypeError."""

    def read() -> Any:
        raise TypeError("'NoneType' object cannot be interpreted as an integer")

    worker.wait_until_ready()
    monkeypatch.setattr(worker.pipe, "poll", lambda seconds: True)
    monkeypatch.setattr(worker.pipe, "recv", read)
    with pytest.raises(UserError, match="died"):
        worker.wait_until_ready()
    monkeypatch.setattr(worker, "closed", True)
    with pytest.raises(WorkerDiedError):
        texts(worker, ["a"], translator)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_workers_ignore_signals(
    worker: WorkerProcess, translator: Model, lines: list[str], number: int
) -> None:
    """Ctrl-C reaches all processes of a terminal; the server decides when workers end."""
    worker.wait_until_ready()
    assert worker.process.pid is not None
    os.kill(worker.process.pid, number)
    assert len(texts(worker, lines[:3], translator)) == 3


def test_a_worker_ends_when_the_pipe_closes(worker: WorkerProcess) -> None:
    worker.wait_until_ready()
    worker.pipe.close()
    wait_until(lambda: worker.process.exitcode == 0)


def test_a_failed_batch_does_not_end_the_worker(
    worker: WorkerProcess, translator: Model, lines: list[str]
) -> None:
    worker.wait_until_ready()
    broken = TranslateWork(cast(Any, (None,)), translator.decode)
    with pytest.raises(RuntimeError, match="Traceback"):
        worker.run([WorkItem[Any, Any](broken)])
    assert len(texts(worker, lines[:1], translator)) == 1


def test_frozen_objects_are_not_collected() -> None:
    here: list[list[int]] = [[] for _ in range(1000)]
    freeze_gc()
    try:
        looked_at = set(map(id, gc.get_objects()))
        assert not looked_at & set(map(id, here))
        here.append([])
        assert id(here[-1]) in set(map(id, gc.get_objects()))
    finally:
        gc.unfreeze()
