"""Downloading published files: what has arrived is kept, and what is complete is verified."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from covnmt import __version__
from covnmt.base.console import log, track
from covnmt.base.errors import UserError

MEBIBYTE = 1 << 20
TIMEOUT_SECONDS = 30.0
ATTEMPTS = 5


@dataclass(frozen=True)
class PublishedFile:
    """One file as its publisher offers it."""

    name: str
    address: str
    # "md5:..." or "sha256:..."; None where no source that could be checked states one
    checksum: str | None = None


class CutError(Exception):
    """The connection ended before the file did."""


def download_verified(item: PublishedFile, path: Path) -> str:
    """Have the published file at `path`, complete and verified; returns its sha256."""
    if not path.exists():
        _download(item.address, path)
    sha256 = _digest(path, "sha256")
    if item.checksum is None:
        log(f"{path}: sha256 {sha256} (no published checksum to compare with)")
        return sha256
    algorithm, _, expected = item.checksum.partition(":")
    found = _digest(path, algorithm)
    if found != expected:
        raise UserError(
            f"{path}: {algorithm} is {found} instead of {expected}, so this is not the published "
            f"file; {set_aside_damaged(path)}"
        )
    return sha256


def set_aside_damaged(path: Path) -> str:
    """Rename a file that is no good, and say what to do."""
    bad = path.with_name(path.name + ".bad")
    path.replace(bad)
    return f"it is now {bad.name}: run the same command again to download it anew"


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return digest.hexdigest()


def _download(address: str, path: Path) -> None:
    """Download to `path`.part, going on after each break, and rename when complete."""
    part = path.with_name(path.name + ".part")
    for _ in range(ATTEMPTS):
        try:
            _go_on(address, part)
        except CutError as cut:
            reason = str(cut)
        except (OSError, HTTPException) as error:
            reason = str(error.reason if type(error) is URLError else error)
            break
        else:
            part.replace(path)
            return
    raise UserError(
        f"{address}: {reason}. What has arrived is kept: run the same command again to go on, "
        f"or download the file by hand to {path} and run it again"
    )


def _go_on(address: str, part: Path) -> None:
    """Ask once for what `part` still lacks."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": f"covnmt/{__version__}"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        response = urlopen(Request(address, headers=headers), timeout=TIMEOUT_SECONDS)
    except HTTPError as error:
        error.close()
        if error.code != 416:
            raise
        if error.headers.get("Content-Range") == f"bytes */{have}":
            return  # nothing is lacking
        part.unlink()
        raise CutError("the file on the server has changed") from None
    with response:
        _receive(response, part, have)


def _receive(response: HTTPResponse, part: Path, have: int) -> None:
    """Append the body to `part`, or start it anew if the server sends the whole file."""
    start = have if response.status == 206 else 0
    length = response.length
    total = math.ceil(length / MEBIBYTE) if length is not None else None
    try:
        with part.open("ab") as stream:
            stream.truncate(start)
            for chunk in track(_arriving(response), total, part.stem, "MiB"):
                stream.write(chunk)
    except OSError as error:
        raise UserError(f"{part}: cannot be written ({error.strerror})") from None
    received = part.stat().st_size - start
    if length is not None and received != length:
        raise CutError(
            f"the connection ended after {start + received:,} of {start + length:,} bytes"
        )


def _arriving(response: HTTPResponse) -> Iterator[bytes]:
    try:
        while chunk := response.read(MEBIBYTE):
            yield chunk
    except (OSError, HTTPException) as error:
        raise CutError(f"the connection broke ({error})") from None
