"""The whole experiment at scale tiny: prepare, train, translate, align, evaluate, report."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from covnmt.base.config import PAPER_SYSTEMS
from tests.conftest import RunCli

from .workers import until

COMMAND = ("reproduce", "embedded", "--scale", "tiny", "--device", "cpu")
SCORES = {
    "BLEU (paper)",
    "BLEU",
    "chrF",
    "TER",
    "AER",
    "SAER",
    "alignment precision",
    "alignment recall",
    "left out",
    "said twice",
    "REP",
    "DROP",
    "repeated 4-grams",
    "little attention",
    "attention entropy",
}


@pytest.fixture(scope="module")
def done(run_cli: RunCli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with all jobs finished."""
    directory = tmp_path_factory.mktemp("reproduce")
    completed = run_cli(*COMMAND, "--work", directory / "work", "--results", directory / "results")
    assert completed.returncode == 0, completed.stderr
    return directory


def result(directory: Path, name: str) -> Any:
    return json.loads((directory / f"results/embedded-tiny/{name}.json").read_text("utf-8"))


def test_result_has_every_measure(done: Path) -> None:
    content = result(done, "gru10-seed1")
    names = {score["name"] for scores in content["scores"].values() for score in scores}
    assert names >= SCORES
    sentences = content["test"]["sentences"]
    assert sentences == 40
    assert [len(row) for row in content["test"]["statistics"]] == [10] * sentences
    for part in ("source_lengths", "output_lengths"):
        assert len(content["test"][part]) == sentences
    assert content["recipe"]["model"]["coverage"]["kind"] == PAPER_SYSTEMS["gru10"].kind
    assert content["parameters"]["total"] > result(done, "baseline-seed1")["parameters"]["total"]
    assert [update for update, *_ in content["training"]["curve"]] == [10, 20, 30]
    assert [update for update, *_ in content["training"]["validations"]] == [15, 30]
    assert content["test"]["by_length"][0]["measures"].keys() >= {"left out", "AER"}
    assert content["gold"] == {
        "pairs": 40,
        "what": "pairs of the test set, aligned by construction",
    }
    assert len(content["examples"]) == 2
    for example in content["examples"]:
        shape = [len(example["source_tokens"])] * len(example["tokens"])
        assert [len(row) for row in example["alignment"]] == shape


def test_results_contain_no_local_path(done: Path) -> None:
    for path in (done / "results").rglob("*"):
        if path.suffix in (".json", ".md", ".svg"):
            assert str(done) not in path.read_text("utf-8"), path


def test_page_is_written(done: Path) -> None:
    page = (done / "results/embedded-tiny/README.md").read_text("utf-8")
    assert "`gru10` (+ NN GRU d=10)" in page
    assert "Missing" not in page


def test_finished_jobs_are_not_repeated(done: Path, run_cli: RunCli) -> None:
    file = done / "results/embedded-tiny/baseline-seed1.json"
    before = file.stat().st_mtime_ns
    where = ("--work", done / "nothing", "--results", done / "results")
    again = run_cli(*COMMAND, *where)
    assert again.returncode == 0, again.stderr
    assert "job 1" not in again.stderr
    assert not (done / "nothing").exists()
    assert file.stat().st_mtime_ns == before
    listed = run_cli(*COMMAND, *where, "--list").stdout.splitlines()
    assert [line.split("\t")[:3] for line in listed] == [
        ["baseline", "1", "done"],
        ["gru10", "1", "done"],
    ]


def test_page_of_unfinished_experiment_lists_what_is_missing(
    done: Path, run_cli: RunCli, tmp_path: Path
) -> None:
    """It also removes the pictures of an earlier page."""
    results = tmp_path / "results/embedded-tiny"
    shutil.copytree(done / "results/embedded-tiny", results)
    (results / "gru10-seed1.json").rename(results / "gru10-seed2.json")
    text = (results / "gru10-seed2.json").read_text("utf-8").replace('"seed": 1,', '"seed": 2,')
    (results / "gru10-seed2.json").write_text(text, "utf-8")
    (results / "README.md").unlink()
    (results / "example-99.png").touch()
    where = ("--work", tmp_path / "work", "--results", tmp_path / "results")
    completed = run_cli(*COMMAND, *where, "--page")
    assert completed.returncode == 0, completed.stderr
    assert "Not run yet: `gru10-seed1`" in (results / "README.md").read_text("utf-8")
    assert not (tmp_path / "work").exists()
    assert len(list(results.glob("example-*.png"))) in (1, 2)
    assert not (results / "example-99.png").exists()


def test_rating_sheet_is_written(done: Path, run_cli: RunCli) -> None:
    where = ("--work", done / "work", "--results", done / "results")
    completed = run_cli(*COMMAND, *where, "--sheet")
    assert completed.returncode == 0, completed.stderr
    assert (done / "work/embedded-tiny/sheet/form.html").exists()


def test_pack_is_enough_on_another_machine(done: Path, run_cli: RunCli, tmp_path: Path) -> None:
    pack = tmp_path / "data.tar.xz"
    where = ("--results", tmp_path / "results", "--work")
    assert run_cli(*COMMAND, *where, done / "work", "--pack", pack).returncode == 0
    assert not (tmp_path / "results").exists()
    one = ("--unpack", pack, "--system", "baseline", "--no-report")
    completed = run_cli(*COMMAND, *where, tmp_path / "work", *one)
    assert completed.returncode == 0, completed.stderr
    assert [path.name for path in (tmp_path / "results").rglob("*.*")] == ["baseline-seed1.json"]
    assert not (tmp_path / "work/embedded-tiny/text").exists()
    same, other = result(done, "baseline-seed1"), result(tmp_path, "baseline-seed1")
    assert other["test"] == same["test"]
    assert other["scores"] == same["scores"]


def test_signal_saves_and_the_command_resumes(done: Path, run_cli: RunCli, tmp_path: Path) -> None:
    where = ["--work", str(tmp_path / "work"), "--results", str(tmp_path / "results")]
    command = [*COMMAND, *where, "--system", "baseline", "--no-report"]
    process = subprocess.Popen(
        [sys.executable, "-m", "covnmt", *command],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    log = tmp_path / "work/embedded-tiny/baseline-seed1/log.jsonl"
    until(log.exists, process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "resume" in stderr
    assert not (tmp_path / "results").exists()
    assert run_cli(*command).returncode == 0
    assert result(tmp_path, "baseline-seed1")["scores"] == result(done, "baseline-seed1")["scores"]


def test_bad_input_exits_with_code_2_and_a_remedy(run_cli: RunCli, tmp_path: Path) -> None:
    where = ("--work", tmp_path / "work", "--results", tmp_path / "results")
    for arguments, message in (
        (("kftt", "--data", tmp_path), "covnmt corpus get kftt"),
        (("kftt",), "give --data, or --unpack FILE"),
        (("embedded", "--system", "gru11"), "gru11: no such system"),
        (("twlaw", "--scale", "tiny"), "twlaw has no scale 'tiny'"),
        (("kftt", "--page"), "no result files yet"),
        (("kftt", "--sheet"), "run the job on this machine"),
        (("kftt", "--unpack", tmp_path / "no.tar.xz"), "make it with --pack"),
    ):
        completed = run_cli("reproduce", *arguments, *where)
        assert completed.returncode == 2
        assert message in completed.stderr
        assert "Traceback" not in completed.stderr
