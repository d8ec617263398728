"""Read the output of a system: lines of `covnmt translate --json`, or plain text.

JSON lines have tokens, attention and coverage too. Letters: I target words, J source words.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from covnmt.base.arrays import FloatArray
from covnmt.base.errors import UserError
from covnmt.base.files import PARSE_ERRORS, read_input_lines
from covnmt.metrics.alignment import GoldAlignment, Links

T = TypeVar("T", str, GoldAlignment)

SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, eq=False)
class OutputLine:
    """One translation, with attention, coverage and fertility if the file has them."""

    text: str
    source_tokens: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    score: float | None = None
    alignment: FloatArray | None = None  # [I, J]
    coverage: FloatArray | None = None  # [J]
    fertility: FloatArray | None = None  # [J]


@dataclass(frozen=True)
class SystemOutput:
    """The output of one system for a test set, and what the system attended to.

    text: its translations.
    reference_attention: soft matrices of the first reference, force-decoded by the system
        (`covnmt align`); they give AER and SAER.
    links: links of any aligner for source and first reference; AER prefers them.
    reverse_links: links of the opposite direction, joined with the others.
    attention: soft matrices of the system's own output.
    output_links: links of any aligner for source and output.
    fertility: predicted fertility of each source word.
    """

    text: Sequence[str]
    reference_attention: Sequence[FloatArray] | None = None
    links: Sequence[Links] | None = None
    reverse_links: Sequence[Links] | None = None
    attention: Sequence[FloatArray] | None = None
    output_links: Sequence[Links] | None = None
    fertility: Sequence[Sequence[float]] | None = None
    files: Mapping[str, str] = field(default_factory=dict)


def combine_output_lines(
    lines: Sequence[OutputLine], reference_attention: Sequence[FloatArray] | None = None
) -> SystemOutput:
    """Combine a system's lines; attention and fertility only if all lines have them."""
    alignments = [line.alignment for line in lines if line.alignment is not None]
    fertilities = [line.fertility for line in lines if line.fertility is not None]
    n = len(lines)
    return SystemOutput(
        text=[line.text for line in lines],
        reference_attention=reference_attention,
        attention=alignments if len(alignments) == n else None,
        fertility=[f.tolist() for f in fertilities] if len(fertilities) == n else None,
    )


def read_outputs(path: Path, sentences: int | None = None) -> list[OutputLine]:
    """Read a system's output; "-" is standard input.

    If the number of `sentences` is given, one blank line too many at the end is ignored.
    """
    lines = list(read_input_lines(path))
    if sentences is not None:
        lines = drop_blank_last_row(lines, sentences)
    if not lines:
        raise UserError(f"{path}: empty; expected a translation on every line")
    if not _is_json(lines[0]):
        return [OutputLine(text=line) for line in lines]
    return [parse_output_line(line, f"{path}, line {n}") for n, line in enumerate(lines, 1)]


def drop_blank_last_row(rows: list[T], sentences: int) -> list[T]:
    """Drop the last row if it is blank and one too many; `check_evaluation_inputs` finds others."""
    if not rows or len(rows) != sentences + 1:
        return rows
    last = rows[-1]
    content = last.possible if isinstance(last, GoldAlignment) else last.strip()
    return rows if content else rows[:-1]


def parse_output_line(line: str, where: str) -> OutputLine:
    """Parse one JSON line; `where` names it in messages."""
    try:
        row = json.loads(line)
    except PARSE_ERRORS as error:
        raise UserError(f"{where}: not valid JSON ({error}); was the file cut off?") from None
    if not isinstance(row, dict) or not _is_text(row.get("text")):
        raise UserError(f'{where}: no "text"; expected a line of `covnmt translate --json`')
    source_tokens, tokens = (
        _parse_tokens(row, name, where) for name in ("source_tokens", "tokens")
    )
    I, J = len(tokens), len(source_tokens)
    return OutputLine(
        text=row["text"],
        source_tokens=source_tokens,
        tokens=tokens,
        score=row.get("score"),
        alignment=_parse_array(row, "alignment", (I, J), where),
        coverage=_parse_array(row, "coverage", (J,), where),
        fertility=_parse_array(row, "fertility", (J,), where),
    )


def _is_json(line: str) -> bool:
    try:
        row = json.loads(line)
    except PARSE_ERRORS:
        return False
    return isinstance(row, dict) and "text" in row


def _is_text(value: Any) -> bool:
    """Return whether a value is a string of whole characters; JSON can escape half of one."""
    return isinstance(value, str) and not SURROGATE.search(value)


def _parse_tokens(row: dict[str, Any], name: str, where: str) -> tuple[str, ...]:
    tokens = row.get(name, [])
    if not isinstance(tokens, list) or not all(map(_is_text, tokens)):
        raise UserError(f'{where}: "{name}" should be a list of words')
    return tuple(tokens)


def _parse_array(
    row: dict[str, Any], name: str, shape: tuple[int, ...], where: str
) -> FloatArray | None:
    if row.get(name) is None:
        return None
    try:
        values = np.array(row[name], dtype=np.float32)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f'{where}: "{name}" should hold numbers, row by row') from None
    # an empty translation has no rows, and then JSON cannot say how long they are
    if values.size == 0 and 0 in shape:
        return np.zeros(shape, dtype=np.float32)
    if values.shape != shape or not np.isfinite(values).all():
        expected = " x ".join(map(str, shape))
        raise UserError(
            f'{where}: "{name}" should hold {expected} finite numbers, as many as words'
        )
    if name == "alignment" and (values < 0).any():
        raise UserError(f'{where}: "{name}" holds negative weights')
    return values
