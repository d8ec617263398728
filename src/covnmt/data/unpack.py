"""Archives and compressed files of others, read with care.

No file is ever written under a name that an archive chose, so no archive can reach outside.
"""

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO

from covnmt.base.errors import UserError
from covnmt.base.files import atomic_write, open_decompressed
from covnmt.data.download import MEBIBYTE, set_aside_damaged

# Far above every corpus that is fetched; a stop for archives made to fill the disk.
MOST_UNPACKED_BYTES = 4096 * MEBIBYTE


class DamagedError(Exception):
    """An archive that cannot be read to the end."""


_DAMAGE = (
    DamagedError,
    OSError,
    EOFError,
    lzma.LZMAError,
    zlib.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    RuntimeError,  # a zip with a password or an unknown compression
)


def extract_members(path: Path, wanted: Collection[str], folder: Path) -> dict[str, Path]:
    """Copy the wanted members of an archive into files that are named here, not there."""
    unpacked: dict[str, Path] = {}
    try:
        for member, stream in _members(path, wanted):
            unpacked[member] = folder / f"{path.name}.{len(unpacked)}"
            with atomic_write(unpacked[member]) as copy:
                copy.writelines(_unpacking(stream))
    except _DAMAGE as error:
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(":")
        raise UserError(f"{path}: damaged ({reason}); {set_aside_damaged(path)}") from None
    return unpacked


def _members(path: Path, wanted: Collection[str]) -> Iterator[tuple[str, IO[bytes]]]:
    """The wanted members of a tar or zip archive; a single compressed file is its member ''."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as bundle:
            for member in set(wanted) & set(bundle.namelist()):
                with bundle.open(member) as stream:
                    yield member, stream
    elif path.suffix == ".tgz" or path.stem.endswith(".tar"):
        with tarfile.open(path) as archive:
            for entry in archive:
                member = entry.name.removeprefix("./")
                # A link is no plain file: a wanted one is passed over here, and missed later.
                if member in wanted and entry.isreg() and (inside := archive.extractfile(entry)):
                    yield member, inside
    else:
        with open_decompressed(path) as stream:
            yield "", stream


def _unpacking(stream: IO[bytes]) -> Iterator[bytes]:
    size = 0
    try:
        while chunk := stream.read(MEBIBYTE):
            size += len(chunk)
            if size > MOST_UNPACKED_BYTES:
                raise DamagedError(f"unpacks to more than {MOST_UNPACKED_BYTES:,} bytes")
            yield chunk
    except OSError as error:  # inside `atomic_write` this would pass for trouble with writing
        raise DamagedError(str(error)) from None
