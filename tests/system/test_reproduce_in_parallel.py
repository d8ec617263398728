"""Parallel jobs of `covnmt reproduce`: interrupted, resumed, and one that fails."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunCli

from .workers import alive, children_of, until

COMMAND = ("reproduce", "embedded", "--scale", "tiny", "--device", "cpu", "--no-report")
PAIR = ("--system", "baseline", "--system", "gru10", "--system", "gru10-coverage-penalty")


def where(directory: Path) -> tuple[str, ...]:
    return "--work", str(directory / "work"), "--results", str(directory / "results")


def result(directory: Path, system: str) -> Any:
    path = directory / f"results/embedded-tiny/{system}-seed1.json"
    return json.loads(path.read_text("utf-8"))


@pytest.fixture(scope="module")
def one_by_one(run_cli: RunCli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with jobs that were run one after the other."""
    directory = tmp_path_factory.mktemp("one")
    assert run_cli(*COMMAND, *PAIR, *where(directory)).returncode == 0
    return directory


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_parallel_jobs_end_and_resume(
    number: signal.Signals, one_by_one: Path, run_cli: RunCli, tmp_path: Path
) -> None:
    """However the parent ends, its children end too; the same command finishes their jobs."""
    command = [*COMMAND, *PAIR, *where(tmp_path), "--workers", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "covnmt", *command],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    logs = [
        tmp_path / f"work/embedded-tiny/{name}-seed1/log.jsonl" for name in ("baseline", "gru10")
    ]
    until(lambda: any(log.exists() for log in logs), process)
    workers = children_of(process)
    assert len(workers) == 2
    process.send_signal(number)
    assert process.wait(300) == (130 if number == signal.SIGINT else -signal.SIGKILL)
    deadline = time.monotonic() + 120
    while any(map(alive, workers)):
        assert time.monotonic() < deadline, "processes were left behind"
        time.sleep(0.01)
    assert run_cli(*command).returncode == 0
    for system in PAIR[1::2]:
        content = result(tmp_path, system)
        assert content["scores"] == result(one_by_one, system)["scores"]
        assert content["command"].endswith("--shared")
        assert content["training"]["words_per_second"] is None


def test_failure_of_one_job_leaves_the_others_running(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "work/embedded-tiny").mkdir(parents=True)
    (tmp_path / "work/embedded-tiny/gru10-seed1").write_text("in the way")
    completed = run_cli(*COMMAND, *PAIR, *where(tmp_path), "--workers", 2)
    assert completed.returncode == 2
    assert " gru10-seed1, gru10-coverage-penalty-seed1;" in completed.stderr
    assert "gru10-seed1: error: " in completed.stderr
    assert "Traceback" not in completed.stderr
    assert result(tmp_path, "baseline")["system"] == "baseline"
