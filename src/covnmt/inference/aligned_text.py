"""Where the tokens of a translation are in its text, and which of them belong to a source span."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from unicodedata import normalize

import numpy as np

from covnmt.base.arrays import FloatArray, IntArray
from covnmt.inference.translate import Translation
from covnmt.text.characters import is_unspaced_script
from covnmt.text.tokenize import (
    SPACE_SYMBOL,
    is_byte_token,
    is_continuation_byte,
    spell_byte_tokens,
)

Span = tuple[int, int]  # characters from, and up to

MAX_COMPARISONS = 40_000  # of characters; longer texts are matched by proportion


@dataclass(frozen=True)
class AlignedText:
    """A translation, and the attention of its words to the tokens of the sentence."""

    text: str  # the translation
    words: tuple[Span, ...]  # of the translation
    source_spans: tuple[Span, ...]
    attention: FloatArray  # [words, source tokens], summed over the tokens of a word

    @classmethod
    def from_translation(cls, source: str, translation: Translation) -> "AlignedText":
        """Find the tokens of both sides in the texts, and join the subwords of a word."""
        text = translation.text
        words, rows = list[Span](), list[FloatArray]()
        for (start, end), row in zip(
            token_spans(translation.tokens, text), translation.alignment, strict=True
        ):
            if start == end:
                continue
            if words and words[-1][1] == start and is_one_word(text[start - 1], text[start]):
                words[-1], rows[-1] = (words[-1][0], end), rows[-1] + row
            else:
                words.append((start, end))
                rows.append(row)
        source_spans = tuple(token_spans(translation.source_tokens, source))
        return cls(text, tuple(words), source_spans, _matrix(rows, len(source_spans)))

    @classmethod
    def unchanged(cls, text: str) -> "AlignedText":
        """Return a text that is its own translation, as one word."""
        span = (0, len(text))
        return cls(text, (span,), (span,), np.ones((1, 1), dtype=np.float32))

    def weights(self, source: Span) -> FloatArray:
        """Return for every word whether it translates a span of the source.

        The weight is positive if more than half of its attention is there.
        """
        starts, ends = self._source_bounds
        inside = np.minimum(ends, source[1]) - np.maximum(starts, source[0])
        shares = inside.clip(0) / (ends - starts).clip(1) - 0.5
        weights: FloatArray = self.attention @ shares.astype(np.float32)
        return weights

    @cached_property
    def _source_bounds(self) -> IntArray:
        """The first characters of the source tokens, and those after the last ones [2, J]."""
        return np.array(self.source_spans, dtype=np.int64).reshape(-1, 2).T

    def replace_words(
        self, replacements: "Sequence[Replacement]"
    ) -> "tuple[AlignedText, list[Span]]":
        """Replace spans of the translation; return the result, and where the new texts are."""
        text, words, rows, position = "", list[Span](), list[FloatArray](), 0
        spans = dict[int, Span]()

        def copy_until(end: int) -> None:
            nonlocal text
            shift = len(text) - position
            for (start, stop), row in zip(self.words, self.attention, strict=True):
                if position <= start < stop <= end:
                    words.append((start + shift, stop + shift))
                    rows.append(row)
            text += self.text[position:end]

        for number, new in sorted(enumerate(replacements), key=lambda entry: entry[1].target):
            copy_until(new.target[0])
            position = new.target[1]
            text += " " * is_one_word(text[-1:], new.text[:1])
            spans[number] = (len(text), len(text) + len(new.text))
            words.append(spans[number])
            rows.append(np.array([share_inside(span, new.source) for span in self.source_spans]))
            text += new.text
            text += " " * is_one_word(text[-1:], self.text[position : position + 1])
        copy_until(len(self.text))
        matrix = _matrix(rows, len(self.source_spans))
        aligned = AlignedText(text, tuple(words), self.source_spans, matrix)
        return aligned, [spans[number] for number in range(len(replacements))]


def _matrix(rows: Sequence[FloatArray], columns: int) -> FloatArray:
    return np.array(rows, dtype=np.float32).reshape(len(rows), columns)


@dataclass(frozen=True)
class Replacement:
    """Text for a span of the translation, and the source span that it translates."""

    target: Span
    text: str
    source: Span


def is_one_word(before: str, after: str) -> bool:
    """Tell whether two characters belong to one word, in scripts with spaces between words."""
    return all(
        character.isalnum()
        and not is_unspaced_script(character)
        and not "\uac00" <= character <= "\ud7a3"  # Korean particles follow without a space
        for character in (before, after)
    )


def share_inside(span: Span, other: Span) -> float:
    """Return the share of a span that is inside another one."""
    length = span[1] - span[0]
    return max(0, min(span[1], other[1]) - max(span[0], other[0])) / length if length else 0.0


def overlaps_any(span: Span, others: Sequence[Span]) -> bool:
    """Tell whether a span has characters of any of these."""
    return any(start < span[1] and span[0] < end for start, end in others)


def best_range(weights: FloatArray) -> tuple[int, int, float]:
    """Return the range, not empty, with the largest sum of weights, and the sum."""
    best, total = max(best_ranges_by_end(weights.tolist()), key=itemgetter(1))
    return best.start, best.stop, total


def best_ranges_by_end(weights: Iterable[float]) -> Iterator[tuple[range, float]]:
    """Yield, for each index, the range that ends there with the largest sum, and the sum."""
    start, total = 0, 0.0
    for index, weight in enumerate(weights):
        if total <= 0:
            start, total = index, 0.0
        total += weight
        yield range(start, index + 1), total


def token_spans(tokens: Sequence[str], text: str) -> list[Span]:
    """Return the characters of a text that each token stands for, whatever the tokenizer.

    The text may have been normalized before it was split, so some are only about right.
    """
    token_letters = [
        (number, letter)
        for number, (token, spelled) in enumerate(
            zip(tokens, spell_byte_tokens(tokens), strict=True)
        )
        for letter in _letters(_spell(token, spelled))
    ]
    text_letters = [
        (position, letter)
        for position, character in enumerate(text)
        for letter in _letters(character)
    ]
    positions = _match(
        "".join(letter for _, letter in token_letters),
        "".join(letter for _, letter in text_letters),
    )
    firsts: dict[int, int] = {}
    lasts: dict[int, int] = {}
    for (number, _), k in zip(token_letters, positions, strict=True):
        if k < len(text_letters):
            position = text_letters[k][0]
            firsts.setdefault(number, position)
            lasts[number] = position + 1
    spans, end = [], 0
    for number in range(len(tokens)):
        start = max(end, firsts.get(number, end))
        end = max(start, lasts.get(number, start))
        spans.append((start, end))
    return spans


def _spell(token: str, spelled: str) -> str:
    """Return the characters of a token; of several bytes the first one has the character."""
    if is_byte_token(token):
        return "" if is_continuation_byte(token) else spelled[:1]
    return token.replace(SPACE_SYMBOL, "")


def _letters(text: str) -> str:
    return "".join(normalize("NFKC", text).casefold().split())


def _match(letters: str, text: str) -> list[int]:
    """Return for every letter the position in a text that is nearly the same."""
    if letters == text:
        return list(range(len(letters)))
    first = _common_start(letters, text)
    last = _common_start(letters[first:][::-1], text[first:][::-1])
    middle, text_middle = letters[first : len(letters) - last], text[first : len(text) - last]
    blocks = [(0, 0, first)]
    if len(middle) * len(text_middle) <= MAX_COMPARISONS:
        matcher = SequenceMatcher(None, middle, text_middle, autojunk=False)
        blocks += [(first + a, first + b, n) for a, b, n in matcher.get_matching_blocks()]
    blocks += [(len(letters) - last, len(text) - last, last), (len(letters), len(text), 0)]
    positions: list[int] = []
    for (a, b, size), (next_a, next_b, _) in pairwise(blocks):
        positions += range(b, b + size)
        gap, room = next_a - a - size, next_b - b - size
        positions += [b + size + k * room // gap for k in range(gap)]
    return positions


def _common_start(text: str, other: str) -> int:
    """Return how many characters two texts have in common at their beginnings."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(text), len(other)))
