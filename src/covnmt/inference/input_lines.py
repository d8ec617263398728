"""Read input lines in batches: full ones from files, smaller ones when a pipe or terminal pauses.

Many lines together are translated faster. But a person who types, or a program that sends one line
and waits, needs an answer first.
"""

import io
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from select import select

from covnmt.base.files import decode_lines, open_input
from covnmt.base.processes import Chunk

# Seconds that a chunk waits for more lines, per line it has and at most: a single line is answered
# at once, and lines that come faster than they can be translated still fill chunks.
WAIT_PER_LINE, MAX_WAIT = 0.002, 0.2
READ_BYTES = 1 << 16
# A signal that comes just before a call of `select` does not interrupt it, so Ctrl-C would wait for
# the next line: no call lasts longer.
SECONDS_PER_WAIT = 0.5


class LineReader:
    """The lines of a file, a pipe or a terminal; it knows whether the next one has arrived."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.lines: deque[bytes] = deque()
        self.partial = bytearray()  # a line without its end
        self.ended = False

    def __iter__(self) -> Iterator[bytes]:
        while self.is_ready(None) and self.lines:
            yield self.lines.popleft()

    def is_ready(self, seconds: float | None) -> bool:
        """Tell whether a line or the end of input arrives within some seconds; None: wait for it.

        An error counts as arrived: it is raised for the caller that takes the next line.
        """
        deadline = time.monotonic() + (seconds or 0)
        while not self.lines and not self.ended:
            remaining = SECONDS_PER_WAIT if seconds is None else deadline - time.monotonic()
            if not select([self.descriptor], [], [], max(0.0, remaining))[0]:
                if seconds is None:
                    continue
                return False
            try:
                self._read()
            except OSError:
                if seconds is None:
                    raise
                break
        return True

    def _read(self) -> None:
        data = os.read(self.descriptor, READ_BYTES)
        complete, end, partial = data.rpartition(b"\n")
        if end:
            lines = (bytes(self.partial) + complete).split(b"\n")
            self.lines.extend(line + end for line in lines)
            self.partial.clear()
        self.partial += partial
        if not data:
            self.ended = True
            if self.partial:
                self.lines.append(bytes(self.partial))


def input_chunks(path: Path | str | None, size: int) -> Iterator[Chunk[str]]:
    """Yield chunks of at most `size` lines of a file, a text or standard input.

    When standard input pauses, a chunk has fewer.
    """
    with open_input(path) as (stream, name):
        is_plain = isinstance(getattr(stream, "raw", None), io.FileIO)
        reader = LineReader(stream.fileno()) if is_plain else None  # otherwise it never pauses
        first, lines, began = 0, list[str](), 0.0
        for line in decode_lines(reader or stream, name):
            began = began if lines else time.monotonic()
            lines.append(line)
            wait = min(MAX_WAIT, WAIT_PER_LINE * len(lines))
            paused = reader is not None and not reader.is_ready(began + wait - time.monotonic())
            if paused or len(lines) == size:
                yield Chunk(first, lines, paused)
                first, lines = first + len(lines), []
        if lines:
            yield Chunk(first, lines)
