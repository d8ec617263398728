"""Options that several commands have, and what all numbers must be."""

import math
from typing import Annotated, Literal

import typer

DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1")]
ExtractionOption = Annotated[
    Literal["argmax", "argmax_with_end", "threshold"], typer.Option(help="how links are made")
]


def finite(value: float | None) -> float | None:
    """The callback of every option that takes a fraction, for `float` reads nan and inf too."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value
