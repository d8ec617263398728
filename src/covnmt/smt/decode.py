"""Thot's decoder: a log-linear phrase-based stack search over hard coverage sets.

Every source word is translated exactly once: a hypothesis carries a 0/1 flag for each, and search
ends when all are 1. That is the coverage which the paper softens (section 2.1 and SPEC 3).

A sentence costs well under a second but every core is needed, so sentences are shared among
processes that each load the model once.
"""

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from covnmt.errors import UserError
from covnmt.files import atomic_text, write_lines
from covnmt.progress import track
from covnmt.smt.aligner import thot_module
from covnmt.smt.bitext import Bitext
from covnmt.smt.phrases import Table
from covnmt.smt.settings import SearchSettings

Floats = NDArray[np.float64]

# In Thot's order; an eighth, the length of the sentence, is left at weight 0.
FEATURES = (
    "word penalty",
    "language model",
    "target phrase length",
    "jumps",
    "source phrase length",
    "p(target | source)",
    "p(source | target)",
)
START = np.ones(len(FEATURES)) / len(FEATURES)
# A penalty may turn into a bonus; a negative weight on a probability is noise.
LOWER = np.array([-np.inf, 0.0, -np.inf, 0.0, -np.inf, 0.0, 0.0])
LOCAL_HEURISTIC = 6  # future cost: phrases, language model and jumps


class Phrase(NamedTuple):
    """Source words [source, source_end) became target words [target, target_end)."""

    source: int
    source_end: int
    target: int
    target_end: int


@dataclass(frozen=True)
class Hypothesis:
    """One translation of a sentence."""

    words: tuple[str, ...]
    phrases: tuple[Phrase, ...]
    features: tuple[float, ...]


class Search(NamedTuple):
    """Where a model lies, and how to search it."""

    tables: Path  # prefix of the phrase table and lexicon
    language_model: Path
    longest: int  # words of a source phrase
    options: int  # translations of one
    settings: SearchSettings


class Decoder(Protocol):
    """Translates sentences of Thot's words."""

    def nbest(
        self, sentences: Sequence[Sequence[str]], weights: Floats, number: int, what: str
    ) -> Iterator[list[Hypothesis]]:
        """The best translations of each sentence, best first; none of an empty one."""


def write_phrase_table(path: Path, bitext: Bitext, table: Table, lexical: float) -> None:
    """PATH.ttable and the constants that Thot wants beside it."""
    sides = (("t", bitext.target, table.pairs.target), ("s", bitext.source, table.pairs.source))
    columns = [
        [
            " ".join(f"{letter}{i}" for i in side.ids[start : start + length].tolist())
            for start, length in zip(spans.starts.tolist(), spans.lengths.tolist(), strict=True)
        ]
        for letter, side, spans in sides
    ]
    with atomic_text(Path(f"{path}.ttable")) as stream:
        for target, source, count, joint in zip(
            *columns, table.target_count.tolist(), table.joint.tolist(), strict=True
        ):
            stream.write(f"{target} ||| {source} ||| {count} {joint}\n")
    constants = {
        "lambda": f"{1 - lexical} {1 - lexical}",
        "srcsegmlentable": "Uniform",
        "trgcutstable": "0.5",
        "trgsegmlentable": "Geometric",
    }
    for ending, text in constants.items():
        write_lines(Path(f"{path}.{ending}"), [text])


class ThotDecoder:
    """Thot in this process."""

    def __init__(self, search: Search) -> None:
        translation, alignment = thot_module("translation"), thot_module("alignment")
        self.model = translation.SmtModel(alignment.AlignmentModelType.INCR_IBM1)
        if not self.model.load_translation_model(str(search.tables)):
            raise UserError(f"{search.tables}: Thot cannot load the tables; train the model again")
        if not self.model.load_language_model(str(search.language_model)):
            raise UserError(f"{search.language_model}: Thot cannot load it; train the model again")
        self.model.non_monotonicity = search.settings.reorder
        self.model.a, self.model.w = search.longest, float(search.options)
        self.model.heuristic = LOCAL_HEURISTIC
        self.decoder = translation.SmtDecoder(self.model)
        self.decoder.s, self.decoder.is_breadth_first = search.settings.stack, True

    def nbest(
        self, sentences: Sequence[Sequence[str]], weights: Floats, number: int, what: str
    ) -> Iterator[list[Hypothesis]]:
        """See `Decoder`."""
        for words in track(sentences, len(sentences), what, "sentences"):
            yield self.search(words, weights, number)

    def search(self, words: Sequence[str], weights: Floats, number: int) -> list[Hypothesis]:
        """The best translations of one sentence."""
        if not words:
            return []
        self.model.weights = [*weights, 0.0]
        return [_hypothesis(each) for each in self.decoder.translate_n(" ".join(words), number)]


def _hypothesis(data: Any) -> Hypothesis:
    cuts = [0, *data.target_segment_cuts]
    phrases = [
        Phrase(first - 1, last, begin, end)
        for (first, last), begin, end in zip(
            data.source_segmentation, cuts[:-1], cuts[1:], strict=True
        )
    ]
    return Hypothesis(
        tuple(data.target), tuple(phrases), tuple(data.score_components[: len(FEATURES)])
    )


class PooledDecoder:
    """Thot in several processes."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self.pool = pool

    def nbest(
        self, sentences: Sequence[Sequence[str]], weights: Floats, number: int, what: str
    ) -> Iterator[list[Hypothesis]]:
        """See `Decoder`."""
        tasks = [(words, weights, number) for words in sentences]
        try:
            yield from track(self.pool.map(_search_here, tasks), len(tasks), what, "sentences")
        except BrokenProcessPool:
            raise UserError(
                "a process of the decoder has died, perhaps for want of memory; "
                "try again with fewer --processes"
            ) from None


_here: ThotDecoder  # of a process of the pool


def _load_here(search: Search) -> None:
    global _here
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that people see
    _here = ThotDecoder(search)


def _search_here(task: tuple[Sequence[str], Floats, int]) -> list[Hypothesis]:
    return _here.search(*task)


@contextmanager
def open_decoder(search: Search) -> Iterator[Decoder]:
    """A decoder for as many processes as the settings say."""
    processes = search.settings.processes
    if processes == 1:
        yield ThotDecoder(search)
        return
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, spawn, _load_here, (search,))
    try:
        yield PooledDecoder(pool)
    finally:
        pool.shutdown(cancel_futures=True)
