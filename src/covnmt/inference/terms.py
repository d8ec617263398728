"""Terms that must stay as they are, or be translated as given.

A sentence is translated as it is. If the translation lacks a term, the sentence is translated again
with numbers in place of its terms, which models usually copy. A term that is lost there too is put
where the attention was on it; the report says so, as the sentence around it may not fit.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from unicodedata import normalize

import numpy as np

from covnmt.base.errors import UserError
from covnmt.base.files import read_lines
from covnmt.inference.aligned_text import (
    AlignedText,
    Replacement,
    Span,
    best_range,
    is_one_word,
    overlaps_any,
)
from covnmt.text.sentences import END_MARKS

# Models copy these more often than words, letters or other numbers.
PLACEHOLDERS = tuple(str(digit) * 4 for digit in (7, 8, 5, 3, 6, 9, 4, 2, 1))


@dataclass(frozen=True)
class RequiredText:
    """A span of a sentence, and what must stand for it in the translation."""

    start: int
    end: int
    text: str
    is_term: bool = True  # otherwise markup requires it

    @property
    def span(self) -> Span:
        return self.start, self.end


@dataclass(frozen=True)
class TermReport:
    """A term of a text, as given; `inserted` if the translation lacked it."""

    source: str
    target: str
    inserted: bool


@dataclass(frozen=True)
class Terms:
    """Terms by their source; `find` finds them in a text."""

    targets: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> "Terms":
        """Read lines of a term, a tab, its translation; a term alone stays as it is."""
        targets: dict[str, str] = {}
        for number, line in enumerate(read_lines(path), 1):
            if not line.strip():
                continue
            source, _, target = map(str.strip, line.partition("\t"))
            if not source or "\t" in target:
                raise UserError(f"{path}, line {number}: write a term, a tab, its translation")
            if targets.setdefault(source, target or source) != (target or source):
                raise UserError(f"{path}, line {number}: {source} has another translation above")
        return cls(targets)

    def find(self, text: str) -> Iterator[RequiredText]:
        """Yield the terms of a text that are whole words, the longest where several begin."""
        if not self.targets:
            return
        position = 0
        while match := self._first_characters.search(text, position):
            start = match.start()
            position = start + 1
            end = self._longest_at(text, start)
            if end and is_whole_word(text, (start, end)):
                yield RequiredText(start, end, self.targets[text[start:end]])
                position = end

    def _longest_at(self, text: str, start: int) -> int:
        """Return where the longest term ends that begins here, 0 if none does."""
        end, node = 0, self._tree
        for position in range(start, len(text)):
            if (child := node.children.get(text[position])) is None:
                break
            node = child
            end = position + 1 if node.is_term else end
        return end

    @cached_property
    def _first_characters(self) -> re.Pattern[str]:
        return re.compile(f"[{re.escape(''.join(self._tree.children))}]")

    @cached_property
    def _tree(self) -> "_TermNode":
        root = _TermNode()
        for term in self.targets:
            node = root
            for character in term:
                node = node.children.setdefault(character, _TermNode())
            node.is_term = True
        return root


@dataclass
class _TermNode:
    """The beginning of some terms: what may follow, and whether it is a term itself.

    A regular expression of all terms would take long on a text that nearly has them everywhere.
    """

    children: "dict[str, _TermNode]" = field(default_factory=dict)
    is_term: bool = False


NO_TERMS = Terms({})


def is_whole_word(text: str, span: Span) -> bool:
    """Tell whether a span is not a part of a longer word."""
    start, end = span
    return not (
        is_one_word(text[start - 1 : start], text[start : start + 1])
        or is_one_word(text[end - 1 : end], text[end : end + 1])
    )


def find_required(text: str, required: Sequence[RequiredText]) -> list[Span | None]:
    """Return where a translation has each required text, None where it does not.

    Letters may be in the other case, as at the beginning of a sentence.
    """
    taken = bytearray(len(text))  # 1 for every character that stands for a required text
    occurrences: dict[str, Iterator[Span]] = {}  # of each required text, those not looked at yet
    spans: list[Span | None] = []
    for requirement in required:
        if requirement.text not in occurrences:
            occurrences[requirement.text] = _occurrences(requirement.text, text)
        span = next((s for s in occurrences[requirement.text] if 1 not in taken[slice(*s)]), None)
        spans.append(span)
        _mark(taken, span)
    return spans


def _occurrences(required: str, text: str) -> Iterator[Span]:
    """Yield where a text has what is required, as whole words."""
    for match in re.finditer(re.escape(required), text, re.IGNORECASE):
        if is_whole_word(text, match.span()):
            yield match.span()


def mask_required(
    text: str, required: Sequence[RequiredText], lost: Sequence[bool]
) -> tuple[str, list[RequiredText]]:
    """Replace lost terms by numbers; return the text, and what to look for in its translation.

    Without enough numbers that the text does not have, the other terms stay.
    """
    normal = normalize("NFKC", text)
    numbers = iter([number for number in PLACEHOLDERS if number not in normal])
    masked, position, sought = "", 0, list[RequiredText]()
    for requirement, is_lost in zip(required, lost, strict=True):
        masked += text[position : requirement.start]
        number = next(numbers, None) if is_lost else None
        start, position = len(masked), requirement.end
        masked += number or text[requirement.start : requirement.end]
        sought.append(RequiredText(start, len(masked), number or requirement.text))
    return masked + text[position:], sought


def has_stray_number(source: str, text: str, positions: Sequence[Span | None]) -> bool:
    """Tell whether a translation has a placeholder, or a part of one, anywhere else."""
    numbers = (match for match in re.finditer(r"(\d)\1{2,}", text) if match[0] not in source)
    used = [span for span in positions if span]
    return any(not overlaps_any(match.span(), used) for match in numbers)


def insert_required(
    aligned: AlignedText,
    sources: Sequence[Span],
    required: Sequence[RequiredText],
    positions: Sequence[Span | None],
) -> tuple[AlignedText, list[Span]]:
    """Put required texts at these positions of a translation, and by attention where there is none.

    `sources` are their spans in what was translated. Also return where they are in the result.
    """
    targets: list[Span | None] = list(positions)
    taken = bytearray(len(aligned.text))  # 1 for every character that is replaced
    for target in targets:
        _mark(taken, target)
    for number, source in enumerate(sources):
        if targets[number] is None:
            targets[number] = _place_by_attention(aligned, source, taken)
            _mark(taken, targets[number])
    return aligned.replace_words(
        [
            Replacement(target, requirement.text, source)
            for target, requirement, source in zip(targets, required, sources, strict=True)
            if target is not None
        ]
    )


def _mark(taken: bytearray, span: Span | None) -> None:
    if span is not None:
        taken[slice(*span)] = b"\1" * (span[1] - span[0])


def _place_by_attention(aligned: AlignedText, source: Span, taken: bytearray) -> Span:
    """Return the words that a source span became, or an empty span where they should have been."""
    weights = aligned.weights(source)
    for k, (start, end) in enumerate(aligned.words):
        if 1 in taken[start:end]:
            weights[k] = -np.inf
        elif not any(map(str.isalnum, aligned.text[start:end])):
            weights[k] = min(weights[k], 0)  # no term begins or ends with punctuation
    if not np.isfinite(weights).any():
        end = max(len(aligned.text.rstrip(END_MARKS)), taken.rfind(1) + 1)
        return end, end
    first, last, total = best_range(weights)
    start = aligned.words[first][0]
    # without a word that was translated from it, it goes before the one that comes closest
    return (start, aligned.words[last - 1][1]) if total > 0 else (start, start)
