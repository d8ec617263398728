"""Downloads from a local server that misbehaves."""

import hashlib
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from covnmt.base.errors import UserError
from covnmt.data import download
from covnmt.data.download import MEBIBYTE, PublishedFile, download_verified
from tests.data.site import Site

CONTENT = random.Random(7).randbytes(3 * MEBIBYTE)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def item(site: Site) -> PublishedFile:
    """A file on the server, with its checksum."""
    site.files["a.tgz"] = CONTENT
    return PublishedFile("a.tgz", f"{site.address}/a.tgz", f"sha256:{SHA256}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path to download it to."""
    return tmp_path / "a.tgz"


def check(path: Path) -> None:
    """Check that the file is complete and no other file remains."""
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("algorithm", ["sha256", "md5"])
def test_a_download_is_verified_and_not_repeated(
    site: Site, path: Path, item: PublishedFile, algorithm: str
) -> None:
    checksum = f"{algorithm}:{hashlib.new(algorithm, CONTENT).hexdigest()}"
    assert download_verified(PublishedFile(item.name, item.address, checksum), path) == SHA256
    check(path)
    assert download_verified(item, path) == SHA256
    assert site.requests == [""]


def test_without_a_published_checksum_the_sha256_is_logged(
    item: PublishedFile, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    download_verified(PublishedFile(item.name, item.address), path)
    assert SHA256 in capsys.readouterr().err


def test_a_download_is_resumed_after_broken_connections(
    site: Site, item: PublishedFile, path: Path
) -> None:
    site.cut_after = [1000, 2_000_000]
    download_verified(item, path)
    assert site.requests == ["", "bytes=1000-", "bytes=2001000-"]
    check(path)


def test_a_download_is_resumed_by_a_later_call(
    site: Site, item: PublishedFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    site.cut_after = [50]
    with pytest.raises(UserError, match=r"ended after 50 of .* run the same command again"):
        download_verified(item, path)
    assert path.with_name("a.tgz.part").stat().st_size == 50
    download_verified(item, path)
    assert site.requests == ["", "bytes=50-"]
    check(path)


def test_a_server_that_ignores_ranges_sends_all_again(
    site: Site, item: PublishedFile, path: Path
) -> None:
    site.ranges, site.cut_after = False, [50, 60]
    download_verified(item, path)
    assert site.requests == ["", "bytes=50-", "bytes=60-"]
    check(path)


def test_a_server_may_leave_out_the_size(site: Site, item: PublishedFile, path: Path) -> None:
    site.sized = False
    download_verified(item, path)
    check(path)


@pytest.mark.parametrize("surplus", [0, 10])
def test_a_complete_part_file_is_only_renamed(
    site: Site, item: PublishedFile, path: Path, surplus: int
) -> None:
    """The server has nothing to add if the sizes agree; otherwise it is another file."""
    path.with_name("a.tgz.part").write_bytes(CONTENT + bytes(surplus))
    download_verified(item, path)
    assert len(site.requests) == (2 if surplus else 1)
    check(path)


def test_an_interrupt_keeps_the_received_part(
    site: Site, item: PublishedFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(chunks: Iterator[bytes], *_: object) -> Iterator[bytes]:
        yield next(chunks)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(download, "track", interrupted)
        with pytest.raises(KeyboardInterrupt):
            download_verified(item, path)
    download_verified(item, path)
    assert site.requests == ["", f"bytes={MEBIBYTE}-"]
    check(path)


def test_a_file_with_a_wrong_checksum_is_set_aside(
    site: Site, item: PublishedFile, path: Path
) -> None:
    site.files["a.tgz"] = b"something else"
    with pytest.raises(UserError, match=r"sha256 is .* instead of .* now a\.tgz\.bad"):
        download_verified(item, path)
    assert [found.name for found in path.parent.iterdir()] == ["a.tgz.bad"]
    site.files["a.tgz"] = CONTENT
    download_verified(item, path)
    assert path.read_bytes() == CONTENT


def test_a_file_missing_on_the_server_can_be_put_there_by_hand(
    site: Site, item: PublishedFile, path: Path
) -> None:
    del site.files["a.tgz"]
    with pytest.raises(UserError, match=f"404.* by hand to {re.escape(str(path))}"):
        download_verified(item, path)
    assert len(site.requests) == 1
    path.write_bytes(CONTENT)
    download_verified(item, path)
    assert len(site.requests) == 1


def test_without_a_network_the_error_names_address_and_reason(path: Path) -> None:
    item = PublishedFile("a.tgz", "http://127.0.0.1:9/a.tgz")
    with pytest.raises(UserError, match=r"^http://127\.0\.0\.1:9/a\.tgz: .*refused.* by hand"):
        download_verified(item, path)


def test_a_path_that_cannot_be_written_is_an_error(item: PublishedFile, path: Path) -> None:
    path.with_name("a.tgz.part").mkdir()
    with pytest.raises(UserError, match=r"a\.tgz\.part: cannot be written \(Is a directory\)"):
        download_verified(item, path)
