"""Cutting HTML into texts to translate and markup that stays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covnmt.text.html import html_tokens, parse_html, plain_text
from covnmt.text.markup import InlineMark, KeptText, MarkedText

# a document and its texts
TEXTS = [
    ("just text", ["just text"]),
    ("<p>one</p><p>two</p>", ["one", "two"]),
    ("<p>a &amp; b &lt;c&gt; &eacute; &#26085;</p>", ["a & b <c> é 日"]),
    ("<p>\n  one\n  <b>two </b>\n</p>", ["one two"]),
    ("one<br>two<br/>\nthree", ["one\ntwo\nthree"]),
    ("<ul><li>one<li>two</ul>", ["one", "two"]),
    ("<title>A</title><style>b{}</style><script>if (a<b) '</p>'</script>", ["A"]),
    ("<SCRIPT>a</ScRiPt >b", ["b"]),
    ("<p>see <code>x</code> here</p><pre>y</pre>", ["see x here"]),
    ("<p translate=no>a</p><div class='x notranslate y'>b<div>c</div></div>d", ["d"]),
    ("<p translate='no'>a<p>b", ["b"]),
    ("<!-- a --><!DOCTYPE b><?c?>d", ["d"]),
    ("a < b and b<3, 1<2>0", ["a < b and b<3, 1<2>0"]),
    ("a <b and never closed", ["a <b and never closed"]),
    ("<a title='x > y'>z</a>", ["z"]),
    ("<ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp></ruby>字", ["漢字"]),
    ("<td>12</td><td>—</td>", ["12"]),
    ("<p>— … &nbsp;</p>", []),
]


@pytest.mark.parametrize(("source", "texts"), TEXTS)
def test_texts_are_what_a_reader_sees(source: str, texts: list[str]) -> None:
    assert [part.text for part in parse_html(source) if isinstance(part, MarkedText)] == texts


def test_inline_elements_are_marks_and_code_is_kept() -> None:
    source = 'see <a href="/?a=1&amp;b">the <i>big</i> page</a> <img src=x> or <code>&lt;x</code>.'
    [text] = parse_html(source)
    assert isinstance(text, MarkedText)
    assert text.text == "see the big page or <x."
    assert text.marks == (
        InlineMark(4, 16, '<a href="/?a=1&amp;b">', "</a>", 0),
        InlineMark(8, 11, "<i>", "</i>", 1),
        InlineMark(17, 17, "<img src=x>", "", 0),
    )
    assert text.kept == (KeptText(20, 22, "<code>&lt;x</code>"),)


def test_tags_that_do_not_match_stay_as_single_marks() -> None:
    [text] = parse_html("<b>one <i>two</b> three</i>")
    assert isinstance(text, MarkedText)
    assert [(mark.start, mark.end, mark.opening + mark.closing) for mark in text.marks] == [
        (0, 7, "<b></b>"),
        (4, 4, "<i>"),
        (13, 13, "</i>"),
    ]


def test_an_element_without_text_is_one_mark() -> None:
    [text] = parse_html('one <a id="x"><img><i class="icon"></i></a> two')
    assert isinstance(text, MarkedText)
    assert [mark.opening for mark in text.marks] == ['<a id="x"><img><i class="icon"></i></a>']


def test_what_a_reader_sees_of_a_fragment_is_one_line() -> None:
    assert plain_text("<p>a\n <b>b</b>&gt;<script>c</script></p> ") == "a b>"


MARKUP = st.lists(
    st.sampled_from(["<b>", "</b>", "<p>", "</p>", "<br>", "<!--", "-->", "<i a='", "'", '"', ">"])
    | st.sampled_from(["<", "a b", " ", "\n", "&amp;", "<code>", "</code>", "<img/>", "日本。"])
    | st.sampled_from(["<script>", "</script>"]),
    max_size=30,
).map("".join)


@given(MARKUP)
def test_tokens_are_the_whole_document(source: str) -> None:
    assert "".join(source[token.start : token.end] for token in html_tokens(source)) == source


@given(MARKUP)
def test_no_markup_is_lost(source: str) -> None:
    """What is between the texts stays, and every tag inside a text is a mark or kept."""
    tags = [
        source[token.start : token.end] for token in html_tokens(source) if token.kind != "text"
    ]
    shown = []
    for part in parse_html(source):
        if isinstance(part, str):
            shown.append(part)
        else:
            shown += [mark.opening + mark.closing for mark in part.marks]
            shown += [kept.markup for kept in part.kept]
    for tag in set(tags):
        assert sum(piece.count(tag) for piece in shown) >= tags.count(tag)
