"""Cut subtitles (SRT, and WebVTT, which is alike) into texts to translate and markup that stays.

A subtitle is one text. If it has several lines and each begins with a dash, they are what different
people say, and each line is a text. Times, numbers, tags and positions stay. The translation of
several lines is wrapped to as many.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from covnmt.text.characters import is_unspaced_script
from covnmt.text.html import html_tokens
from covnmt.text.markup import LINE, Document, MarkedTextBuilder

_TIME = re.compile(r"(?:\d+:)?\d+:\d+[,.]\d+[ \t]*-->")
_DASH = re.compile(r"[-–—‐][ \t]*")
_POSITION = re.compile(r"\{\\[^{}]*\}")
_TAG_OR_CHARACTER = re.compile(r"<[^<>]*>|\{[^{}]*\}|.", re.DOTALL)


def parse_subtitles(source: str) -> Document:
    """Cut subtitles into texts and markup; nothing before the first time stamp is translated."""
    parts: Document = []
    subtitle: list[str] | None = None  # the lines after a time, up to an empty one
    for line in LINE.findall(source):
        if subtitle is not None and line.strip():
            subtitle.append(line)
            continue
        parts += [*_parse_subtitle(subtitle or []), line]
        subtitle = [] if _TIME.match(line) else None
    return list(filter(None, parts))


def _parse_subtitle(lines: Sequence[str]) -> Document:
    if not lines:
        return []
    if all(map(_DASH.match, lines)) and len(lines) > 1:
        return list(chain.from_iterable(_parse_subtitle_text([line]) for line in lines))
    return _parse_subtitle_text(lines)


def _parse_subtitle_text(lines: Sequence[str]) -> Document:
    text = "".join(lines)
    dash = _DASH.match(text)
    start, end = dash.end() if dash else 0, len(text.rstrip())
    line_break = "\r\n" if lines[0].endswith("\r\n") else "\n"
    builder = MarkedTextBuilder(collapse=True)
    body = text[start:end]
    for token in html_tokens(body):
        markup = body[token.start : token.end]
        if token.kind == "text":
            position = 0
            for match in _POSITION.finditer(markup):
                builder.add_text(markup[position : match.start()])
                builder.mark(match[0])
                position = match.end()
            builder.add_text(markup[position:])
        elif token.kind == "open":
            builder.open(token.name, markup)
        elif token.kind == "close":
            builder.close(token.name, markup)
        else:
            builder.mark(markup)
    wrap = partial(wrap_lines, number=len(lines), line_break=line_break)
    return [text[:start], replace(builder.build(), finish=wrap), text[end:]]


def wrap_lines(text: str, number: int, line_break: str = "\n") -> str:
    """Break a text with tags into lines of similar length, at spaces or full-width characters."""
    breaks: list[tuple[int, int, int]] = []  # visible characters before it, start and end
    visible, previous = 0, ""
    for match in _TAG_OR_CHARACTER.finditer(text):
        character = match[0]
        if len(character) > 1:  # a tag
            continue
        if character == " ":
            breaks.append((visible, match.start(), match.end()))
        elif previous and is_unspaced_script(previous) and is_unspaced_script(character):
            breaks.append((visible, match.start(), match.start()))
        visible, previous = visible + 1, character
    lines, position = [], 0
    for line in range(1, number):
        left = [entry for entry in breaks if entry[1] > position]
        if not left:
            break
        _, start, end = min(left, key=lambda entry: abs(entry[0] - visible * line / number))
        lines.append(text[position:start])
        position = end
    return line_break.join([*lines, text[position:]])
