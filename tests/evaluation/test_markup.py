"""Text is escaped, whatever it is."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covnmt.evaluation.markup import Markup, element, join

CASES = [
    (element("p", "a < b & c"), "<p>a &lt; b &amp; c</p>"),
    (element("p", element("b", "x"), " y"), "<p><b>x</b> y</p>"),
    (element("td", "1", class_="number", colspan=2), '<td class="number" colspan="2">1</td>'),
    (element("a", "x", href='"><script>'), '<a href="&quot;&gt;&lt;script&gt;">x</a>'),
    (element("details", open=True, hidden=False, id=None), "<details open></details>"),
    (element("line", stroke_width=0.5), '<line stroke-width="0.5"></line>'),
    (element("br"), "<br>"),
    (join("a&", Markup("<i>b</i>")), "a&amp;<i>b</i>"),
]


@pytest.mark.parametrize(("made", "expected"), CASES)
def test_elements(made: Markup, expected: str) -> None:
    assert made == expected


class Read(HTMLParser):
    """What a browser would see: start tags with attributes, and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


# carriage returns are line ends to any reader of HTML
TEXT = st.text(st.characters(exclude_characters="\r\0", exclude_categories=["Cs"]), max_size=40)


@given(TEXT, TEXT)
def test_what_goes_in_comes_out(text: str, attribute: str) -> None:
    read = Read(element("p", text, title=attribute))
    assert read.text == text
    assert read.tags == [("p", {"title": attribute})]
