"""Which pairs of lines count as translations."""

import pytest

from covnmt.data.lexicon import train_lexicon
from covnmt.paper.pair_filter import filter_pairs, lexicon_score, may_be_translations


@pytest.mark.parametrize(
    ("german", "english", "kept"),
    [
        ("Das ist ein Haus.", "This is a house.", True),
        ("Am 3. Mai kamen 1.200 Gäste.", "On May 3, 1,200 guests came.", True),
        ("Am 3. Mai kamen 1.200 Gäste.", "On May 3, 1,300 guests came.", False),
        ("Ist das ein Haus?", "This is a house.", False),
        ("This is not the house.", "This is not a house.", False),
        ("Das ist nicht das Haus.", "Das ist nicht ein Haus.", False),
        ("OpenGL", "OpenGL", False),
        ("...", "!!!", False),
        ("Ja.", "This sentence says much more than the other one does.", False),
    ],
)
def test_only_likely_translations_from_german_are_kept(
    german: str, english: str, kept: bool
) -> None:
    assert may_be_translations(german, english, "de") == kept


@pytest.mark.parametrize(
    ("language", "line", "english", "kept"),
    [
        ("zh", "我明天去北京。", "I am going to Beijing tomorrow.", True),
        ("zh", "我明天去北京。", "Bye.", False),
        ("zh", "我明天去北京,后天回上海,然后再去广州看望我的老朋友。", "I am going.", False),
        ("zh", "我们有377名学生。", "We have 377 students.", True),
        ("zh", "我们有377名学生。", "We have 378 students.", False),
        ("zh", "我们有三百七十七名学生。", "We have 377 students.", True),
        ("zh", "我们有许多学生。", "We have 377 students.", False),
        ("zh", "他在12月3日来。", "He comes on December 3.", True),
        ("zh", "在Firefox中打开文件。", "Open the file in Firefox.", True),
        ("zh", "在Firefox中打开文件。", "See the popover element.", False),
        ("zh", "Open the file in Firefox 的", "Open the file in Firefox.", False),
        ("zh", "在浏览器中打开文件。", "在浏览器中打开文件", False),
        ("zh", "この本は古いです。", "This book is old.", False),
        ("zh", "再见。", "Goodbye to all of you.", True),  # too short to tell
        ("zh", "你好吗", "How are you?", True),
        ("ja", "この本は古いです。", "This book is old.", True),
        ("ja", "この本は古いですか。", "Is this book old?", True),
        ("ja", "この本は古いです。", "Is this book old?", False),
    ],
)
def test_only_likely_translations_from_asian_languages_are_kept(
    language: str, line: str, english: str, kept: bool
) -> None:
    assert may_be_translations(line, english, language) == kept


def test_repeated_pairs_and_lines_of_test_sets_are_dropped() -> None:
    pairs = [("Guten Tag.", "Hello."), ("guten tag.", "hello."), ("Ein Test.", "A test.")]
    assert list(filter_pairs(pairs, frozenset(["A test."]), "de")) == [("Guten Tag.", "Hello.")]


def test_lexicon_scores_translations_higher_than_other_lines() -> None:
    letters = "abcdefghij"
    pairs = [(f"u{a} v{b} w{c}", f"x{a} y{b} z{c}") for a in letters for b in letters for c in "ab"]
    lexicon = train_lexicon(pairs)
    right = lexicon_score(lexicon, "ua vc wa", "xa yc za")
    half = lexicon_score(lexicon, "ua vc wa", "xa yd za")
    wrong = lexicon_score(lexicon, "ua vc wa", "xb yd zb")
    assert right > 0.8 > half > 0.2 > wrong
    assert lexicon_score(lexicon, "uz", "xz") == 1  # nothing can be judged
