"""Translating documents: tags follow their words, terms are required, nothing is lost.

The translator of these tests writes every word in upper case and in reverse order, so that it is
known which word comes from which.
"""

import re
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covnmt.inference.documents import DocumentBatch, TranslatedDocument, split_around
from covnmt.inference.terms import Terms
from covnmt.inference.translate import Translation
from covnmt.text.documents import DocumentFormat

Translate = Callable[[str], str]


def reverse(sentence: str) -> str:
    """Return the words of a sentence in upper case and reverse order; the full stop stays."""
    stop = "." if sentence.endswith(".") else ""
    return " ".join(reversed(sentence.removesuffix(".").upper().split())) + stop


def translation(sentence: str, text: str) -> Translation:
    """Return a translation whose words attend to the same words in lower case, wherever found."""
    source, target = re.findall(r"[\w()]+|[.]", sentence), re.findall(r"[\w()]+|[.]", text)
    attention = np.array(
        [[float(word.lower() == other.lower()) for other in source] for word in target],
        dtype=np.float32,
    ).reshape(len(target), len(source))
    return Translation(
        sentence, tuple(source), text, tuple(target), 0.0, (attention,), attention.sum(0), None
    )


def translate(
    source: str,
    document_format: DocumentFormat = "html",
    terms: dict[str, str] | None = None,
    translator: Translate = reverse,
) -> TranslatedDocument:
    batch = DocumentBatch([source], document_format, Terms(terms or {}))
    translations: Sequence[Translation] = ()
    while sentences := batch.advance(translations):
        translations = [translation(sentence, translator(sentence)) for sentence in sentences]
    [document] = batch.results()
    return document


# a document, and its translation
DOCUMENTS = [
    ("<p>one two</p>\n<p>three</p>", "<p>TWO ONE</p>\n<p>THREE</p>"),
    ("<p>one <b>two three</b> four.</p>", "<p>FOUR <b>THREE TWO</b> ONE.</p>"),
    ("<b>one</b> two <i>three</i>", "<i>THREE</i> TWO <b>ONE</b>"),
    ("<b>one <i>two</i></b> three", "THREE <b><i>TWO</i> ONE</b>"),
    ("<b>One two. Three four.</b>", "<b>TWO ONE. FOUR THREE.</b>"),
    ("<b>One two.</b> Three four.", "<b>TWO ONE.</b> FOUR THREE."),
    ("one<br>two three<br/>four", "ONE<br>THREE TWO<br/>FOUR"),
    ("one <img src=x> two", "<img src=x>TWO ONE"),
    ("One.<!-- a --> Two.", "ONE.<!-- a --> TWO."),
    ("a &amp; b &lt; c", "C &lt; B &amp; A"),
    ("call <code>f(x)</code> twice", "TWICE <code>f(x)</code> CALL"),
    (
        '<a href="?a=1&amp;b" title="one">one</a> two',
        'TWO <a href="?a=1&amp;b" title="one">ONE</a>',
    ),
    ("hi <i translate=no><b>@bob</b></i> you", "YOU <i translate=no><b>@bob</b></i> HI"),
    ("<p>— <b>*</b></p>", "<p>— <b>*</b></p>"),
    ("<code>x</code>", "<code>x</code>"),
    ("<b>one", "<b>ONE"),
    ("one</b> two", "</b>TWO ONE"),
]


@pytest.mark.parametrize(("source", "expected"), DOCUMENTS)
def test_tags_go_around_the_words_that_come_from_theirs(source: str, expected: str) -> None:
    assert translate(source).text == expected


def test_markdown_and_subtitles_keep_their_layout() -> None:
    markdown = "# One two\n\n- three **four**\n\n```\nfive\n```\n"
    expected = "# TWO ONE\n\n- **FOUR** THREE\n\n```\nfive\n```\n"
    assert translate(markdown, "markdown").text == expected
    srt = "1\n00:00:01,000 --> 00:00:02,000\n<i>one two\nthree four</i>\n"
    expected = "1\n00:00:01,000 --> 00:00:02,000\n<i>FOUR THREE\nTWO ONE</i>\n"
    assert translate(srt, "srt").text == expected


def lose_numbers(sentence: str) -> str:
    return re.sub(r"\d+ ?", "", reverse(sentence))


# a text, its terms, the translator; the translation, and whether each term was inserted
TERMS = [
    ("one two three", {"two": "zwei"}, reverse, "THREE zwei ONE", [False]),
    ("one two three", {"two": "TWO"}, reverse, "THREE TWO ONE", [False]),
    ("one two three", {"two": "zwei"}, lose_numbers, "THREE zwei ONE", [True]),
    ("one two three four", {"two three": "x y"}, lose_numbers, "FOUR x y ONE", [True]),
    ("twofold is not two", {"two": "zwei"}, reverse, "zwei NOT IS TWOFOLD", [False]),
    ("a b c", {"a": "x", "c": "z"}, reverse, "z B x", [False, False]),
    ("a b c a", {"a": "x"}, reverse, "x C B x", [False, False]),
    ("two", {"two": "zwei"}, reverse, "zwei", [False]),
    ("7777 two", {"two": "zwei"}, reverse, "zwei 7777", [False]),
    ("A b. C d.", {"b. C": "x"}, reverse, "D x A.", [False]),
    ("none here", {"two": "zwei"}, reverse, "HERE NONE", []),
]


@pytest.mark.parametrize(("source", "terms", "translator", "expected", "inserted"), TERMS)
def test_terms_are_in_the_translation(
    source: str, terms: dict[str, str], translator: Translate, expected: str, inserted: list[bool]
) -> None:
    document = translate(source, "text", terms, translator)
    assert document.text == expected
    assert [term.inserted for term in document.terms] == inserted


def test_terms_of_scripts_without_spaces_are_found_inside_words() -> None:
    document = translate("彼はXYに行った", "text", {"彼": "he", "XY": "xy"}, lambda _: "")
    assert [(term.source, term.inserted) for term in document.terms] == [("彼", True), ("XY", True)]
    assert document.text == "he xy"


def test_a_repeated_placeholder_is_not_used() -> None:
    document = translate("one two", "text", {"two": "zwei"}, lambda s: f"{reverse(s)} 7777")
    assert (document.text, document.terms[0].inserted) == ("zwei ONE 7777", True)


def test_terms_and_tags_work_together() -> None:
    document = translate("see <b>two <i>three</i></b> here", terms={"two": "a&b"})
    assert document.text == "HERE <b><i>THREE</i> a&amp;b</b> SEE"


def test_sentences_are_not_split_inside_spans() -> None:
    layout = split_around("One. Two. Three. Four.", [(6, 12)])
    assert layout.sentences == ("One.", "Two. Three.", "Four.")
    assert layout.join(layout.sentences) == "One. Two. Three. Four."


MARKUP = st.lists(
    st.sampled_from(["<b>", "</b>", "<i>", "</i>", "<p>", "</p>", "<br>", "<img>", "<u></u>", "-"])
    | st.sampled_from(["one ", "Two. ", "three", "&amp;", " ", ". ", "日本。", "<code>x</code>"])
    | st.just("<code>y. Z</code>"),
    max_size=25,
).map("".join)
TRANSLATORS: list[Translate] = [reverse, str, lambda _: "", lambda _: "same words", lose_numbers]


@given(MARKUP, st.sampled_from(TRANSLATORS), st.sampled_from([{}, {"one": "a"}, {"three": "<"}]))
def test_every_tag_is_there_once_whatever_the_model_says(
    source: str, translator: Translate, terms: dict[str, str]
) -> None:
    document = translate(source, "html", terms, translator)
    for tag in ("<b>", "</b>", "<i>", "</i>", "<p>", "<br>", "<img>", "<u></u>", "<code>x</code>"):
        assert document.text.count(tag) == source.count(tag), tag
    for term in document.terms:
        assert term.target.replace("<", "&lt;") in document.text


@given(MARKUP)
def test_markup_nests_as_before(source: str) -> None:
    """Where it was well formed: an end tag never comes before its beginning."""
    text = translate(f"<p>{source}</p>").text
    if _is_well_formed(f"<p>{source}</p>"):
        assert _is_well_formed(text)


def _is_well_formed(source: str) -> bool:
    stack: list[str] = []
    for closing, name in re.findall(r"<(/?)([biup]|code)>", source):
        if not closing:
            if name == "p" and stack:
                return False
            stack.append(name)
        elif not stack or stack.pop() != name:
            return False
    return not stack


def test_terms_are_found_in_time_that_hardly_depends_on_their_number() -> None:
    terms = Terms({"a" * (n % 199 + 1) + chr(0x4E00 + n): "x" for n in range(1000)})
    started = time.monotonic()
    assert list(terms.find("a" * 60_000)) == []
    assert time.monotonic() - started < 30


def test_the_longest_term_counts() -> None:
    terms = Terms({"New York": "1", "New": "2", "York City": "3", "新": "4", "新聞": "5"})
    found = [(term.span, term.text) for term in terms.find("New York City, New, News 新聞新")]
    assert found == [((0, 8), "1"), ((15, 18), "2"), ((25, 27), "5"), ((27, 28), "4")]


def test_much_code_in_a_sentence_is_put_back_in_order() -> None:
    html = " ".join(f"<code>{'ab'[n % 2]}</code>" for n in range(1000)) + " word"
    started = time.monotonic()
    document = translate(html)
    assert document.text.count("<code>a</code>") == document.text.count("<code>b</code>") == 500
    assert time.monotonic() - started < 60
