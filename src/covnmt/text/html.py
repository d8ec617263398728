"""Cut HTML into texts to translate and markup that stays.

Attributes, comments, scripts, styles, code and everything marked with `translate="no"` or the class
`notranslate` stay as they are. Block elements end a text, as does `<br>`; inline elements are marks
in it. Readings (ruby) belong to the source text and are dropped.
"""

import html
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from covnmt.text.markup import SPACE, Document, MarkedTextBuilder, collapse_space

# Elements whose content is not HTML.
RAW_TEXT = frozenset({"iframe", "noembed", "noframes", "script", "style", "textarea", "xmp"})
VOID = frozenset(
    {"area", "base", "br", "col", "embed", "frame", "hr", "img", "input", "link", "meta", "param"}
    | {"source", "track", "wbr"}
)
# Not translated: some are inline and part of a sentence, others are not.
OPAQUE = frozenset(
    {"audio", "canvas", "code", "kbd", "math", "object", "samp", "svg", "template", "tt", "var"}
    | {"pre", "video"}
)
BLOCKS = frozenset(
    {"address", "article", "aside", "base", "blockquote", "body", "caption", "center", "col"}
    | {"colgroup", "dd", "details", "dialog", "dir", "div", "dl", "dt", "fieldset", "figcaption"}
    | {"figure", "footer", "form", "frameset", "h1", "h2", "h3", "h4", "h5", "h6", "head", "header"}
    | {"hgroup", "hr", "html", "legend", "li", "link", "main", "menu", "meta", "nav", "ol"}
    | {"optgroup", "option", "p", "pre", "search", "section", "select", "summary", "table", "tbody"}
    | {"td", "tfoot", "th", "thead", "title", "tr", "ul"}
)
READINGS = frozenset({"rp", "rt", "rtc"})
NOT_TRANSLATED = re.compile(
    r"""\stranslate\s*=\s*["']?no\b|\sclass\s*=\s*(?:"[^"]*\bnotranslate\b|'[^']*\bnotranslate\b"""
    r"|notranslate\b)",
    re.IGNORECASE,
)
_TAG_NAME = re.compile(r"[a-zA-Z][^\s/>]*")


@dataclass(frozen=True)
class HtmlToken:
    """A tag, comment or text; `single` is a tag without content, or an element with raw text."""

    kind: Literal["text", "open", "close", "single"]
    name: str
    start: int
    end: int


def html_tokens(source: str) -> Iterator[HtmlToken]:
    """Yield the tokens of a document, in time linear in its length.

    The rest after markup that does not end is one token. A `<` that begins no markup is text.
    """
    position = text_start = 0
    last_end = source.rfind(">")
    while (start := source.find("<", position)) >= 0:
        token = _markup_at(source, start, last_end)
        position = token.end if token else start + 1
        if token:
            if start > text_start:
                yield HtmlToken("text", "", text_start, start)
            yield token
            text_start = position
    if text_start < len(source):
        yield HtmlToken("text", "", text_start, len(source))


def _markup_at(source: str, start: int, last_end: int) -> HtmlToken | None:
    """Return the markup that begins at this `<`, if any does."""
    for opening, closing in (("<!--", "-->"), ("<![CDATA[", "]]>"), ("<!", ">"), ("<?", ">")):
        if source.startswith(opening, start):
            end = _after(source, closing, start + len(opening))
            return HtmlToken("single", "", start, end)
    is_end_tag = source.startswith("</", start)
    match = _TAG_NAME.match(source, start + 1 + is_end_tag)
    if match is None or start > last_end:
        return None
    name, end = match[0].lower(), _tag_end(source, match.end())
    if is_end_tag:
        return HtmlToken("close", name, start, end)
    if name in RAW_TEXT:
        closing_tag = re.compile(f"</{name}[^>]*>", re.IGNORECASE).search(source, end)
        return HtmlToken("single", name, start, closing_tag.end() if closing_tag else len(source))
    is_single = name in VOID or source.endswith("/>", start, end)
    return HtmlToken("single" if is_single else "open", name, start, end)


def _after(source: str, text: str, position: int) -> int:
    found_at = source.find(text, position)
    return found_at + len(text) if found_at >= 0 else len(source)


def _tag_end(source: str, position: int) -> int:
    """Return where a tag ends: after the next `>` that is not inside a quoted value."""
    previous = ""
    while position < len(source):
        character = source[position]
        if character == ">":
            return position + 1
        if character in "\"'" and previous == "=":
            position = _after(source, character, position + 1)
            previous = character
            continue
        if not character.isspace():
            previous = character
        position += 1
    return len(source)


def parse_html(source: str) -> Document:
    """Cut HTML into texts and markup; without letters or digits, all of it is markup."""
    return _HtmlParser(source).parse()


def plain_text(source: str) -> str:
    """Return the text of a piece of HTML as a reader sees it, in one line."""
    texts = [
        source[token.start : token.end] for token in html_tokens(source) if token.kind == "text"
    ]
    return collapse_space(html.unescape("".join(texts))).strip()


def escape_html(text: str) -> str:
    """Escape the characters of a text that would be markup."""
    return html.escape(text, quote=False)


class _HtmlParser:
    def __init__(self, source: str) -> None:
        self.source = source
        self.parts: Document = []
        self.tokens = list(html_tokens(source))
        self.ends = _element_ends(self.tokens)
        self._begin(0)

    def _begin(self, position: int) -> None:
        """Begin a text at this position of the source."""
        self.builder = MarkedTextBuilder(collapse=True)
        self.start = position

    def parse(self) -> Document:
        index = 0
        while index < len(self.tokens):
            token = self.tokens[index]
            markup = self.source[token.start : token.end]
            if token.kind == "open" and (
                token.name in OPAQUE or NOT_TRANSLATED.search(markup) or token.name in READINGS
            ):
                index = self.ends[index]
                self._add_opaque(token, self.tokens[index].end)
            elif token.kind == "text":
                self.builder.add_text(html.unescape(markup))
            elif token.name == "br":
                self.builder.keep("\n", markup)
            elif token.name in BLOCKS:
                self._end_text(token)
            elif token.kind == "single":
                self.builder.mark(markup)
            elif token.name in ("ruby", "rb"):
                pass  # what is left without readings is plain text
            elif token.kind == "open":
                self.builder.open(token.name, markup)
            else:
                self.builder.close(token.name, markup)
            index += 1
        self._add_text(len(self.source))
        return self.parts

    def _add_opaque(self, token: HtmlToken, end: int) -> None:
        """Add an element that is not translated; block elements also end a text."""
        if token.name in BLOCKS:
            self._end_text(replace(token, end=end))
        elif token.name not in READINGS:
            markup = self.source[token.start : end]
            self.builder.keep(plain_text(markup), markup)

    def _end_text(self, block: HtmlToken) -> None:
        self._add_text(block.start)
        self.parts.append(self.source[block.start : block.end])
        self._begin(block.end)

    def _add_text(self, end: int) -> None:
        """Add the text that ends here; white space at both of its ends stays as it is."""
        original = self.source[self.start : end]
        marked = self.builder.build(escape_html)
        if not marked.has_words():
            self.parts += [original] if original else []
            return
        space_before = original[: len(original) - len(original.lstrip(SPACE))]
        space_after = original[len(original.rstrip(SPACE)) :]
        self.parts += filter(None, (space_before, marked, space_after))


def _element_ends(tokens: Sequence[HtmlToken]) -> dict[int, int]:
    """Return the index of the last token of every element, by that of its first.

    One without an end tag ends before the next block.
    """
    ends: dict[int, int] = {}
    opened: dict[str, list[int]] = defaultdict(list)
    for index, token in enumerate(tokens):
        if token.kind == "open":
            opened[token.name].append(index)
        elif token.kind == "close" and opened[token.name]:
            ends[opened[token.name].pop()] = index
    next_block = len(tokens)
    for index in reversed(range(len(tokens))):
        if tokens[index].kind == "open":
            ends.setdefault(index, next_block - 1)
        if tokens[index].name in BLOCKS:
            next_block = index
    return ends
