"""Numbers in Chinese characters: as in laws, and only where digits are numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covnmt.text.chinese_numbers import digits_to_chinese

WRITTEN = [
    ("第12条第3项", "第十二条第三项"),
    ("第48条之1", "第四十八条之一"),
    ("第1、2款", "第一、二款"),
    ("新台币12,500元", "新台币一万二千五百元"),
    ("1,234,567元", "一百二十三万四千五百六十七元"),
    ("3万元以上15万元以下", "三万元以上十五万元以下"),
    ("105年", "一百零五年"),
    ("112年及110年", "一百十二年及一百十年"),
    ("2023年05月01日前", "2023年五月一日前"),
    ("1900公尺", "一千九百公尺"),
    ("5人,3人", "五人,三人"),
    ("3.5%以上,50%以下", "百分之三点五以上,百分之五十以下"),
    ("0.05公克", "零点零五公克"),
    ("2/3以上", "三分之二以上"),
    ("0", "零"),
    ("100005000元", "一亿零五千元"),
    ("A4纸2张", "A4纸二张"),
]

# names, dates and lists of digits, and what has no digits at all
KEPT = [
    "依ISO 9001标准",
    "CNS15030分类",
    "3300MHz至4.9GHz",
    "4x6吋",
    "1,2-二氯苯",
    "3.7×10",
    "10:30",
    "02-2345678",
    "0912345678",
    "1.2.3",
    "1.申请书",
    "2023/5/1",
    "5/1前",
    "12345678901234567",
    "1/12345678901234567",
    "2023年",
    "三十日",
    "",
]


@pytest.mark.parametrize(("text", "expected"), WRITTEN)
def test_numbers_are_written_as_in_laws(text: str, expected: str) -> None:
    assert digits_to_chinese(text) == expected


@pytest.mark.parametrize("text", KEPT)
def test_digits_that_are_not_numbers_stay(text: str) -> None:
    assert digits_to_chinese(text) == text


VALUES = {"十": 10, "百": 100, "千": 1000, "万": 10**4, "亿": 10**8, "兆": 10**12}


def read(written: str) -> int:
    """Read a Chinese number: what precedes the largest unit is its multiple."""
    unit = max(written, key=lambda character: VALUES.get(character, 0))
    if unit not in VALUES:
        return "零一二三四五六七八九".index(written.lstrip("零") or "零")
    many, rest = written.split(unit, 1)
    many = many.lstrip("零") or "一"  # 十 is 一十
    return read(many) * VALUES[unit] + read(rest or "零")


@given(st.integers(0, 10**16 - 1))
def test_every_chinese_number_reads_as_the_same_integer(number: int) -> None:
    assert read(digits_to_chinese(f"{number}元")[:-1]) == number
    assert digits_to_chinese(f"{number:,}元") == digits_to_chinese(f"{number}元")


@given(st.text("0123456789,.%/:-年月元第 A"))
def test_replacing_numbers_twice_changes_nothing_more(text: str) -> None:
    once = digits_to_chinese(text)
    assert digits_to_chinese(once) == once
