"""Open corpora from a local server; nothing here uses the network."""

import gzip
import hashlib
import io
import json
import lzma
import re
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.dataset import DATASETS

from covnmt.base.errors import UserError
from covnmt.data import download, open_corpora
from covnmt.data.download import PublishedFile
from covnmt.data.open_corpora import (
    CORPORA,
    OpenCorpus,
    OpenSplit,
    download_corpus,
    list_open_corpora,
    parse_segments,
    write_open_corpus,
)
from tests.data.site import Site

DOCS = Path(__file__).parents[2] / "docs" / "corpora.md"

SOURCE = ["eins", "zwei drei", "", "vier"]
TARGET = ["one", "two three", "", "four"]

# Lines of a test set in SGM or XML, and the sentences in it.
MARKUP = [
    (['<seg id="1">one</seg>', '<seg id="2"> two  three </seg>'], ["one", "two three"]),
    (['<?xml version="1.0"?>', "<title>no</title>", '<seg id="1">a &amp; b &lt;c&gt;</seg>'],
     ["a & b <c>"]),
    (["<p><seg id='1'>over", "two lines</seg></p>"], ["over two lines"]),
    (['<seg id="1">a < b, AT&T, 3<4</seg>'], ["a < b, AT&T, 3<4"]),
    (['<SEG id="1"></SEG>', '<seg id="2">x</seg>'], ["", "x"]),
    (['<!DOCTYPE d [<!ENTITY e SYSTEM "file:///etc/hostname">]>', "<seg>&e;</seg>"], ["&e;"]),
    (["no markup at all"], []),
]  # fmt: skip


def text(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def tar(members: dict[str, bytes], mode: str = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def bundle(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


MEMBERS = {"d/a.de": text(SOURCE), "d/a.en": text(TARGET)}


def corpus(
    site: Site, files: dict[str, bytes], *splits: OpenSplit, checksum: str | None = None
) -> OpenCorpus:
    """Make a corpus whose files are on the server."""
    site.files.update(files)
    published = tuple(PublishedFile(name, f"{site.address}/{name}", checksum) for name in files)
    return OpenCorpus("tiny", "de", "en", "a test", "none", "https://home.test", published, splits)


def plain(site: Site, checksum: str | None = None, content: bytes | None = None) -> OpenCorpus:
    split = OpenSplit("train", "a.tgz/d/a.de", "a.tgz/d/a.en")
    return corpus(site, {"a.tgz": content or tar(MEMBERS)}, split, checksum=checksum)


def lines(path: Path) -> list[str]:
    return path.read_text("utf-8").split("\n")[:-1]


def check(directory: Path) -> None:
    assert lines(directory / "train.de") == SOURCE
    assert lines(directory / "train.en") == TARGET


@pytest.mark.parametrize(
    ("name", "content", "inside"),
    [
        ("a.tgz", tar(MEMBERS), "/d/a."),
        ("a.tar.gz", tar({f"./{name}": body for name, body in MEMBERS.items()}), "/d/a."),
        ("a.tar.xz", tar(MEMBERS, "w:xz"), "/d/a."),
        ("a.zip", bundle(MEMBERS), "/d/a."),
    ],
)
def test_texts_are_extracted_from_every_kind_of_archive(
    site: Site, tmp_path: Path, name: str, content: bytes, inside: str
) -> None:
    split = OpenSplit("train", f"{name}{inside}de", f"{name}{inside}en")
    assert write_open_corpus(corpus(site, {name: content}, split), tmp_path) == {"train": 4}
    check(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "corpus.json",
        "download",
        "train.de",
        "train.en",
    ]


def test_compressed_files_without_an_archive_are_read(site: Site, tmp_path: Path) -> None:
    split = OpenSplit("train", "a.de.gz", "a.en.xz")
    files = {"a.de.gz": gzip.compress(text(SOURCE)), "a.en.xz": lzma.compress(text(TARGET))}
    write_open_corpus(corpus(site, files, split), tmp_path)
    check(tmp_path)


def test_the_record_has_address_checksum_license_and_pairs(site: Site, tmp_path: Path) -> None:
    write_open_corpus(plain(site), tmp_path)
    record = json.loads((tmp_path / "corpus.json").read_text())
    sha256 = hashlib.sha256(site.files["a.tgz"]).hexdigest()
    assert record["files"] == {"a.tgz": {"address": f"{site.address}/a.tgz", "sha256": sha256}}
    assert record["pairs"] == {"train": 4}
    assert record["licence"] == "none"


def test_a_file_with_a_wrong_checksum_is_not_used(site: Site, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.tgz: md5 is .* instead of"):
        write_open_corpus(plain(site, "md5:0"), tmp_path)
    assert not list(tmp_path.glob("train.*"))


def spoil(content: bytes, position: int) -> bytes:
    changed = bytearray(content)
    changed[position] ^= 0xFF
    return bytes(changed)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("a.tgz", tar({"m": text(TARGET)}), tar({"m": text(TARGET)})[:60]),
        ("a.tgz", tar({"m": text(TARGET)}), b"<html>Sorry</html>"),
        ("a.zip", bundle({"m": text(TARGET)}), spoil(bundle({"m": text(TARGET)}), 33)),
        ("a.zip", bundle({"m": text(TARGET)}), b"<html>Sorry</html>"),
        ("a.gz", gzip.compress(text(TARGET)), spoil(gzip.compress(text(TARGET)), -8)),
        ("a.xz", lzma.compress(text(TARGET)), lzma.compress(text(TARGET))[:-20]),
    ],
    # compressed files contain the time, which must not be in the names of tests
    ids=["tgz", "tgz page", "zip", "zip page", "gz", "xz"],
)
def test_a_damaged_file_is_set_aside_and_downloaded_again(
    site: Site, tmp_path: Path, name: str, good: bytes, bad: bytes
) -> None:
    place = name if name in ("a.gz", "a.xz") else f"{name}/m"
    tiny = corpus(site, {name: bad}, OpenSplit("train", place, place))
    with pytest.raises(UserError, match=rf"{name}: damaged .* now {name}\.bad: run the same"):
        write_open_corpus(tiny, tmp_path)
    site.files[name] = good
    write_open_corpus(tiny, tmp_path)
    assert lines(tmp_path / "train.en") == TARGET


def test_an_archive_cannot_write_outside_of_the_directory(site: Site, tmp_path: Path) -> None:
    hostile = {"../outside": b"x", f"{tmp_path}/absolute": b"x", "train.de": b"x", **MEMBERS}
    directory = tmp_path / "inner" / "corpus"
    write_open_corpus(plain(site, content=tar(hostile)), directory)
    check(directory)
    inside = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert {str(path.relative_to(directory)) for path in inside} == {
        "corpus.json",
        "train.de",
        "train.en",
        "download/a.tgz",
    }


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE])
def test_links_and_directories_in_an_archive_are_not_followed(
    site: Site, tmp_path: Path, kind: bytes
) -> None:
    buffer = io.BytesIO(tar({"d/a.en": text(TARGET)}, "w"))
    with tarfile.open(fileobj=buffer, mode="a") as archive:
        link = tarfile.TarInfo("d/a.de")
        link.type, link.linkname = kind, "/etc/hostname"
        archive.addfile(link)
    tiny = plain(site, content=gzip.compress(buffer.getvalue()))
    with pytest.raises(UserError, match=r"a\.tgz/d/a\.de: missing"):
        write_open_corpus(tiny, tmp_path)


@pytest.mark.parametrize("name", ["a.tgz", "a.zip", "a.gz"])
def test_the_extracted_size_is_limited(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(download, "MAX_EXTRACTED_BYTES", 1000)
    bomb = bytes(2000)
    packed = {"a.tgz": tar({"m": bomb}), "a.zip": bundle({"m": bomb}), "a.gz": gzip.compress(bomb)}
    place = name if name == "a.gz" else f"{name}/m"
    tiny = corpus(site, {name: packed[name]}, OpenSplit("train", place, place))
    with pytest.raises(UserError, match="more than 1,000 bytes"):
        write_open_corpus(tiny, tmp_path)


def test_a_directory_that_cannot_be_made_is_an_error(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be made"):
        write_open_corpus(plain(site), tmp_path / "file" / "corpus")


def test_a_second_call_does_nothing_unless_an_output_is_missing(site: Site, tmp_path: Path) -> None:
    tiny = plain(site)
    first = write_open_corpus(tiny, tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert write_open_corpus(tiny, tmp_path) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == times
    (tmp_path / "train.en").unlink()
    write_open_corpus(tiny, tmp_path)
    check(tmp_path)
    assert len(site.requests) == 1


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("train.de", "mine", r"already has train\.de; choose another"),
        ("corpus.json", '{"corpus": "other"}', "corpus.json: not a record of tiny; choose another"),
        ("corpus.json", '{"mine": 1}', "corpus.json: not a record of tiny; choose another"),
        ("corpus.json", "[]", "corpus.json: not a record of tiny; choose another"),
    ],
)
def test_files_of_others_are_never_overwritten(
    site: Site, tmp_path: Path, name: str, content: str, problem: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=problem):
        write_open_corpus(plain(site), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == content
    assert not site.requests


def test_removed_downloads_are_downloaded_again_when_needed(site: Site, tmp_path: Path) -> None:
    tiny = plain(site)
    write_open_corpus(tiny, tmp_path)
    shutil.rmtree(tmp_path / "download")
    assert write_open_corpus(tiny, tmp_path) == {"train": 4}
    assert len(site.requests) == 1
    (tmp_path / "train.de").unlink()
    shutil.rmtree(tmp_path / "download")
    write_open_corpus(tiny, tmp_path)
    check(tmp_path)


def test_table_has_the_target_first_and_drops_empty_rows(site: Site, tmp_path: Path) -> None:
    rows = ["one\teins\tCC BY", "\t", "", "lonely", "\tallein", "two three\tzwei drei"]
    split = OpenSplit("train", "a.tsv.gz", "a.tsv.gz", "table")
    write_open_corpus(corpus(site, {"a.tsv.gz": gzip.compress(text(rows))}, split), tmp_path)
    assert lines(tmp_path / "train.de") == ["eins", "zwei drei"]
    assert lines(tmp_path / "train.en") == ["one", "two three"]


def test_talks_drop_markup_on_both_sides(site: Site, tmp_path: Path) -> None:
    source = ["<url>u</url>", "<title>t</title>", " eins", "zwei ", "<reviewer></reviewer>"]
    target = ["<url>u</url>", "<title>t</title>", "one", " <two> ", "<reviewer></reviewer>"]
    content = tar({"d/a.de": text(source), "d/a.en": text(target)})
    tiny = plain(site, content=content)
    write_open_corpus(replace(tiny, splits=(replace(tiny.splits[0], format="talks"),)), tmp_path)
    assert (lines(tmp_path / "train.de"), lines(tmp_path / "train.en")) == (["eins"], ["one"])


@pytest.mark.parametrize(
    ("form", "source", "problem"),
    [
        ("lines", ["eins"], "one ends before line 2"),
        ("segments", ["<seg>eins</seg>"], "one ends before line 1"),
        ("talks", ["<a>", "<b>", "<c>", "<d>"], "no sentences found"),
    ],
)
def test_published_files_that_have_changed_are_an_error(
    site: Site, tmp_path: Path, form: open_corpora.TextFormat, source: list[str], problem: str
) -> None:
    tiny = plain(site, content=tar({"d/a.de": text(source), "d/a.en": text(TARGET)}))
    with pytest.raises(UserError, match=problem):
        write_open_corpus(replace(tiny, splits=(replace(tiny.splits[0], format=form),)), tmp_path)
    assert not list(tmp_path.glob("train.*"))


def test_splits_by_percent_share_no_target_sentence(site: Site, tmp_path: Path) -> None:
    rows = [f"{number % 700}\t{number}" for number in range(1000)]
    shares = {"train": range(10, 100), "dev": range(5), "test": range(5, 10)}
    splits = [OpenSplit(name, "a.gz", "a.gz", "table", share) for name, share in shares.items()]
    pairs = write_open_corpus(corpus(site, {"a.gz": gzip.compress(text(rows))}, *splits), tmp_path)
    held = {
        name: [row for row in rows if zlib.crc32(row.split("\t")[0].encode()) % 100 in share]
        for name, share in shares.items()
    }
    assert pairs == {name: len(part) for name, part in held.items()}
    assert min(pairs.values()) > 20
    targets = [set(lines(tmp_path / f"{name}.en")) for name in shares]
    assert sum(map(len, targets)) == len(set.union(*targets)) == 700


@pytest.mark.parametrize(("markup", "expected"), MARKUP)
def test_segments_are_parsed(markup: list[str], expected: list[str]) -> None:
    assert parse_segments(markup) == expected


WORDS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1)


@given(st.lists(st.lists(WORDS).map(" ".join)))
def test_escaped_segments_are_restored(sentences: list[str]) -> None:
    markup = [f'<seg id="{n}">{escape(sentence)}</seg>' for n, sentence in enumerate(sentences)]
    assert parse_segments(["<refset>", "<doc>", *markup, "</doc>", "</refset>"]) == sentences


def test_an_unknown_name_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="kfft: no such corpus; did you mean kftt"):
        download_corpus("kfft", tmp_path)


@pytest.mark.parametrize("named", CORPORA, ids=lambda named: named.name)
def test_the_table_of_corpora_is_consistent(named: OpenCorpus) -> None:
    offered = {file.name for file in named.files}
    places = [place for split in named.splits for place in (split.source, split.target)]
    assert {place.partition("/")[0] for place in places} == offered
    assert len({split.name for split in named.splits}) == len(named.splits)
    for file in named.files:
        assert file.address.startswith("https://")
        assert file.checksum is None or re.fullmatch("md5:[0-9a-f]{32}", file.checksum)


def test_wmt_test_sets_are_the_files_of_sacrebleu() -> None:
    [wmt] = [corpus for corpus in CORPORA if corpus.name == "wmt-zh-en"]
    for split, file in zip(wmt.splits, wmt.files, strict=True):
        known = DATASETS[f"wmt{split.name[-2:]}"]
        assert ([file.address], [file.checksum]) == (
            known.data,
            [f"md5:{md5}" for md5 in known.md5 or ()],
        )
        members = [f"{file.name}/{member}" for member in known.langpairs["zh-en"]]
        assert [split.source, split.target] == members


def test_listing_and_docs_name_every_corpus() -> None:
    assert [row[0] for row in list_open_corpora()] == [named.name for named in CORPORA]
    page = DOCS.read_text("utf-8")
    for name, languages, _, terms, home in list_open_corpora():
        assert f"| `{name}` | {languages} |" in page
        assert terms in page
        assert home in page
