"""Benchmarks leave the committed results alone unless they are told to record."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def saved_to(*options: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a result goes, without writing it."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import harness

    arguments = harness.argument_parser("What it measures.").parse_args(options)
    return harness.RECORDED if arguments.record else Path(arguments.out)


def test_results_are_recorded_on_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert saved_to(monkeypatch=monkeypatch) == BENCHMARKS / "out"
    assert saved_to("--record", monkeypatch=monkeypatch) == BENCHMARKS / "results"
    ignored = (BENCHMARKS.parent / ".gitignore").read_text("utf-8").splitlines()
    assert "/benchmarks/out/" in ignored


def test_result_file_has_machine_and_command(tmp_path: Path) -> None:
    script = BENCHMARKS / "significance.py"
    options = ["--sentences", "20", "--repeats", "1", "--out", str(tmp_path)]
    subprocess.run([sys.executable, script, *options], check=True, timeout=120)
    result = json.loads((tmp_path / "measures.json").read_text("utf-8"))
    assert result["machine"]["command"].endswith("significance.py --sentences 20 --repeats 1")
    assert {"commit", "versions", "cores"} <= result["machine"].keys()
    assert result["sentences"] == 20


def test_readme_lists_every_script() -> None:
    named = set(re.findall(r"`(\w+\.py)`", (BENCHMARKS / "README.md").read_text("utf-8")))
    assert named == {path.name for path in BENCHMARKS.glob("*.py")}
