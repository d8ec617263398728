"""Decode sentences into n-best lists, in one process or in several.

A sentence takes a fraction of a second. Workers map the language model into memory, so there is one
copy of it.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from covnmt.base.arrays import DoubleArray
from covnmt.base.console import track
from covnmt.base.processes import WorkerPool
from covnmt.phrase_based.language_model import LanguageModel
from covnmt.phrase_based.nbest import PhraseHypothesis, best_translations
from covnmt.phrase_based.phrase_table import PhraseTable
from covnmt.phrase_based.settings import StackSearchSettings
from covnmt.phrase_based.stack import StackSearch
from covnmt.phrase_based.translation_options import collect_options


class DecoderInputs(NamedTuple):
    """Where a model lies, and how to search it."""

    table: Path
    language_model: Path
    longest: int  # words of a source phrase
    settings: StackSearchSettings


class NumberedSentence(NamedTuple):
    """A sentence to decode."""

    number: int  # from 1
    source_ids: Sequence[int]

    def __str__(self) -> str:
        return f"sentence {self.number:,}"


class NBestDecoder:
    """Decodes sentences; `cpu_seconds` is what all workers have spent on them."""

    def __init__(self, inputs: DecoderInputs, pool: WorkerPool) -> None:
        self.inputs, self.pool = inputs, pool
        self.cpu_seconds = 0.0

    def nbest(
        self, sentences: Sequence[Sequence[int]], weights: DoubleArray, number: int, what: str
    ) -> Iterator[list[PhraseHypothesis]]:
        """Yield the best translations of each sentence, best first; none of an empty one."""
        numbered = (NumberedSentence(*pair) for pair in enumerate(sentences, 1))
        decode = partial(decode_sentence, self.inputs, weights, number)
        decoded = self.pool.map_in_order(decode, numbered)
        for hypotheses, cpu_seconds in track(decoded, len(sentences), what, "sentences"):
            self.cpu_seconds += cpu_seconds
            yield hypotheses


@contextmanager
def open_decoder(inputs: DecoderInputs) -> Iterator[NBestDecoder]:
    """Open a decoder with the number of processes in the settings; they keep the model open."""
    try:
        with WorkerPool(inputs.settings.processes) as pool:
            yield NBestDecoder(inputs, pool)
    finally:
        _load.cache_clear()


def decode_sentence(
    inputs: DecoderInputs, weights: DoubleArray, number: int, sentence: NumberedSentence
) -> tuple[list[PhraseHypothesis], float]:
    """Return the best translations of one sentence, and the CPU seconds spent on them."""
    if not len(sentence.source_ids):
        return [], 0.0
    table, language_model = _load(inputs.table, inputs.language_model)
    began = time.process_time()
    settings = inputs.settings
    options = collect_options(sentence.source_ids, table, language_model, inputs.longest)
    search = StackSearch(options, weights, language_model, settings.reorder, settings.stack)
    return best_translations(search, number), time.process_time() - began


@lru_cache(maxsize=1)
def _load(table: Path, language_model: Path) -> tuple[PhraseTable, LanguageModel]:
    """Load the model once per process."""
    return PhraseTable.load(table), LanguageModel.load(language_model)
