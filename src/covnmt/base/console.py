"""Progress that a person can read: a live bar on a terminal, plain lines elsewhere."""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

T = TypeVar("T")


class BrokenPipeTolerantConsole(Console):
    """What a person watches; when they have gone, the work goes on in silence.

    `covnmt train ... 2>&1 | tee log` loses its `tee` at Ctrl-C, before the run is saved. A terminal
    may be closed over work in the background, and the disk of a log may be full.
    """

    def _check_buffer(self) -> None:  # where rich writes
        try:
            super()._check_buffer()
        except OSError:
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


# Everything a person watches goes to standard error; standard output carries results, which keep
# their width in a file or a pipe. Brackets in a name are no markup, words between colons no emoji.
NON_TERMINAL_WIDTH = 1000
stderr_console = BrokenPipeTolerantConsole(stderr=True, emoji=False)
stdout_console = Console(
    soft_wrap=True,
    markup=False,
    emoji=False,
    width=None if sys.stdout and sys.stdout.isatty() else NON_TERMINAL_WIDTH,
)

# Without a terminal: one line at most this often, so that logs stay short.
SECONDS_BETWEEN_LINES = 10.0


def log(message: str, style: str = "") -> None:
    """Print one line to standard error. Paths are neither wrapped nor taken for markup."""
    stderr_console.print(message, style=style, markup=False, highlight=False, soft_wrap=True)


def warn(message: str) -> None:
    """Print a warning to standard error, in yellow on a terminal."""
    log(message, style="yellow")


class RateColumn(ProgressColumn):
    """Items per second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed or 0:,.0f} {self.unit}/s", style="cyan")


def track(items: Iterable[T], total: int | None, what: str, unit: str = "lines") -> Iterator[T]:
    """Pass the items on, showing how many, how fast, and how long it will still take."""
    watch = _bar if stderr_console.is_terminal else _lines
    yield from watch(items, total, what, unit)


def _bar(items: Iterable[T], total: int | None, what: str, unit: str) -> Iterator[T]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(unit),
        TimeRemainingColumn(),
    )
    with _live(*columns) as progress:
        yield from progress.track(items, total=total, description=what)


def _live(*columns: ProgressColumn) -> Progress:
    """A bar that makes way for what is printed to its screen, and keeps its hands off the rest.

    Rich would lead standard output past the bar too where that is a file or a pipe, and so to the
    screen.
    """
    shared = sys.stdout is not None and sys.stdout.isatty()
    return Progress(*columns, console=stderr_console, transient=True, redirect_stdout=shared)


def _lines(items: Iterable[T], total: int | None, what: str, unit: str) -> Iterator[T]:
    started = told = 0.0
    for count, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if count == 1:  # which may bring a whole window with it, and says nothing of the rate
            started = told = now
        elif now - told >= SECONDS_BETWEEN_LINES:
            told = now
            rate = (count - 1) / (now - started)
            left = f", {(total - count) / rate:,.0f} s left" if total else ""
            of = f" of {total:,}" if total else ""
            log(f"{what}: {count:,}{of} {unit}, {rate:,.0f}/s{left}")


class ProgressBar:
    """Progress of a long job that reports at its own pace: a live bar, or plain lines."""

    def __init__(self, total: int, what: str) -> None:
        self.what, self.total = what, total
        self.progress = _live(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
        )
        self.task = self.progress.add_task(what, total=total, status="")
        self.started: tuple[float, int] | None = None

    def __enter__(self) -> "ProgressBar":
        if stderr_console.is_terminal:
            self.progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if stderr_console.is_terminal:
            self.progress.stop()

    def show(self, done: int, status: str) -> None:
        """So far, and how it goes."""
        now = time.monotonic()
        if self.started is None:
            self.started = (now, done)
        if stderr_console.is_terminal:
            self.progress.update(self.task, completed=done, status=status)
        elif status:
            rate = (done - self.started[1]) / max(now - self.started[0], 1e-9)
            left = (self.total - done) / rate if rate else 0.0
            log(f"{self.what} {done:,}/{self.total:,}  {status}  {left:,.0f} s left")
