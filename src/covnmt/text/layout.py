"""A text cut into sentences, and put together again with its layout kept.

Borders are line breaks, white space after the end of a sentence, and the full stops of Chinese and
Japanese, which no space follows; after what a sentence quotes it goes on: 「行く。」と言った。
A text of n sentences has n + 1 gaps around them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

# What follows a quotation or a bracket inside a sentence: particles, but for words like them that
# begin one (ところが, のちに).
GOES_ON = (
    "と(?!ころ|ても|はいえ|もに|きに|りわけ|くに)|など"
    "|[はをにの](?![ぁ-ん])|[がでもへや](?![ぁ-ん、])"
)
CLOSED = r"」』”’）)\]】〕》〉"
PLACES = re.compile(
    rf"\s+|(?<=[。！？])(?![{CLOSED}。！？\s])"
    rf"|(?:(?<=[。！？][{CLOSED}])|(?<=[。！？][{CLOSED}]{{2}}))(?![{CLOSED}]|{GOES_ON})(?=\S)"
)
LINE_BREAK = re.compile(r"[\n\r\x0b\x0c\x85\u2028\u2029]")
ALWAYS_ENDS = "。！？"
ENDS = f".!?…{ALWAYS_ENDS}"
CLOSING = "\"'»”’)]」』）"
ABBREVIATIONS = frozenset(
    ("mr", "mrs", "ms", "dr", "prof", "st", "no", "vs", "cf", "fig", "e.g", "i.e")
)


@dataclass(frozen=True)
class Layout:
    """Sentences, and what stands before, between and after them."""

    sentences: tuple[str, ...]
    gaps: tuple[str, ...]

    def join(self, sentences: Sequence[str]) -> str:
        """Other sentences in the same places; those that touched are set apart by a space."""
        text = self.gaps[0]
        for sentence, gap in zip(sentences, self.gaps[1:], strict=True):
            touching = text and not text[-1].isspace() and text[-1].isascii()
            text += (" " if touching and sentence else "") + sentence + gap
        return text


def split_text(text: str) -> Layout:
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
    return Layout(tuple(sentences), tuple(gaps))


def _is_border(text: str, place: re.Match[str]) -> bool:
    if place.start() == 0 or place.end() == len(text) or not place[0]:
        return True
    return bool(LINE_BREAK.search(place[0])) or _ends_sentence(text, place)


def _ends_sentence(text: str, place: re.Match[str]) -> bool:
    """Does the word before this white space end a sentence, and a new one begin after it?"""
    last = text[max(0, place.start() - 20) : place.start()].split()[-1].rstrip(CLOSING)
    if last[-1:] in tuple(ALWAYS_ENDS):
        return True
    if last[-1:] not in tuple(ENDS) or text[place.end()].islower():
        return False
    word = last.rstrip(ENDS).lower()
    return last[-1] != "." or (len(word) != 1 and word not in ABBREVIATIONS)
