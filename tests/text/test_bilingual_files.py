"""Files of a text and its translation: what is read from them, and notes that are added."""

import gzip
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covnmt.base.errors import UserError
from covnmt.text import bilingual_files
from covnmt.text.bilingual_files import (
    Segment,
    bilingual_format,
    read_segments,
    write_with_notes,
)

XLIFF_1 = """<?xml version="1.0" encoding="UTF-8"?>
<!-- made by hand -->
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2" xmlns:x="urn:x">
  <file original='a.txt' source-language="de" target-language="en" datatype="plaintext">
    <body>
      <trans-unit id="t1" x:id="other">
        <source>Das <g id="1">alte</g> Haus<x id="2"/> &amp; der <bpt id="3">&lt;b></bpt>Hof<ept
          id="3">&lt;/b></ept>.</source>
        <target>The <g id="1">old</g> house.</target>
        <note>mind the &#8220;quotes&#8221;</note>
        <alt-trans><source>x</source><target>y</target></alt-trans>
      </trans-unit>
      <group>
        <trans-unit id="t2"><source>Eins</source><target><![CDATA[One]]></target></trans-unit>
        <trans-unit id="t3"><source>Zwei</source></trans-unit>
        <trans-unit id="t4"><source>Drei</source><target state="new">Drei</target></trans-unit>
        <trans-unit id="t5" translate="no"><source>A</source><target>A</target></trans-unit>
      </group>
      <trans-unit id="t6" xml:space="preserve"><source>a
b<x id="1" ctype="lb"/>c</source><target>A B</target></trans-unit>
    </body>
  </file>
</xliff>
"""
XLIFF_2 = """<xliff version="2.0" srcLang="de" trgLang="en"
 xmlns="urn:oasis:names:tc:xliff:document:2.0">
 <file id="f">
  <unit id="u1">
   <originalData><data id="d">&lt;br></data></originalData>
   <segment id="s1"><source>Der <pc id="1">Hund</pc> bellt.</source>
    <target>The dog.</target></segment>
   <ignorable><source> </source></ignorable>
   <segment id="s2"><source>Es ist spät.<ph id="2" dataRef="d"/></source>
    <target>It is late.</target></segment>
  </unit>
  <unit id="u2">
   <notes><note>old</note></notes>
   <segment><source>Ja</source><target>Yes</target></segment>
   <segment state="initial"><source>Nein</source><target>Nein</target></segment>
  </unit>
  <unit id="u3"><notes/><segment><source>Gut</source><target>Good</target></segment></unit>
 </file>
</xliff>
"""
TMX = """<?xml version="1.0"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4">
 <header srclang="en-US" datatype="xml" segtype="sentence" adminlang="en" o-tmf="x"/>
 <body>
  <tu tuid="a"><prop type="p">1</prop>
   <tuv xml:lang="en-US"><seg>The <hi>red</hi> <ph>{0}</ph>house</seg></tuv>
   <tuv xml:lang="de-DE"><seg>Das rote Haus</seg></tuv>
   <tuv xml:lang="fr"><seg>La maison rouge</seg></tuv>
  </tu>
  <tu><tuv lang="en"><seg>One</seg></tuv><tuv lang="fr"><seg>Un</seg></tuv></tu>
 </body>
</tmx>
"""
PO = """# header
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\\n"

# a comment
#: main.c:3
msgid "Open the file"
msgstr "Öffne die Datei"

#, fuzzy
msgid "Close"
msgstr "Schließen"

msgctxt "menu"
msgid "one file\\n"
"or so"
msgid_plural "%d files"
msgstr[0] "eine Datei"
msgstr[1] "%d Dateien"

msgid "Quit"
msgstr ""

#~ msgid "gone"
#~ msgstr "weg"
"""
CONTENTS: dict[str, str] = {"a.xlf": XLIFF_1, "b.xliff": XLIFF_2, "c.tmx": TMX, "d.po": PO}
PAIRS: dict[str, list[tuple[str, str, str]]] = {
    "a.xlf": [
        ("t1", "Das alte Haus & der Hof.", "The old house."),
        ("t2", "Eins", "One"),
        ("t6", "a\nb\nc", "A B"),
    ],
    "b.xliff": [
        ("u1/s1", "Der Hund bellt.", "The dog."),
        ("u1/s2", "Es ist spät.", "It is late."),
        ("u2", "Ja", "Yes"),
        ("u3", "Gut", "Good"),
    ],
    "c.tmx": [("a", "Das rote Haus", "The red house")],
    "d.po": [
        ("6", "Open the file", "Öffne die Datei"),
        ("15[0]", "one file\nor so", "eine Datei"),
        ("15[1]", "%d files", "%d Dateien"),
    ],
}


def write(directory: Path, name: str, content: str | bytes) -> Path:
    if name.endswith(".po"):
        pytest.importorskip("polib")
    path = directory / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path: Path, languages: tuple[str, str] = ("de", "en")) -> list[Segment]:
    return list(read_segments(path, bilingual_format(path), languages))


def finished(path: Path, languages: tuple[str, str] = ("de", "en")) -> list[tuple[str, str, str]]:
    return [row[:3] for row in read(path, languages) if row.is_finished]


@pytest.mark.parametrize("name", CONTENTS)
def test_finished_segments_are_read_without_inline_tags(name: str, tmp_path: Path) -> None:
    assert finished(write(tmp_path, name, CONTENTS[name])) == PAIRS[name]


def test_unfinished_segments_are_known(tmp_path: Path) -> None:
    path = write(tmp_path, "a.xlf", XLIFF_1)
    assert [row.id for row in read(path) if not row.is_finished] == ["t3", "t4", "t5"]
    assert [row.line for row in read(path)] == [6, 14, 15, 16, 17, 19]


@pytest.mark.parametrize("name", CONTENTS)
def test_notes_are_added_and_every_other_byte_is_kept(name: str, tmp_path: Path) -> None:
    content = CONTENTS[name].replace("\n", "\r\n") if name == "d.po" else CONTENTS[name]
    path, copy = write(tmp_path, name, content), tmp_path / f"copy-{name}"
    segments = read(path)
    notes = [(row.place, f"<{row.id}> ü 京\n&") for row in segments if row.is_finished]
    write_with_notes(path, copy, notes)
    assert [row[:3] + row[4:5] for row in read(copy) if name != "d.po"] == [
        row[:3] + row[4:5] for row in segments if name != "d.po"
    ]
    written = copy.read_bytes().decode()
    for _, note in notes:
        plain = " ".join(note.split())
        escaped = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        assert (plain if name == "d.po" else escaped) in written
    pattern = {
        "a.xlf": r'\s*<note from="covnmt">[^<]*</note>',
        "b.xliff": r'<note category="covnmt">[^<]*</note>',
        "c.tmx": r"<note>[^<]*</note>\n   ",
        "d.po": r"# covnmt: .*\n",
    }[name]
    rest = re.sub(pattern, "", written)
    if name == "b.xliff":
        rest = re.sub(r"<notes></notes>\s*", "", rest)
    assert rest == content


def test_notes_are_where_the_formats_have_them(tmp_path: Path) -> None:
    for name in ("a.xlf", "b.xliff", "c.tmx"):
        path, copy = write(tmp_path, name, CONTENTS[name]), tmp_path / f"copy-{name}"
        write_with_notes(path, copy, [(row.place, "x") for row in read(path)])
        root = ElementTree.fromstring(copy.read_text("utf-8"))
        orders = {
            tuple(child.tag.rpartition("}")[2] for child in element)
            for element in root.iter()
            if element.tag.rpartition("}")[2] in ("trans-unit", "unit", "tu")
        }
        for order in orders:
            if name == "a.xlf":
                assert order[: 2 + ("target" in order)][-1] == "note"
            elif name == "b.xliff":
                assert order[0] == "notes"
            else:
                assert order.index("note") < order.index("tuv")


def test_notes_have_the_prefix_and_the_encoding_of_the_file(tmp_path: Path) -> None:
    prefixed = (
        '<?xml version="1.0" encoding="{}"?><p:xliff version="1.2" xmlns:p="urn:oasis:names:tc:'
        'xliff:document:1.2"><p:trans-unit id="1"><p:source>Bär</p:source><p:target>bear'
        "</p:target></p:trans-unit></p:xliff>"
    )
    for encoding, codec in (("ISO-8859-1", "latin-1"), ("UTF-16", "utf-16"), ("UTF-8", "utf-8")):
        path = write(tmp_path, "a.xlf", prefixed.format(encoding).encode(codec))
        [segment] = read(path)
        assert segment[:3] == ("1", "Bär", "bear")
        write_with_notes(path, tmp_path / "copy.xlf", [(segment.place, "Bär 京")])
        written = (tmp_path / "copy.xlf").read_bytes()
        shown = "Bär &#20140;" if codec == "latin-1" else "Bär 京"
        assert f'<p:note from="covnmt">{shown}</p:note></p:trans-unit>' in written.decode(codec)
        assert [row[:3] for row in read(tmp_path / "copy.xlf")] == [segment[:3]]


def test_a_large_file_is_read_in_blocks_and_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = '<trans-unit id="{}"><source>a é</source><target>b</target></trans-unit>\n'
    content = "<xliff>" + "".join(unit.format(k) for k in range(5000)) + "</xliff>"
    path = write(tmp_path, "a.xlf", content)
    segments = read(path)
    assert [row.id for row in segments] == [str(k) for k in range(5000)]
    write_with_notes(path, tmp_path / "copy.xlf", [(row.place, row.id) for row in segments])
    written = (tmp_path / "copy.xlf").read_text("utf-8")
    assert re.sub(r'<note from="covnmt">\d+</note>', "", written) == content
    packed = tmp_path / "a.xlf.gz"
    packed.write_bytes(gzip.compress(content.encode()))
    assert read(packed) == segments
    monkeypatch.setattr(bilingual_files, "MAX_CHARACTERS", 3)
    with pytest.raises(UserError, match=r"a\.xlf, line 1: more than 3 characters in one unit"):
        read(path)


def test_the_languages_of_a_tmx_file_are_chosen(tmp_path: Path) -> None:
    path = write(tmp_path, "c.tmx", TMX)
    assert finished(path, ("en", "fr")) == [
        ("a", "The red house", "La maison rouge"),
        ("2", "One", "Un"),
    ]
    assert finished(path, ("", "")) == [("a", "The red house", "Das rote Haus"), ("2", "One", "Un")]
    assert finished(path, ("de", "ja")) == []


def test_columns_of_a_tsv_file(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", "eins\tone\tmore\n\nzwei\t\n")
    assert [row[:3] for row in read(path)] == [
        ("1", "eins", "one"),
        ("2", "", ""),
        ("3", "zwei", ""),
    ]
    with pytest.raises(UserError, match=r"b\.tsv, line 2: one column"):
        read(write(tmp_path, "b.tsv", "eins\tone\nzwei\n"))


ENTITIES = '<!DOCTYPE xliff [<!ENTITY e SYSTEM "file:///etc/passwd">]>'
# File names, contents, and what is wrong with them.
REFUSED = [
    ("a.xlf", f"<?xml version='1.0'?>\n{ENTITIES}<xliff>&e;</xliff>", r"line 2: a DTD"),
    ("a.xlf", '<!DOCTYPE xliff SYSTEM "x.dtd"><xliff/>', r"line 1: a DTD"),
    ("a.tmx", '<!DOCTYPE tmx SYSTEM "tmx14.dtd" [<!ENTITY a "b">]><tmx/>', r"line 1: a DTD"),
    ("a.tmx", '<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx>&a;</tmx>', r"line 2: the entity &a;"),
    ("a.xlf", "<xliff>&a;</xliff>", r"line 1: not valid XML \(undefined entity\)"),
    ("a.xlf", "<xliff>\n<file>", r"line 2: not valid XML \(no element found\)"),
    ("a.xlf", "", r"line 1: not valid XML \(no element found\)"),
    ("a.xlf", "\n<html/>", r"line 2: <html> is not the beginning of a XLIFF file"),
    ("a.tmx", "<xliff/>", r"line 1: <xliff> is not the beginning of a TMX file"),
    ("a.xlf", '<?xml version="1.0" encoding="x-none"?><xliff/>', r"save it as UTF-8"),
    ("a.po", 'msgid "a"\nfoo\n', r"a\.po, line 2: not a PO file"),
    ("a.po", b'msgid "a"\nmsgstr "\xff"\n', r"a\.po: byte 18 is not utf-8"),
    ("a.po", 'msgid ""\nmsgstr "Content-Type: text/plain; charset=x-none\\n"', "unknown charset"),
]


@pytest.mark.parametrize(("name", "content", "message"), REFUSED)
def test_what_cannot_be_read_is_refused_with_its_place(
    name: str, content: str | bytes, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        read(write(tmp_path, name, content))


def test_the_format_is_in_the_name_of_the_file_or_given() -> None:
    assert bilingual_format(Path("a.b.XLF")) == "xliff"
    assert bilingual_format(Path("a.tmx.gz")) == "tmx"
    assert bilingual_format(Path("a.txt"), "po") == "po"
    for path, name in ((Path("a.txt"), None), (Path("a"), "text")):
        with pytest.raises(UserError, match="unknown file type"):
            bilingual_format(path, name)


@pytest.mark.parametrize("name", CONTENTS)
@settings(deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(CONTENTS[name].encode())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(content) - 1))
        end = min(len(content), start + data.draw(st.integers(0, 40)))
        new = data.draw(st.binary(max_size=8) | st.sampled_from([b"<", b"&#0;", b"</unit>", b'"']))
        content[start:end] = new
    path = write(tmp_path_factory.getbasetemp(), f"damaged-{name}", bytes(content))
    try:
        segments = read(path)
    except UserError:
        return
    write_with_notes(path, path.with_name(f"copy-{name}"), [(s.place, "n") for s in segments])
    offsets = {segment.place.offset for segment in segments}
    assert all(0 <= offset <= len(content) for offset in offsets)


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1)


@given(pairs=st.lists(st.tuples(TEXTS, TEXTS), max_size=5))
def test_any_text_in_xliff_is_read_as_it_was_written(
    pairs: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = ElementTree.Element("xliff", version="1.2")
    for number, texts in enumerate(pairs):
        unit = ElementTree.SubElement(
            root, "trans-unit", {"id": str(number), "xml:space": "preserve"}
        )
        for name, text in zip(("source", "target"), texts, strict=True):
            ElementTree.SubElement(unit, name).text = text
    path = tmp_path_factory.getbasetemp() / "any.xlf"
    ElementTree.ElementTree(root).write(path, encoding="utf-8")
    assert [row[1:3] for row in read_segments(path, "xliff")] == pairs
