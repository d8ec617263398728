"""A web page of pairs in which something was found, with the omitted parts marked."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from covnmt.base.files import write_bytes
from covnmt.evaluation.rendering import render_template
from covnmt.inference.check_output import Finding, findings
from covnmt.inference.omissions import CheckedPair, OmissionReport


@dataclass(frozen=True)
class TextPiece:
    """A part of the source: omitted with this probability, or not marked."""

    text: str
    probability: float | None


@dataclass(frozen=True)
class PageRow:
    """A sentence pair as the page shows it: the source in pieces, and what was found."""

    id: str
    pieces: Sequence[TextPiece]
    target: str
    findings: Sequence[Finding]


def write_omission_page(path: Path, pairs: Iterable[CheckedPair], summary: str) -> None:
    """Write the page."""
    rows = [row for pair in pairs if (row := page_row(pair)).findings]
    content = render_template("omissions.html", rows=rows, summary=summary)
    write_bytes(path, content.encode())


def page_row(checked: CheckedPair) -> PageRow:
    """Split the source of a pair into marked and other text."""
    pair, report = checked
    pieces, end = list[TextPiece](), 0
    if isinstance(report, OmissionReport):
        for omission in report.omissions:
            pieces.append(TextPiece(pair.source[end : omission.start_char], None))
            end = omission.end_char
            pieces.append(TextPiece(pair.source[omission.start_char : end], omission.probability))
    pieces.append(TextPiece(pair.source[end:], None))
    return PageRow(pair.id, pieces, pair.target, [*findings(report)])
