"""Reading text of users, and writing files so that nothing is lost."""

import errno
import gzip
import io
import lzma
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covnmt.base.errors import UserError
from covnmt.base.files import (
    atomic_write,
    atomic_write_text,
    check_distinct_paths,
    check_writable,
    decode_lines,
    output_is_file,
    read_json,
    read_lines,
    read_parallel_lines,
    write_json,
    write_lines,
    write_output_lines,
)

LINES = [
    (b"one\ntwo\n", ["one", "two"]),
    (b"one\r\ntwo\r\n", ["one", "two"]),
    (b"one\rtwo\r\rfour\r", ["one", "two", "", "four"]),
    (b"\xef\xbb\xbfone\rtwo", ["one", "two"]),
    (b"one\nstill \r one\r\nthree\r", ["one", "still \r one", "three"]),
    (b"still \r one\ntwo \r two", ["still \r one", "two \r two"]),
    (b"\r", [""]),
    (b"no end", ["no end"]),
    (b"\n\n", ["", ""]),
    (b"", []),
    ("one\u2028line\x0bstill\x85one\n".encode(), ["one\u2028line\x0bstill\x85one"]),
    (b"\xef\xbb\xbfmarked\nnext\n", ["marked", "next"]),
]


def pack(content: bytes, suffix: str) -> bytes:
    match suffix:
        case "gz":
            return gzip.compress(content)
        case "xz":
            return lzma.compress(content)
    return content


@pytest.mark.parametrize(("content", "expected"), LINES)
@pytest.mark.parametrize("suffix", ["txt", "gz", "xz"])
def test_lines_are_read_without_their_endings(
    tmp_path: Path, content: bytes, expected: list[str], suffix: str
) -> None:
    path = tmp_path / f"text.{suffix}"
    path.write_bytes(pack(content, suffix))
    assert list(read_lines(path)) == expected


@given(st.lists(st.text(st.characters(exclude_characters="\n\r\ufeff", exclude_categories=["Cs"]))))
def test_written_lines_come_back(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    path = tmp_path_factory.mktemp("lines") / "text"
    write_lines(path, lines)
    assert list(read_lines(path)) == lines


@pytest.mark.parametrize(("suffix", "unpack"), [("gz", gzip.decompress), ("xz", lzma.decompress)])
def test_the_suffix_of_a_name_decides_the_compression(
    tmp_path: Path, suffix: str, unpack: Callable[[bytes], bytes]
) -> None:
    path, again = tmp_path / f"text.{suffix}", tmp_path / f"again.{suffix}"
    for each in (path, again):
        write_lines(each, ["a", "b"])
    assert unpack(path.read_bytes()) == b"a\nb\n"
    assert path.read_bytes() == again.read_bytes()
    assert list(read_lines(path)) == ["a", "b"]


@pytest.mark.parametrize("raw", [[b"good\n", b"b\xff\n"], [b"good\rb\xff\r"]])
def test_errors_about_bytes_that_are_not_utf8_name_the_line(raw: list[bytes]) -> None:
    lines = decode_lines(raw, "some.txt")
    assert next(lines) == "good"
    with pytest.raises(UserError, match=r"some\.txt, line 2: not UTF-8 \(byte 1"):
        next(lines)


TEXT = b"a line of text that is worth compressing\n" * 500


@pytest.mark.parametrize("suffix", ["gz", "xz"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "foreign"])
def test_damaged_compressed_files_are_an_error(tmp_path: Path, suffix: str, damage: str) -> None:
    packed = pack(TEXT, suffix)
    content = {
        "cut": packed[:-20],
        "flipped": packed[:20] + bytes(byte ^ 255 for byte in packed[20:40]) + packed[40:],
        "foreign": TEXT,
    }[damage]
    path = tmp_path / f"text.{suffix}"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"text\.{suffix}"):
        list(read_lines(path))


def test_reading_missing_files_or_directories_is_an_error(tmp_path: Path) -> None:
    for suffix in ("txt", "gz", "xz"):
        with pytest.raises(UserError, match="no such file"):
            list(read_lines(tmp_path / f"none.{suffix}"))
    with pytest.raises(UserError, match="cannot be read"):
        list(read_lines(tmp_path))
    with pytest.raises(UserError, match="no such file"):
        read_json(tmp_path / "none.json")
    with pytest.raises(UserError, match="cannot be read"):
        read_json(tmp_path)


def test_one_of_parallel_files_may_be_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("1\n2\n", "utf-8")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x\ny\n")))
    assert list(read_parallel_lines(tmp_path / "a", Path("-"))) == [("1", "x"), ("2", "y")]
    with pytest.raises(UserError, match="only one of the files can be -"):
        list(read_parallel_lines(Path("-"), Path("-")))


def test_parallel_files_need_the_same_number_of_lines(tmp_path: Path) -> None:
    for name, lines in {"a": "1 2 3", "b": "4 5 6", "c": "7 8"}.items():
        write_lines(tmp_path / name, lines.split())
    assert list(read_parallel_lines(tmp_path / "a", tmp_path / "b")) == [
        ("1", "4"),
        ("2", "5"),
        ("3", "6"),
    ]
    rows = read_parallel_lines(tmp_path / "a", tmp_path / "c", tmp_path / "b")
    assert [next(rows), next(rows)] == [("1", "7", "4"), ("2", "8", "5")]
    with pytest.raises(UserError, match=r"c ends after line 2 but .*a, .*b continues"):
        next(rows)


def test_json_is_written_and_read_and_damage_is_an_error(tmp_path: Path) -> None:
    value = {"é": [1, None, 2.5]}
    write_json(tmp_path / "x.json", value)
    assert read_json(tmp_path / "x.json") == value
    assert "é" in (tmp_path / "x.json").read_text("utf-8")
    for damaged in ('{"cut": ', "9" * 5000, "[" * 100_000):
        (tmp_path / "x.json").write_text(damaged)
        with pytest.raises(UserError, match=r"x\.json: not valid JSON"):
            read_json(tmp_path / "x.json")


def test_writing_creates_directories_and_leaves_no_temporary_files(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "new" / "deep" / "file") as stream:
        stream.write(b"content")
    assert (tmp_path / "new" / "deep" / "file").read_bytes() == b"content"
    assert len(list((tmp_path / "new" / "deep").iterdir())) == 1


def test_an_interrupted_write_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def interrupted() -> None:
        with atomic_write_text(path) as stream:
            stream.write("new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_interrupted_at_its_start_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = os.open

    def interrupted(path: Path, flags: int, mode: int = 0o777) -> int:
        descriptor = create(path, flags, mode)
        if flags & os.O_CREAT:
            raise KeyboardInterrupt
        return descriptor

    monkeypatch.setattr(os, "open", interrupted)
    with pytest.raises(KeyboardInterrupt), atomic_write(tmp_path / "file"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_full_disk_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"No space left on device.*unchanged"):
        write_lines(path, ["new"])
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_writing_where_nobody_may_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_lines(tmp_path / "file" / "below", ["text"])


@pytest.mark.parametrize(
    ("place", "reason"),
    [("file/below", "Not a directory"), ("file/far/below", "Not a dir"), ("locked/new", "Perm")],
)
def test_check_writable_raises_before_the_work(place: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "locked").mkdir(mode=0o500)
    if os.access(tmp_path / "locked", os.W_OK) and "locked" in place:
        pytest.skip("this user may write anywhere")
    with pytest.raises(UserError, match=rf"{place}: cannot be written \({reason}"):
        check_writable(tmp_path / place)


def test_check_writable_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "far" / "below")
    before = sorted(tmp_path.rglob("*"))
    for name in ("file", "new", "new/deep/file", "link"):
        check_writable(tmp_path / name)
    check_writable(Path("/dev/null"))
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_text() == "old"


def test_outputs_that_replace_each_other_or_an_input_are_refused(tmp_path: Path) -> None:
    """Also by other names of the same file; a device or "-" may be named twice."""
    (tmp_path / "text").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "text")
    one, link = tmp_path / "text", tmp_path / "link"
    new, again = tmp_path / "new", tmp_path / "." / "sub" / ".." / "new"
    for outputs, inputs in ([[one, link], []], [[link], [one]], [[new, again], []]):
        with pytest.raises(UserError, match=f"^{outputs[-1]}: "):
            check_distinct_paths(outputs, inputs)
    check_distinct_paths([one, new, None, None], [None, tmp_path / "other"])
    for free in (Path("-"), Path("/dev/null")):
        check_distinct_paths([free, free], [free])


def test_writing_to_a_link_replaces_the_file_behind_it(tmp_path: Path) -> None:
    file, link = tmp_path / "deep" / "file", tmp_path / "link"
    file.parent.mkdir()
    link.symlink_to(file)
    for text in ("into nothing", "over the old"):
        write_lines(link, [text])
        assert link.is_symlink()
        assert file.read_text() == f"{text}\n"
    assert list(file.parent.iterdir()) == [file]


def test_writing_to_a_pipe_reaches_its_reader(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_lines(pipe, ["one", "two"])
    reader.join()
    assert read == ["one\ntwo\n"]
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_writing_to_a_pipe_closed_early_is_an_error(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: pipe.open("rb").close())
    reader.start()
    with pytest.raises(UserError, match=r"pipe: cannot be written \(Broken pipe\)$"):
        write_lines(pipe, ["more than a pipe holds"] * 100_000)
    reader.join()
    assert pipe.is_fifo()


def test_writing_to_a_device_leaves_it_in_place() -> None:
    """A pseudo-terminal: unlike /dev/null, an error here cannot damage it."""
    reader, device = os.openpty()
    path = Path(os.ttyname(device))
    write_lines(path, ["one", "two"])
    assert path.is_char_device()
    assert os.read(reader, 100).split() == [b"one", b"two"]
    for handle in (reader, device):
        os.close(handle)


def test_a_directory_as_output_is_refused_before_any_work(tmp_path: Path) -> None:
    def lines() -> Iterator[str]:
        raise AssertionError("work was done")
        yield ""

    with pytest.raises(UserError, match=r"cannot be written \(Is a directory\)"):
        write_lines(tmp_path, lines())


@pytest.mark.parametrize("path", [None, Path("-")])
def test_lines_reach_standard_output_one_by_one(
    path: Path | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_output_lines(path, ["one", "two"])
    assert capsys.readouterr().out == "one\ntwo\n"
    assert not list(tmp_path.iterdir())


def test_output_is_file_for_files_but_not_for_pipes_or_terminals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A named file, or standard output that is a file; not a terminal or pipe."""
    assert output_is_file(Path("file"))
    for there, here in (os.openpty(), os.pipe()):
        with os.fdopen(here, "w") as stream:
            monkeypatch.setattr(sys, "stdout", stream)
            assert not output_is_file(None)
            assert not output_is_file(Path("-"))
        os.close(there)
    with (tmp_path / "file").open("w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert output_is_file(None)
    for other in (io.StringIO(), None):
        monkeypatch.setattr(sys, "stdout", other)
        assert not output_is_file(None)
