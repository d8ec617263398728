"""The phrase-based system as a job of `covnmt reproduce`."""

import json
import shutil
from pathlib import Path

import pytest

from covnmt.base.files import read_lines, write_lines
from covnmt.paper import phrase_based
from covnmt.paper.experiments import GOLD_FILES, EmbeddedPairText, Experiment
from covnmt.paper.jobs import run_jobs
from covnmt.paper.plan import ExperimentJob, ExperimentPlan
from covnmt.paper.results import read_results
from covnmt.paper.systems import PHRASE_BASED
from covnmt.phrase_based.settings import StackSearchSettings, WeightTuningSettings

TEXT = EmbeddedPairText(train=300, dev=20, test=20, example_count=0)
EXPERIMENT = Experiment("embedded", "tiny", "Tiny", TEXT)


@pytest.fixture
def plan(tiny_corpus: Path, tiny_text: Path, tmp_path: Path) -> ExperimentPlan:
    """One job on the tiny corpus, whose test set has gold links."""
    plan = ExperimentPlan(
        EXPERIMENT, tmp_path / "work", tmp_path / "results", jobs=[ExperimentJob(PHRASE_BASED, 1)]
    )
    shutil.copytree(tiny_corpus, plan.prepared)
    for ending, name in zip(("src", "tgt", "align"), GOLD_FILES, strict=True):
        write_lines(plan.prepared / name, read_lines(tiny_text / f"test.{ending}"))
    return plan


def test_job_trains_tunes_and_measures(
    plan: ExperimentPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quick(search: StackSearchSettings, iterations: int, seed: int) -> WeightTuningSettings:
        assert (iterations, seed) == (phrase_based.TUNING_ROUNDS, 1)
        one = search.model_copy(update={"processes": 1})
        return WeightTuningSettings(search=one, iterations=2, nbest=10, restarts=1)

    monkeypatch.setattr(phrase_based, "WeightTuningSettings", quick)
    [message] = run_jobs(plan)
    assert "pbsmt-seed1.json: done" in message
    [result] = read_results(plan.result_directory)
    assert result.score_values.keys() >= {
        "BLEU (paper)",
        "AER",
        "left out",
        "said twice",
        "DROP",
        "REP",
    }
    assert result.score_values["AER"] < 25
    assert result.statistics.shape == (20, 10)
    training = result.training
    assert [validation.bleu for validation in training.validations] != []
    ways = {f"{way}-{n}" for way in ("forward", "backward") for n in (1, 2, 3)}
    assert set(training.stages or ()) == {*ways, "links", "phrases", "language-model"}
    assert (training.seconds or 0) > 0
    assert (training.cpu_seconds or 0) > 0
    assert (training.tuning or {})["phrase_pairs"] > 0
    text = plan.result_file(plan.jobs[0]).read_text("utf-8")
    assert str(plan.work) not in text
    assert json.loads(text)["command"].endswith("--system pbsmt --seed 1")
    assert list(run_jobs(plan)) == []
