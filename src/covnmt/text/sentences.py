"""A text cut into sentences, and put together again with its layout kept.

Borders are line breaks, white space after the end of a sentence, and full stops that end nothing
else, as those of Chinese, Japanese and Hindi, whether a space follows or not; after what a
sentence quotes it goes on: 「行く。」と言った。
A text of n sentences has n + 1 gaps around them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from covnmt.text.characters import is_full_width

# What follows a quotation or a bracket inside a sentence: particles, but for words like them that
# begin one (ところが, のちに).
GOES_ON = (
    "と(?!ころ|ても|はいえ|もに|きに|りわけ|くに)|など"
    "|[はをにの](?![ぁ-ん])|[がでもへや](?![ぁ-ん、])"
)
CLOSED = r"」』”’）)\]】〕》〉"
FULL_STOPS = "।॥۔։።፧။។"  # of Hindi, Urdu, Armenian, Amharic, Burmese, Khmer
PLACES = re.compile(
    rf"\s+|(?<=[{FULL_STOPS}])(?=\w)|(?<=[。！？])(?![{CLOSED}。！？\s])"
    rf"|(?:(?<=[。！？][{CLOSED}])|(?<=[。！？][{CLOSED}]{{2}}))(?![{CLOSED}]|{GOES_ON})(?=\S)"
)
LINE_BREAK = re.compile(r"[\n\r\x0b\x0c\x85\u2028\u2029]")
ALWAYS_ENDS = f"。！？{FULL_STOPS}"
ENDS = f".!?…؟{ALWAYS_ENDS}"
SPACED_CLOSING = re.compile(r"\s+»(?=\s|$)")  # French
CLOSING = "\"'«»‹›“”‘’)]」』）"
ENGLISH = ("mr", "mrs", "ms", "dr", "prof", "st", "no", "vs", "cf", "fig", "e.g", "i.e")
SPANISH, GERMAN = ("sr", "sra"), ("bzw", "ca", "d.h", "nr", "u.a", "z.b")
ABBREVIATIONS = frozenset((*ENGLISH, *SPANISH, *GERMAN))
# German days and centuries are numbers with a full stop, and what follows has a capital.
ORDINAL = re.compile(
    r"\d\d?\.\s+(?:Jahrhundert|Januar|Februar|März|April|Mai|Juni|Juli|August|September|Oktober"
    r"|November|Dezember)"
)


@dataclass(frozen=True)
class SplitText:
    """Sentences, and what stands before, between and after them."""

    sentences: tuple[str, ...]
    gaps: tuple[str, ...]

    def join(self, sentences: Sequence[str]) -> str:
        """Other sentences in the same places; those that touched are set apart by a space."""
        text = self.gaps[0]
        for sentence, gap in zip(sentences, self.gaps[1:], strict=True):
            text += (" " if _needs_space(text[-1:], sentence[:1]) else "") + sentence + gap
        return text


def split_into_sentences(text: str) -> SplitText:
    """Find the sentences of a text."""
    sentences, gaps, start = [], [""], 0
    for place in PLACES.finditer(text):
        if _is_border(text, place):
            if place.start() > start:
                sentences.append(text[start : place.start()])
                gaps.append("")
            gaps[-1] += place[0]
            start = place.end()
    if start < len(text):
        sentences.append(text[start:])
        gaps.append("")
    return SplitText(tuple(sentences), tuple(gaps))


def _needs_space(before: str, after: str) -> bool:
    """Between two sentences that end and begin so; the full width of Chinese needs none."""
    if not before or not after or before.isspace():
        return False
    return before.isascii() or not (is_full_width(before) or is_full_width(after))


def _is_border(text: str, place: re.Match[str]) -> bool:
    if place.start() == 0 or place.end() == len(text) or not place[0]:
        return True
    return bool(LINE_BREAK.search(place[0])) or _ends_sentence(text, place)


def _ends_sentence(text: str, place: re.Match[str]) -> bool:
    """Does the word before this white space end a sentence, and a new one begin after it?"""
    if SPACED_CLOSING.match(text, place.start()):
        return False
    before = SPACED_CLOSING.sub("", text[max(0, place.start() - 20) : place.start()])
    last = (before.split() or [""])[-1].rstrip(CLOSING)
    if last[-1:] in tuple(ALWAYS_ENDS):
        return True
    if last[-1:] not in tuple(ENDS) or text[place.end()].islower():
        return False
    if last[-1] != ".":
        return True
    word, ordinal = last.rstrip(ENDS).lower(), ORDINAL.match(text, place.start() - len(last))
    return len(word) != 1 and word not in ABBREVIATIONS and not ordinal
