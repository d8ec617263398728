"""Fonts are searched for where characters are missing; missing ones are warned of."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covnmt.evaluation import fonts
from covnmt.evaluation.fonts import BASE_FONT, em_width, find_fonts, is_visible, without_invisible

CHARSETS = {
    BASE_FONT: frozenset("abc"),
    "Some Sans": frozenset("xyz"),
    "Odd": frozenset("z国"),
    "Han": frozenset("国際"),
}


@pytest.fixture
def three_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    def candidates(missing: set[str]) -> Iterator[str]:
        return iter(["Some Sans", "Odd", "Han"])

    monkeypatch.setattr(fonts, "_candidates", candidates)
    monkeypatch.setattr(fonts, "_charset", CHARSETS.__getitem__)
    monkeypatch.setattr(fonts, "_warned", set())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [BASE_FONT]),
        ("a b\tc\u200b", [BASE_FONT]),
        ("ax", [BASE_FONT, "Some Sans"]),
        ("際", [BASE_FONT, "Han"]),
        ("x国際", [BASE_FONT, "Some Sans", "Odd", "Han"]),
    ],
)
@pytest.mark.usefixtures("three_fonts")
def test_fonts_are_added_only_for_missing_characters(
    text: str, expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert find_fonts(text) == expected
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("three_fonts")
def test_missing_characters_are_warned_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert find_fonts("a館[b]")[0] == BASE_FONT
    warning = capsys.readouterr().err
    assert "3 of the characters" in warning
    assert "[ ] 館" in warning
    assert "fonts-noto-cjk" in warning
    assert "fonts-noto-core" in warning
    find_fonts("館内")
    assert capsys.readouterr().err == "", "once is enough"


@pytest.mark.parametrize(
    ("region", "first"),
    [("JP", "Noto Sans CJK JP"), ("SC", "Noto Sans CJK SC"), (None, "Noto Sans CJK JP")],
)
def test_fonts_of_the_region_come_first(region: str | None, first: str) -> None:
    names = ["A Serif", "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans Mono CJK JP"]
    assert min(names, key=lambda n: (*fonts._unlikeliness(n, region), n)) == first


def test_latin_text_needs_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def search() -> None:
        raise AssertionError("looked for fonts")

    monkeypatch.setattr(fonts, "_add_new_fonts", search)
    assert find_fonts("the quick brown fox, ▁pieces & naïve ÄÖÜ") == [BASE_FONT]


def test_invisible_characters_go_but_joiners_stay() -> None:
    assert without_invisible("a \u200bb\x07\u2066") == "a b"
    assert without_invisible("می\u200cخواهم") == "می\u200cخواهم"


@given(st.text(max_size=20))
def test_width_is_additive_and_at_most_one_em_per_character(text: str) -> None:
    assert em_width(text + "国") == pytest.approx(em_width(text) + 1)
    assert em_width(text) <= len(text)
    assert all(not is_visible(c) for c in text if c.isspace())
