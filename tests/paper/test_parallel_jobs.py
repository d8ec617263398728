"""Parallel jobs: which share a process, on which device, and how they stop."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from covnmt.paper import parallel_jobs
from covnmt.paper.experiments import find_experiment
from covnmt.paper.parallel_jobs import (
    JobProcesses,
    group_by_training,
    list_devices,
    reproduce_arguments,
    run_jobs_in_parallel,
)
from covnmt.paper.plan import ExperimentJob, ExperimentPlan


def plan(device: str = "auto", minutes: float | None = None) -> ExperimentPlan:
    return ExperimentPlan(
        find_experiment("embedded", "tiny"), Path("w"), Path("r"), device=device, minutes=minutes
    )


def test_jobs_of_one_training_share_a_process() -> None:
    jobs = [
        ExperimentJob(system, seed)
        for seed in (1, 2)
        for system in ("gru10-no-average", "gru10", "baseline", "gru10-no-dropout")
    ]
    groups = group_by_training(jobs)
    assert {job for group in groups for job in group} == set(jobs)
    assert [[job.system for job in group] for group in groups] == 2 * [
        ["gru10-no-average", "gru10"],
        ["baseline"],
        ["gru10-no-dropout"],
    ]
    assert all(len({job.seed for job in group}) == 1 for group in groups)


@pytest.mark.parametrize(
    ("gpus", "device", "number", "places", "shared"),
    [
        (0, "auto", 2, ["auto", "auto"], True),
        (1, "auto", 2, ["auto", "auto"], True),
        (2, "auto", 3, ["cuda:0", "cuda:1", "cuda:0"], True),
        (2, "auto", 2, ["cuda:0", "cuda:1"], False),
        (4, "cuda:3", 2, ["cuda:3", "cuda:3"], True),
        (4, "cpu", 2, ["cpu", "cpu"], True),
    ],
)
def test_devices_are_assigned_in_turn(
    gpus: int,
    device: str,
    number: int,
    places: list[str],
    shared: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    processes = JobProcesses(plan(device), number)
    assert [processes.free_devices.get() for _ in range(number)] == places
    assert processes.shared is shared
    assert set(list_devices(device)) == set(places)


def test_arguments_of_a_child_repeat_the_plan() -> None:
    jobs = [ExperimentJob("gru10", 7), ExperimentJob("gru10-no-average", 7)]
    words = " ".join(reproduce_arguments(plan(minutes=3.5), jobs, "cuda:1", shared=True))
    assert words == (
        "reproduce embedded --scale tiny --work w --results r --device cuda:1 --seed 7 "
        "--minutes 3.5 --system gru10 --system gru10-no-average --no-report --shared"
    )
    for word in plan().command(jobs[0], 3.5).split()[1:]:
        assert word in words.split()
    assert "--shared" not in reproduce_arguments(plan(), jobs, "cpu", shared=False)


def test_device_is_free_again_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError("too many processes")

    monkeypatch.setattr("subprocess.Popen", refuse)
    processes = JobProcesses(plan("cpu"), 2)
    with pytest.raises(OSError, match="too many"):
        processes.run([ExperimentJob("gru10", 1)])
    assert processes.free_devices.qsize() == 2


def test_error_of_the_parent_stops_all_children(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """For example a closed terminal: then no child works on unseen."""
    stopped: list[str] = []

    def run(processes: JobProcesses, jobs: Sequence[ExperimentJob]) -> None:
        if jobs[0].system == "baseline":
            raise SystemExit(1)
        deadline = time.monotonic() + 120
        while not processes.stopped and time.monotonic() < deadline:
            time.sleep(0.01)
        if processes.stopped:
            stopped.append(jobs[0].system)

    monkeypatch.setattr(ExperimentPlan, "prepare", lambda plan: None)
    monkeypatch.setattr(JobProcesses, "run", run)
    jobs = [ExperimentJob("gru10", 1), ExperimentJob("baseline", 1)]
    with pytest.raises(SystemExit):
        list(run_jobs_in_parallel(replace(plan("cpu"), results=tmp_path, jobs=jobs), 2))
    assert stopped == ["gru10"]


def test_child_that_starts_after_the_stop_stops_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    messages: list[str] = []
    patient = "import signal, sys; signal.alarm(60); sys.stdin.read(); print('told')"
    monkeypatch.setattr(parallel_jobs, "CHILD", patient)
    monkeypatch.setattr(parallel_jobs, "log", messages.append)
    processes = JobProcesses(plan("cpu"), 2)
    processes.stop()
    processes.run([ExperimentJob("gru10", 1)])
    assert messages == ["gru10-seed1: told"]


def test_ctrl_c_does_not_reach_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its own session, and is stopped by the parent."""
    messages: list[str] = []
    monkeypatch.setattr(parallel_jobs, "CHILD", "import os; print(os.getsid(0) == os.getpid())")
    monkeypatch.setattr(parallel_jobs, "log", messages.append)
    JobProcesses(plan("cpu"), 2).run([ExperimentJob("gru10", 1)])
    assert messages == ["gru10-seed1: True"]
