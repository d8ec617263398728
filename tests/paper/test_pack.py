"""Prepared data packed into one file."""

import io
import resource
import shutil
import tarfile
from pathlib import Path

import pytest

from covnmt.base.errors import UserError
from covnmt.paper import pack
from covnmt.paper.pack import pack_prepared_data, unpack_prepared_data
from tests.paper.sample_results import KFTT


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_unpacked_data_equal_the_packed_ones(prepared: Path, tmp_path: Path) -> None:
    for name in ("one.tar.xz", "two.tar.xz"):
        pack_prepared_data(prepared, "kftt", tmp_path / name)
    assert (tmp_path / "one.tar.xz").read_bytes() == (tmp_path / "two.tar.xz").read_bytes()
    there = tmp_path / "elsewhere/kftt/data"
    unpack_prepared_data(tmp_path / "one.tar.xz", "kftt", there)
    assert contents(there) == contents(prepared)
    assert [path.name for path in there.parent.iterdir()] == ["data"]
    KFTT.prepare(None, there)
    unpack_prepared_data(tmp_path / "nothing", "kftt", there)  # is not asked for


def test_data_that_another_process_unpacked_meanwhile_are_kept(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack_prepared_data(prepared, "kftt", tmp_path / "pack.tar.xz")
    there = tmp_path / "there/data"

    class Other(pack.SizeLimit):
        def __init__(self, file: Path) -> None:
            super().__init__(file)
            shutil.copytree(prepared, there)
            (there / "in use").touch()

    monkeypatch.setattr(pack, "SizeLimit", Other)
    unpack_prepared_data(tmp_path / "pack.tar.xz", "kftt", there)
    assert (there / "in use").exists()
    assert [path.name for path in there.parent.iterdir()] == ["data"]


def test_files_that_are_no_pack_are_refused(prepared: Path, tmp_path: Path) -> None:
    pack_prepared_data(prepared, "kftt", tmp_path / "good.tar.xz")
    whole = (tmp_path / "good.tar.xz").read_bytes()
    (tmp_path / "cut.tar.xz").write_bytes(whole[: len(whole) // 2])
    for file, name, message in (
        ("none.tar.xz", "kftt", "no such file; make it with --pack"),
        ("cut.tar.xz", "kftt", "cannot be unpacked"),
        ("good.tar.xz", "twlaw", "holds kftt, not a pack of twlaw"),
    ):
        with pytest.raises(UserError, match=message):
            unpack_prepared_data(tmp_path / file, name, tmp_path / "new/data")
        assert list((tmp_path / "new").iterdir()) == []


def write_archive(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:xz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def test_archive_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "MAX_EXTRACTED_BYTES", 10**6)
    write_archive(tmp_path / "bomb", {"kftt/corpus.json": bytes(10**6), "kftt/a": b"1"})
    write_archive(tmp_path / "many", {f"kftt/{n}": b"" for n in range(1001)})
    for name in ("bomb", "many"):
        with pytest.raises(UserError, match=f"{name}: .* 1,000 .* 1,000,0"):
            unpack_prepared_data(tmp_path / name, "kftt", tmp_path / "new/data")
        assert list((tmp_path / "new").iterdir()) == []


def test_full_disk_is_not_blamed_on_the_pack(tmp_path: Path) -> None:
    write_archive(tmp_path / "large", {"kftt/corpus.json": bytes(10**6)})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10**5, before[1]))
    try:
        with pytest.raises(UserError, match=r"into .*data \(File too large\)$"):
            unpack_prepared_data(tmp_path / "large", "kftt", tmp_path / "new/data")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list((tmp_path / "new").iterdir()) == []
