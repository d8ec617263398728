"""A result file: all that is known about one trained system, in figures.

Kept as RESULTS/EXPERIMENT/SYSTEM-seedN.json; a job whose file exists is done. Rows of figures stand
on one line each, so that the files stay small and can be read.
"""

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from covnmt.base.arrays import IntArray
from covnmt.base.errors import UserError
from covnmt.base.files import atomic_write_text, read_json

FORMAT = 1
NAME = re.compile(r"(.+)-seed(\d+)\.json")
KINDS = ("translation", "alignment", "adequacy", "proxies", "diagnostics")


@dataclass(frozen=True)
class Result:
    """One system, trained once."""

    system: str
    seed: int
    content: dict[str, Any]

    @cached_property
    def scores(self) -> dict[str, float]:
        """Those that there are, by name."""
        kinds = self.content["scores"]
        return {each["name"]: each["value"] for kind in KINDS for each in kinds.get(kind, [])}

    @cached_property
    def statistics(self) -> IntArray:
        """The BLEU counts [N, 10] of the test set."""
        return np.array(self.content["test"]["statistics"], dtype=np.int64)

    @property
    def tuning(self) -> list[list[float]]:
        """Length penalties tried on the dev set, each with its BLEU and length ratio; or nothing.

        The one chosen is in the recipe.
        """
        return list(self.content.get("tuning", []))

    @property
    def length_penalty(self) -> float:
        """Of the search that was measured."""
        return float(self.content["recipe"]["decode"]["length_penalty"])

    @property
    def parameters(self) -> int:
        """All weights."""
        return int(self.content["parameters"]["total"])

    @property
    def speed(self) -> float | None:
        """Median of target words per second while training."""
        value = self.content["training"]["words_per_second"]
        return None if value is None else float(value)


def result_file(directory: Path, system: str, seed: int) -> Path:
    """Where the result of a job is kept."""
    return directory / f"{system}-seed{seed}.json"


def write_result(path: Path, content: dict[str, Any]) -> None:
    """Write a result as a whole."""
    with atomic_write_text(path) as stream:
        stream.write(format_json({"format": FORMAT, **content}) + "\n")


def read_results(directory: Path) -> list[Result]:
    """Every result of an experiment, by system and seed."""
    found = []
    for path in sorted(directory.glob("*.json")):
        if match := NAME.fullmatch(path.name):
            found.append(read_result(path, match[1], int(match[2])))
    return found


def read_result(path: Path, system: str, seed: int) -> Result:
    """One result; what is damaged or of another job is an error."""
    content = read_json(path)
    remedy = "remove it and run the job again"
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{path}: not a result of `covnmt reproduce`; {remedy}")
    job = (content.get("system"), content.get("seed"))
    if job != (system, seed):
        raise UserError(f"{path}: holds {job[0]}, seed {job[1]}; rename it, or {remedy}")
    missing = [part for part in ("parameters", "training", "scores", "test") if part not in content]
    if missing:
        raise UserError(f"{path}: has no {', '.join(missing)}; {remedy}")
    return Result(system, seed, content)


def format_json(value: Any, pad: str = "") -> str:
    """JSON in which every list of plain values has one line."""
    inner = pad + "  "
    if isinstance(value, dict) and value:
        rows = [f"{json.dumps(key)}: {format_json(each, inner)}" for key, each in value.items()]
        opening, closing = "{}"
    elif isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
        rows = [format_json(each, inner) for each in value]
        opening, closing = "[]"
    else:
        return json.dumps(value, ensure_ascii=False)
    return opening + ",".join(f"\n{inner}{row}" for row in rows) + f"\n{pad}{closing}"
