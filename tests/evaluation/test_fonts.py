"""Fonts are looked for where letters are missing, and their absence is told."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covnmt.evaluation import fonts
from covnmt.evaluation.fonts import BASE, em_width, families, visible, without_invisible

LETTERS = {
    BASE: frozenset("abc"),
    "Some Sans": frozenset("xyz"),
    "Odd": frozenset("z国"),
    "Han": frozenset("国際"),
}


@pytest.fixture
def known_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    def candidates(missing: set[str]) -> Iterator[str]:
        return iter(["Some Sans", "Odd", "Han"])

    monkeypatch.setattr(fonts, "_candidates", candidates)
    monkeypatch.setattr(fonts, "_letters", LETTERS.__getitem__)
    monkeypatch.setattr(fonts, "_told", set())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [BASE]),
        ("a b\tc\u200b", [BASE]),
        ("ax", [BASE, "Some Sans"]),
        ("際", [BASE, "Han"]),
        ("x国際", [BASE, "Some Sans", "Odd", "Han"]),
    ],
)
@pytest.mark.usefixtures("known_fonts")
def test_fonts_that_add_letters(
    text: str, expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert families(text) == expected
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("known_fonts")
def test_missing_letters_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert families("a館[b]")[0] == BASE
    told = capsys.readouterr().err
    assert "3 of the characters" in told
    assert "[ ] 館" in told
    assert "fonts-noto-cjk" in told
    assert "fonts-noto-core" in told
    families("館内")
    assert capsys.readouterr().err == "", "once is enough"


@pytest.mark.parametrize(
    ("region", "first"),
    [("JP", "Noto Sans CJK JP"), ("SC", "Noto Sans CJK SC"), (None, "Noto Sans CJK JP")],
)
def test_the_region_decides(region: str | None, first: str) -> None:
    names = ["A Serif", "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans Mono CJK JP"]
    assert min(names, key=lambda n: (*fonts._unlikeliness(n, region), n)) == first


def test_plain_english_needs_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def search() -> None:
        raise AssertionError("looked for fonts")

    monkeypatch.setattr(fonts, "_look_for_new_fonts", search)
    assert families("the quick brown fox, ▁pieces & naïve ÄÖÜ") == [BASE]


def test_letters_keep_what_shapes_them() -> None:
    assert without_invisible("a \u200bb\x07\u2066") == "a b"
    assert without_invisible("می\u200cخواهم") == "می\u200cخواهم"


@given(st.text(max_size=20))
def test_width_grows_with_text(text: str) -> None:
    assert em_width(text + "国") == pytest.approx(em_width(text) + 1)
    assert em_width(text) <= len(text)
    assert all(not visible(c) for c in text if c.isspace())
