"""Text as it comes: large pieces of what is there, small ones where it pauses."""

import errno
import gzip
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covnmt.base.errors import UserError
from covnmt.base.processes import Chunk
from covnmt.inference.input_lines import LineReader, input_chunks

TEXT = b"one\r\n\ntwo\nno end"
LINES = ["one", "", "two", "no end"]


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.FileIO]:
    """The other end of standard input."""
    reader, writer = os.pipe()
    with os.fdopen(reader) as stdin, os.fdopen(writer, "wb", buffering=0) as stream:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert isinstance(stream, io.FileIO)
        yield stream


@given(st.lists(st.binary(max_size=9).map(lambda chunk: chunk.replace(b"x", b"\n"))))
def test_lines_do_not_depend_on_chunks(chunks: list[bytes]) -> None:
    reader, writer = os.pipe()
    arriving, found = LineReader(reader), list[bytes]()
    for chunk in filter(None, chunks):
        os.write(writer, chunk)
        while arriving.is_ready(0):
            found.append(next(iter(arriving)))
    os.close(writer)
    found += arriving
    os.close(reader)
    assert found == list(io.BytesIO(b"".join(chunks)))


def test_a_piece_ends_where_the_input_pauses(writer: io.FileIO) -> None:
    pieces = input_chunks(None, 3)
    writer.write(b"a\nb\nbeg")
    assert next(pieces) == Chunk(0, ["a", "b"], paused=True)
    writer.write(b"un\n")
    assert next(pieces) == Chunk(2, ["begun"], paused=True)
    writer.write(b"c\nd\ne\nf\n")
    assert next(pieces) == Chunk(3, ["c", "d", "e"])
    assert next(pieces) == Chunk(6, ["f"], paused=True)
    writer.write(b"c\nd\ne\n")
    assert next(pieces) == Chunk(7, ["c", "d", "e"], paused=True)
    writer.write(b"the end")
    writer.close()
    assert list(pieces) == [Chunk(10, ["the end"])]


@pytest.mark.parametrize("kind", ["file", "gz", "dash", "pipe", "memory"])
def test_what_is_there_fills_its_pieces(
    kind: str, writer: io.FileIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {"file": tmp_path / "text", "gz": tmp_path / "text.gz", "dash": Path("-")}
    (tmp_path / "text").write_bytes(TEXT)
    (tmp_path / "text.gz").write_bytes(gzip.compress(TEXT))
    writer.write(TEXT)
    writer.close()
    if kind == "memory":
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT)))
    found = list(input_chunks(paths.get(kind), 3))
    assert found == [Chunk(0, LINES[:3]), Chunk(3, LINES[3:])]


def test_bad_bytes_are_told_with_their_line(writer: io.FileIO) -> None:
    writer.write(b"good\nb\xff\n")
    with pytest.raises(UserError, match=r"standard input, line 2: not UTF-8 \(byte 1"):
        next(input_chunks(None, 3))


def test_what_cannot_be_read_is_told_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it is met while a piece waits for more."""
    (tmp_path / "text").write_bytes(TEXT)
    chunks = [b"one\ntwo\n"]

    def read(handle: int, size: int) -> bytes:
        if not chunks:
            raise OSError(errno.EIO, "Input/output error")
        return chunks.pop()

    monkeypatch.setattr(os, "read", read)
    with pytest.raises(UserError, match=r"text, after line 2: cannot be read \(.*Input/output"):
        next(input_chunks(tmp_path / "text", 3))
