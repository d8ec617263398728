"""Options that several commands have, what all numbers and all files to write must be, and how
commands that go on when they are given again are stopped."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from covnmt.base.console import log
from covnmt.base.errors import UserError
from covnmt.base.files import check_writable, is_file_path


def finite(value: float | None) -> float | None:
    """The callback of every option that takes a fraction, for `float` reads nan and inf too."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value


def all_finite(values: list[float] | None) -> list[float] | None:
    """The same, where it may be given several times."""
    for value in values or ():
        finite(value)
    return values


def writable(path: Path | None) -> Path | None:
    """The callback of every option that names a file to write: better told before the work."""
    if is_file_path(path):
        check_writable(path)
    return path


def text(value: str) -> str:
    """What is written to pages and figures; an argument can be any bytes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"{value!r}: not UTF-8; write it in other letters") from None
    return value


def given(models: list[Path]) -> list[Path]:
    """The directories of models, at least one."""
    from covnmt.model.directory import bundled_models, find_model

    if not models:
        along = ", ".join(bundled_models())
        raise UserError(f"name a model: --model DIR{f', or one of {along}' if along else ''}")
    return [find_model(each) for each in models]


def single(models: list[Path], command: str) -> Path:
    """The directory of the one model that a command takes."""
    if len(found := given(models)) > 1:
        raise UserError(f"{command} takes one model: give --model once")
    return found[0]


@contextmanager
def stoppable() -> Iterator[None]:
    """Ctrl-C ends a command that can be continued."""
    try:
        yield
    except KeyboardInterrupt:
        log("stopped; give the same command again to go on")
        raise typer.Exit(130) from None


DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1")]
ExtractionOption = Annotated[
    Literal["argmax", "argmax_with_end", "threshold"], typer.Option(help="how links are made")
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", dir_okay=False, callback=writable, help="standard output"),
]
ThreadsOption = Annotated[
    int,
    typer.Option(
        min=0,
        help="CPU threads; 0: one per core (an exported model has one; a file, a process per core)",
    ),
]
TrainingThreadsOption = Annotated[int, typer.Option(min=0, help="CPU threads; 0: one per core")]
ModelOption = Annotated[
    list[Path],
    typer.Option("--model", "-m", help="directory or name; several make an ensemble"),
]
# a list all the same: of a plain option the last would count, and the others be passed over
SingleModelOption = Annotated[
    list[Path], typer.Option("--model", "-m", metavar="<path>", help="directory or name")
]
