"""Writing files: what killed processes leave, modes, and locks of directories."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from covnmt.base.errors import UserError
from covnmt.base.files import (
    atomic_write,
    lock_directory,
    read_bytes,
    refuse_pipe,
    remove_abandoned,
    write_bytes,
)

WRITER = """
import sys
from pathlib import Path
from covnmt.base.files import atomic_write
with atomic_write(Path(sys.argv[1])) as stream:
    stream.write(b"half")
    stream.flush()
    print("writing", flush=True)
    sys.stdin.read()
"""


def start_writer(path: Path) -> subprocess.Popen[bytes]:
    """Start a process that is in the middle of writing `path`."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout
    assert process.stdout.readline() == b"writing\n"
    return process


def temporary_files(directory: Path) -> list[Path]:
    return sorted(directory.glob(".*.tmp"))


def test_next_write_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"old")
    with start_writer(path) as writer:
        writer.send_signal(signal.SIGKILL)
    assert path.read_bytes() == b"old"
    assert len(temporary_files(tmp_path)) == 1
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_file_of_a_living_writer_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with start_writer(path) as writer:
        (temporary,) = temporary_files(tmp_path)
        assert not remove_abandoned(temporary)
        write_bytes(path, b"of another writer")
        assert temporary_files(tmp_path) == [temporary]
        assert path.read_bytes() == b"of another writer"
        writer.communicate()
    assert path.read_bytes() == b"half"
    assert list(tmp_path.iterdir()) == [path]


MANY_WRITES = """
import sys
from pathlib import Path
from covnmt.base.files import write_bytes
for _ in range(100):
    write_bytes(Path(sys.argv[1]), sys.argv[2].encode() * 999)
"""


def test_many_writers_of_one_file_leave_one_complete_file(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MANY_WRITES, str(tmp_path / "out")]
    processes = [subprocess.Popen([*command, writer]) for writer in "abc"]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
    content = (tmp_path / "out").read_text()
    assert content == content[0] * 999


@pytest.mark.parametrize("plant", ["link", "pipe", "directory"])
def test_planted_temporary_name_is_neither_followed_nor_waited_for(
    tmp_path: Path, plant: str
) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    planted = tmp_path / ".out.covnmt.tmp"
    match plant:
        case "link":
            planted.symlink_to(tmp_path / "victim")
        case "pipe":
            os.mkfifo(planted)
        case _:
            planted.mkdir()
    write_bytes(tmp_path / "out", b"new")
    assert (tmp_path / "out").read_bytes() == b"new"
    assert (tmp_path / "victim").read_bytes() == b"precious"


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o664, 0o640])
def test_replaced_file_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "private"
    path.write_bytes(b"old")
    path.chmod(mode)

    def mode_of(stream: IO[bytes]) -> int:
        return os.fstat(stream.fileno()).st_mode & 0o777

    with atomic_write(path) as stream:
        assert mode_of(stream) == mode
        stream.write(b"new")
    assert path.stat().st_mode & 0o777 == mode


def test_new_file_has_the_mode_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_bytes(tmp_path / "new", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640


def test_file_system_without_locks_is_written_without_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock_directory(tmp_path), lock_directory(tmp_path):
        pass
    with atomic_write(tmp_path / "out") as first:
        first.write(b"first")
        write_bytes(tmp_path / "out", b"second")
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
    (tmp_path / ".out.covnmt.tmp").write_bytes(b"perhaps of a living process")
    write_bytes(tmp_path / "out", b"third")
    assert (tmp_path / ".out.covnmt.tmp").exists()


def test_locked_directory_is_refused_until_the_lock_ends(tmp_path: Path) -> None:
    refused = pytest.raises(UserError, match="another covnmt command is writing to it")
    with lock_directory(tmp_path), refused, lock_directory(tmp_path):
        pass
    with lock_directory(tmp_path):
        pass


def test_pipe_in_place_of_a_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "source.vocab")
    for read in (refuse_pipe, read_bytes):
        with pytest.raises(UserError, match=r"source\.vocab: cannot be read \(a pipe or device"):
            read(tmp_path / "source.vocab")
