"""Translate a file with several processes, each with one thread.

On a CPU two processes with a thread each are faster than one with two threads: the steps of a
search are small, and most of what two threads gain they lose waiting for each other.
"""

import multiprocessing
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Literal

from covnmt.config import DecodeConfig
from covnmt.translate import Translation, Translator

BATCHES = 8  # translated by a process at a time: enough to sort them by length
AHEAD = 2  # pieces of work that wait for every process


@dataclass(frozen=True)
class Work:
    """What every process does with its lines."""

    models: tuple[Path, ...]
    dictionary: Path | None
    decode: DecodeConfig
    overlong: Literal["cut", "split"]

    def open(self, threads: int) -> Translator:
        """The translator for it."""
        return Translator.load(
            *self.models, device="cpu", dictionary=self.dictionary, threads=threads
        )


def translate_in_processes(
    work: Work, lines: Iterable[str], processes: int
) -> Iterator[Translation]:
    """Translations in the order of the lines; 0 processes is one per core."""
    count = processes or os.cpu_count() or 1
    pieces = _pieces(lines, BATCHES * work.decode.batch_size)
    some = list(islice(pieces, 2))
    if count == 1 or len(some) < 2:
        translator = work.open(processes)
        for first, piece in chain(some, pieces):
            yield from translator.stream(piece, work.decode, work.overlong, first=first)
        return
    context = multiprocessing.get_context("spawn")  # a fork would share threads and locks
    with ProcessPoolExecutor(count, context, _begin, (work,)) as pool:
        waiting: deque[Future[list[Translation]]] = deque()
        for first, piece in chain(some, pieces):
            waiting.append(pool.submit(_translate, first, piece))
            if len(waiting) > AHEAD * count:
                yield from waiting.popleft().result()
        for future in waiting:
            yield from future.result()


def _pieces(lines: Iterable[str], size: int) -> Iterator[tuple[int, list[str]]]:
    """So many lines at a time, with the number of the first."""
    rest = iter(lines)
    first = 0
    while piece := list(islice(rest, size)):
        yield first, piece
        first += len(piece)


_at_work: tuple[Work, Translator]  # in every process


def _begin(work: Work) -> None:
    global _at_work
    _at_work = (work, work.open(threads=1))


def _translate(first: int, lines: list[str]) -> list[Translation]:
    work, translator = _at_work
    return list(translator.stream(lines, work.decode, work.overlong, first=first))
