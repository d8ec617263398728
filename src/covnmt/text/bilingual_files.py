"""Read files of a text and its translation: TSV, PO, TMX, XLIFF 1.2 and 2; add notes to them.

XML is read as a stream, with expat of the standard library. It opens no other files, and a DTD,
which could define entities, is refused. PO is read by polib. A copy with notes has every byte of
the original: notes are inserted where the format has a place for them. Inline tags are not part of
a text, nor is what is in tags that hold code of the original format.
"""

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape  # xml.sax.saxutils takes long to import
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args
from xml.parsers import expat

from covnmt.base.errors import UserError
from covnmt.base.files import (
    atomic_write,
    read_blocks,
    read_bytes,
    read_input_lines,
)
from covnmt.text.languages import primary_language

if TYPE_CHECKING:
    import polib

BilingualFormat = Literal["tsv", "po", "tmx", "xliff"]
FORMATS: tuple[BilingualFormat, ...] = get_args(BilingualFormat)
EXTENSIONS: dict[str, BilingualFormat] = {
    ".tsv": "tsv",
    ".po": "po",
    ".pot": "po",
    ".tmx": "tmx",
    ".xlf": "xliff",
    ".xliff": "xliff",
    ".sdlxliff": "xliff",
    ".mqxliff": "xliff",
}
MAX_CHARACTERS = 1_000_000  # of the texts of a unit, which are held in memory
MAX_PO_BYTES = 1 << 26  # a PO file is held in memory
UNIT_ELEMENTS = {"xliff": ("trans-unit", "unit"), "tmx": ("tu",)}
TEXT_ELEMENTS = {
    "trans-unit": ("source", "target"),
    "segment": ("source", "target"),
    "tuv": ("seg",),
}
XML_NAMESPACE = "http://www.w3.org/XML/1998/namespace "
CODE_TAGS = ("bpt", "ept", "it", "ph", "ut")  # inline tags that hold code of the original format
UNFINISHED_STATES = ("new", "needs-translation", "initial")
TMX_DTD = re.compile(r"(?:.*/)?tmx1[1-4]\.dtd", re.IGNORECASE)
CHARSET = re.compile(rb"charset=([\w.:-]+)", re.IGNORECASE)
PO_LINE = re.compile(r"\(line (\d+)\)")


class NotePosition(NamedTuple):
    """Where in a file notes on a segment belong, and what is written around them."""

    offset: int  # bytes from the beginning of the file, decompressed
    opening: str = ""  # of each note
    closing: str = ""
    first: str = ""  # before all notes
    last: str = ""  # after all notes
    encoding: str = "utf-8"


class Segment(NamedTuple):
    """A piece of text and its translation."""

    id: str
    source: str
    target: str
    line: int  # where it begins in the file
    is_finished: bool = True  # translated, and not marked as preliminary
    place: NotePosition = NotePosition(0)


def bilingual_format(path: Path, name: str | None = None) -> BilingualFormat:
    """Return the format of this name, or without one that of the file's extension."""
    for known in FORMATS:
        if name == known:
            return known
    if name or not has_both_sides(path):
        raise UserError(
            f"{path}: unknown file type; for plain text give the translation as a second file, "
            f"otherwise --format ({', '.join(FORMATS)})"
        )
    return EXTENSIONS[_suffix(path)]


def has_both_sides(path: Path) -> bool:
    """Tell whether a file by its name holds both source and translation."""
    return _suffix(path) in EXTENSIONS


def _suffix(path: Path) -> str:
    return PurePath(re.sub(r"\.(gz|xz)$", "", path.name.lower())).suffix


def read_segments(
    path: Path, file_format: BilingualFormat, languages: tuple[str, str] = ("", "")
) -> Iterator[Segment]:
    """Yield the segments of a file; `languages` are codes that choose among those of a TMX file."""
    if file_format == "tsv":
        return _read_tsv(path)
    if file_format == "po":
        return _read_po(path)
    return _XmlReader(path, file_format, languages).segments()


def write_with_notes(path: Path, copy: Path, notes: Iterable[tuple[NotePosition, str]]) -> None:
    """Write a copy of a PO, TMX or XLIFF file with notes on its segments."""
    at_offset: dict[int, list[tuple[NotePosition, str]]] = {}
    for place, note in notes:
        at_offset.setdefault(place.offset, []).append((place, note))
    waiting, position = sorted(at_offset.items(), reverse=True), 0
    with atomic_write(copy) as output:
        for block in read_blocks(path):
            copied = 0  # bytes of this block
            while waiting and waiting[-1][0] < position + len(block):
                offset, here = waiting.pop()
                output.write(block[copied : offset - position])
                output.write(_render_notes(here))
                copied = offset - position
            output.write(block[copied:])
            position += len(block)
        for _, here in reversed(waiting):  # at the very end of the file
            output.write(_render_notes(here))


def _render_notes(notes: Sequence[tuple[NotePosition, str]]) -> bytes:
    """Return notes on one place; each is a line of text."""
    place = notes[0][0]
    is_xml = "<" in place.opening
    texts = [" ".join(note.split()) for _, note in notes]
    elements = [
        place.opening + (escape(t, quote=False) if is_xml else t) + place.closing for t in texts
    ]
    errors = "xmlcharrefreplace" if is_xml else "backslashreplace"
    return (place.first + "".join(elements) + place.last).encode(place.encoding, errors)


def _read_tsv(path: Path) -> Iterator[Segment]:
    for number, line in enumerate(read_input_lines(path), 1):
        columns = line.split("\t")
        if len(columns) < 2 and line.strip():
            raise UserError(
                f"{path}, line {number}: one column; a source, a tab and its translation are needed"
            )
        source, target = [*columns, ""][:2]
        yield Segment(str(number), source, target, number)


def _read_po(path: Path) -> Iterator[Segment]:
    """Yield the messages of a PO file, and the plural forms of each one."""
    if path.suffix in (".gz", ".xz"):
        raise UserError(f"{path}: a compressed PO file; decompress it first")
    content = read_bytes(path)
    if len(content) > MAX_PO_BYTES:
        raise UserError(f"{path}: {len(content):,} bytes, more than {MAX_PO_BYTES:,}; split it")
    encoding = _po_encoding(path, content)
    lines = re.split(rb"(?<=\n)|(?<=\r)(?!\n)", content)
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line))
    newline = "\r\n" if b"\r\n" in content else "\n"
    for entry in _po_entries(path, encoding):
        if entry.obsolete or not entry.msgid:
            continue
        offset = offsets[min(max(entry.linenum, 1), len(offsets)) - 1]
        place = NotePosition(offset, "# covnmt: ", newline, encoding=encoding)
        pairs = [(entry.msgid, entry.msgstr)]
        if entry.msgid_plural:
            forms = [text for _, text in sorted(entry.msgstr_plural.items())]
            sources = [entry.msgid] * (len(forms) > 1) + [entry.msgid_plural] * len(forms)
            pairs = list(zip(sources, forms, strict=False))
        for number, (source, target) in enumerate(pairs):
            name = f"{entry.linenum}[{number}]" if entry.msgid_plural else str(entry.linenum)
            is_finished = bool(target.strip()) and not entry.fuzzy
            yield Segment(name, source, target, entry.linenum, is_finished, place)


def _po_encoding(path: Path, content: bytes) -> str:
    name = match[1].decode() if (match := CHARSET.search(content[:10_000])) else "utf-8"
    try:
        return codecs.lookup("utf-8" if name.upper() == "CHARSET" else name).name
    except LookupError:
        raise UserError(f"{path}: unknown charset {name}; convert it to UTF-8") from None


def _po_entries(path: Path, encoding: str) -> "Sequence[polib.POEntry]":
    import polib

    try:
        return list(polib.pofile(str(path), encoding=encoding))
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: byte {error.start} is not {encoding} ({error.reason}); convert the file first"
        ) from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        line = PO_LINE.search(str(error))
        where = f"{path}, line {line[1]}" if line else str(path)
        detail = str(error).rpartition("): ")[2] if line and "): " in str(error) else "syntax error"
        raise UserError(f"{where}: not a PO file ({detail}); try `msgfmt --check`") from None


@dataclass
class _Unit:
    """An element that is being read, with one segment or several."""

    name: str
    id: str
    line: int
    prefix: str
    is_finished: bool = True
    source_language: str = ""
    place: NotePosition | None = None
    characters: int = 0
    segments: list["_Texts"] = field(default_factory=list)


@dataclass
class _Texts:
    """The texts of a segment, or of one language of a TMX unit, by the names of their elements."""

    id: str = ""
    language: str = ""
    is_finished: bool = True
    texts: dict[str, str] = field(default_factory=dict)


class _XmlReader:
    """Collects the segments of an XML file while expat calls it for every tag and text."""

    def __init__(self, path: Path, file_format: str, languages: tuple[str, str]) -> None:
        self.path, self.format = path, file_format
        self.languages = tuple(primary_language(language) for language in languages)
        self.parser = expat.ParserCreate(namespace_separator=" ")
        self.parser.namespace_prefixes = True
        self.parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
        self.parser.XmlDeclHandler = self._declare
        self.parser.StartDoctypeDeclHandler = self._refuse_doctype
        self.parser.SkippedEntityHandler = self._refuse_entity
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.CommentHandler = lambda _text: self._set_pending_place()
        self.parser.ProcessingInstructionHandler = lambda _t, _d: self._set_pending_place()
        self.parser.StartCdataSectionHandler = self._set_pending_place
        self.encoding, self.header_language = "utf-8", ""
        self.names: list[str] = []  # of the open elements
        self.keeps_space: list[bool] = []  # in each of them
        self.unit: _Unit | None = None
        self.text: list[str] | None = None  # of the source or target that is being read
        self.text_depth = self.code_depth = 0
        self.gap = self.text_gap = ""  # white space before the current tag, and the current text
        self.pending: str | None = None  # the gap of a place that is the next event
        self.notes_start = -1
        self.count = 0
        self.done: list[Segment] = []

    def segments(self) -> Iterator[Segment]:
        """Read the file and yield its segments."""
        is_first = True
        try:
            for block in read_blocks(self.path):
                if is_first:
                    self._detect_utf16(block)
                    is_first = False
                self.parser.Parse(block, False)
                yield from self._take()
            self.parser.Parse(b"", True)
            yield from self._take()
        except expat.ExpatError as error:
            raise UserError(
                f"{self.path}, line {error.lineno}: not valid XML ({expat.ErrorString(error.code)})"
            ) from None
        except (ValueError, LookupError) as error:  # an encoding that expat does not know
            raise UserError(f"{self.path}: cannot be read ({error}); save it as UTF-8") from None

    def _take(self) -> list[Segment]:
        done, self.done = self.done, []
        return done

    def _error(self, message: str) -> UserError:
        return UserError(f"{self.path}, line {self.parser.CurrentLineNumber}: {message}")

    def _detect_utf16(self, block: bytes) -> None:
        if block[:2] in (codecs.BOM_UTF16_LE, b"<\0"):
            self.encoding = "utf-16-le"
        elif block[:2] in (codecs.BOM_UTF16_BE, b"\0<"):
            self.encoding = "utf-16-be"

    def _declare(self, _version: str, encoding: str | None, _standalone: int) -> None:
        if encoding and self.encoding == "utf-8":
            self.encoding = codecs.lookup(encoding).name

    def _refuse_doctype(
        self, name: str, system: str | None, _public: str | None, has_subset: bool
    ) -> None:
        """Refuse a DTD, but for the line that TMX files begin with; that DTD is not read."""
        if name == "tmx" and not has_subset and TMX_DTD.fullmatch(system or ""):
            return
        raise self._error("a DTD (<!DOCTYPE>), which is refused; remove it")

    def _refuse_entity(self, name: str, _is_parameter: bool) -> None:
        raise self._error(f"the entity &{name}; is not defined; write the character itself")

    def _set_pending_place(self) -> None:
        """Let notes on a unit begin here, if its target has just ended."""
        if self.pending is not None and self.unit:
            opening = f'{self.pending}<{self.unit.prefix}note from="covnmt">'
            self.unit.place = self._place(opening, f"</{self.unit.prefix}note>")
        self.pending = None

    def _place(self, opening: str, closing: str, first: str = "", last: str = "") -> NotePosition:
        offset = self.parser.CurrentByteIndex
        return NotePosition(offset, opening, closing, first, last, self.encoding)

    def _start(self, qualified: str, attributes: dict[str, str]) -> None:
        self._set_pending_place()
        name, prefix = _split_name(qualified)
        values = {
            _split_name(key)[0]: value
            for key, value in attributes.items()
            if " " not in key or key.startswith(XML_NAMESPACE)
        }
        parent = self.names[-1] if self.names else ""
        if not parent and name != self.format:
            raise self._error(f"<{name}> is not the beginning of a {self.format.upper()} file")
        space = values.get("space")
        keeps_space = bool(self.keeps_space) and self.keeps_space[-1]
        self.keeps_space.append(keeps_space if space is None else space == "preserve")
        self.names.append(name)
        if self.text is not None:
            self._start_inline(name, values)
        elif self.unit:
            self._start_in_unit(self.unit, parent, name, values)
        elif name in UNIT_ELEMENTS[self.format]:
            self.unit = self._new_unit(name, prefix, values)
        elif name == "header":
            self.header_language = values.get("srclang", "")
        self.gap = ""

    def _new_unit(self, name: str, prefix: str, values: dict[str, str]) -> _Unit:
        self.count += 1
        identity = " ".join((values.get("id") or values.get("tuid") or str(self.count)).split())
        language = values.get("srclang", self.header_language)
        is_finished = values.get("translate", "yes") == "yes"
        line = self.parser.CurrentLineNumber
        unit = _Unit(name, identity, line, prefix, is_finished, primary_language(language))
        if name == "trans-unit":
            unit.segments.append(_Texts())
        return unit

    def _start_in_unit(self, unit: _Unit, parent: str, name: str, values: dict[str, str]) -> None:
        if name in TEXT_ELEMENTS.get(parent, ()) and unit.segments:
            self.text, self.text_depth, self.code_depth = [], len(self.names), 0
            if name == "target" and values.get("state") in UNFINISHED_STATES:
                unit.segments[-1].is_finished = False
            self.text_gap = self.gap
        elif parent == "unit" and name == "notes":
            self.notes_start = self.parser.CurrentByteIndex
        elif parent == "unit" and name in ("originalData", "segment", "ignorable"):
            if unit.place is None:
                note = f"{unit.prefix}note"
                unit.place = self._place(
                    f'<{note} category="covnmt">',
                    f"</{note}>",
                    f"<{note}s>",
                    f"</{note}s>{self.gap}",
                )
        elif parent == "tu" and name == "tuv" and unit.place is None:
            unit.place = self._place("<note>covnmt: ", f"</note>{self.gap}")
        if (parent, name) in (("unit", "segment"), ("tu", "tuv")):
            is_finished = values.get("state") not in UNFINISHED_STATES
            language = primary_language(values.get("lang", ""))
            unit.segments.append(_Texts(values.get("id", ""), language, is_finished))

    def _start_inline(self, name: str, values: dict[str, str]) -> None:
        self.code_depth += bool(self.code_depth) or name in CODE_TAGS
        if values.get("ctype") == "lb" or values.get("subType") == "xlf:lb":
            self._add_text("\n")

    def _text(self, text: str) -> None:
        self._set_pending_place()
        if self.text is None:
            self.gap = self.gap + text if text.isspace() else ""
            return
        if not self.code_depth:
            self._add_text(text if self.keeps_space[-1] else re.sub(r"\s", " ", text))

    def _add_text(self, text: str) -> None:
        if self.unit is None or self.text is None:
            return
        self.unit.characters += len(text)
        if self.unit.characters > MAX_CHARACTERS:
            raise self._error(f"more than {MAX_CHARACTERS:,} characters in one unit; split it")
        self.text.append(text)

    def _end(self, _qualified: str) -> None:
        self._set_pending_place()
        name = self.names.pop()
        self.keeps_space.pop()
        unit = self.unit
        if unit is None:
            pass
        elif self.text is not None and len(self.names) + 1 == self.text_depth:
            unit.segments[-1].texts[name] = "".join(self.text)
            self.text = None
            if unit.name == "trans-unit" and (name == "target" or unit.place is None):
                self.pending = self.text_gap
        elif self.text is not None:
            self.code_depth -= bool(self.code_depth)
        elif name == "notes" and self.names[-1] == "unit":
            if self.parser.CurrentByteIndex > self.notes_start:  # not <notes/>
                note = f"{unit.prefix}note"
                unit.place = self._place(f'<{note} category="covnmt">', f"</{note}>")
        elif name == unit.name and name not in self.names[-1:]:
            self.done += self._finished_segments(unit)
            self.unit = None
        self.gap = ""

    def _finished_segments(self, unit: _Unit) -> Iterator[Segment]:
        place = unit.place or NotePosition(0)
        if unit.name == "tu":
            source, target = self._choose_languages(unit)
            rows = [("", source, target, True)]
        else:
            rows = [
                (s.id, s.texts.get("source", ""), s.texts.get("target", ""), s.is_finished)
                for s in unit.segments
            ]
        for name, source, target, is_finished in rows:
            whole = f"{unit.id}/{' '.join(name.split())}" if name else unit.id
            is_finished &= unit.is_finished and bool(source.strip()) and bool(target.strip())
            yield Segment(whole, source, target, unit.line, is_finished, place)

    def _choose_languages(self, unit: _Unit) -> tuple[str, str]:
        """Return the texts of a TMX unit in the languages that were asked for, or nothing."""
        texts = {s.language: s.texts.get("seg", "") for s in reversed(unit.segments)}
        source, target = self.languages
        if not source:
            source = unit.source_language
            source = source if source in texts else next(reversed(texts), "")
        if not target:
            target = next((name for name in reversed(texts) if name != source), "")
        return texts.get(source, ""), texts.get(target, "")


def _split_name(qualified: str) -> tuple[str, str]:
    """Return the local name and the prefix, with a colon, of `uri local prefix`."""
    parts = qualified.split(" ")
    return parts[min(1, len(parts) - 1)], f"{parts[2]}:" if len(parts) > 2 else ""
