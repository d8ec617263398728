"""What holds for the options of all commands."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer

from covnmt.cli import app as main
from tests.conftest import Run

Words = tuple[str, ...]


def parameters(command: Any, name: Words = ()) -> Iterator[tuple[Words, Any, Any]]:
    """Every parameter of every command: how to give it, its type, and what typer is told of it."""
    if inside := getattr(command, "commands", None):
        for key in inside:
            yield from parameters(inside[key], (*name, key))
        return
    hints = get_type_hints(inspect.unwrap(command.callback), include_extras=True)
    for parameter in command.params:
        if parameter.name in hints:  # --help is not
            kind, *told = get_args(hints[parameter.name]) or (hints[parameter.name],)
            option = [each for each in parameter.opts if each.startswith("-")][:1]
            yield (*name, *option), kind, told[-1] if told else None


ALL = list(parameters(typer.main.get_command(main.app)))
FRACTIONS = [given for given, kind, _ in ALL if "float" in str(kind)]
WRITTEN = [given for given, _, about in ALL if getattr(about, "dir_okay", True) is False]


def test_they_are_found() -> None:
    assert {("align", "--threshold"), ("tune", "--length-penalty")} < set(FRACTIONS)
    assert {
        ("translate", "--output"),
        ("plot", "lengths", "--output"),
        ("evaluate", "--output"),
    } < set(WRITTEN)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("given", FRACTIONS, ids=" ".join)
def test_numbers_are_finite(run: Run, given: Words, value: str) -> None:
    """They are told though all else that the command needs is missing."""
    assert f"Invalid value for '{given[-1]}'" in run(*given, value, code=2).err


@pytest.mark.parametrize("given", WRITTEN, ids=" ".join)
def test_files_that_cannot_be_written_are_told_first(
    run: Run, given: Words, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    message = run(*given, tmp_path / "file" / "below", code=2).err
    assert "file/below: cannot be written" in message


def test_ensembles_are_offered_where_they_are_taken() -> None:
    helps = {given[0]: about.help for given, _, about in ALL if given[-1] == "--model"}
    offered = {command for command, text in helps.items() if "ensemble" in text}
    assert offered == {"translate", "tune"}  # align and check refuse a second model


# Commands that would write F twice, or over what they read.
TWICE = [
    "align x y -o F --matrices F",
    "smt translate model x -o F --links F",
]
OVER = [
    "translate F -o F",
    "translate x --dictionary F -o F",
    "align x F --matrices F",
    "check F y -o F",
    "score x F -o F",
    "check F --format po --annotated F",
    "smt translate model F --links F",
    "words align x F -o F",
    "evaluate x -r F -o F",
    "compare a=F b=x -r y -o F",
    "compare x -r y --reference-attention x=F -o F",
    "rate score key F -o F",
]


def test_all_commands_that_read_and_write_text_are_here() -> None:
    named = {command.split()[0] for command in [*TWICE, *OVER]}
    assert {given[0] for given in WRITTEN} - named == {"plot", "reproduce"}


@pytest.mark.parametrize("command", [*TWICE, *OVER])
def test_no_file_is_written_over(
    run: Run, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("F").write_text("mine")
    message = run(*command.split(), code=2).err
    reason = "two outputs" if command in TWICE else "replace an input"
    assert message.startswith("error: F: ")
    assert reason in " ".join(message.split())
    assert Path("F").read_text() == "mine"
