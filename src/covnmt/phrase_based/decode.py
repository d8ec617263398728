"""Sentences in, n-best translations out, by one process or by several.

A sentence costs a fraction of a second, and each is independent of the others, so they are shared
among processes; these map the language model, so there is one copy of it in memory.
"""

import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from covnmt.base.arrays import DoubleArray
from covnmt.base.console import track
from covnmt.base.errors import UserError
from covnmt.base.processes import STOP_SIGNALS, defer_signals, exit_with_parent
from covnmt.phrase_based.language_model import LanguageModel
from covnmt.phrase_based.nbest import PhraseHypothesis, best_translations
from covnmt.phrase_based.phrase_table import PhraseTable
from covnmt.phrase_based.settings import StackSearchSettings
from covnmt.phrase_based.stack import StackSearch
from covnmt.phrase_based.translation_options import collect_options

Sentence = Sequence[int]  # source ids


class DecoderInputs(NamedTuple):
    """Where a model lies, and how to search it."""

    table: Path
    language_model: Path
    longest: int  # words of a source phrase
    settings: StackSearchSettings


class NBestDecoder(Protocol):
    """Translates sentences; `cpu_seconds` is what all of them have cost."""

    cpu_seconds: float

    def nbest(
        self, sentences: Sequence[Sentence], weights: DoubleArray, number: int, what: str
    ) -> Iterator[list[PhraseHypothesis]]:
        """The best translations of each sentence, best first; none of an empty one."""


class LocalDecoder:
    """In this process."""

    def __init__(self, search: DecoderInputs) -> None:
        self.search = search
        self.table = PhraseTable.load(search.table)
        self.model = LanguageModel.load(search.language_model)
        self.cpu_seconds = 0.0

    def nbest(
        self, sentences: Sequence[Sentence], weights: DoubleArray, number: int, what: str
    ) -> Iterator[list[PhraseHypothesis]]:
        """See `Decoder`."""
        for ids in track(sentences, len(sentences), what, "sentences"):
            found, seconds = self.translate(ids, weights, number)
            self.cpu_seconds += seconds
            yield found

    def translate(
        self, ids: Sentence, weights: DoubleArray, number: int
    ) -> tuple[list[PhraseHypothesis], float]:
        """The best translations of one sentence, and the seconds that they cost."""
        if not len(ids):
            return [], 0.0
        began = time.process_time()
        settings = self.search.settings
        options = collect_options(ids, self.table, self.model, self.search.longest)
        found = StackSearch(options, weights, self.model, settings.reorder, settings.stack)
        return best_translations(found, number), time.process_time() - began


class PooledDecoder:
    """In several processes."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self.pool = pool
        self.cpu_seconds = 0.0

    def nbest(
        self, sentences: Sequence[Sentence], weights: DoubleArray, number: int, what: str
    ) -> Iterator[list[PhraseHypothesis]]:
        """See `Decoder`."""
        tasks = [(ids, weights, number) for ids in sentences]
        try:
            with defer_signals():  # the first time it starts the processes
                done = self.pool.map(_translate_here, tasks)
            for found, seconds in track(done, len(tasks), what, "sentences"):
                self.cpu_seconds += seconds
                yield found
        except BrokenProcessPool:
            raise UserError(
                "a process of the decoder has died, perhaps for want of memory; "
                "try again with fewer --processes"
            ) from None


_here: LocalDecoder  # of a process of the pool


def _load_here(search: DecoderInputs) -> None:
    global _here
    exit_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that people see
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    _here = LocalDecoder(search)


def _translate_here(
    task: tuple[Sentence, DoubleArray, int],
) -> tuple[list[PhraseHypothesis], float]:
    return _here.translate(*task)


@contextmanager
def open_decoder(search: DecoderInputs) -> Iterator[NBestDecoder]:
    """A decoder for as many processes as the settings say."""
    processes = search.settings.processes
    if processes == 1:
        yield LocalDecoder(search)
        return
    LanguageModel.load(search.language_model)  # a damaged file is told here, and once
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, spawn, _load_here, (search,))
    try:
        yield PooledDecoder(pool)
    finally:
        pool.shutdown(cancel_futures=True)
