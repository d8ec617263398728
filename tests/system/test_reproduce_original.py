"""The paper's own training at test size: two at once, interrupted, resumed, measured three ways."""

import json
import os
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from covnmt.paper.experiments import find_experiment
from covnmt.paper.jobs import run_jobs
from covnmt.paper.markdown_report import write_page
from covnmt.paper.pack import pack_prepared_data, unpack_prepared_data
from covnmt.paper.plan import ExperimentPlan, choose_jobs

from .workers import until

COMMAND = ("reproduce", "embedded", "--scale", "original", "--device", "cpu", "--seed", "1")
RESULTS = "results/embedded-original"
UPDATES = [10, 15, 20, 22]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose jobs were interrupted once something was measured, and resumed."""
    directory = tmp_path_factory.mktemp("original")
    where = ("--work", str(directory / "work"), "--results", str(directory / "results"))
    command = [*COMMAND, *where, "--workers", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "covnmt", *command],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    until(lambda: any((directory / RESULTS).glob("*.partial.json")), process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 130
    measured = [json.loads(path.read_text()) for path in (directory / RESULTS).glob("*.partial*")]
    assert all(row["checkpoints"][0][0] == UPDATES[0] for row in measured)
    list(run_jobs(plan(directory, "baseline", "gru10")))
    return directory


def plan(directory: Path, *systems: str, minutes: float | None = None) -> ExperimentPlan:
    experiment = find_experiment("embedded", "original")
    return ExperimentPlan(
        experiment,
        directory / "work",
        directory / "results",
        minutes=minutes,
        device="cpu",
        jobs=choose_jobs(experiment, systems, [1]),
    )


def result(directory: Path, system: str) -> Any:
    return json.loads((directory / RESULTS / f"{system}-seed1.json").read_text("utf-8"))


@pytest.mark.parametrize("system", ["baseline", "gru10"])
def test_every_checkpoint_and_the_mean_of_the_weights_are_measured(done: Path, system: str) -> None:
    content = result(done, system)
    assert [row[0] for row in content["checkpoints"]] == UPDATES
    validations = {update: bleu for update, _, bleu in content["training"]["validations"]}
    for update, dev_bleu, *_ in content["checkpoints"]:
        assert dev_bleu == pytest.approx(validations[update], abs=1e-3)
    averaged = content["averaged"]
    assert averaged["updates"] == UPDATES
    assert averaged["scores"].keys() == content["scores"].keys()
    assert len(averaged["test"]["statistics"]) == content["test"]["sentences"]
    for measured in (content, averaged):
        assert measured["coverage_effect"]["uncovered"]["words"] > 0
    assert not list((done / RESULTS).glob("*.partial.json"))
    assert not (done / f"work/embedded-original/{system}-seed1/recent").exists()


def test_page_shows_the_run_in_three_ways(done: Path) -> None:
    page = write_page(plan(done).experiment, done / RESULTS).read_text("utf-8")
    for heading in (
        "## How runs are measured",
        "## Last checkpoints (b)",
        "## Best dev checkpoint (a)",
        "## Gain along the runs",
        "## Sentence length",
    ):
        assert heading in page
    assert "| 10 to 22 |" in page
    assert "`baseline-seed2`, `gru10-seed2`" in page


def test_time_limit_measures_what_there_is(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With packed data in a fresh directory, as on another machine."""
    limited = plan(tmp_path, "baseline", minutes=1)
    clock = count(0, 5)  # five seconds an update: a minute is over before all 22
    monkeypatch.setattr("covnmt.training.loop.time", SimpleNamespace(monotonic=clock.__next__))
    name, pack = limited.experiment.name, tmp_path / "data.tar.xz"
    pack_prepared_data(plan(done).prepared, name, pack)
    unpack_prepared_data(pack, name, limited.prepared)
    list(run_jobs(limited))
    content = result(tmp_path, "baseline")
    assert content["training"]["reason"].startswith("its time was over")
    [*_, last] = content["checkpoints"]
    assert last[0] == content["training"]["update"] < UPDATES[-1]
    assert content["averaged"]["updates"] == [row[0] for row in content["checkpoints"]]
