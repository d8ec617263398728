"""Print what a check found: lines, JSON, a summary, and warnings about text of another kind."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from covnmt.base.console import warn
from covnmt.inference.domain import DomainMonitor
from covnmt.inference.omissions import CheckedPair, OmissionReport, SkippedPair
from covnmt.text.bilingual_files import NotePosition

NOT_A_TRANSLATION = "NOT A TRANSLATION"
MIN_UNRELATED = 3  # pairs, to suspect that the sides were exchanged or shifted


class Finding(NamedTuple):
    """Something found in a pair."""

    label: str
    probability: float
    text: str

    def __str__(self) -> str:
        text = " ".join(self.text.split())  # on one line, in one column
        return f"{self.label}\t{self.probability:.2f}\t{text}"


def findings(report: OmissionReport | SkippedPair) -> Iterator[Finding]:
    """Yield what was found in a pair."""
    if isinstance(report, SkippedPair):
        return
    if report.is_unrelated:
        yield Finding(NOT_A_TRANSLATION, report.unrelated, "")
    for omission in report.omissions:
        yield Finding("OMISSION", omission.probability, omission.text)


def notes(pairs: Iterable[CheckedPair]) -> Iterator[tuple[NotePosition, str]]:
    """Yield the findings as notes, with their places in the file that the pairs come from."""
    for pair, report in pairs:
        if pair.place:
            yield from ((pair.place, str(finding)) for finding in findings(report))


def format_pairs(pairs: Iterable[CheckedPair], as_json: bool) -> Iterator[str]:
    """Yield output lines: as JSON one per pair, otherwise one per finding."""
    for (name, *_), report in pairs:
        if as_json:
            yield json.dumps({"id": name, **report.to_json()}, ensure_ascii=False)
        else:
            yield from (f"{name}\t{finding}" for finding in findings(report))


@dataclass
class CheckSummary:
    """Counts pairs as they pass."""

    monitor: DomainMonitor | None
    pair_label: str = "pair"  # what a message calls the id of a pair
    pairs: int = 0
    marked: int = 0
    unrelated: int = 0  # of the marked pairs, those that are no translations at all
    skipped: int = 0
    words: int = 0
    judged: int = 0
    unfinished: int = 0  # units of a file without a finished translation
    marked_pairs: list[CheckedPair] = field(default_factory=list)

    def watch(self, pairs: Iterable[CheckedPair]) -> Iterator[CheckedPair]:
        """Pass pairs on; warn of those that are too long, at the end of mistakes in the input."""
        for checked in pairs:
            self.add(checked)
            yield checked
        if self.monitor:
            self.monitor.warn()
        if self.unrelated >= MIN_UNRELATED and self.unrelated > self.pairs / 2:
            warn(
                f"{self.unrelated:,} of {self.pairs:,} pairs are no translations: is the source "
                "first, in the language that the model reads, and are both in the same order?"
            )

    @property
    def nothing_judged(self) -> bool:
        """Whether no word of any pair could be judged."""
        return self.judged == 0

    def add(self, checked: CheckedPair) -> None:
        """Count a pair, and keep it if something was found."""
        pair, report = checked
        self.pairs += 1
        if isinstance(report, SkippedPair):
            self.skipped += 1
            warn(
                f"{self.pair_label} {pair.id}: {report.tokens} tokens, not checked: split it, or "
                f"use --max-tokens {report.tokens}"
            )
            return
        if any(True for _ in findings(report)):
            self.marked += 1
            self.marked_pairs.append(checked)
            self.unrelated += report.is_unrelated
        self.words += report.words
        self.judged += report.judged
        if self.monitor:
            self.monitor.add(pair.source, report.unusual)

    def __str__(self) -> str:
        checked = self.pairs - self.skipped
        share = f" ({self.marked / checked:.1%})" if checked else ""
        pairs = "pair" if checked == 1 else "pairs"
        text = f"{checked:,} {pairs} checked, {self.marked:,} marked{share}"
        if self.skipped:
            text += f"; {self.skipped:,} too long, not checked"
        if self.unfinished:
            text += f"; {self.unfinished:,} not translated yet, not checked"
        if self.judged < self.words:
            text += f"; {self.judged:,} of {self.words:,} source words could be judged"
        return text
