"""The rules of the Moses toolkit, taught scripts and signs that it does not know.

Moses takes for punctuation what is neither letter nor digit, and so tears words apart at tone
marks, accents that are characters of their own, and joiners. In what it joins it leaves spaces
before punctuation of other scripts, beside curly apostrophes and inside curly quotation marks.
"""

import re
import unicodedata
from collections.abc import Sequence
from functools import cache

from covnmt.text.characters import ZERO_WIDTH_JOINERS

# Languages whose apostrophes Moses does not know, and those it treats theirs like: it begins a
# suffix (Ali'nin) as in English, or ends an article (l'amic) as in Italian.
APOSTROPHES = {"az": "en", "be": "en", "ca": "it", "he": "en", "tr": "en", "uk": "en"}
# What belongs to a word after its curly apostrophe: in these languages anything, elsewhere this.
JOINED = ("az", "be", "ca", "fr", "ga", "it", "tr", "uk")
SUFFIX = r"(?:[dmnst]|ll|re|ve)\b"

# Inside words: the hyphens of Hebrew and Catalan, and the signs of Hebrew abbreviations, for which
# people type quotation marks too.
INSIDE = r"(?<=[lL])·(?=[lL])|(?<=\w)־(?=\w)|[׳״]|(?<=[א-ת])\"(?=[א-ת])"
FLAG = "[\U0001f1e6-\U0001f1ff]{2}"
SKINS = "\U0001f3fb-\U0001f3ff"

OPENS = r"([{¿¡‘"
CLOSES = r",.?!:;\\%}\])’…،؛؟۔।॥։።፣፤፥፧။၊។៕"
GUILLEMETS = re.compile(r"([«»]) ([^«»]*) (?!\1)([«»])")  # whichever comes first opens


class MosesTokenizer:
    """Words and punctuation, without the XML escapes of Moses."""

    def __init__(self, language: str) -> None:
        import sacremoses

        self._splitter = sacremoses.MosesTokenizer(language)
        self._joiner = sacremoses.MosesDetokenizer(language)
        self._splitter.lang = self._joiner.lang = APOSTROPHES.get(language, language)
        after = r"\w" if language in JOINED else SUFFIX
        self._gap = re.compile(rf"(?<=\w’) (?={after})")
        self._teach_splitter()
        self._teach_joiner()

    def tokenize(self, line: str) -> list[str]:
        """The tokens of a line; none contains white space."""
        return list(self._splitter.tokenize(line, escape=False))

    def detokenize(self, tokens: Sequence[str]) -> str:
        """The line that these tokens come from, as nearly as the rules can tell."""
        line = str(self._joiner.detokenize(list(tokens), unescape=False))
        if "‘" not in line:  # which ’ would close
            line = self._gap.sub("", line)
        return line if self._joiner.lang == "fr" else GUILLEMETS.sub(r"\1\2\3", line)

    def _teach_splitter(self) -> None:
        """Marks belong to the letter before them, and emoji to those they are joined with."""
        sign = rf"[^{self._splitter.IsAlnum}{_marks()}{ZERO_WIDTH_JOINERS}\s\.'\`\,\-]"
        drawn = f"{sign}[{_marks()}{SKINS}]*"
        signs = re.compile(f"(?={sign})(?:{INSIDE}|({FLAG}|{drawn}(?:\u200d{drawn})*))")
        self._splitter.PAD_NOT_ISALNUM = signs, _set_apart

    def _teach_joiner(self) -> None:
        joiner = self._joiner
        joiner.IS_CURRENCY_SYMBOL = re.compile(rf"^[{joiner.IsSc}{re.escape(OPENS)}]+$")
        joiner.IS_PUNCT = re.compile(rf"^[{CLOSES}]+$")
        joiner.IS_OPEN_QUOTE = re.compile(r"""^['"„“”`]+$""")


def _set_apart(found: re.Match[str]) -> str:
    return f" {found[1]} " if found[1] else found[0]


@cache
def _marks() -> str:
    """All characters that are written on, under or around another."""
    planes = map(chr, range(0x20000))  # beyond them there are only selectors of variants
    marks = (letter for letter in planes if unicodedata.category(letter).startswith("M"))
    return "".join(marks) + "\U000e0100-\U000e01ef"
