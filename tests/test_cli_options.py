"""What holds for the options of all commands."""

import inspect
import sys
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
import typer

from covnmt import cli


def fractions(command: Any, name: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command with each of its options that take a fraction."""
    if inside := getattr(command, "commands", None):
        for key in inside:
            yield from fractions(inside[key], (*name, key))
        return
    for option, hint in get_type_hints(inspect.unwrap(command.callback)).items():
        if float in (hint, *get_args(hint)):
            yield (*name, f"--{option.replace('_', '-')}")


FRACTIONS = list(fractions(typer.main.get_command(cli.app)))


def test_they_are_found() -> None:
    assert ("align", "--threshold") in FRACTIONS
    assert ("translate", "--length-penalty") in FRACTIONS


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("option", FRACTIONS, ids=" ".join)
def test_numbers_are_finite(
    option: tuple[str, ...],
    value: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["covnmt", *option, value])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert f"Invalid value for '{option[-1]}'" in capsys.readouterr().err
