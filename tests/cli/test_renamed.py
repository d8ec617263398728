"""Old names of options still work, and warn."""

import json
import shlex
from pathlib import Path

import pytest

from covnmt.cli.renamed import rename_options
from tests.conftest import Run

EXISTING = Path(__file__).parents[2] / "docs/results/embedded/summary.json"
RENAMED = {
    "translate --shards a --out b -m m": "translate --shards a --output-dir b -m m",
    "translate --overlong=split": "translate --long-lines=split",
    "-q align a b --method argmax": "-q align a b --link-method argmax",
    "smt train a b --joining union --processes 2": "smt train a b --symmetrize union --workers 2",
    "reproduce kftt --at-once 3": "reproduce kftt --workers 3",
    "evaluate a -r b --json scores.json": "evaluate a -r b --output scores.json",
    "evaluate a -r b --json=scores": "evaluate a -r b --output scores",
    "evaluate a -r b --json -": "evaluate a -r b --json",
    "compare a b -r c --base 1": "compare a b -r c --index-base 1",
}
UNCHANGED = [
    "evaluate --json a -r b",
    "evaluate a -r b --json",
    "translate --json a",
    f"rate score --json {EXISTING} a.csv",  # inputs of commands may be JSON files too
    "smt tune m --restarts 3",
    "words align a b",
    "",
]


@pytest.mark.parametrize("old", RENAMED)
def test_old_names_become_new_ones(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert shlex.join(rename_options(old.split())) == RENAMED[old]
    assert ("is now called" in capsys.readouterr().err) == (old != RENAMED[old])


@pytest.mark.parametrize("command", UNCHANGED)
def test_other_commands_stay_as_they_are(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert shlex.join(rename_options(command.split())) == command
    assert capsys.readouterr().err == ""


def test_nothing_is_an_option_after_two_dashes(run: Run) -> None:
    printed = run("info", "--", "--words", code=2)
    assert "--words" in printed.err
    assert "is now called" not in printed.err
    assert "--file: no such file" in run("translate", "-m", "ja-en", "--", "--file", code=2).err


def test_an_old_name_works_on_the_command_line(run: Run) -> None:
    printed = run("info", "paper/gru10", "--words", 1000, "--json")
    assert "--words is now called --vocabulary-size" in printed.err
    new = run("info", "paper/gru10", "--vocabulary-size", 1000, "--json")
    assert json.loads(printed.out) == json.loads(new.out)
