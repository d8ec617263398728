"""Text with inline markup: what a reader sees, where its tags are, and what must stay as it is.

A document is a list of such texts and of markup between them that stays. After translation, the
tags are put where the attention says (`inference/documents.py`).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

MAX_DEPTH = 50  # of nested inline elements; tags of deeper ones are single marks


@dataclass(frozen=True)
class InlineMark:
    """Tags around the characters from `start` to `end`; without text inside, `closing` is empty.

    `depth` is the number of elements around it.
    """

    start: int
    end: int
    opening: str
    closing: str = ""
    depth: int = 0


@dataclass(frozen=True)
class KeptText:
    """Characters that are not translated, such as code; `markup` is how the document has them."""

    start: int
    end: int
    markup: str


@dataclass(frozen=True)
class MarkedText:
    """A text to translate; marks are in the order of their openings, so outer before inner ones."""

    text: str
    marks: tuple[InlineMark, ...] = ()
    kept: tuple[KeptText, ...] = ()
    escape: Callable[[str], str] = str  # of characters that would be markup
    finish: Callable[[str], str] = str  # of the whole translation with its markup

    def has_words(self) -> bool:
        """Tell whether there is anything to translate."""
        return any(character.isalnum() for character in self.text)


# Markup that stays, and texts to translate, in order.
Document = list[str | MarkedText]


@dataclass(frozen=True)
class _OpenTag:
    name: str
    opening: str
    start: int
    order: int
    marks_before: int


@dataclass
class MarkedTextBuilder:
    """Builds a marked text from left to right.

    With `collapse`, runs of white space become one space, and there is none at both ends.
    """

    collapse: bool = False
    pieces: list[str] = field(default_factory=list)
    length: int = 0
    kept: list[KeptText] = field(default_factory=list)
    marks: list[tuple[int, InlineMark]] = field(default_factory=list)  # with the order of openings
    stack: list[_OpenTag] = field(default_factory=list)
    openings: int = 0

    def add_text(self, text: str) -> None:
        """Append characters."""
        if self.collapse:
            text = collapse_space(text)
            if not self.pieces or self.pieces[-1][-1] in " \n":
                text = text.removeprefix(" ")
        if text:
            self.pieces.append(text)
            self.length += len(text)

    def keep(self, text: str, markup: str) -> None:
        """Append characters that must stay as they are; without any, only their markup counts."""
        if not text:
            self.mark(markup)
            return
        self.kept.append(KeptText(self.length, self.length + len(text), markup))
        self.pieces.append(text)
        self.length += len(text)

    def mark(self, markup: str) -> None:
        """Add markup at this position."""
        self.openings += 1
        self._add(self.openings, InlineMark(self.length, self.length, markup))

    def open(self, name: str, opening: str) -> None:
        """Begin an element."""
        if len(self.stack) == MAX_DEPTH:
            self.mark(opening)
            return
        self.openings += 1
        tag = _OpenTag(name, opening, self.length, self.openings, len(self.marks))
        self.stack.append(tag)

    def is_open(self, name: str) -> bool:
        """Tell whether such an element has begun."""
        return self.depth(name) >= 0

    def depth(self, name: str) -> int:
        """Return how many elements are around the innermost one of this name; -1: there is none."""
        names = [tag.name for tag in self.stack]
        return len(names) - 1 - names[::-1].index(name) if name in names else -1

    def close(self, name: str, closing: str) -> None:
        """End the innermost element of this name; a stray end tag stays where it is."""
        if not self.is_open(name):
            self.mark(closing)
            return
        while self.stack[-1].name != name:
            self._abandon()
        tag = self.stack.pop()
        if tag.start == self.length:  # nothing inside but markup
            inner = sorted(self.marks[tag.marks_before :], key=lambda entry: entry[0])
            del self.marks[tag.marks_before :]
            markup = tag.opening + "".join(mark.opening for _, mark in inner) + closing
            self._add(tag.order, InlineMark(tag.start, tag.start, markup))
        else:
            self._add(tag.order, InlineMark(tag.start, self.length, tag.opening, closing))

    def build(self, escape: Callable[[str], str] = str) -> MarkedText:
        """Return the text; elements that are still open keep their tags as single marks."""
        while self.stack:
            self._abandon()
        text = "".join(self.pieces)
        text = text.rstrip(" ") if self.collapse else text
        marks = [
            replace(mark, start=min(mark.start, len(text)), end=min(mark.end, len(text)))
            for _, mark in sorted(self.marks, key=lambda entry: entry[0])
        ]
        return MarkedText(text, tuple(marks), tuple(self.kept), escape)

    def _abandon(self) -> None:
        tag = self.stack.pop()
        self._add(tag.order, InlineMark(tag.start, tag.start, tag.opening))

    def _add(self, order: int, mark: InlineMark) -> None:
        self.marks.append((order, replace(mark, depth=len(self.stack))))


def collapse_space(text: str) -> str:
    """Make one space of each run of spaces, tabs and line breaks; other white space stays."""
    words = [word for word in text.translate(_SPACES).split(" ") if word]
    if not words:
        return " " if text else ""
    return " " * (text[0] in SPACE) + " ".join(words) + " " * (text[-1] in SPACE)


SPACE = " \t\r\n\f"  # of HTML
LINE = re.compile(r"[^\n\r]*(?:\r\n|\n|\r|\Z)")  # with its line break
_SPACES = str.maketrans(dict.fromkeys(SPACE, " "))
