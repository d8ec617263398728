"""Download published files, verify them, and read their archives.

An interrupted download is resumed, which neither pooch nor sacreBLEU's downloads do. No file is
written under a name from inside an archive, so an archive cannot write outside of its directory.
"""

import lzma
import math
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from covnmt import __version__
from covnmt.base.console import log, track
from covnmt.base.errors import UserError
from covnmt.base.files import atomic_write, file_digest, open_decompressed

MEBIBYTE = 1 << 20
TIMEOUT_SECONDS = 30.0
ATTEMPTS = 5
# Far above the size of every corpus; stops archives made to fill the disk.
MAX_EXTRACTED_BYTES = 4096 * MEBIBYTE


@dataclass(frozen=True)
class PublishedFile:
    """A file as its publisher offers it."""

    name: str
    address: str
    checksum: str | None = None  # "md5:..." or "sha256:..."; None where nobody publishes one


class BrokenDownloadError(Exception):
    """The connection ended before the file did."""


class DamagedArchiveError(Exception):
    """An archive that cannot be read to the end."""


DAMAGE_ERRORS = (
    DamagedArchiveError,
    OSError,
    EOFError,
    lzma.LZMAError,
    zlib.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    RuntimeError,  # a zip with a password or an unknown compression
)


def download_verified(file: PublishedFile, path: Path) -> str:
    """Download a file to `path` unless it is there, verify it, and return its SHA-256."""
    if not path.exists():
        _download(file.address, path)
    sha256 = file_digest(path)
    if file.checksum is None:
        log(f"{path}: sha256 {sha256} (no published checksum to compare with)")
        return sha256
    algorithm, _, expected = file.checksum.partition(":")
    actual = sha256 if algorithm == "sha256" else file_digest(path, algorithm)
    if actual != expected:
        remedy = _set_aside(path)
        raise UserError(
            f"{path}: {algorithm} is {actual} instead of {expected}, so this is not the published "
            f"file; {remedy}"
        )
    return sha256


def extract_members(path: Path, members: Collection[str], directory: Path) -> dict[str, Path]:
    """Copy members of an archive into files with names of our own; returns their paths.

    A compressed file that is no archive has one member, "".
    """
    extracted: dict[str, Path] = {}
    try:
        for member, stream in _open_members(path, members):
            extracted[member] = directory / f"{path.name}.{len(extracted)}"
            with atomic_write(extracted[member]) as copy:
                copy.writelines(_read_limited(stream))
    except DAMAGE_ERRORS as error:
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(":")
        remedy = _set_aside(path)
        raise UserError(f"{path}: damaged ({reason}); {remedy}") from None
    return extracted


def _set_aside(path: Path) -> str:
    """Rename a wrong or damaged file, and return what the user should do."""
    bad = path.with_name(path.name + ".bad")
    path.replace(bad)
    return f"it is now {bad.name}: run the same command again to download it again"


def _download(address: str, path: Path) -> None:
    """Download to `path`.part, resume after each interruption, and rename when complete."""
    partial = path.with_name(path.name + ".part")
    for _ in range(ATTEMPTS):
        try:
            _download_rest(address, partial)
        except BrokenDownloadError as error:
            reason = str(error)
        except (OSError, HTTPException) as error:
            reason = str(error.reason if type(error) is URLError else error)
            break
        else:
            partial.replace(path)
            return
    raise UserError(
        f"{address}: {reason}. The part that has arrived is kept: run the same command again to "
        f"resume, or download the file by hand to {path} and run it again"
    )


def _download_rest(address: str, partial: Path) -> None:
    """Request once the bytes that are missing from `partial`."""
    size = partial.stat().st_size if partial.exists() else 0
    headers = {"User-Agent": f"covnmt/{__version__}"}
    if size:
        headers["Range"] = f"bytes={size}-"
    try:
        response = urlopen(Request(address, headers=headers), timeout=TIMEOUT_SECONDS)
    except HTTPError as error:
        error.close()
        if error.code != 416:
            raise
        if error.headers.get("Content-Range") == f"bytes */{size}":
            return  # complete
        partial.unlink()
        raise BrokenDownloadError("the file on the server has changed") from None
    with response:
        _receive(response, partial, size)


def _receive(response: HTTPResponse, partial: Path, size: int) -> None:
    """Append the body to `partial`, or replace it if the server sends the whole file."""
    start = size if response.status == 206 else 0
    length = response.length
    total = math.ceil(length / MEBIBYTE) if length is not None else None
    try:
        with partial.open("ab") as stream:
            stream.truncate(start)
            for block in track(_read_body(response), total, partial.stem, "MiB"):
                stream.write(block)
    except OSError as error:
        raise UserError(f"{partial}: cannot be written ({error.strerror})") from None
    received = partial.stat().st_size - start
    if length is not None and received != length:
        raise BrokenDownloadError(
            f"the connection ended after {start + received:,} of {start + length:,} bytes"
        )


def _read_body(response: HTTPResponse) -> Iterator[bytes]:
    try:
        while block := response.read(MEBIBYTE):
            yield block
    except (OSError, HTTPException) as error:
        raise BrokenDownloadError(f"the connection broke ({error})") from None


def _open_members(path: Path, members: Collection[str]) -> Iterator[tuple[str, IO[bytes]]]:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as zip_archive:
            for member in set(members) & set(zip_archive.namelist()):
                with zip_archive.open(member) as stream:
                    yield member, stream
    elif path.suffix == ".tgz" or path.stem.endswith(".tar"):
        with tarfile.open(path) as archive:
            for entry in archive:
                member = entry.name.removeprefix("./")
                # links are skipped here, and then missed by the caller
                if member in members and entry.isreg() and (file := archive.extractfile(entry)):
                    yield member, file
    else:
        with open_decompressed(path) as stream:
            yield "", stream


def _read_limited(stream: IO[bytes]) -> Iterator[bytes]:
    size = 0
    try:
        while block := stream.read(MEBIBYTE):
            size += len(block)
            if size > MAX_EXTRACTED_BYTES:
                raise DamagedArchiveError(f"unpacks to more than {MAX_EXTRACTED_BYTES:,} bytes")
            yield block
    except OSError as error:  # `atomic_write` would report it as an error of writing
        raise DamagedArchiveError(str(error)) from None
