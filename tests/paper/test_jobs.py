"""Jobs: their order, resumption, time limits, and rating sheets."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from covnmt.base.config import PAPER_SYSTEMS
from covnmt.base.errors import UserError
from covnmt.base.files import write_lines
from covnmt.evaluation.evaluate import Comparison
from covnmt.paper import jobs, neural
from covnmt.paper.experiments import find_experiment
from covnmt.paper.jobs import run_jobs
from covnmt.paper.neural import TRAINED, train_job, training_minutes_left
from covnmt.paper.plan import ExperimentJob, ExperimentPlan, choose_jobs
from covnmt.paper.results import write_result
from covnmt.training.loop import TrainingOutcome
from covnmt.training.state import Counters
from tests.paper.sample_results import (
    KFTT,
    TINY,
    empty_result,
    names,
    sample_content,
    sample_result,
    tiny_plan,
)


def test_first_seed_of_every_system_comes_before_second_seeds() -> None:
    first = [f"{system}-seed1" for system in PAPER_SYSTEMS]
    second = ["baseline-seed2", "fertility-seed2", "gru10-seed2"]
    assert names(choose_jobs(KFTT)) == first + second
    assert names(choose_jobs(find_experiment("embedded"))) == first
    assert names(choose_jobs(TINY)) == ["baseline-seed1", "gru10-seed1"]


def test_named_systems_and_seeds_are_chosen_exactly() -> None:
    asked = choose_jobs(KFTT, ["gru10", "gru4", "gru10"], [3, 4])
    assert names(asked) == ["gru10-seed3", "gru4-seed3", "gru10-seed4", "gru4-seed4"]
    assert len(choose_jobs(KFTT, seeds=[7])) == 6
    with pytest.raises(UserError, match=r"gru11: .*baseline, .*gru16"):
        choose_jobs(KFTT, ["gru11"])


class Machine:
    """Runs jobs by writing an empty result; is interrupted before a given job."""

    def __init__(self, stop_before: str = "") -> None:
        self.done: list[str] = []
        self.stop_before = stop_before

    def run_job(self, plan: ExperimentPlan, job: ExperimentJob) -> None:
        if job.name == self.stop_before:
            raise KeyboardInterrupt
        self.done.append(job.name)
        write_result(plan.result_directory, empty_result(job))


@pytest.fixture
def three_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExperimentPlan:
    monkeypatch.setattr(type(TINY.text), "prepare", lambda *arguments: None)
    return tiny_plan(tmp_path, jobs=choose_jobs(TINY, ["baseline", "tanh1", "gru10"]))


@pytest.mark.parametrize("stop", ["baseline-seed1", "tanh1-seed1", "gru10-seed1"])
def test_interrupted_list_of_jobs_resumes(
    stop: str, three_jobs: ExperimentPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Machine(stop_before=stop), Machine()
    monkeypatch.setattr(jobs, "run_job", first.run_job)
    with pytest.raises(KeyboardInterrupt):
        list(run_jobs(three_jobs))
    monkeypatch.setattr(jobs, "run_job", second.run_job)
    list(run_jobs(three_jobs))
    assert first.done + second.done == names(list(three_jobs.jobs))
    assert three_jobs.open_jobs() == []


@pytest.mark.parametrize(("finished", "stopped"), [(True, False), (True, True), (False, True)])
def test_measuring_does_not_start_after_a_signal(
    finished: bool, stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if training had just finished: then it is recorded as finished."""
    outcome = TrainingOutcome("it says why", Counters(), finished, stopped)
    monkeypatch.setattr(neural, "train", lambda *_, **__: outcome)
    plan, job = tiny_plan(tmp_path), ExperimentJob("baseline", 1)
    with pytest.raises(KeyboardInterrupt) if stopped else nullcontext():
        assert train_job(plan, job).reason == "it says why"
    assert (plan.model_directory(job) / TRAINED).exists() == finished


def test_reason_names_the_time_of_the_whole_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit that training was given is shorter: measuring needs time too."""
    outcome = TrainingOutcome("0.85 minutes are over", Counters(), True, False, limit="minutes")
    monkeypatch.setattr(neural, "train", lambda *_, **__: outcome)
    ended = train_job(tiny_plan(tmp_path, minutes=1.0), ExperimentJob("baseline", 1))
    assert ended.reason == "its time was over (1 minutes, measuring included)"
    assert ended.minutes == 1.0


def test_jobs_with_a_copied_result_are_skipped(
    three_jobs: ExperimentPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_result(three_jobs.result_directory, empty_result(ExperimentJob("tanh1", 1)))
    machine = Machine()
    monkeypatch.setattr(jobs, "run_job", machine.run_job)
    assert len(list(run_jobs(three_jobs))) == 2
    assert machine.done == ["baseline-seed1", "gru10-seed1"]
    assert list(run_jobs(three_jobs)) == []


def test_unwritable_results_are_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    with pytest.raises(UserError, match=r"embedded-tiny.baseline-seed1\.json: "):
        list(run_jobs(tiny_plan(tmp_path)))
    assert not (tmp_path / "work").exists()


def test_progress_rows_show_finished_and_open_jobs(tmp_path: Path, comparison: Comparison) -> None:
    plan = tiny_plan(tmp_path)
    write_result(plan.result_directory, sample_result(sample_content(comparison, "gru10", 1)))
    assert list(plan.progress_rows()) == [
        ("baseline", "1", "left", ""),
        ("gru10", "1", "done", "100.00"),
    ]


def test_resumed_training_has_the_time_that_is_left(tmp_path: Path) -> None:
    plan = tiny_plan(tmp_path, minutes=10)
    assert training_minutes_left(tiny_plan(tmp_path), tmp_path) == 0
    assert training_minutes_left(plan, tmp_path) == pytest.approx(8.5)
    log = ['{"seconds": 60}', '{"seconds": 120.0}', '{"secon']
    write_lines(tmp_path / "log.jsonl", log)
    assert training_minutes_left(plan, tmp_path) == pytest.approx(6.5)
    assert 0 < training_minutes_left(tiny_plan(tmp_path, minutes=1), tmp_path) < 0.1


def test_command_of_a_result_has_no_local_directory(tmp_path: Path) -> None:
    command = tiny_plan(tmp_path).command(ExperimentJob("gru10", 3), 2.5)
    assert command == (
        "covnmt reproduce embedded --scale tiny --system gru10 --seed 3 --minutes 2.5"
    )


WORDS = ["寺", "は", "古い"]  # as the system tells them: there are no spaces to go by


def test_rating_sheets_are_written_to_the_work_directory(prepared: Path, tmp_path: Path) -> None:
    plan = ExperimentPlan(KFTT, tmp_path / "work", tmp_path / "results")
    plan.prepared.parent.mkdir(parents=True)
    prepared.rename(plan.prepared)
    for system in ("baseline", "gru10"):
        lines = [json.dumps({"text": f"{system} {k}", "source_tokens": WORDS}) for k in range(5)]
        write_lines(plan.model_directory(ExperimentJob(system, 1)) / "test.jsonl", lines)
    directory = jobs.write_rating_sheets(plan, ["baseline", "gru10"], 1)
    key = json.loads((directory / "key.json").read_text("utf-8"))
    assert [item["words"] for item in key["items"]] == [len(WORDS)] * 10
    assert not (tmp_path / "results").exists()
    with pytest.raises(UserError, match=r"tanh1-seed1.test\.jsonl: "):
        jobs.write_rating_sheets(plan, ["baseline", "tanh1"], 1)
