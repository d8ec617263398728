"""Documents by their format: texts to translate, and markup between them that stays."""

from collections.abc import Callable
from typing import Literal

from covnmt.text.markup import Document, MarkedText

DocumentFormat = Literal["text", "html", "markdown", "srt"]

# Characters that may begin markup, and line breaks.
_SIGNS: dict[DocumentFormat, str] = {
    "text": "",
    "html": "<&",
    "markdown": "\n\r<>&[]()*_`~!|\\#",
    "srt": "\n\r<{&",
}


def markup_size(source: str, document_format: DocumentFormat) -> int:
    """Count the characters that may begin markup; the time to parse depends on their number."""
    return sum(map(source.count, _SIGNS[document_format]))


def parse_document(source: str, document_format: DocumentFormat) -> Document:
    """Cut a document into texts and markup, which together are the document."""
    return _parser(document_format)(source)


def _parser(document_format: DocumentFormat) -> Callable[[str], Document]:
    """Return the parser of a format; imported here, as most text is plain and imports take long."""
    if document_format == "html":
        from covnmt.text.html import parse_html

        return parse_html
    if document_format == "markdown":
        from covnmt.text.markdown import parse_markdown

        return parse_markdown
    if document_format == "srt":
        from covnmt.text.subtitles import parse_subtitles

        return parse_subtitles
    return lambda source: [MarkedText(source)]
