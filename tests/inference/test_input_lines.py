"""Input lines: full chunks of available lines, smaller ones when the input pauses."""

import errno
import gzip
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from select import select

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
    """Connect standard input to a pipe; return its other end."""
    reader, writer = os.pipe()
    with os.fdopen(reader) as stdin, os.fdopen(writer, "wb", buffering=0) as stream:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert isinstance(stream, io.FileIO)
        yield stream


@given(st.lists(st.binary(max_size=9).map(lambda chunk: chunk.replace(b"x", b"\n"))))
def test_lines_do_not_depend_on_chunks(chunks: list[bytes]) -> None:
    reader, writer = os.pipe()
    line_reader, lines = LineReader(reader), list[bytes]()
    for chunk in filter(None, chunks):
        os.write(writer, chunk)
        while line_reader.is_ready(0):
            lines.append(next(iter(line_reader)))
    os.close(writer)
    lines += line_reader
    os.close(reader)
    assert lines == list(io.BytesIO(b"".join(chunks)))


def test_a_signal_that_does_not_interrupt_the_wait_is_noticed() -> None:
    """One that another thread gets, or that comes just before the call, interrupts nothing."""
    reader, writer = os.pipe()
    noticed = threading.Event()

    def signal_own_thread() -> None:
        time.sleep(0.2)  # the main thread waits by then
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        if not noticed.wait(60):
            os.write(writer, b"a line ends the wait\n")

    def wait_for_line() -> None:
        thread.start()
        LineReader(reader).is_ready(None)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=signal_own_thread)
    try:
        with pytest.raises(KeyboardInterrupt):
            wait_for_line()
        assert not select([reader], [], [], 0)[0]  # no line ended the wait
    finally:
        noticed.set()
        signal.signal(signal.SIGINT, handler)
        thread.join()
        os.close(reader)
        os.close(writer)


def test_a_chunk_ends_when_the_input_pauses(writer: io.FileIO) -> None:
    found = input_chunks(None, 3)
    writer.write(b"a\nb\nbeg")
    assert next(found) == Chunk(0, ["a", "b"], paused=True)
    writer.write(b"un\n")
    assert next(found) == Chunk(2, ["begun"], paused=True)
    writer.write(b"c\nd\ne\nf\n")
    assert next(found) == Chunk(3, ["c", "d", "e"])
    assert next(found) == Chunk(6, ["f"], paused=True)
    writer.write(b"c\nd\ne\n")
    assert next(found) == Chunk(7, ["c", "d", "e"], paused=True)
    writer.write(b"the end")
    writer.close()
    assert list(found) == [Chunk(10, ["the end"])]


@pytest.mark.parametrize("kind", ["file", "gz", "dash", "pipe", "memory"])
def test_available_lines_fill_chunks(
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


def test_invalid_utf8_is_an_error_with_its_line(writer: io.FileIO) -> None:
    writer.write(b"good\nb\xff\n")
    with pytest.raises(UserError, match=r"standard input, line 2: not UTF-8 \(byte 1"):
        next(input_chunks(None, 3))


def test_a_read_error_names_the_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it occurs while a chunk waits for more lines."""
    (tmp_path / "text").write_bytes(TEXT)
    chunks = [b"one\ntwo\n"]

    def read(handle: int, size: int) -> bytes:
        if not chunks:
            raise OSError(errno.EIO, "Input/output error")
        return chunks.pop()

    monkeypatch.setattr(os, "read", read)
    with pytest.raises(UserError, match=r"text, after line 2: cannot be read \(.*Input/output"):
        next(input_chunks(tmp_path / "text", 3))
