"""Progress and messages, on a terminal and in a log."""

import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace

import pytest
from rich.console import Console

from covnmt.base import console
from covnmt.base.console import ProgressBar, format_duration, log, track


@pytest.fixture(params=["terminal", "log"])
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Standard error, once as a terminal and once as a file."""
    stream = io.StringIO()
    terminal = request.param == "terminal"
    monkeypatch.setattr(
        console, "stderr_console", Console(file=stream, force_terminal=terminal, width=100)
    )
    return stream


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advance the clock by four seconds on every reading."""
    now = count(0.0, 4.0)
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: next(now)))


@pytest.mark.parametrize("total", [None, 5, 7])
def test_track_yields_all_items_unchanged(total: int | None, screen: io.StringIO) -> None:
    assert list(track((n * n for n in range(5)), total, "squares")) == [0, 1, 4, 9, 16]
    assert list(track([], total, "nothing")) == []


def test_track_is_lazy(screen: io.StringIO) -> None:
    seen = []

    def source() -> Iterator[int]:
        for n in range(3):
            seen.append(n)
            yield n

    items = track(source(), 3, "numbers")
    assert seen == []
    assert next(items) == 0
    assert seen == [0]
    items.close()  # type: ignore[attr-defined]


def test_progress_bars_can_be_nested(screen: io.StringIO) -> None:
    rows = [list(track(range(n), n, "columns")) for n in track([1, 2], 2, "rows")]
    assert rows == [[0], [0, 1]]


def test_text_printed_while_a_bar_is_shown_goes_to_its_own_stream(
    screen: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    """Into its file or pipe, though a bar is on the terminal: `covnmt check ... > report`."""
    for n in track(range(3), 3, "numbers"):
        print("number", n)
    with ProgressBar(3, "training"):
        print("trained")
    assert capsys.readouterr().out == "number 0\nnumber 1\nnumber 2\ntrained\n"
    assert "number 0" not in screen.getvalue()


def test_track_passes_exceptions_on(screen: io.StringIO) -> None:
    def source() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        list(track(source(), 2, "numbers"))


@pytest.mark.usefixtures("clock")
def test_log_lines_have_count_rate_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    list(track(range(8), 8, "reading"))
    lines = capsys.readouterr().err.splitlines()
    # the clock advances 4 s per item: a line at most every 10 s is one in three
    assert lines == [
        "reading: 4 of 8 lines, 0.2/s, 16 s left",
        "reading: 7 of 8 lines, 0.2/s, 4 s left",
    ]


def test_the_first_item_does_not_count_for_the_rate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines arrive two at a time: the first two after 60 seconds, two more after another 20."""
    times = iter([60.0, 60.0, 80.0, 80.0])
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: next(times)))
    list(track(range(4), 6, "reading"))
    assert capsys.readouterr().err == "reading: 3 of 6 lines, 0.1/s, 30 s left\n"


@pytest.mark.usefixtures("clock")
def test_log_lines_without_a_total_have_no_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    list(track(range(4), None, "reading", "pairs"))
    assert capsys.readouterr().err == "reading: 4 pairs, 0.2/s\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (3599, "1 h 0 min"),
        (3 * 3600 + 20 * 60, "3 h 20 min"),
        (86400 + 3600, "1 day 1 h"),
        (373_734, "4 days 7 h"),
    ],
)
def test_durations_are_in_days_hours_minutes_or_seconds(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_quick_jobs_log_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    list(track(range(100), 100, "reading"))
    assert capsys.readouterr().err == ""


def test_a_line_logged_while_a_bar_is_shown_stays(screen: io.StringIO) -> None:
    with ProgressBar(1000, "training") as meter:
        meter.show(100, "")
        meter.show(300, "loss 2.5")
        log("update 300: [dev] loss 2.4  best")
    shown = screen.getvalue()
    assert re.search(r"loss 2\.5  \d+ s left", shown)
    assert "update 300: [dev] loss 2.4  best" in shown


@pytest.mark.usefixtures("clock")
def test_the_rate_of_a_resumed_job_counts_from_where_it_resumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only what this call has done counts."""
    stream = io.StringIO()
    monkeypatch.setattr(console, "stderr_console", Console(file=stream, width=100))
    with ProgressBar(1000, "training") as meter:
        meter.show(600, "")
        meter.show(700, "loss 2.5")  # 100 updates in 4 s
    assert stream.getvalue() == "training 700/1,000  loss 2.5  12 s left\n"


GOES_ON = """
from covnmt.base import console
console.SECONDS_BETWEEN_LINES = 0
for line in console.track(range(9), 9, "reading"):
    console.log(f"line {line}")
print("done")
"""


def _deserted_pipe() -> int:
    there, here = os.pipe()
    os.close(there)
    return here


def _closed_terminal() -> int:
    there, here = os.openpty()
    os.close(there)
    return here


def _full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.mark.parametrize("deaf", [_deserted_pipe, _closed_terminal, _full_disk])
def test_work_continues_when_standard_error_is_closed(deaf: Callable[[], int]) -> None:
    """Its reader has gone, or its disk is full."""
    here = deaf()
    command = [sys.executable, "-c", GOES_ON]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=here, check=False)
    os.close(here)
    assert (ended.returncode, ended.stdout) == (0, b"done\n")


def test_progress_can_be_switched_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0.0)
    for progress in (False, True):
        console.set_verbosity(messages=True, progress=progress)
        assert list(console.track(range(5), 5, "counting")) == list(range(5))
        with console.ProgressBar(5, "updates") as bar:
            bar.show(2, "loss 1.0")
        shown = capsys.readouterr().err
        assert ("counting: 3 of 5" in shown, "updates 2/5" in shown) == (progress, progress)
