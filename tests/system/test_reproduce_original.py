"""The paper's own training at test size: two at once, interrupted, resumed, measured three ways."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunCli

from .workers import until

COMMAND = ("reproduce", "embedded", "--scale", "original", "--device", "cpu", "--seed", "1")
RESULTS = "results/embedded-original"
UPDATES = [10, 15, 20, 22]


@pytest.fixture(scope="module")
def done(run_cli: RunCli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose jobs were interrupted once something was measured, and resumed."""
    directory = tmp_path_factory.mktemp("original")
    where = ("--work", str(directory / "work"), "--results", str(directory / "results"))
    command = [*COMMAND, *where, "--at-once", "2"]
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
    completed = run_cli(*command)
    assert completed.returncode == 0, completed.stderr
    return directory


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
    page = (done / RESULTS / "README.md").read_text("utf-8")
    for heading in (
        "## How runs are measured",
        "## Last checkpoints (b)",
        "## Best dev checkpoint (a)",
        "## Gain along the runs",
        "## Sentence length",
    ):
        assert heading in page
    assert "| 10 to 22 |" in page
    assert "Not run yet: `baseline-seed2`, `gru10-seed2`" in page


def test_pack_and_time_limit_measure_what_there_is(
    done: Path, run_cli: RunCli, tmp_path: Path
) -> None:
    """In a fresh directory, as on another machine; a slow one reaches the limit."""
    pack = tmp_path / "data.tar.xz"
    where = ("--work", done / "work", "--results", tmp_path / "results")
    assert run_cli(*COMMAND, *where, "--pack", pack).returncode == 0
    where = ("--work", tmp_path / "work", "--results", tmp_path / "results")
    limit = ("--unpack", pack, "--system", "baseline", "--minutes", 0.1, "--no-report")
    completed = run_cli(*COMMAND, *where, *limit)
    assert completed.returncode == 0, completed.stderr
    content = result(tmp_path, "baseline")
    [*_, last] = content["checkpoints"]
    assert last[0] == content["training"]["update"]
    assert content["averaged"]["updates"] == [row[0] for row in content["checkpoints"]]
