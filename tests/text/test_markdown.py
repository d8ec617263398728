"""Cutting Markdown into texts to translate and markup that stays."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covnmt.text.markdown import escape_markdown, parse_markdown
from covnmt.text.markup import MarkedText

# a document and its texts
TEXTS = [
    ("# Title #\n\nText\nof two lines\n", ["Title", "Text of two lines"]),
    ("Setext\n===\n", ["Setext"]),
    ("hard  \nbreak\\\nthree", ["hard\nbreak\nthree"]),
    ("> one\n> two\n> - item\n>   more\n", ["one two", "item more"]),
    ("1. one\n   two\n\n   three\n2. four\n", ["one two", "three", "four"]),
    ("- [ ] task\n- [x] done\n", [" task", " done"]),
    ("| a | b |\n|---|---|\n| c `x\\|y` | d |\n", ["a", "b", "c x\\|y", "d"]),
    ("```\ncode\n```\n\n    code\n\n<div>\nhtml\n</div>\n\ntext", ["text"]),
    ("---\ntitle: x\n---\ntext", ["text"]),
    ("[ref]: http://x\n\nsee [it][ref] and [^1]\n\n[^1]: a note\n", ["see it and", "a note"]),
    ("a \\* b &amp; c <http://x.y/z> http://x.y/a_b.", ["a * b & c http://x.y/z http://x.y/a_b."]),
    ("a * b snake_case 2 < 3", ["a * b snake_case 2 < 3"]),
    ("text\r\n\r\n# two\r\n", ["text", "two"]),
    ("***\n\n---\n", []),
]


@pytest.mark.parametrize(("source", "texts"), TEXTS)
def test_texts_are_what_a_reader_sees(source: str, texts: list[str]) -> None:
    found = [part.text for part in parse_markdown(source) if isinstance(part, MarkedText)]
    assert [text.strip() for text in found] == [text.strip() for text in texts]


def test_inline_markup_is_marks_and_code_is_kept() -> None:
    source = 'a **b *c*** [d](u "t(1)") `e`  \n![f](g) <b>h</b> ~~i~~'
    [text] = parse_markdown(source)
    assert isinstance(text, MarkedText)
    assert text.text == "a b c d e\nh i"
    assert [(mark.opening, mark.closing) for mark in text.marks] == [
        ("**", "**"),
        ("*", "*"),
        ("[", '](u "t(1)")'),
        ("![f](g)", ""),
        ("<b>", "</b>"),
        ("~~", "~~"),
    ]
    assert [kept.markup for kept in text.kept] == ["`e`", "  \n"]


def test_a_hard_break_keeps_the_prefix_of_its_line() -> None:
    [_, text] = parse_markdown("> one  \n> two")
    assert isinstance(text, MarkedText)
    assert [kept.markup for kept in text.kept] == ["  \n> "]


def test_characters_that_would_be_markup_are_escaped() -> None:
    assert escape_markdown("2*3 [x] snake_case _y_ `z` <b") == (
        r"2\*3 \[x\] snake_case \_y\_ \`z\` \<b"
    )


@given(
    st.lists(
        st.sampled_from(["# ", "- ", "> ", "*", "**", "`", "[", "](x)", "|", "\n", "\n\n", "word "])
        | st.sampled_from(["    ", "```\n", "---\n", "<b>", "</b>", "1. ", "\\", "  \n", "[^1]"]),
        max_size=30,
    ).map("".join)
)
def test_markup_between_texts_is_that_of_the_document(source: str) -> None:
    """In order, so nothing between two texts is lost or moved."""
    position = 0
    for part in parse_markdown(source):
        if isinstance(part, str):
            position = source.index(part, position) + len(part)


SECONDS = 10


@pytest.mark.parametrize("unit", ["x<!--", "![x", "`x`", "*x ", "[x]("])
def test_unfinished_markup_takes_no_time_that_grows_with_its_square(unit: str) -> None:
    started = time.process_time()
    parse_markdown(unit * 30_000)
    assert time.process_time() - started < SECONDS


def test_a_comment_ends_where_it_ends() -> None:
    [text] = parse_markdown("one <!-- ` *two* <!-- --> three ` four* <!-- five")
    assert isinstance(text, MarkedText)
    assert text.text == "one three ` four* <!-- five"
    assert [mark.opening for mark in text.marks] == ["<!-- ` *two* <!-- -->"]
