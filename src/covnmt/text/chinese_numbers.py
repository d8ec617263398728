"""Write numbers in digits as Chinese laws do: 第12条 becomes 第十二条, 5% 百分之五.

A model trained on such text has hardly ever seen digits and translates them into wrong numbers.
Digits stay where they are part of a name (ISO 9001, 4x6, 1,2-, 10:30), where they have leading
zeros, except in dates and times (05月), and in years of four digits, which such a model copies:
laws count years differently. The library cn2an writes 112 as 一百一十二, not 一百十二 as laws do.
"""

import re

_DIGITS = "零一二三四五六七八九"
_PLACES = ("", "十", "百", "千")
_GROUPS = ("", "万", "亿", "兆")  # of four digits
_MAX_DIGITS = len(_PLACES) * len(_GROUPS)
_TIME_UNITS = frozenset("月日时分秒")  # may follow a leading zero: 05月

# No letter, digit or sign of a name on either side; 1,234 is one number, 1,2 is not a number.
_NUMBER = re.compile(
    r"(?<![A-Za-z0-9/:×*+=_.-])(?<![A-Za-z] )(?<!\d,)"
    r"(?P<whole>\d{1,3}(?:,\d{3})+|\d+)(?:\.(?P<decimals>\d+)|/(?P<of>\d+))?(?P<percent>%)?"
    r"(?![A-Za-z0-9/:×*+=_.-]|,\d| [A-Za-z])",
    re.ASCII,
)
_YEAR = re.compile(r"(1[6-9]|2[01])\d\d")


def digits_to_chinese(line: str) -> str:
    """Replace the numbers of a line by Chinese characters."""
    return _NUMBER.sub(_to_chinese, line)


def _to_chinese(match: re.Match[str]) -> str:
    whole, decimals, denominator, percent = match.group("whole", "decimals", "of", "percent")
    following = match.string[match.end() : match.end() + 1]
    digits = whole.replace(",", "")
    has_leading_zero = digits[0] == "0" and digits != "0" and following not in _TIME_UNITS
    is_year = decimals is None and following == "年" and _YEAR.fullmatch(whole)
    if has_leading_zero or is_year or max(len(digits), len(denominator or "")) > _MAX_DIGITS:
        return match[0]
    if denominator is not None:
        is_fraction = percent is None and int(digits) < int(denominator)
        fraction = f"{_integer_to_chinese(denominator)}分之{_integer_to_chinese(digits)}"
        return fraction if is_fraction else match[0]
    number = _integer_to_chinese(digits)
    if decimals is not None:
        number += "点" + "".join(_DIGITS[int(digit)] for digit in decimals)
    return f"百分之{number}" if percent else number


def _integer_to_chinese(digits: str) -> str:
    """Write a whole number: 105 is 一百零五, 112 is 一百十二, 20500 is 二万零五百."""
    number = ""
    for k, group in enumerate(re.findall("....", digits.zfill(_MAX_DIGITS)), start=1):
        for digit, place in zip(group, reversed(_PLACES), strict=True):
            number += _DIGITS[0] if digit == "0" else _DIGITS[int(digit)] + place
        number += _GROUPS[-k] if group != "0000" else ""
    number = re.sub("^零+|零+(?=[万亿兆]|$)|(?<=零)零+", "", number)
    return number.replace("一十", "十") or _DIGITS[0]
