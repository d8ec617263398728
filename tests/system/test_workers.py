"""Several ranks on this machine: the same updates for any world size, and runs that survive a kill.

torchrun starts them, over gloo on the CPU. Batches are so small that some ranks have no rows.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from covnmt.base.config import Config
from covnmt.base.errors import UserError
from covnmt.model.checkpoint import BEST_WEIGHTS, LAST_CHECKPOINT, load_tensors
from covnmt.training.distributed import launch_torchrun
from tests.conftest import RunCli
from tests.system.workers import children_of, recipe, torchrun, training, until
from tests.training.runs import assert_same, changed, log_of, train_changed

UPDATES = 50
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def config(tiny_config: Config) -> Config:
    """Accumulation, EMA and the fertility objective; no dropout, whose masks differ by rank."""
    return changed(
        tiny_config,
        data__batch_tokens=60,
        train__updates=UPDATES,
        train__accumulate=2,
        train__ema=0.9,
        train__fertility_weight=0.1,
        train__checkpoint_every=8,
        train__validate_every=25,
        train__learning_rate=0.001,
        train__keep=0,
    )


@pytest.fixture(scope="module")
def alone(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a single process."""
    directory = tmp_path_factory.mktemp("alone")
    train_changed(config, directory)
    return directory


@pytest.fixture(scope="module")
def two(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run with two ranks, started by torchrun."""
    directory = tmp_path_factory.mktemp("two")
    process = torchrun(2, *training(config, directory))
    assert process.wait(300) == 0
    return directory


def assert_close(first: Path, second: Path) -> None:
    """Compare weights, EMA, counters, and which update was the best."""
    (one, about), (two, note) = (
        load_tensors(first / LAST_CHECKPOINT),
        load_tensors(second / LAST_CHECKPOINT),
    )
    for name in one:
        if name.startswith(("model.", "average.")):
            torch.testing.assert_close(one[name], two[name], rtol=0, atol=TOLERANCE, msg=name)
    for counters in (about["counters"], note["counters"]):
        counters.pop("seconds")
    best = about["counters"].pop("best")
    assert best == pytest.approx(note["counters"].pop("best"), abs=1e-5)
    assert about == note
    assert (
        load_tensors(first / BEST_WEIGHTS)[1]["update"]
        == load_tensors(second / BEST_WEIGHTS)[1]["update"]
    )


def without_time(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a log entry that must not depend on the world size."""
    check = entry.get("validation", {})
    kept = {k: v for k, v in entry.items() if k in ("update", "epoch", "words", "loss", "best")}
    return kept | {f"dev {k}": check[k] for k in ("loss", "bleu") if k in check}


@pytest.mark.parametrize("workers", [2, 3])
def test_several_ranks_train_like_one(
    workers: int, config: Config, alone: Path, two: Path, tmp_path: Path
) -> None:
    run = two
    if workers != 2:
        run = tmp_path / "run"
        assert torchrun(workers, *training(config, run)).wait(300) == 0
    assert_close(alone, run)
    assert not list(run.rglob(".*"))
    assert len(log_of(alone)) == len(log_of(run))
    for entry, other in zip(log_of(alone), log_of(run), strict=True):
        assert without_time(entry) == pytest.approx(without_time(other), abs=1e-5)
        if "validation" in entry:
            assert entry["validation"]["samples"] == other["validation"]["samples"]


def test_run_with_a_killed_worker_restarts_bit_identically(
    config: Config, two: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = torchrun(2, "--max-restarts", 1, *training(config, run))
    until(lambda: (run / LAST_CHECKPOINT).exists(), process)
    victim = children_of(process)[1]
    os.kill(victim, signal.SIGKILL)
    assert process.wait(300) == 0
    assert_same(two, run)
    assert len(log_of(run)) == len(log_of(two))


def test_run_of_two_ranks_resumes_with_one_or_four(
    config: Config, alone: Path, tmp_path: Path
) -> None:
    """The signal reaches the ranks at different moments; they stop after the same update."""
    run = tmp_path / "run"
    arguments = ["train", recipe(config, run), "--run", run, "--device", "cpu", "--gpus", "2"]
    process = subprocess.Popen([sys.executable, "-m", "covnmt", *map(str, arguments)])
    until(lambda: (run / LAST_CHECKPOINT).exists(), process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 130
    assert 8 <= load_tensors(run / LAST_CHECKPOINT)[1]["counters"]["update"] < UPDATES
    more = tmp_path / "more"
    shutil.copytree(run, more)
    train_changed(config, run)
    assert torchrun(4, *training(config, more)).wait(300) == 0
    assert_close(alone, run)
    assert_close(alone, more)


def test_bad_input_with_several_gpus_is_reported_once(tmp_path: Path, run_cli: RunCli) -> None:
    failed = run_cli("train", "demo/gru10", "model.hiden=3", "--gpus", 2, "--run", tmp_path)
    assert failed.returncode == 2
    assert failed.stderr.count("unknown key model.hiden") == 1


def test_dead_worker_without_restarts_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed import run as elastic
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    def fail(code: int) -> Callable[[object], None]:
        def run(arguments: object) -> None:
            raise ChildFailedError("covnmt", {1: ProcessFailure(1, 77, code, "")})

        return run

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(elastic, "run", fail(2))
    assert launch_torchrun(2, ["train"], restarts=1) == 2
    monkeypatch.setattr(elastic, "run", fail(-9))
    with pytest.raises(UserError, match=r"worker 1 died \(signal 9\); run the same"):
        launch_torchrun(2, ["train"])


def test_restart_after_a_dead_worker_is_one_line_and_bit_identical(
    config: Config, two: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    arguments = ["train", recipe(config, run), "--run", run, "--device", "cpu", "--threads", 1]
    command = [sys.executable, "-m", "covnmt", *arguments, "--gpus", 2, "--max-restarts", 1]
    process = subprocess.Popen(
        [*map(str, command)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: (run / LAST_CHECKPOINT).exists(), process)
    os.kill(children_of(process)[1], signal.SIGKILL)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    said = [line for line in err.splitlines() if not line.startswith(("training", "update"))]
    assert len(said) == 2, err  # and the end of the run
    assert re.fullmatch(r"worker 1 died \(signal 9\); restarting from update [1-9][0-9]*", said[0])
    assert_same(two, run)
