"""Tokenizers: five schemes behind one protocol, after the same cleaning of lines.

Cleaning removes control characters and turns runs of white space into one space, so that no token
contains white space. Text that is already tokenized is not changed otherwise. Other text also loses
direction marks and soft hyphens and is normalized to NFC. Settings add NFKC (one form for letters
of full and half width), simplified for traditional Chinese characters, Chinese characters for
digits, and the removal of spaces and invisible characters from Chinese and Japanese.
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
from covnmt.base.files import read_bytes
from covnmt.text.characters import is_grapheme_extension
from covnmt.text.chinese_numbers import digits_to_chinese
from covnmt.text.moses import MosesTokenizer

# Stands for a space inside a token, as in sentencepiece.
SPACE_SYMBOL = "\u2581"

# Control characters that are not white space, and the byte order mark.
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff]")

_ASCII_WORD = re.compile(r"[A-Za-z0-9]")

# A space that is not between two ASCII letters or digits.
_UNNEEDED_SPACE = re.compile(r"(?<![A-Za-z0-9]) | (?![A-Za-z0-9])")

# Soft hyphens, spaces without width, and direction marks.
_INVISIBLE = re.compile("[\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069]")

# Joiners and variation selectors, which are invisible in Chinese and Japanese.
_RENDERING_MARK = re.compile("[\u200c\u200d\ufe00-\ufe0f\U000e0100-\U000e01ef]")

# What may be normalized. The rest would be changed wrongly: compatibility forms of Chinese
# characters, and Thai and Lao vowels and single Korean letters, which would be taken apart.
_NORMALIZABLE = {
    "NFC": re.compile("[^\uf900-\ufaff\U0002f800-\U0002fa1f]+"),
    "NFKC": re.compile("[^\u0e33\u0eb3\u0edc\u0edd\u3131-\u318e]+"),
}

# Languages with an i without a dot, and the lower case of their capitals.
_DOTLESS_I = ("az", "tr")
_DOTTED_LOWERCASE = str.maketrans("Iİ", "ıi")

# A token for one byte of a character that the sentencepiece model does not have.
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_CONTINUATION_BYTE = re.compile(r"<0x[89AB][0-9A-F]>")
_NEXT_BYTE = f"\n{_CONTINUATION_BYTE.pattern}"
_CHARACTER_IN_BYTES = re.compile(
    r"<0x(?:2[1-9A-F]|[3-6][0-9A-F]|7[0-9A-E])>"
    rf"|<0x[CD][0-9A-F]>{_NEXT_BYTE}|<0xE[0-9A-F]>(?:{_NEXT_BYTE}){{2}}|<0xF[0-7]>(?:{_NEXT_BYTE}){{3}}"
)


# For settings added later: they are left out of files while they are off (false or 0), so that
# older corpora keep the digest that runs store.
IS_OFF = not_


class TokenizerSettings(Settings):
    """How the text of one side is split into tokens."""

    kind: Literal["moses", "jieba", "characters", "whitespace", "sentencepiece"] = Field(
        "moses", description="whitespace is for text that is already split"
    )
    language: str = Field("en", pattern="^[a-z]{2,3}$", description="code such as en, zh (moses)")
    lowercase: bool = Field(False, description="lowercase the text")
    nfkc: bool = Field(False, description="normalize to NFKC: full and half width, ligatures")
    unspaced: bool = Field(False, description="drop spaces, except between ASCII words")
    simplified: bool = Field(
        False,
        exclude_if=IS_OFF,
        description="turn traditional Chinese characters into simplified ones",
    )
    numerals: bool = Field(
        False, exclude_if=IS_OFF, description="write numbers in digits as (simplified) Chinese"
    )


WHITESPACE_SETTINGS = TokenizerSettings(kind="whitespace")
CHINESE_AND_JAPANESE = ("ja", "zh")
# Languages written without spaces between words.
UNSPACED_LANGUAGES = ("bo", "dz", "km", "lo", "my", "th", *CHINESE_AND_JAPANESE)


def subword_settings(language: str) -> TokenizerSettings:
    """Return settings for subwords of untokenized text in this language."""
    unspaced = language in CHINESE_AND_JAPANESE
    return TokenizerSettings(kind="sentencepiece", language=language, nfkc=True, unspaced=unspaced)


class Tokenizer(Protocol):
    """Splits lines (see `clean_line`) into tokens and joins them again."""

    def tokenize(self, line: str) -> list[str]:
        """Split a clean line into tokens without white space."""

    def detokenize(self, tokens: Sequence[str]) -> str:
        """Join tokens to the line they probably came from."""


def build_tokenizer(
    settings: TokenizerSettings, spm_path: Path | None = None, spm: bytes | None = None
) -> Tokenizer:
    """Build a tokenizer; sentencepiece also needs its trained model, perhaps read already."""
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
            return SentencePieceTokenizer(spm_path, spm)


def clean_line(line: str, settings: TokenizerSettings = WHITESPACE_SETTINGS) -> str:
    """Clean a line as the settings say (see the top of this module)."""
    plain = _CONTROL.sub("", line)
    if settings.kind != "whitespace" or settings.unspaced:
        plain = _INVISIBLE.sub("", plain)
    if settings.unspaced:
        plain = _RENDERING_MARK.sub("", plain)
    if settings.kind != "whitespace" or settings.nfkc:
        plain = _normalize(plain, "NFKC" if settings.nfkc else "NFC")
    plain = " ".join(plain.split())
    if settings.unspaced:
        plain = _UNNEEDED_SPACE.sub("", plain)
    if settings.simplified:
        plain = _simplifier()(plain)
    if settings.numerals:
        plain = digits_to_chinese(plain)
    return _lowercase(plain, settings.language) if settings.lowercase else plain


def _normalize(line: str, form: Literal["NFC", "NFKC"]) -> str:
    """Normalize all but the characters that normalization would change wrongly."""
    if unicodedata.is_normalized(form, line):
        return line
    return _NORMALIZABLE[form].sub(lambda match: unicodedata.normalize(form, match[0]), line)


def _lowercase(line: str, language: str) -> str:
    return (line.translate(_DOTTED_LOWERCASE) if language in _DOTLESS_I else line).lower()


@cache
def _simplifier() -> Callable[[str], str]:
    import opencc

    convert: Callable[[str], str] = opencc.OpenCC("t2s").convert
    return convert


class WhitespaceTokenizer:
    """Splits at spaces, for text that is tokenized already."""

    def tokenize(self, line: str) -> list[str]:
        return line.split()

    def detokenize(self, tokens: Sequence[str]) -> str:
        return " ".join(tokens)


class CharacterTokenizer:
    """Makes every character a token, with the marks on it; a space is the token U+2581."""

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
    """Splits Chinese words with jieba; spaces are dropped, and restored between Latin words."""

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
    """Splits into the subwords of a trained sentencepiece model."""

    def __init__(self, path: Path, content: bytes | None = None) -> None:
        import sentencepiece

        if content is None:
            content = read_bytes(path, "it belongs to the vocabulary in the same directory")
        self._model = sentencepiece.SentencePieceProcessor()
        try:
            self._model.LoadFromSerializedProto(content)
        except RuntimeError:
            raise UserError(f"{path}: not a sentencepiece model; restore it from a copy") from None

    def tokenize(self, line: str) -> list[str]:
        return list(self._model.encode(line, out_type=str))

    def detokenize(self, tokens: Sequence[str]) -> str:
        runs = groupby(tokens, is_byte_token)
        texts = [_decode_bytes(run) if is_bytes else "".join(run) for is_bytes, run in runs]
        return "".join(texts).replace(SPACE_SYMBOL, " ").strip()

    def subwords(self) -> list[str]:
        """Return the subwords of the model in its order, without special symbols."""
        return [
            self._model.id_to_piece(i)
            for i in range(self._model.get_piece_size())
            if not (self._model.is_unknown(i) or self._model.is_control(i))
        ]


def is_byte_token(token: str) -> bool:
    """Tell whether a token is a byte of a character that is not in the vocabulary."""
    return _BYTE.fullmatch(token) is not None


def is_continuation_byte(token: str) -> bool:
    """Tell whether a token is a byte of a character that an earlier token begins."""
    return _CONTINUATION_BYTE.fullmatch(token) is not None


def spell_byte_tokens(tokens: Sequence[str]) -> list[str]:
    """Replace byte tokens by the character they spell, numbered if several: 驫₁ 驫₂ 驫₃.

    The result has one string per token, for display.
    """
    return _CHARACTER_IN_BYTES.sub(_number_bytes, "\n".join(tokens)).split("\n") if tokens else []


def _number_bytes(match: re.Match[str]) -> str:
    tokens = match[0].split()
    character = bytes.fromhex("".join(_BYTE.findall(match[0]))).decode("utf-8", errors="replace")
    return "\n".join(character + "₁₂₃₄"[k] for k in range(len(tokens))) if tokens[1:] else character


def _decode_bytes(tokens: Iterable[str]) -> str:
    """Decode byte tokens; bytes that are not UTF-8 become U+FFFD."""
    content = bytes.fromhex("".join(_BYTE.sub(r"\1", token) for token in tokens))
    return clean_line(content.decode("utf-8", errors="replace"))
