"""Reading text that people bring, and writing files that survive a crash.

Text is UTF-8, plain or compressed (.gz, .xz), with any line ends where it is read. Everything
written goes to a temporary name in the same directory first and is renamed when complete.
"""

import codecs
import gzip
import hashlib
import io
import json
import lzma
import os
import secrets
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any, TypeGuard, cast

from covnmt.base.errors import UserError

# JSON or TOML: Python also gives up on numbers of thousands of digits, and on brackets as deep.
PARSE_ERRORS = (ValueError, RecursionError)


def open_decompressed(path: Path) -> IO[bytes]:
    """Open for reading, seeing through .gz and .xz."""
    try:
        if path.suffix == ".gz":
            return cast(IO[bytes], gzip.open(path))
        if path.suffix == ".xz":
            return cast(IO[bytes], lzma.open(path))
        return path.open("rb")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def file_digest(path: Path) -> str:
    """The SHA-256 of a file as it lies there."""
    if path.is_fifo():
        raise UserError(f"{path}: a pipe, which can be read only once; write it to a file first")
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def decode_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    """Lines of a binary stream as text without their ends; bad bytes are an error with its line.

    Only line feeds end a line (with or without a carriage return before them), so that
    characters such as U+2028 inside a sentence never shift the rest of the file; but see
    `_of_old_macs`. A byte order mark at the beginning is no part of the text.
    """
    number = 0
    try:
        for raw in _of_old_macs(stream):
            number += 1
            if number == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            yield raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name}, line {number}: not UTF-8 (byte {error.start}: {error.reason}); "
            "convert the file first, for example with iconv"
        ) from None
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        raise UserError(f"{name}, after line {number}: cannot be read ({error})") from None


def _of_old_macs(stream: Iterable[bytes]) -> Iterator[bytes]:
    """The same lines; those of a text without any line feed end with carriage returns."""
    for number, raw in enumerate(stream):
        if number or raw.endswith(b"\n"):
            yield raw
        else:  # the first line, and all there is
            yield from raw.removesuffix(b"\r").split(b"\r")


def read_lines(path: Path) -> Iterator[str]:
    """Stream the lines of one text file."""
    with open_decompressed(path) as stream:
        yield from decode_lines(stream, str(path))


def is_file_path(path: Path | None) -> TypeGuard[Path]:
    """Whether it is a file; standard input or output where there is no name, or "-"."""
    return path is not None and str(path) != "-"


@contextmanager
def open_input(path: Path | None) -> Iterator[tuple[IO[bytes], str]]:
    """A file, or standard input where none is named; and what messages call it."""
    if is_file_path(path):
        with open_decompressed(path) as stream:
            yield stream, str(path)
    elif sys.stdin is None:
        raise UserError("standard input is closed: name a file, or pipe text in")
    else:
        yield sys.stdin.buffer, "standard input"


def read_input_lines(path: Path | None) -> Iterator[str]:
    """Stream the lines of a file or of standard input."""
    with open_input(path) as (stream, name):
        yield from decode_lines(stream, name)


def read_parallel_lines(*paths: Path) -> Iterator[tuple[str, ...]]:
    """Stream lines of several files side by side; different lengths are an error."""
    missing = object()
    rows = zip_longest(*(read_lines(path) for path in paths), fillvalue=missing)
    for number, row in enumerate(rows):
        ended = [str(path) for path, line in zip(paths, row, strict=True) if line is missing]
        if ended:
            others = [str(path) for path in paths if str(path) not in ended]
            raise UserError(
                f"{', '.join(ended)} ends after line {number} but {', '.join(others)} goes on: "
                "parallel files need the same number of lines"
            )
        yield cast(tuple[str, ...], row)


def check_writable(path: Path) -> None:
    """Raise now, before long work, what `atomic_write` would raise after it; makes nothing."""
    try:
        if path.exists() and not path.is_file():
            return  # it is opened as it is
        places = Path(os.path.realpath(path)).parents
        tempfile.TemporaryFile(dir=next(place for place in places if place.exists())).close()
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None


def check_distinct_paths(
    outputs: Iterable[Path | None], inputs: Iterable[Path | None] = ()
) -> None:
    """Refuse, before the work, outputs that would replace each other, or what is read.

    Links are followed. Devices, pipes and "-" keep all that is written to them.
    """
    read, taken = set(map(_place, inputs)), set[Path]()
    for path, place in ((path, _place(path)) for path in outputs):
        if place is None:
            continue
        if place in read:
            raise UserError(f"{path}: the output would replace what is read; name another file")
        if place in taken:
            raise UserError(f"{path}: two outputs, and one would replace the other; name two files")
        taken.add(place)


def _place(path: Path | None) -> Path | None:
    """Where a file really lies; nowhere if it is none."""
    if not is_file_path(path) or (path.exists() and not path.is_file()):
        return None
    return Path(os.path.realpath(path))


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A binary stream that becomes `path` if the block ends well, and nothing otherwise.

    Where `path` is a link, it is the file behind it that is replaced. A device or a pipe cannot
    be replaced, and is written to as it is.
    """
    unchanged = "; what was there is unchanged"
    try:
        if path.exists() and not path.is_file():  # a directory fails here, before any work
            unchanged = ""
            with path.open("wb") as stream:
                yield stream
        else:
            with _replacement(Path(os.path.realpath(path))) as stream:
                yield stream
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{path}: cannot be written ({reason}){unchanged}") from None


@contextmanager
def _replacement(path: Path) -> Iterator[IO[bytes]]:
    """A stream to a temporary file beside `path` that takes its place when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:  # known by name before it exists: a stop leaves none behind
        with temporary.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_write_text(path: Path) -> Iterator[IO[str]]:
    """Like `atomic_write`, for UTF-8 text with plain line feeds, packed where the name says so."""
    with atomic_write(path) as file, _packing(path, file) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8", newline="\n")
        yield text
        text.flush()
        text.detach()


def _packing(path: Path, stream: IO[bytes]) -> AbstractContextManager[Any]:
    """What `open_binary` will read: the same text is always packed into the same bytes."""
    if path.suffix == ".gz":
        return gzip.GzipFile("", "wb", compresslevel=6, fileobj=stream, mtime=0)
    if path.suffix == ".xz":
        return lzma.open(stream, "wb")
    return nullcontext(stream)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write one line each."""
    with atomic_write_text(path) as stream:
        stream.writelines(f"{line}\n" for line in lines)


def output_is_file(path: Path | None) -> bool:
    """Whether this output goes to a file: not to the screen, nor to a pipe, whose reader may have
    the screen."""
    if is_file_path(path):
        return True
    try:
        return stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)
    except (AttributeError, OSError):  # it is closed, or a test's
        return False


def write_output_lines(path: Path | None, lines: Iterable[str]) -> None:
    """Write one line each to a file, or as they come to standard output where none is named."""
    if is_file_path(path):
        write_lines(path, lines)
        return
    if sys.stdout is None:
        raise UserError("standard output is closed: send it to a file or a pipe")
    for line in lines:
        print(line, flush=True)


def write_json(path: Path, value: Any) -> None:
    """Write readable JSON."""
    with atomic_write_text(path) as stream:
        json.dump(value, stream, ensure_ascii=False, indent=2)
        stream.write("\n")


def read_json(path: Path) -> Any:
    """Read JSON; a damaged file is an error that names it."""
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except PARSE_ERRORS as error:
        raise UserError(
            f"{path}: not valid JSON ({error}); restore it from a copy, or make it again"
        ) from None
