"""Documents by their format: texts to translate, and markup between them that stays."""

from collections.abc import Callable, Mapping
from typing import Literal

from covnmt.text.html import parse_html
from covnmt.text.markdown import parse_markdown
from covnmt.text.markup import Document, MarkedText
from covnmt.text.subtitles import parse_subtitles

DocumentFormat = Literal["text", "html", "markdown", "srt"]


def parse_document(source: str, document_format: DocumentFormat) -> Document:
    """Cut a document into texts and markup, which together are the document."""
    return _PARSERS[document_format](source)


def _parse_text(source: str) -> Document:
    return [MarkedText(source)]


_PARSERS: Mapping[DocumentFormat, Callable[[str], Document]] = {
    "text": _parse_text,
    "html": parse_html,
    "markdown": parse_markdown,
    "srt": parse_subtitles,
}
