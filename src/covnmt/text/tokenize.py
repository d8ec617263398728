"""Lines to tokens and back: five schemes behind one protocol.

Control characters are removed, and runs of white space become one space, so a token never contains
white space. Text that is split already is kept otherwise; of other text, marks of direction and
hyphens that nobody sees go, and a letter with its accent is one, however it was typed (NFC). On
request letters of full and half width become one (NFKC), traditional Chinese characters become
simplified ones, numbers in digits become Chinese characters, and spaces go that Chinese and
Japanese are written without, with all that nobody sees in text from the web.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import groupby, pairwise
from operator import not_
from pathlib import Path
from typing import Literal, Protocol

from pydantic import Field

from covnmt.base.config import Settings
from covnmt.base.errors import UserError
from covnmt.text.characters import is_grapheme_extension
from covnmt.text.chinese_numbers import digits_to_chinese
from covnmt.text.moses import MosesTokenizer

# Stands for a space inside a token, as in sentencepiece.
SPACE_SYMBOL = "\u2581"

# Control characters that are not white space, and the byte order mark.
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff]")

_ASCII_WORD = re.compile(r"[A-Za-z0-9]")

# A space that does not stand between two such characters.
_LOOSE_SPACE = re.compile(r"(?<![A-Za-z0-9]) | (?![A-Za-z0-9])")

# Hyphens and spaces without width, and directions.
_UNSEEN = re.compile("[\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069]")

# How a character is to be drawn, and joined to the next; in Chinese and Japanese nobody sees it.
_DRAWN = re.compile("[\u200c\u200d\ufe00-\ufe0f\U000e0100-\U000e01ef]")

# All but what is spelt wrongly afterwards: Chinese characters become others; Thai and Lao vowels
# and Korean letters by themselves come in pieces.
_NORMAL = {
    "NFC": re.compile("[^\uf900-\ufaff\U0002f800-\U0002fa1f]+"),
    "NFKC": re.compile("[^\u0e33\u0eb3\u0edc\u0edd\u3131-\u318e]+"),
}

# Languages with an i without a dot, and what their capitals become.
_DOTLESS = ("az", "tr")
_DOTS = str.maketrans("Iİ", "ıi")

# A byte of a character that sentencepiece does not know.
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_INNER_BYTE = re.compile(r"<0x[89AB][0-9A-F]>")
_INNER = f"\n{_INNER_BYTE.pattern}"
_IN_BYTES = re.compile(
    r"<0x(?:2[1-9A-F]|[3-6][0-9A-F]|7[0-9A-E])>"
    rf"|<0x[CD][0-9A-F]>{_INNER}|<0xE[0-9A-F]>(?:{_INNER}){{2}}|<0xF[0-7]>(?:{_INNER}){{3}}"
)


class TokenizerSettings(Settings):
    """How the text of one side is split."""

    kind: Literal["moses", "jieba", "characters", "whitespace", "sentencepiece"] = Field(
        "moses", description="whitespace is for text that is already split"
    )
    language: str = Field("en", pattern="^[a-z]{2,3}$", description="code such as en, zh (moses)")
    lowercase: bool = Field(False, description="before splitting")
    nfkc: bool = Field(False, description="full and half width, ligatures: one form of each letter")
    unspaced: bool = Field(False, description="drop spaces, but for those between ASCII words")
    # came later: what was prepared without these keeps the digest that runs know it by
    simplified: bool = Field(
        False, exclude_if=not_, description="traditional Chinese characters become simplified"
    )
    numerals: bool = Field(
        False, exclude_if=not_, description="numbers in digits become (simplified) Chinese"
    )


WHITESPACE_SETTINGS = TokenizerSettings(kind="whitespace")
CHINESE_AND_JAPANESE = ("ja", "zh")  # languages
UNSPACED_LANGUAGES = (
    "bo",
    "dz",
    "km",
    "lo",
    "my",
    "th",
    *CHINESE_AND_JAPANESE,
)  # whose words no spaces part


def subword_settings(language: str) -> TokenizerSettings:
    """Subwords of text as people type it, in this language."""
    unspaced = language in CHINESE_AND_JAPANESE
    return TokenizerSettings(kind="sentencepiece", language=language, nfkc=True, unspaced=unspaced)


class Tokenizer(Protocol):
    """Splits a line and puts it together again."""

    def tokenize(self, line: str) -> list[str]:
        """The tokens of a line; none contains white space."""

    def detokenize(self, tokens: Sequence[str]) -> str:
        """The line that these tokens come from, as nearly as the scheme can tell."""


def build_tokenizer(settings: TokenizerSettings, spm_path: Path | None = None) -> Tokenizer:
    """The tokenizer of these settings; sentencepiece also needs its trained model."""
    return CleanTokenizer(_build_scheme(settings, spm_path), settings)


def _build_scheme(settings: TokenizerSettings, spm_path: Path | None) -> Tokenizer:
    match settings.kind:
        case "moses":
            return MosesTokenizer(settings.language)
        case "jieba":
            return JiebaTokenizer()
        case "characters":
            return CharacterTokenizer()
        case "whitespace":
            return WhitespaceTokenizer()
        case "sentencepiece":
            if spm_path is None:
                raise ValueError("a sentencepiece tokenizer needs a trained model")
            return SentencePieceTokenizer(spm_path)


def clean_line(line: str, settings: TokenizerSettings = WHITESPACE_SETTINGS) -> str:
    """Remove control characters, make every run of white space one space, and what is asked for."""
    plain = _CONTROL.sub("", line)
    if settings.kind != "whitespace" or settings.unspaced:
        plain = _UNSEEN.sub("", plain)
    if settings.unspaced:
        plain = _DRAWN.sub("", plain)
    if settings.kind != "whitespace" or settings.nfkc:
        plain = _normal(plain, "NFKC" if settings.nfkc else "NFC")
    plain = " ".join(plain.split())
    if settings.unspaced:
        plain = _LOOSE_SPACE.sub("", plain)
    if settings.simplified:
        plain = _simplifier()(plain)
    if settings.numerals:
        plain = digits_to_chinese(plain)
    return _lowered(plain, settings.language) if settings.lowercase else plain


def _normal(line: str, form: Literal["NFC", "NFKC"]) -> str:
    """One form of what looks the same."""
    if unicodedata.is_normalized(form, line):
        return line
    return _NORMAL[form].sub(lambda part: unicodedata.normalize(form, part[0]), line)


def _lowered(line: str, language: str) -> str:
    return (line.translate(_DOTS) if language in _DOTLESS else line).lower()


@cache
def _simplifier() -> Callable[[str], str]:
    import opencc

    convert: Callable[[str], str] = opencc.OpenCC("t2s").convert
    return convert


class CleanTokenizer:
    """Cleans each line, and leaves the rest to another scheme."""

    def __init__(self, scheme: Tokenizer, settings: TokenizerSettings) -> None:
        self._scheme, self._settings = scheme, settings

    def tokenize(self, line: str) -> list[str]:
        return self._scheme.tokenize(clean_line(line, self._settings))

    def detokenize(self, tokens: Sequence[str]) -> str:
        return self._scheme.detokenize(tokens)


class WhitespaceTokenizer:
    """For text that is already split: tokens stand between spaces."""

    def tokenize(self, line: str) -> list[str]:
        return line.split()

    def detokenize(self, tokens: Sequence[str]) -> str:
        return " ".join(tokens)


class CharacterTokenizer:
    """Every character is a token, with the marks on it; a space is the token U+2581."""

    def tokenize(self, line: str) -> list[str]:
        tokens: list[str] = []
        for character in line.replace(" ", SPACE_SYMBOL):
            if tokens and is_grapheme_extension(character):
                tokens[-1] += character
            else:
                tokens.append(character)
        return tokens

    def detokenize(self, tokens: Sequence[str]) -> str:
        return "".join(tokens).replace(SPACE_SYMBOL, " ")


class JiebaTokenizer:
    """Chinese words by jieba's rules; spaces are dropped, and come back between Latin words."""

    def __init__(self) -> None:
        import rjieba

        self._cut = rjieba.cut

    def tokenize(self, line: str) -> list[str]:
        return [word for word in self._cut(line) if not word.isspace()]

    def detokenize(self, tokens: Sequence[str]) -> str:
        line = ""
        for left, token in pairwise(["", *tokens]):
            gap = " " if _ASCII_WORD.search(left) and _ASCII_WORD.search(token) else ""
            line += gap + token
        return line


class SentencePieceTokenizer:
    """Subwords of a trained sentencepiece model."""

    def __init__(self, path: Path) -> None:
        import sentencepiece

        if not path.is_file():
            raise UserError(f"{path}: no such file; it belongs to the vocabulary beside it")
        try:
            self._model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except (RuntimeError, OSError) as error:
            raise UserError(f"{path}: not a sentencepiece model ({error})") from None

    def tokenize(self, line: str) -> list[str]:
        return list(self._model.encode(line, out_type=str))

    def detokenize(self, tokens: Sequence[str]) -> str:
        runs = groupby(tokens, lambda token: _BYTE.fullmatch(token) is not None)
        parts = [_characters(run) if in_bytes else "".join(run) for in_bytes, run in runs]
        return "".join(parts).replace(SPACE_SYMBOL, " ").strip()

    def pieces(self) -> list[str]:
        """Every subword of the model, in its order, without its special symbols."""
        numbers = range(self._model.get_piece_size())
        return [
            self._model.id_to_piece(number)
            for number in numbers
            if not (self._model.is_unknown(number) or self._model.is_control(number))
        ]


def is_continuation_byte(token: str) -> bool:
    """Whether a token is a byte of a character that begins in one before it."""
    return _INNER_BYTE.fullmatch(token) is not None


def spell_byte_tokens(tokens: Sequence[str]) -> list[str]:
    """Bytes as the character that they spell, numbered where there are several: 驫₁ 驫₂ 驫₃.

    For people to read, one for each token; the page does the same.
    """
    return _IN_BYTES.sub(_numbered, "\n".join(tokens)).split("\n") if tokens else []


def _numbered(found: re.Match[str]) -> str:
    tokens = found[0].split()
    character = bytes.fromhex("".join(_BYTE.findall(found[0]))).decode("utf-8", errors="replace")
    return "\n".join(character + "₁₂₃₄"[k] for k in range(len(tokens))) if tokens[1:] else character


def _characters(tokens: Iterable[str]) -> str:
    """What tokens of one byte each spell; bytes that make no character are shown as U+FFFD."""
    spelt = bytes.fromhex("".join(_BYTE.sub(r"\1", token) for token in tokens))
    return clean_line(spelt.decode("utf-8", errors="replace"))
