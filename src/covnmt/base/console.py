"""Messages and progress on standard error: a live bar on a terminal, plain lines elsewhere."""

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


class FailureTolerantConsole(Console):
    """A console that falls silent, without stopping the work, when it cannot be written to.

    Ctrl-C ends the `tee` of `covnmt train ... 2>&1 | tee log` before the run is saved, a terminal
    may be closed while work continues in the background, and the disk of a log may be full.
    """

    def _check_buffer(self) -> None:  # where rich writes
        try:
            super()._check_buffer()
        except OSError:
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


# Messages and progress go to standard error. Standard output carries results, whose lines are not
# wrapped in a file or a pipe. Brackets in a name are not markup, words between colons not emoji.
NON_TERMINAL_WIDTH = 1000
stderr_console = FailureTolerantConsole(stderr=True, emoji=False)
stdout_console = Console(
    soft_wrap=True,
    markup=False,
    emoji=False,
    width=None if sys.stdout and sys.stdout.isatty() else NON_TERMINAL_WIDTH,
)

# Without a terminal, progress is logged at most this often.
SECONDS_BETWEEN_LINES = 10.0
STARTED = time.monotonic()


class _Verbosity:
    """What `set_verbosity` chose."""

    messages = progress = True
    details = False


def set_verbosity(messages: bool, progress: bool, details: bool = False) -> None:
    """Choose what is printed besides warnings and errors: messages, progress, details."""
    _Verbosity.messages, _Verbosity.progress, _Verbosity.details = messages, progress, details


def log(message: str) -> None:
    """Print one line to standard error, neither wrapped nor read as markup."""
    if _Verbosity.messages:
        _print(message)


def log_detail(message: str) -> None:
    """Print a line that only `--verbose` shows, with the seconds since the start."""
    if _Verbosity.details:
        _print(f"[{time.monotonic() - STARTED:.2f} s] {message}", "dim")


def warn(message: str) -> None:
    """Print a warning to standard error, in yellow on a terminal."""
    _print(message, "yellow")


def print_error(message: str) -> None:
    """Print an error to standard error, in red on a terminal."""
    _print(f"error: {message}", "red")


def _print(message: str, style: str = "") -> None:
    stderr_console.print(message, style=style, markup=False, highlight=False, soft_wrap=True)


def format_duration(seconds: float) -> str:
    """Return a duration in its two largest units, such as `3 h 20 min`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    hours, minutes = divmod(minutes, 60)
    days, hours_of_day = divmod(hours, 24)
    if days:
        return f"{days:,} days {hours_of_day} h" if days > 1 else f"1 day {hours_of_day} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


class RateColumn(ProgressColumn):
    """Shows items per second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed or 0:,.0f} {self.unit}/s", style="cyan")


def track(items: Iterable[T], total: int | None, what: str, unit: str = "lines") -> Iterator[T]:
    """Yield the items while showing their count, rate and remaining time."""
    if not _Verbosity.progress:
        yield from items
        return
    if not stderr_console.is_terminal:
        yield from _log_progress(items, total, what, unit)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(unit),
        TimeRemainingColumn(),
    )
    with _live_progress(*columns) as progress:
        yield from progress.track(items, total=total, description=what)


def _live_progress(*columns: ProgressColumn) -> Progress:
    """Make a bar that moves aside for lines printed to the same terminal.

    Standard output is redirected only if it is a terminal: rich would send a file's or pipe's
    content to the screen too.
    """
    shared = sys.stdout is not None and sys.stdout.isatty()
    return Progress(*columns, console=stderr_console, transient=True, redirect_stdout=shared)


def _log_progress(items: Iterable[T], total: int | None, what: str, unit: str) -> Iterator[T]:
    started = logged = 0.0
    for count, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if count == 1:  # may include preparation, so it does not count for the rate
            started = logged = now
        elif now - logged >= SECONDS_BETWEEN_LINES:
            logged = now
            rate = (count - 1) / (now - started)
            left = f", {format_duration((total - count) / rate)} left" if total else ""
            of = f" of {total:,}" if total else ""
            log(f"{what}: {count:,}{of} {unit}, {rate:,.{0 if rate >= 10 else 1}f}/s{left}")


class ProgressBar:
    """Progress of a long job that chooses when to report: a live bar, or plain lines."""

    def __init__(self, total: int, what: str) -> None:
        self.what, self.total = what, total
        self.progress = _live_progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
        )
        self.task = self.progress.add_task(what, total=total, status="")
        self.started: tuple[float, int] | None = None

    def __enter__(self) -> "ProgressBar":
        if stderr_console.is_terminal and _Verbosity.progress:
            self.progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if stderr_console.is_terminal:
            self.progress.stop()

    def show(self, done: int, status: str) -> None:
        """Show how many items are done, and a status such as the loss."""
        if not _Verbosity.progress:
            return
        now = time.monotonic()
        if self.started is None:
            self.started = (now, done)
        rate = (done - self.started[1]) / max(now - self.started[0], 1e-9)
        if rate:  # of the whole run: rich forgets updates that take longer than half a minute
            status += f"  {format_duration((self.total - done) / rate)} left"
        if stderr_console.is_terminal:
            self.progress.update(self.task, completed=done, status=status)
        elif status:
            log(f"{self.what} {done:,}/{self.total:,}  {status}")
