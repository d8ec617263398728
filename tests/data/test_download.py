"""Downloads from a server on this machine that misbehaves in every way known."""

import hashlib
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from covnmt.base.errors import UserError
from covnmt.data import download
from covnmt.data.download import MEBIBYTE, Published, obtain
from tests.data.site import Site

CONTENT = random.Random(7).randbytes(3 * MEBIBYTE)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def item(site: Site) -> Published:
    """A file on the server, with its checksum."""
    site.files["a.tgz"] = CONTENT
    return Published("a.tgz", f"{site.address}/a.tgz", f"sha256:{SHA256}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where it should go."""
    return tmp_path / "a.tgz"


def check(path: Path) -> None:
    """Everything has arrived, and nothing else lies around."""
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("algorithm", ["sha256", "md5"])
def test_verified(site: Site, path: Path, item: Published, algorithm: str) -> None:
    checksum = f"{algorithm}:{hashlib.new(algorithm, CONTENT).hexdigest()}"
    assert obtain(Published(item.name, item.address, checksum), path) == SHA256
    check(path)
    assert obtain(item, path) == SHA256
    assert site.requests == [""]


def test_unknown_checksum_is_shown(
    item: Published, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    obtain(Published(item.name, item.address), path)
    assert SHA256 in capsys.readouterr().err


def test_goes_on_after_cut_connections(site: Site, item: Published, path: Path) -> None:
    site.cut_after = [1000, 2_000_000]
    obtain(item, path)
    assert site.requests == ["", "bytes=1000-", "bytes=2001000-"]
    check(path)


def test_goes_on_in_a_later_run(
    site: Site, item: Published, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    site.cut_after = [50]
    with pytest.raises(UserError, match=r"ended after 50 of .* run the same command again"):
        obtain(item, path)
    assert path.with_name("a.tgz.part").stat().st_size == 50
    obtain(item, path)
    assert site.requests == ["", "bytes=50-"]
    check(path)


def test_server_that_ignores_ranges(site: Site, item: Published, path: Path) -> None:
    site.ranges, site.cut_after = False, [50, 60]
    obtain(item, path)
    assert site.requests == ["", "bytes=50-", "bytes=60-"]
    check(path)


def test_server_that_does_not_tell_the_size(site: Site, item: Published, path: Path) -> None:
    site.sized = False
    obtain(item, path)
    check(path)


@pytest.mark.parametrize("surplus", [0, 10])
def test_complete_but_not_renamed(site: Site, item: Published, path: Path, surplus: int) -> None:
    """The server cannot continue it: complete if the sizes agree, another file if not."""
    path.with_name("a.tgz.part").write_bytes(CONTENT + bytes(surplus))
    obtain(item, path)
    assert len(site.requests) == (2 if surplus else 1)
    check(path)


def test_interrupt_keeps_what_has_arrived(
    site: Site, item: Published, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(chunks: Iterator[bytes], *_: object) -> Iterator[bytes]:
        yield next(chunks)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(download, "track", interrupted)
        with pytest.raises(KeyboardInterrupt):
            obtain(item, path)
    obtain(item, path)
    assert site.requests == ["", f"bytes={MEBIBYTE}-"]
    check(path)


def test_wrong_checksum(site: Site, item: Published, path: Path) -> None:
    site.files["a.tgz"] = b"something else"
    with pytest.raises(UserError, match=r"sha256 is .* instead of .* now a\.tgz\.bad"):
        obtain(item, path)
    assert [found.name for found in path.parent.iterdir()] == ["a.tgz.bad"]
    site.files["a.tgz"] = CONTENT
    obtain(item, path)
    assert path.read_bytes() == CONTENT


def test_missing_on_the_server_then_by_hand(site: Site, item: Published, path: Path) -> None:
    del site.files["a.tgz"]
    with pytest.raises(UserError, match=f"404.* by hand to {re.escape(str(path))}"):
        obtain(item, path)
    assert len(site.requests) == 1
    path.write_bytes(CONTENT)
    obtain(item, path)
    assert len(site.requests) == 1


def test_no_network(path: Path) -> None:
    item = Published("a.tgz", "http://127.0.0.1:9/a.tgz")
    with pytest.raises(UserError, match=r"^http://127\.0\.0\.1:9/a\.tgz: .*refused.* by hand"):
        obtain(item, path)


def test_a_place_that_cannot_be_written(item: Published, path: Path) -> None:
    path.with_name("a.tgz.part").mkdir()
    with pytest.raises(UserError, match=r"a\.tgz\.part: cannot be written \(Is a directory\)"):
        obtain(item, path)
