"""Numbers in digits, written as Chinese laws write them: 第12条 becomes 第十二条, 5% 百分之五.

A model that learnt from such text has hardly ever seen digits, and makes up numbers for them.
Digits stay where they are part of a name (ISO 9001, 4x6, 1,2-, 10:30), where they have leading
zeros, but for dates and times (05月), and in years of four digits, which such a model copies: laws
count years otherwise.
"""

import re

_DIGITS = "零一二三四五六七八九"
_PLACES = ("", "十", "百", "千")
_GROUPS = ("", "万", "亿", "兆")  # of four digits
_MOST_DIGITS = len(_PLACES) * len(_GROUPS)
_PADDED = frozenset("月日时分秒")  # what follows: 05月

# No letter, digit or sign of a name on either side; 1,234 is one number, 1,2 is none.
_NUMBER = re.compile(
    r"(?<![A-Za-z0-9/:×*+=_.-])(?<![A-Za-z] )(?<!\d,)"
    r"(?P<whole>\d{1,3}(?:,\d{3})+|\d+)(?:\.(?P<part>\d+)|/(?P<of>\d+))?(?P<percent>%)?"
    r"(?![A-Za-z0-9/:×*+=_.-]|,\d| [A-Za-z])",
    re.ASCII,
)
_YEAR = re.compile(r"(1[6-9]|2[01])\d\d")


def digits_to_chinese(line: str) -> str:
    """The line with its numbers in Chinese characters."""
    return _NUMBER.sub(_written, line)


def _written(found: re.Match[str]) -> str:
    whole, part, of, percent = found.group("whole", "part", "of", "percent")
    after = found.string[found.end() : found.end() + 1]
    digits = whole.replace(",", "")
    padded = digits[0] == "0" and digits != "0" and after not in _PADDED
    year = part is None and after == "年" and _YEAR.fullmatch(whole)
    if padded or year or max(len(digits), len(of or "")) > _MOST_DIGITS:
        return found[0]
    if of is not None:
        fraction = percent is None and int(digits) < int(of)
        return f"{_count(of)}分之{_count(digits)}" if fraction else found[0]
    written = _count(digits)
    if part is not None:
        written += "点" + "".join(_DIGITS[int(digit)] for digit in part)
    return f"百分之{written}" if percent else written


def _count(digits: str) -> str:
    """A whole number: 105 is 一百零五, 112 is 一百十二, 20500 is 二万零五百."""
    padded = digits.zfill(_MOST_DIGITS)
    written = ""
    for k, group in enumerate(re.findall("....", padded), start=1):
        for digit, place in zip(group, reversed(_PLACES), strict=True):
            written += _DIGITS[0] if digit == "0" else _DIGITS[int(digit)] + place
        written += _GROUPS[-k] if group != "0000" else ""
    written = re.sub("^零+|零+(?=[万亿兆]|$)|(?<=零)零+", "", written)
    return written.replace("一十", "十") or _DIGITS[0]
