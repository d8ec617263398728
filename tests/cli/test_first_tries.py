"""What people try first: `covnmt help`, other programs' options, files in the obvious order."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from covnmt import __version__
from covnmt.cli.app import app
from covnmt.cli.first_tries import INSTEAD
from covnmt.data.corpus import Corpus
from tests.conftest import Run


def commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    inside = getattr(command, "commands", {})
    for key in inside:
        yield from commands(inside[key], f"{name} {key}".strip())
    if not inside:
        yield name, command


COMMANDS = dict(commands(typer.main.get_command(app)))


def test_help_and_version_are_commands_too(run: Run) -> None:
    assert run("help", "smt", "train").out == run("smt", "train", "--help").out
    assert "Translate" in run("help").out
    assert run("version").out == f"covnmt {__version__}\n"


@pytest.mark.parametrize("option", INSTEAD)
def test_options_of_other_programs_name_what_replaces_them(option: str, run: Run) -> None:
    assert INSTEAD[option] in run("translate", f"{option}=x", code=2).err


def test_options_of_other_programs_are_none_of_ours() -> None:
    ours = {name for command in COMMANDS.values() for p in command.params for name in p.opts}
    assert not ours & set(INSTEAD)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_every_parameter_and_ends_with_examples(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    assert [p.name for p in command.params if not p.help] == []
    assert command.epilog.count("covnmt ") >= 2


def test_help_shows_no_python_types(run: Run) -> None:
    shown = "".join(run(*name.split(), "--help").out for name in COMMANDS)
    assert "list[" not in shown
    assert "int range" not in shown
    assert "Path" not in shown


def test_prepare_takes_the_text_as_arguments(run: Run, tiny_text: Path, tmp_path: Path) -> None:
    files = tiny_text / "train.src", tiny_text / "train.tgt"
    new, old, first = (tmp_path / name for name in ("new", "old", "first"))
    run("prepare", *files, "--output", new)
    run("prepare", old, "--train", *files)
    run("prepare", first, *files)
    identities = {Corpus.open(path).identity() for path in (new, old, first)}
    assert len(identities) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", "b"), "--output"),
        (("a",), "SOURCE TARGET"),
        (("a", "--output", "b", "--train", "c", "d"), "a: "),
        (("--train", "c", "d"), "--output"),
    ],
)
def test_prepare_says_what_is_missing(run: Run, arguments: tuple[str, ...], message: str) -> None:
    assert message in run("prepare", *arguments, code=2).err


def test_evaluate_takes_the_reference_as_an_argument(run: Run, source: Path) -> None:
    given = run("evaluate", source, source, "--no-ter", "--json").out
    assert given == run("evaluate", source, "-r", source, "--no-ter", "--json").out
    assert json.loads(given)["sentences"] == 20
    assert "OUTPUT REFERENCE" in run("evaluate", source, code=2).err


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("synthetic", "--train", 3, "--dev", 2, "--test", 2), ()),
        (("rate", "make", "-n", 2), ("SOURCE", "-s", "SOURCE")),
    ],
)
def test_output_is_an_option_or_an_argument(
    run: Run, source: Path, tmp_path: Path, before: tuple[Any, ...], after: tuple[str, ...]
) -> None:
    inputs = [source if word == "SOURCE" else word for word in after]
    run(*before, *inputs, "--output", tmp_path / "new")
    run(*before, tmp_path / "old", *inputs)
    new, old = (sorted(p.name for p in (tmp_path / d).iterdir()) for d in ("new", "old"))
    assert new == old != []


@pytest.mark.parametrize(
    "command",
    ["synthetic", "corpus get kftt", "average a", "smt train a", "plot training a", "report a"],
)
def test_a_missing_output_is_asked_for(run: Run, command: str) -> None:
    needed = ("-r", "x", "-s", "x") if command.startswith("report") else ()
    assert "--output" in run(*command.split(), *needed, code=2).err


def test_commands_of_the_phrase_based_system_take_model(run: Run) -> None:
    for arguments in (("nosuch",), ("--model", "nosuch")):
        assert "nosuch: " in run("smt", "tune", *arguments, code=2).err
    assert "--model" in run("smt", "translate", code=2).err
    assert "c and a" in run("smt", "translate", "a", "b", "--model", "c", code=2).err
