"""Split text into sentences, and join translations of them with the same layout.

Sentences end at line breaks, at white space after an end mark, and at full stops that have no other
use, such as those of Chinese, Japanese and Hindi, with or without a space. A quoted sentence does
not end the one around it: 「行く。」と言った。 A text of n sentences has n + 1 gaps around them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from covnmt.text.characters import is_full_width

# Particles that continue a sentence after a quotation or bracket, but not the words that look alike
# and begin a sentence (ところが, のちに).
CONTINUATION = (
    "と(?!ころ|ても|はいえ|もに|きに|りわけ|くに)|など"
    "|[はをにの](?![ぁ-ん])|[がでもへや](?![ぁ-ん、])"
)
BRACKETS = r"」』”’）)\]】〕》〉"
FULL_STOPS = "।॥۔։።፧။។"  # of Hindi, Urdu, Armenian, Amharic, Burmese, Khmer
BOUNDARY_CANDIDATE = re.compile(
    rf"\s+|(?<=[{FULL_STOPS}])(?=\w)|(?<=[。！？])(?![{BRACKETS}。！？\s])"
    rf"|(?:(?<=[。！？][{BRACKETS}])|(?<=[。！？][{BRACKETS}]{{2}}))(?![{BRACKETS}]|{CONTINUATION})(?=\S)"
)
LINE_BREAK = re.compile(r"[\n\r\x0b\x0c\x85\u2028\u2029]")
ALWAYS_END_MARKS = f"。！？{FULL_STOPS}"
END_MARKS = f".!?…؟{ALWAYS_END_MARKS}"
SPACED_CLOSING = re.compile(r"\s+»(?=\s|$)")  # French
OPENING_MARKS = "\"'«»‹›„“‘([「『（"
CLOSING_MARKS = "\"'«»‹›“”‘’)]」』）"
ENGLISH = "mr mrs ms dr prof st vs cf approx e.g i.e al"
SPANISH = "sr sra"
GERMAN = "bzw ca d.h i.d.r u.a u.u z.b z.t mio mrd tsd ff vgl evtl ggf inkl exkl zzgl bspw sog"
ABBREVIATIONS = frozenset(f"{ENGLISH} {SPANISH} {GERMAN}".split())
# They do not end a sentence before a number; elsewhere they are words too ("no", German "Art").
BEFORE_NUMBERS = frozenset(("no", "nr", "fig", "vol", "pp", "sec", "eq", "art", "abs", "kap", "bd"))
# German dates and centuries: a number with a full stop before a capitalized noun.
ORDINAL = re.compile(
    r"\d\d?\.\s+(?:Jahrhundert|Januar|Februar|März|April|Mai|Juni|Juli|August|September|Oktober"
    r"|November|Dezember)"
)


@dataclass(frozen=True)
class SplitText:
    """Sentences, and the text before, between and after them."""

    sentences: tuple[str, ...]
    gaps: tuple[str, ...]

    def join(self, sentences: Sequence[str]) -> str:
        """Put other sentences in their places, with a space where two would touch."""
        return "".join(self.pieces(sentences))

    def pieces(self, sentences: Sequence[str]) -> list[str]:
        """Return gaps and other sentences in turn, from the first gap to the last one."""
        pieces, last = [self.gaps[0]], self.gaps[0][-1:]
        for sentence, gap in zip(sentences, self.gaps[1:], strict=True):
            pieces[-1] += " " if _needs_space(last, sentence[:1]) else ""
            pieces += [sentence, gap]
            last = (last + sentence + gap)[-1:]
        return pieces


def split_into_sentences(text: str) -> SplitText:
    """Find the sentences of a text and the gaps around them."""
    sentences, gaps, start = [], [""], 0
    for match in BOUNDARY_CANDIDATE.finditer(text):
        if _is_boundary(text, match):
            if match.start() > start:
                sentences.append(text[start : match.start()])
                gaps.append("")
            gaps[-1] += match[0]
            start = match.end()
    if start < len(text):
        sentences.append(text[start:])
        gaps.append("")
    return SplitText(tuple(sentences), tuple(gaps))


def _needs_space(before: str, after: str) -> bool:
    """Tell whether a space belongs between these characters; full-width ones need none."""
    if not before or not after or before.isspace():
        return False
    return before.isascii() or not (is_full_width(before) or is_full_width(after))


def _is_boundary(text: str, match: re.Match[str]) -> bool:
    if match.start() == 0 or match.end() == len(text) or not match[0]:
        return True
    return bool(LINE_BREAK.search(match[0])) or _ends_sentence(text, match)


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    """Tell whether a sentence ends before this white space and another begins after it."""
    if SPACED_CLOSING.match(text, match.start()):
        return False
    before = SPACED_CLOSING.sub("", text[max(0, match.start() - 20) : match.start()])
    last = (before.split() or [""])[-1].rstrip(CLOSING_MARKS)
    if last[-1:] in tuple(ALWAYS_END_MARKS):
        return True
    if last[-1:] not in tuple(END_MARKS) or text[match.end()].islower():
        return False
    if last[-1] != ".":
        return True
    word, ordinal = last.rstrip(END_MARKS).lower(), ORDINAL.match(text, match.start() - len(last))
    word = word.lstrip(OPENING_MARKS)
    if word in BEFORE_NUMBERS and text[match.end()].isdecimal():
        return False
    return len(word) != 1 and word not in ABBREVIATIONS and not ordinal
