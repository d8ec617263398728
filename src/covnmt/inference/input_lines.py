"""Text as it comes in: many lines at a time, and fewer where nobody has more to say for now.

Many lines are translated faster together. But a person who types, or a program that asks one thing
after the other, waits for an answer first: a piece ends when the input pauses.
"""

import io
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from select import select

from covnmt.base.files import decode_lines, open_input
from covnmt.base.processes import Chunk

# Seconds that a piece waits for more, for each line that it has and in all: one line is answered
# at once, and whatever comes faster than it can be translated still fills its pieces.
PER_LINE, IN_ALL = 0.002, 0.2
CHUNK = 1 << 16  # bytes


class LineReader:
    """The lines of a file, a pipe or a terminal, and whether the next one is there yet."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.lines: deque[bytes] = deque()
        self.begun = bytearray()  # a line whose end has not come
        self.ended = False

    def __iter__(self) -> Iterator[bytes]:
        while self.waiting(None) and self.lines:
            yield self.lines.popleft()

    def waiting(self, seconds: float | None) -> bool:
        """Is a line there, or the end, or does it come so soon? Without a limit, wait for it.

        What cannot be read is there too: who takes the next line is told so, with its place.
        """
        until = time.monotonic() + (seconds or 0)
        while not self.lines and not self.ended:
            left = None if seconds is None else max(0.0, until - time.monotonic())
            if not select([self.handle], [], [], left)[0]:
                return False
            try:
                self._read()
            except OSError:
                if seconds is None:
                    raise
                break
        return True

    def _read(self) -> None:
        chunk = os.read(self.handle, CHUNK)
        complete, end, begun = chunk.rpartition(b"\n")
        if end:
            lines = (bytes(self.begun) + complete).split(b"\n")
            self.lines.extend(line + end for line in lines)
            self.begun.clear()
        self.begun += begun
        if not chunk:
            self.ended = True
            if self.begun:
                self.lines.append(bytes(self.begun))


def input_chunks(path: Path | None, size: int) -> Iterator[Chunk[str]]:
    """The lines of a file or of standard input, so many at a time or as many as have come."""
    with open_input(path) as (stream, name):
        if isinstance(getattr(stream, "raw", None), io.FileIO):
            arriving = LineReader(stream.fileno())
            yield from _pieces(decode_lines(arriving, name), size, arriving.waiting)
        else:  # unpacked, or a test's: all of it is there
            yield from _pieces(decode_lines(stream, name), size, lambda _: True)


def _pieces(
    lines: Iterable[str], size: int, waiting: Callable[[float], bool]
) -> Iterator[Chunk[str]]:
    first, part, began = 0, list[str](), 0.0
    for line in lines:
        began = began if part else time.monotonic()
        part.append(line)
        patience = min(IN_ALL, PER_LINE * len(part))
        paused = not waiting(began + patience - time.monotonic())
        if paused or len(part) == size:
            yield Chunk(first, part, paused)
            first, part = first + len(part), []
    if part:
        yield Chunk(first, part)
