"""What a system wrote, sentence by sentence: `covnmt translate --json` lines, or plain text.

JSON lines carry tokens, attention and coverage, so the report can show what the system looked at;
plain text of any system gives its words alone. Letters: I target words, J source words.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covnmt.base.arrays import FloatArray
from covnmt.base.errors import UserError
from covnmt.base.files import PARSE_ERRORS, read_input_lines

SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, eq=False)
class OutputLine:
    """One translation, with as much of its account as the file has."""

    text: str
    source_tokens: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    score: float | None = None
    alignment: FloatArray | None = None  # [I, J]
    coverage: FloatArray | None = None  # [J]
    fertility: FloatArray | None = None  # [J]


def read_outputs(path: Path, sentences: int | None = None) -> list[OutputLine]:
    """Read a system's output ("-" is standard input); with `sentences` one empty line too many at
    the end is let pass."""
    lines = list(read_input_lines(path))
    if sentences is not None and len(lines) == sentences + 1 and not lines[-1]:
        lines.pop()
    if not lines:
        raise UserError(f"{path}: empty; expected a translation on every line")
    if not _is_json(lines[0]):
        return [OutputLine(text=line) for line in lines]
    return [parse_output(line, f"{path}, line {n}") for n, line in enumerate(lines, 1)]


def parse_output(line: str, place: str) -> OutputLine:
    """Read one JSON line; `place` names it in messages."""
    try:
        row = json.loads(line)
    except PARSE_ERRORS as error:
        raise UserError(f"{place}: not valid JSON ({error}); was the file cut off?") from None
    if not isinstance(row, dict) or not _is_text(row.get("text")):
        raise UserError(f'{place}: no "text"; expected a line of `covnmt translate --json`')
    source_tokens, tokens = (_words(row, name, place) for name in ("source_tokens", "tokens"))
    I, J = len(tokens), len(source_tokens)
    return OutputLine(
        text=row["text"],
        source_tokens=source_tokens,
        tokens=tokens,
        score=row.get("score"),
        alignment=_numbers(row, "alignment", (I, J), place),
        coverage=_numbers(row, "coverage", (J,), place),
        fertility=_numbers(row, "fertility", (J,), place),
    )


def _is_json(line: str) -> bool:
    try:
        row = json.loads(line)
    except PARSE_ERRORS:
        return False
    return isinstance(row, dict) and "text" in row


def _is_text(value: Any) -> bool:
    """A string that can be written; JSON's escapes can name halves of characters."""
    return isinstance(value, str) and not SURROGATE.search(value)


def _words(row: dict[str, Any], name: str, place: str) -> tuple[str, ...]:
    words = row.get(name, [])
    if not isinstance(words, list) or not all(map(_is_text, words)):
        raise UserError(f'{place}: "{name}" should be a list of words')
    return tuple(words)


def _numbers(
    row: dict[str, Any], name: str, shape: tuple[int, ...], place: str
) -> FloatArray | None:
    if row.get(name) is None:
        return None
    try:
        values = np.array(row[name], dtype=np.float32)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f'{place}: "{name}" should hold numbers, row by row') from None
    # an empty translation has no rows, and then JSON cannot say how long they are
    if values.size == 0 and 0 in shape:
        return np.zeros(shape, dtype=np.float32)
    if values.shape != shape or not np.isfinite(values).all():
        expected = " x ".join(map(str, shape))
        raise UserError(
            f'{place}: "{name}" should hold {expected} finite numbers, as many as words'
        )
    if name == "alignment" and (values < 0).any():
        raise UserError(f'{place}: "{name}" holds negative weights')
    return values
