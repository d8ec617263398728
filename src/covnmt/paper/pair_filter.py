"""Which pairs of lines are translations: rules, and the score of a lexicon.

The rules need nothing but the two lines. The lexicon is trained on the pairs that pass them; it
finds those that a program aligned wrongly.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from covnmt.data.lexicon import Lexicon
from covnmt.inference.omission_features import MIN_USUAL

MAX_CHARACTERS = 320
MAX_RATIO, RATIO_SLACK = 1.8, 15  # of characters; short lines may differ by some more
# English characters for which one of the other script stands; those in ASCII count one.
CHARACTER_WIDTHS = {"ja": 2.2, "zh": 3.2}
MIN_SCRIPT_SHARE = 0.3  # of the letters of a Chinese or Japanese line
SPELLED_OUT = 12  # numbers up to here may be words, such as the name of a month
MIN_SHARED_NAMES = 0.5  # of the words in ASCII: they are names, which English has too

_WORD = re.compile(r"[^\W\d_]+")
# Frequent words that only one of the two languages has.
GERMAN_WORDS = frozenset(
    _WORD.findall(
        "der die das und ist nicht den dem ein eine einen einer zu mit von für auf sich es wir ich "
        "sie werden wird dass auch haben im bei oder aber nach aus"
    )
)
ENGLISH_WORDS = frozenset(
    _WORD.findall(
        "the and of to is not that this it we you are for with have has be on as by from or but "
        "which they at our"
    )
)
_NUMBER = re.compile(r"\d+(?:[.,' \u00a0]\d+)*")
_NOT_DIGIT = re.compile(r"\D")
_LETTER = re.compile(r"[^\W\d_]{2}")
_LETTERS = re.compile(r"[^\W\d_]")
_ASCII_LETTER = re.compile(r"[A-Za-z]")
_ASCII_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]{2,}")
_DIGITS = re.compile(r"\d+", re.ASCII)
_CHINESE_NUMERAL = re.compile("[一二三四五六七八九十百千万亿億兆]")
_KANA = re.compile("[\u3041-\u30ff]")
_ASIAN = re.compile("[\u3041-\u30ff\u3400-\u9fff\uac00-\ud7af]")


def may_be_translations(line: str, english: str, language: str) -> bool:
    """Tell whether a line and an English one pass the rules of the first one's language."""
    if not (_LETTER.search(line) and _LETTER.search(english)) or line == english:
        return False
    width = CHARACTER_WIDTHS.get(language, 1)
    shorter, longer = sorted((_width(line, width), len(english)))
    if longer > MAX_CHARACTERS or longer > MAX_RATIO * shorter + RATIO_SLACK:
        return False
    is_question = line.endswith("?")
    if is_question != english.endswith("?") and not line.endswith(("か", "か。", "吗", "呢")):
        return False
    if language in CHARACTER_WIDTHS:
        return _are_asian_and_english(line, english, language)
    return (
        _numbers(line) == _numbers(english)
        and _mostly_from(line, GERMAN_WORDS, ENGLISH_WORDS)
        and _mostly_from(english, ENGLISH_WORDS, GERMAN_WORDS)
    )


def _width(line: str, width: float) -> float:
    return sum(1 if character.isascii() else width for character in line)


def _numbers(line: str) -> list[str]:
    """Return the digits of all numbers, without separators, in any order."""
    return sorted(_NOT_DIGIT.sub("", number) for number in _NUMBER.findall(line))


def _mostly_from(line: str, language: frozenset[str], other: frozenset[str]) -> bool:
    """Tell whether a line has no more frequent words of the other language than of its own."""
    words = [word.lower() for word in _WORD.findall(line)]
    return sum(word in other for word in words) <= sum(word in language for word in words)


def _are_asian_and_english(line: str, english: str, language: str) -> bool:
    """Check the scripts, the numbers, and the names that stand in ASCII in both lines."""
    letters, ascii_letters = (len(p.findall(line)) for p in (_LETTERS, _ASCII_LETTER))
    if letters - ascii_letters < MIN_SCRIPT_SHARE * letters or _ASIAN.search(english):
        return False
    if language == "zh" and _KANA.search(line):
        return False
    numbers, english_numbers = _large_numbers(line), _large_numbers(english)
    if numbers - english_numbers:
        return False
    if english_numbers - numbers and not _CHINESE_NUMERAL.search(line):
        return False
    names = {name.lower() for name in _ASCII_NAME.findall(line)}
    shared = sum(name in english.lower() for name in names)
    return shared >= MIN_SHARED_NAMES * len(names)


def _large_numbers(line: str) -> set[int]:
    numbers = {int(digits) for digits in _DIGITS.findall(line.replace(",", ""))}
    return {number for number in numbers if number > SPELLED_OUT}


def lexicon_score(lexicon: Lexicon, line: str, english: str) -> float:
    """Return the share of the usual support that the words of both lines give each other.

    Words that cannot be judged do not count; without any the score is 1.
    """
    sides = zip((lexicon.source, lexicon.target), (line, english), strict=True)
    keys: Sequence[list[str]] = [
        [word.key for word in side.splitter.words(text)] for side, text in sides
    ]
    got = usual = 0.0
    for words in lexicon.score_support(*keys):
        judged = words.mean_support >= MIN_USUAL  # false where it is unknown
        mean = words.mean_support[judged]
        usual += float(mean.sum())
        got += float(words.support[judged].clip(max=mean).sum())
    return got / usual if usual else 1.0


def filter_pairs(
    pairs: Iterable[tuple[str, str]], held_out: frozenset[str], language: str
) -> Iterator[tuple[str, str]]:
    """Yield pairs that may be translations, each once, without lines of the test sets."""
    seen = set[int]()
    for line, english in pairs:
        key = hash((line.lower(), english.lower()))
        if key in seen or line in held_out or english in held_out:
            continue
        seen.add(key)
        if may_be_translations(line, english, language):
            yield line, english
