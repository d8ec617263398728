"""Pack prepared data into one file, so that training can run where the corpus is not.

A pack is an ordinary .tar.xz with one folder, named after the experiment. It holds ids,
vocabularies, dev and test text and the gold pairs: corpus text, not to be published.
"""

import lzma
import shutil
import tarfile
import tempfile
from pathlib import Path

from covnmt.base.console import track
from covnmt.base.errors import UserError
from covnmt.base.files import atomic_write
from covnmt.data.download import MAX_EXTRACTED_BYTES

MAX_MEMBERS = 1000  # of a pack, which has some 20


def pack_prepared_data(prepared: Path, name: str, file: Path) -> None:
    """Write all files of a prepared directory; equal data give equal packs."""
    paths = sorted(path for path in prepared.iterdir() if path.is_file())
    with (
        atomic_write(file) as stream,
        tarfile.open(fileobj=stream, mode="w:xz", preset=6) as archive,
    ):
        for path in track(paths, len(paths), "packing", "files"):
            entry = tarfile.TarInfo(f"{name}/{path.name}")
            entry.size = path.stat().st_size
            with path.open("rb") as content:
                archive.addfile(entry, content)


class SizeLimit:
    """Reject members outside the directory, and archives that unpack to too much."""

    def __init__(self, file: Path) -> None:
        self.file, self.members, self.bytes = file, 0, 0

    def __call__(self, member: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
        self.members += 1
        self.bytes += member.size
        if self.members > MAX_MEMBERS or self.bytes > MAX_EXTRACTED_BYTES:
            raise UserError(
                f"{self.file}: unpacks to more than {MAX_MEMBERS:,} files or "
                f"{MAX_EXTRACTED_BYTES:,} bytes, which no pack does"
            )
        return tarfile.data_filter(member, path)


def unpack_prepared_data(file: Path, name: str, prepared: Path) -> None:
    """Fill the prepared directory from a pack, unless it is complete."""
    if (prepared / "corpus.json").exists():
        return
    prepared.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=prepared.parent, prefix=".unpack"))
    try:
        try:
            with tarfile.open(file, "r:xz") as archive:
                archive.extractall(temporary, filter=SizeLimit(file))
        except FileNotFoundError:
            raise UserError(f"{file}: no such file; make it with --pack") from None
        except (OSError, EOFError, tarfile.TarError, lzma.LZMAError, ValueError) as error:
            if isinstance(error, OSError) and error.errno:  # of the system, not of the archive
                raise UserError(
                    f"{file}: cannot be unpacked into {prepared} ({error.strerror})"
                ) from None
            raise UserError(f"{file}: cannot be unpacked ({error}); pack it again") from None
        names = sorted(path.name for path in temporary.iterdir())
        if names != [name] or not (temporary / name / "corpus.json").exists():
            raise UserError(f"{file}: holds {', '.join(names) or 'nothing'}, not a pack of {name}")
        if not (prepared / "corpus.json").exists():  # else another process was faster
            shutil.rmtree(prepared, ignore_errors=True)
            (temporary / name).rename(prepared)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
