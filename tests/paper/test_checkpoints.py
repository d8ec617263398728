"""Measuring a training at every validation, and the mean of its last weights."""

from pathlib import Path

import pytest
import torch

from covnmt.base.config import Config
from covnmt.model.checkpoint import BEST_WEIGHTS, load_tensors
from covnmt.paper.checkpoints import (
    CHECKPOINT_SCORES,
    CheckpointMeasurement,
    average_last_weights,
    read_checkpoint_scores,
)
from covnmt.paper.experiments import find_experiment
from covnmt.paper.neural import job_config
from covnmt.paper.plan import ExperimentJob, ExperimentPlan
from covnmt.paper.results import read_partial_results
from covnmt.training.loop import train
from covnmt.training.state import TrainingRun
from covnmt.training.validation import ValidationResult
from tests.training.runs import CPU, assert_same, changed

JOB = ExperimentJob("gru10", 1)
UPDATES = [5, 8]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> ExperimentPlan:
    directory = tmp_path_factory.mktemp("original")
    plan = ExperimentPlan(
        find_experiment("embedded", "original"), directory / "work", directory / "results"
    )
    plan.experiment.prepare(None, plan.prepared)
    return plan


def short_config(plan: ExperimentPlan) -> Config:
    short = {"train__updates": 8, "train__validate_from": 5, "train__checkpoint_every": 100}
    return changed(job_config(plan, JOB, 0.0), **short)


@pytest.fixture(scope="module")
def run(plan: ExperimentPlan) -> Path:
    config = short_config(plan)
    measurement = CheckpointMeasurement(plan, JOB, config.decode)
    train(config, plan.work / "run", CPU, after_validation=measurement)
    return plan.work / "run"


def test_every_validation_is_measured_and_published(plan: ExperimentPlan, run: Path) -> None:
    scores = read_checkpoint_scores(run, JOB)
    assert [row.update for row in scores] == UPDATES
    [published] = read_partial_results(plan.result_directory)
    assert (published.system, published.seed, published.checkpoints) == ("gru10", 1, scores)
    assert all(row.aer is not None and 0 < row.aer < 100 for row in scores)
    assert all(row.rep > 0 and row.length_ratio > 0 for row in scores)


def test_training_is_the_same_with_and_without_measuring(plan: ExperimentPlan, run: Path) -> None:
    train(short_config(plan), plan.work / "plain", CPU)
    assert_same(plan.work / "plain", run)


def test_killed_run_measures_again_what_came_after_its_checkpoint(plan: ExperimentPlan) -> None:
    """Otherwise it would have two rows for one update."""
    directory = plan.work / "killed"
    config = short_config(plan)
    measurement = CheckpointMeasurement(plan, JOB, config.decode)

    def die_at_the_end(state: TrainingRun, validation: ValidationResult) -> None:
        measurement(state, validation)
        if state.counters.update == UPDATES[-1]:
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        train(config, directory, CPU, after_validation=die_at_the_end)
    assert [row.update for row in read_checkpoint_scores(directory, JOB)] == UPDATES
    train(config, directory, CPU, after_validation=measurement)
    assert [row.update for row in read_checkpoint_scores(directory, JOB)] == UPDATES


def test_average_is_the_mean_of_the_kept_weights(plan: ExperimentPlan, run: Path) -> None:
    kept = [load_tensors(path)[0] for path in sorted((run / "recent").glob("*"))]
    assert len(kept) == len(UPDATES)
    model = average_last_weights(run, 10)
    mean, about = load_tensors(model / BEST_WEIGHTS)
    assert [int(name) for name in about["averaged"]] == UPDATES
    for name, weight in mean.items():
        torch.testing.assert_close(weight, sum(w[name] for w in kept) / len(kept))
    assert not (run / "recent").exists()
    assert average_last_weights(run, 10) == model
    assert (run / CHECKPOINT_SCORES).exists()
