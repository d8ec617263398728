"""The Moses tokenizer (sacremoses), extended by scripts and signs that it does not know.

Moses treats every character that is neither letter nor digit as punctuation, so it splits words at
tone marks, combining accents and joiners. When it joins tokens, it leaves spaces before punctuation
of other scripts, next to curly apostrophes and inside curly quotation marks.
"""

import re
import unicodedata
from collections.abc import Sequence
from functools import cache

from covnmt.text.characters import ZERO_WIDTH_JOINERS

# Languages whose apostrophes Moses does not know -> a language that uses them alike: before a
# suffix (Ali'nin) as in English, or after an article (l'amic) as in Italian.
APOSTROPHES_LIKE = {"az": "en", "be": "en", "ca": "it", "he": "en", "tr": "en", "uk": "en"}
# Languages where any letters may follow the curly apostrophe of a word; elsewhere only these.
ANY_SUFFIX = ("az", "be", "ca", "fr", "ga", "it", "tr", "uk")
SUFFIX = r"(?:[dmnst]|ll|re|ve)\b"

# Signs inside words: the hyphens of Catalan and Hebrew, and the marks of Hebrew abbreviations,
# which are also typed as quotation marks.
WITHIN_WORDS = r"(?<=[lL])·(?=[lL])|(?<=\w)־(?=\w)|[׳״]|(?<=[א-ת])\"(?=[א-ת])"
FLAG = "[\U0001f1e6-\U0001f1ff]{2}"
SKIN_TONES = "\U0001f3fb-\U0001f3ff"

OPENS = r"([{¿¡‘"
CLOSES = r",.?!:;\\%}\])’…،؛؟۔।॥։።፣፤፥፧။၊។៕"
GUILLEMETS = re.compile(r"([«»]) ([^«»]*) (?!\1)([«»])")  # the first one opens


class MosesTokenizer:
    """Splits words and punctuation, without the XML escapes of Moses."""

    def __init__(self, language: str) -> None:
        import sacremoses

        self._splitter = sacremoses.MosesTokenizer(language)
        self._joiner = sacremoses.MosesDetokenizer(language)
        self._splitter.lang = self._joiner.lang = APOSTROPHES_LIKE.get(language, language)
        after = r"\w" if language in ANY_SUFFIX else SUFFIX
        self._gap = re.compile(rf"(?<=\w’) (?={after})")
        self._extend_splitter()
        self._extend_joiner()

    def tokenize(self, line: str) -> list[str]:
        """Split a line into tokens without white space."""
        return list(self._splitter.tokenize(line, escape=False))

    def detokenize(self, tokens: Sequence[str]) -> str:
        """Join tokens to the line they probably came from."""
        line = str(self._joiner.detokenize(list(tokens), unescape=False))
        if "‘" not in line:  # else ’ may be its closing mark
            line = self._gap.sub("", line)
        return line if self._joiner.lang == "fr" else GUILLEMETS.sub(r"\1\2\3", line)

    def _extend_splitter(self) -> None:
        """Keep marks with the letter before them, and joined emoji together."""
        sign = rf"[^{self._splitter.IsAlnum}{_marks()}{ZERO_WIDTH_JOINERS}\s\.'\`\,\-]"
        marked = f"{sign}[{_marks()}{SKIN_TONES}]*"
        signs = re.compile(f"(?={sign})(?:{WITHIN_WORDS}|({FLAG}|{marked}(?:\u200d{marked})*))")
        self._splitter.PAD_NOT_ISALNUM = signs, _surround_by_spaces

    def _extend_joiner(self) -> None:
        joiner = self._joiner
        joiner.IS_CURRENCY_SYMBOL = re.compile(rf"^[{joiner.IsSc}{re.escape(OPENS)}]+$")
        joiner.IS_PUNCT = re.compile(rf"^[{CLOSES}]+$")
        joiner.IS_OPEN_QUOTE = re.compile(r"""^['"„“”`]+$""")


def _surround_by_spaces(match: re.Match[str]) -> str:
    """Return the sign between spaces, unless it belongs to the word (group 1 is empty)."""
    return f" {match[1]} " if match[1] else match[0]


@cache
def _marks() -> str:
    """Return all combining characters as the content of a character class."""
    planes = map(chr, range(0x20000))  # later planes have only variation selectors
    marks = (letter for letter in planes if unicodedata.category(letter).startswith("M"))
    return "".join(marks) + "\U000e0100-\U000e01ef"
