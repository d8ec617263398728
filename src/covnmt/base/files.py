"""Read text files of users, and write files that survive a crash.

Text is UTF-8, plain or compressed (.gz, .xz), with any line endings. Everything is written to a
temporary name in the same directory first and renamed when complete.
"""

import codecs
import fcntl
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
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any, TypeGuard, cast

from covnmt.base.errors import UserError

# What parsers of JSON and TOML raise, also for numbers of thousands of digits and deep nesting.
PARSE_ERRORS = (ValueError, RecursionError)
BLOCK_BYTES = 1 << 16


def open_decompressed(path: Path) -> IO[bytes]:
    """Open a file for reading; .gz and .xz are decompressed."""
    with _explain_read_errors(path):
        if path.suffix == ".gz":
            return cast(IO[bytes], gzip.open(path))
        if path.suffix == ".xz":
            return cast(IO[bytes], lzma.open(path))
        return path.open("rb")


@contextmanager
def _explain_read_errors(path: Path, remedy: str = "") -> Iterator[None]:
    remedy = remedy and f"; {remedy}"
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: no such file{remedy}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}){remedy}") from None


def read_bytes(path: Path, remedy: str = "") -> bytes:
    """Read a file; an error names it, and the remedy."""
    refuse_pipe(path, remedy)
    with _explain_read_errors(path, remedy):
        return path.read_bytes()


def refuse_pipe(path: Path, remedy: str = "") -> None:
    """Refuse a pipe or device where only a file makes sense: reading it could wait for ever."""
    if path.exists() and not path.is_file() and not path.is_dir():
        remedy = remedy and f"; {remedy}"
        raise UserError(f"{path}: cannot be read (a pipe or device, not a file){remedy}")


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """Return the digest of a file as it is, compressed or not; never used for security."""
    if path.is_fifo():
        raise UserError(f"{path}: a pipe, which can be read only once; write it to a file first")
    with _explain_read_errors(path), path.open("rb") as stream:
        digest = hashlib.file_digest(stream, lambda: hashlib.new(algorithm, usedforsecurity=False))
        return digest.hexdigest()


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yield the content of a file, decompressed, in blocks."""
    refuse_pipe(path, "write it to a file first")
    with open_decompressed(path) as stream:
        try:
            while block := stream.read(BLOCK_BYTES):
                yield block
        except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
            raise UserError(f"{path}: cannot be read ({error})") from None


def decode_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    """Decode the lines of a binary stream, without line endings; an error names the line.

    Only line feeds end a line (with or without a carriage return before them), so that characters
    such as U+2028 inside a sentence never shift the rest of the file. In text of old Macs, which
    has no line feed at all, carriage returns do. A byte order mark at the beginning is dropped.
    """
    number = 0
    try:
        for raw in stream:
            lines = [raw]
            if not number:
                raw = raw.removeprefix(codecs.BOM_UTF8)
                # without a line feed, the first line is the whole file
                lines = [raw] if raw.endswith(b"\n") else raw.removesuffix(b"\r").split(b"\r")
            for line in lines:
                number += 1
                yield line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name}, line {number}: not UTF-8 (byte {error.start}: {error.reason}); "
            "convert the file first, for example with iconv"
        ) from None
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        raise UserError(f"{name}, after line {number}: cannot be read ({error})") from None


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file."""
    with open_decompressed(path) as stream:
        yield from decode_lines(stream, str(path))


def is_file_path(source: Path | str | None) -> TypeGuard[Path]:
    """Tell whether a source of text is a file.

    A Path is a file, except "-": that, like None, is standard input or output. A str is no name
    of a file but the text itself.
    """
    return isinstance(source, Path) and str(source) != "-"


@contextmanager
def open_input(source: Path | str | None) -> Iterator[tuple[IO[bytes], str]]:
    """Open a file, standard input or a text (see `is_file_path`), with a name for messages."""
    if isinstance(source, str):
        yield io.BytesIO(source.encode("utf-8", "surrogateescape")), "the text"
    elif is_file_path(source):
        with open_decompressed(source) as stream:
            yield stream, str(source)
    elif sys.stdin is None:
        raise UserError("standard input is closed: name a file, or pipe text in")
    else:
        yield sys.stdin.buffer, "standard input"


def read_input_lines(source: Path | str | None) -> Iterator[str]:
    """Yield the lines of a file, of standard input or of a text; see `is_file_path`."""
    with open_input(source) as (stream, name):
        yield from decode_lines(stream, name)


def read_parallel_lines(*paths: Path) -> Iterator[tuple[str, ...]]:
    """Yield corresponding lines of several files; different numbers of lines are an error.

    One of them may be "-", standard input.
    """
    if sum(not is_file_path(path) for path in paths) > 1:
        raise UserError("only one of the files can be -, standard input")
    missing = object()
    rows = zip_longest(*(read_input_lines(path) for path in paths), fillvalue=missing)
    for number, row in enumerate(rows):
        shorter = [str(path) for path, line in zip(paths, row, strict=True) if line is missing]
        if shorter:
            longer = [str(path) for path in paths if str(path) not in shorter]
            raise UserError(
                f"{', '.join(shorter)} ends after line {number} but {', '.join(longer)} continues: "
                "parallel files need the same number of lines"
            )
        yield cast(tuple[str, ...], row)


def check_writable(path: Path) -> None:
    """Raise before long work what `atomic_write` would raise after it; creates nothing."""
    try:
        if path.exists() and not path.is_file():
            return  # a device or pipe
        parents = Path(os.path.realpath(path)).parents
        existing = next(parent for parent in parents if parent.exists())
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None


def check_distinct_paths(
    outputs: Iterable[Path | None], inputs: Iterable[Path | None] = ()
) -> None:
    """Refuse outputs that would replace each other or an input. Links are followed."""
    read, written = set(map(_real_path, inputs)), set[Path]()
    for path, real in ((path, _real_path(path)) for path in outputs):
        if real is None:
            continue
        if real in read:
            raise UserError(f"{path}: the output would replace an input; name another file")
        if real in written:
            raise UserError(f"{path}: two outputs have the same name; name two files")
        written.add(real)


def _real_path(path: Path | None) -> Path | None:
    """Return where a file really is; None for devices, pipes and "-", which nothing replaces."""
    if not is_file_path(path) or (path.exists() and not path.is_file()):
        return None
    return Path(os.path.realpath(path))


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a binary stream whose content becomes `path` if the block ends without an exception.

    If `path` is a link, the file behind it is replaced. Devices and pipes cannot be replaced and
    are written to directly. Every OSError of the block is reported as one of writing this file: a
    block that also reads handles errors of reading itself.
    """
    unchanged = "; the previous content is unchanged"
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
    """Open a temporary file in the same directory that replaces `path` when complete.

    A file that is replaced passes on its mode: what was private stays private.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    created = list[Path]()  # known here even if an interrupt comes before the file is returned
    try:
        temporary, stream = _open_temporary(path, created)
        with stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            temporary.replace(path)
    except BaseException:
        for abandoned in created:
            abandoned.unlink(missing_ok=True)
        raise


def _open_temporary(path: Path, created: list[Path]) -> tuple[Path, IO[bytes]]:
    """Create and lock the temporary file of `path`; add it to `created`.

    Its name is the same each time, so what a killed process leaves is removed by the next one that
    writes `path`. While another process writes it too, the name is random.
    """
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
    tag = "covnmt"
    while True:
        temporary = path.with_name(f".{path.name}.{tag}.tmp")
        tag = secrets.token_hex(4)
        if not remove_abandoned(temporary):
            continue
        try:
            descriptor = os.open(temporary, _CREATE, 0o666 if mode is None else mode)
            created.append(temporary)
        except FileExistsError:
            continue
        except BaseException:  # an interrupt, perhaps after it was created
            remove_abandoned(temporary)
            raise
        stream = os.fdopen(descriptor, "wb")
        if mode is not None:  # whatever the umask
            os.fchmod(descriptor, mode)
        if _lock(descriptor) is False or not _is_at(descriptor, temporary):
            stream.close()  # another process takes it for abandoned
            created.clear()
            continue
        return temporary, stream


_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def remove_abandoned(temporary: Path) -> bool:
    """Remove a temporary file that no living process writes; whether its name is free now."""
    try:
        descriptor = os.open(temporary, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        if not _lock(descriptor) or not _is_at(descriptor, temporary):
            return False
        temporary.unlink()
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def remove_abandoned_files(directory: Path, names: Collection[str]) -> None:
    """Remove what killed processes left of files with these names."""
    for temporary in directory.glob(".*.tmp"):
        if temporary.stem[1:].rpartition(".")[0] in names:
            remove_abandoned(temporary)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _lock(descriptor: int) -> bool | None:
    """Lock an open file; False if another process has, None where there are no locks.

    The lock ends with the process, however that ends. Some network file systems have none.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def require_lock(descriptor: int, path: Path) -> None:
    """Lock an open file until it is closed; refuse one that another process has locked."""
    if _lock(descriptor) is False:
        raise UserError(f"{path}: another covnmt command is writing it; wait until it ends")


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Lock a directory, created if missing, against other commands that write files into it.

    The lock is on the directory itself and leaves no file behind (see `_lock`).
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError as error:
        raise UserError(
            f"{directory}: cannot be written ({error.strerror}); choose another directory"
        ) from None
    try:
        if _lock(descriptor) is False:
            raise UserError(
                f"{directory}: another covnmt command is writing to it; wait until it ends, stop "
                "it, or choose another directory"
            )
        yield
    finally:
        os.close(descriptor)


@contextmanager
def atomic_write_text(path: Path) -> Iterator[IO[str]]:
    """Like `atomic_write`, for UTF-8 text with line feeds; compressed if named .gz or .xz."""
    with atomic_write(path) as file, _compressing(path, file) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8", newline="\n")
        yield text
        text.flush()
        text.detach()


def _compressing(path: Path, stream: IO[bytes]) -> AbstractContextManager[Any]:
    """Compress so that the same text always becomes the same bytes (no time in the header)."""
    if path.suffix == ".gz":
        return gzip.GzipFile("", "wb", compresslevel=6, fileobj=stream, mtime=0)
    if path.suffix == ".xz":
        return lzma.open(stream, "wb")
    return nullcontext(stream)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file at once."""
    with atomic_write(path) as stream:
        stream.write(content)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write each string as a line."""
    with atomic_write_text(path) as stream:
        stream.writelines(f"{line}\n" for line in lines)


def output_is_file(path: Path | None) -> bool:
    """Tell whether output goes to a file and not to a terminal or a pipe, which may lead to one."""
    if is_file_path(path):
        return True
    try:
        return stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)
    except (AttributeError, OSError):  # closed, or not a real stream
        return False


def write_output_lines(path: Path | None, lines: Iterable[str]) -> None:
    """Write lines to a file, or to standard output one by one."""
    if is_file_path(path):
        write_lines(path, lines)
        return
    if sys.stdout is None:
        raise UserError("standard output is closed: send it to a file or a pipe")
    for line in lines:
        print(line, flush=True)


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON."""
    with atomic_write_text(path) as stream:
        json.dump(value, stream, ensure_ascii=False, indent=2)
        stream.write("\n")


def read_json(path: Path) -> Any:
    """Read JSON; an error names the file."""
    return parse_json(read_bytes(path), path)


def parse_json(content: bytes, path: Path) -> Any:
    """Parse JSON that was read from this file."""
    try:
        return json.loads(content.decode())
    except PARSE_ERRORS as error:
        raise UserError(
            f"{path}: not valid JSON ({error}); restore it from a copy, or make it again"
        ) from None
