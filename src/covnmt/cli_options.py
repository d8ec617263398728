"""Options that several commands have, and what all numbers and all files to write must be."""

import math
from pathlib import Path
from typing import Annotated, Literal

import typer

from covnmt.files import check_writable


def finite(value: float | None) -> float | None:
    """The callback of every option that takes a fraction, for `float` reads nan and inf too."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value


def writable(path: Path | None) -> Path | None:
    """The callback of every option that names a file to write: better told before the work."""
    if path is not None and str(path) != "-":
        check_writable(path)
    return path


DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1")]
ExtractionOption = Annotated[
    Literal["argmax", "argmax_with_end", "threshold"], typer.Option(help="how links are made")
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", dir_okay=False, callback=writable, help="standard output"),
]
