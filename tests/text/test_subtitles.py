"""Cutting subtitles into texts to translate and what stays."""

import pytest

from covnmt.text.markup import MarkedText
from covnmt.text.subtitles import parse_subtitles, wrap_lines

SRT = """1
00:00:01,000 --> 00:00:02,500
{\\an8}<i>One subtitle
of two lines.</i>

2
00:00:03,000 --> 00:00:04,000
- Who is it?
- It is me.

3
00:00:05,000 --> 00:00:06,000
♪ ♪
"""


def test_texts_are_subtitles_and_speakers() -> None:
    parts = parse_subtitles(SRT)
    texts = [part for part in parts if isinstance(part, MarkedText)]
    assert [text.text for text in texts] == [
        "One subtitle of two lines.",
        "Who is it?",
        "It is me.",
        "♪ ♪",
    ]
    assert [mark.opening for mark in texts[0].marks] == ["{\\an8}", "<i>"]
    fixed = "".join(part if isinstance(part, str) else "*" for part in parts)
    assert fixed == SRT.replace("{\\an8}<i>One subtitle\nof two lines.</i>", "*").replace(
        "Who is it?", "*"
    ).replace("It is me.", "*").replace("♪ ♪", "*")


def test_what_comes_before_the_first_time_is_no_text() -> None:
    source = "WEBVTT - a title\n\nNOTE b\n\n00:01.000 --> 00:02.000 align:start\ntext"
    parts = parse_subtitles(source)
    assert [part.text for part in parts if isinstance(part, MarkedText)] == ["text"]


def test_windows_line_breaks_stay() -> None:
    source = "1\r\n00:00:01,0 --> 00:00:02,0\r\none\r\ntwo\r\n\r\n"
    [text] = [part for part in parse_subtitles(source) if isinstance(part, MarkedText)]
    assert text.finish("eins zwei") == "eins\r\nzwei"


# text, lines, wrapped
WRAPPED = [
    ("one two three four", 1, "one two three four"),
    ("one two three four", 2, "one two\nthree four"),
    ("one two three four", 9, "one\ntwo\nthree\nfour"),
    ('<font color="red">one two</font>', 2, '<font color="red">one\ntwo</font>'),
    ("金閣寺は京都にある", 2, "金閣寺は\n京都にある"),
    ("oneword", 2, "oneword"),
]


@pytest.mark.parametrize(("text", "number", "wrapped"), WRAPPED)
def test_a_text_is_wrapped_to_lines_of_similar_length(text: str, number: int, wrapped: str) -> None:
    assert wrap_lines(text, number) == wrapped
