"""Cut Markdown into texts to translate and markup that stays.

Code, HTML blocks, link definitions, front matter and addresses stay as they are. A paragraph is one
text: its line breaks become spaces, apart from hard ones.
"""

import html
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from markdown_it import MarkdownIt

from covnmt.text.html import VOID
from covnmt.text.markup import LINE, Document, MarkedText, MarkedTextBuilder

_FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\n.*?\n\1[ \t]*(?:\n|\Z)", re.DOTALL)
# Longer code or link text is read as text: searching for the end of unfinished markup takes long.
MAX_CODE, MAX_LINK_TEXT = 10_000, 1_000
_TARGET = r"(?:\([^()]*(?:\([^()]*\)[^()]*)*\)|\[[^\]]*\])?"  # of a link
_INLINE = re.compile(
    r"(?P<escape>\\[!-/:-@\[-`{-~])"
    r"|(?P<break>(?: {2,}|\\)\n)|(?P<newline>\n)"
    rf"|(?P<code>(?<!`)(?P<ticks>`+)(?!`)(?P<inside>.{{1,{MAX_CODE}}}?)(?<!`)(?P=ticks)(?!`))"
    r"|<?(?P<address>(?:https?://|mailto:)[^\s<>()\[\]]+)>?"
    r"|(?P<note>\A(?:\[[ xX]\]|\[\^[^\]\s]+\]:)\s+|\[\^[^\]\s]+\])"
    rf"|(?P<image>!\[[^\]]{{0,{MAX_LINK_TEXT}}}\]{_TARGET})|(?P<link>\[)|(?P<link_end>\]{_TARGET})"
    r"|(?P<delimiter>\*{1,3}|(?<!\w)__?|__?(?!\w)|~~)"
    r"|(?P<tag></?[a-zA-Z][^<>]*>)|(?P<comment><!--)",
    re.DOTALL,
)
_SPECIAL = re.compile(r"[\\`*<\[\]]|(?<!\w)_|_(?!\w)")


def parse_markdown(source: str) -> Document:
    """Cut Markdown into texts and markup."""
    front_matter = _FRONT_MATTER.match(source)
    start = position = front_matter.end() if front_matter else 0
    lines = [match.span() for match in LINE.finditer(source, start)]
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parts: Document = []
    cell = False
    for token in parser.parse(source[start:]):
        if token.type == "inline" and token.map:
            content = token.content.replace("|", "\\|") if cell else token.content
            first, last = token.map[0], token.map[0] + content.count("\n") + 1
            spans = _find(source, content, lines[first:last], position, cell)
            marked = parse_inline(content, source, spans, cell) if spans else None
            if marked is not None and marked.has_words():
                parts += [source[position : spans[0][0]], marked]
                position = spans[-1][1]
        cell = token.type in ("td_open", "th_open")
    return [text for text in [*parts, source[position:]] if text]


def _find(
    source: str, content: str, lines: Sequence[tuple[int, int]], position: int, cell: bool
) -> list[tuple[int, int]]:
    """Return where the lines of a paragraph, heading or cell are, if all can be found.

    They are the ends of lines of the source, apart from cells.
    """
    spans = []
    for text, (start, end) in zip(content.split("\n"), lines, strict=False):
        start = max(start, position)
        at = source.find(text, start, end) if cell else source.rfind(text, start, end)
        if at < 0:
            return []
        spans.append((at, at + len(text)))
    return spans


def parse_inline(
    content: str, source: str = "", lines: Sequence[tuple[int, int]] = (), cell: bool = False
) -> MarkedText:
    """Return the text and marks of a paragraph, whose lines are at these places of the source."""
    builder = MarkedTextBuilder(collapse=True)
    # what is between two lines: a line break, and the prefix of the next line, such as `> `
    between = iter([source[a[1] : b[0]] for a, b in pairwise(lines)])
    position = search_from = 0
    last_comment_end = content.rfind("-->")
    while match := _INLINE.search(content, search_from):
        search_from = match.end()
        is_comment = match.lastgroup == "comment"
        if is_comment and last_comment_end < match.end():
            continue  # it never ends, so it is text
        builder.add_text(html.unescape(content[position : match.start()]))
        if is_comment:
            search_from = content.index("-->", match.end()) + len("-->")
            builder.mark(content[match.start() : search_from])
        else:
            _add_markup(builder, match, between)
        position = search_from
    builder.add_text(html.unescape(content[position:]))
    return builder.build(_escape_cell if cell else escape_markdown)


def _add_markup(builder: MarkedTextBuilder, match: re.Match[str], between: Iterator[str]) -> None:
    markup = match[0]
    match match.lastgroup:
        case "escape":
            builder.add_text(markup[1])
        case "break":
            builder.keep("\n", markup[:-1] + next(between, "\n"))
        case "newline":
            next(between, "")
            builder.add_text(" ")
        case "code":
            builder.keep(match["inside"].strip(), markup)
        case "address":
            builder.keep(match["address"], markup)
        case "link":
            builder.open("link", markup)
        case "link_end":
            builder.close("link", markup)
        case "delimiter":
            _add_delimiter(builder, match)
        case "tag" if markup[1] == "/":
            builder.close(markup[2:-1].strip().lower(), markup)
        case "tag" if markup[1].isalpha() and not markup.endswith("/>"):
            name = re.split(r"[\s>]", markup[1:], maxsplit=1)[0].lower()
            if name in VOID:
                builder.mark(markup)
            else:
                builder.open(name, markup)
        case _:
            builder.mark(markup)


def _add_delimiter(builder: MarkedTextBuilder, match: re.Match[str]) -> None:
    """Begin or end emphasis, if there is text on that side; else it is text itself."""
    before, after = match.string[: match.start()][-1:], match.string[match.end() :][:1]
    delimiters = ["**", "*"] if match[0] == "***" else [match[0]]
    if before.strip() and all(map(builder.is_open, delimiters)):
        for delimiter in sorted(delimiters, key=builder.depth, reverse=True):
            builder.close(delimiter, delimiter)
    elif after.strip():
        for delimiter in delimiters:
            builder.open(delimiter, delimiter)
    else:
        builder.add_text(match[0])


def escape_markdown(text: str) -> str:
    """Escape the characters of a text that would be markup."""
    return _SPECIAL.sub(r"\\\g<0>", text)


def _escape_cell(text: str) -> str:
    return escape_markdown(text).replace("|", "\\|")
