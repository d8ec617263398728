"""Benchmarks leave the committed results alone unless they are told to record."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
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


def test_attacks_that_do_not_hold_are_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also those that cannot be finished."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import abuse

    def breaks(stage: abuse.Stage) -> Iterator[abuse.Finding]:
        yield abuse.at_most("seconds", 1, 2)
        raise ConnectionResetError

    rows = {
        "A": lambda stage: iter([abuse.at_most("seconds", 1, 2)]),
        "B": lambda stage: iter([abuse.equal("status", 500, 200), abuse.equal("exit", 0, 0)]),
        "C": breaks,
    }
    attacks = [abuse.Attack(name, "attack", run) for name, run in rows.items()]
    monkeypatch.setattr(abuse, "ATTACKS", attacks)

    def attack(*options: str) -> tuple[object, dict[str, bool]]:
        monkeypatch.setattr(sys, "argv", ["abuse.py", *options, "--out", str(tmp_path)])
        with pytest.raises(SystemExit) as stop:
            abuse.main()
        rows = json.loads((tmp_path / "abuse.json").read_text("utf-8"))["rows"]
        return stop.value.code, {row["row"]: row["held"] for row in rows}

    assert attack() == (1, {"A": True, "B": False, "C": False})
    assert "1 of 3 attacks held; not held: B (attack), C (attack)" in capsys.readouterr().out
    assert attack("--rows", "A") == (0, {"A": True})


def test_the_soak_notices_lost_and_doubled_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import soak

    head = b"HTTP/1.1 200 OK\r\n"
    whole = head + b"content-length: 2\r\n\r\n{}"
    chunked = head + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"
    assert soak.split_answers(whole) == soak.split_answers(chunked) == (200, b"{}")
    for received in (b"", head, whole[:-1], whole + whole, chunked + whole):
        with pytest.raises(AssertionError):
            soak.split_answers(received)
