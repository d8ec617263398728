"""Decode sentences into n-best lists, in one process or in several.

The phrase table is built for the sentences at hand. A sentence takes a fraction of a second.
Workers map the language model into memory, so there is one copy of it.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from covnmt.base.arrays import DoubleArray
from covnmt.base.console import track
from covnmt.base.errors import UserError
from covnmt.base.processes import WorkerPool
from covnmt.phrase_based.bitext import concatenate_sentences
from covnmt.phrase_based.language_model import LanguageModel
from covnmt.phrase_based.model import LANGUAGE_MODEL_DIRECTORY, PhraseBasedModel
from covnmt.phrase_based.nbest import PhraseHypothesis, best_translations
from covnmt.phrase_based.phrase_table import PhraseTable, build_phrase_table
from covnmt.phrase_based.settings import StackSearchSettings
from covnmt.phrase_based.stack import StackSearch
from covnmt.phrase_based.translation_options import collect_options
from covnmt.text.codec import SIDES


class NumberedSentence(NamedTuple):
    """A sentence to decode."""

    number: int  # from 1
    source_ids: Sequence[int]

    def __str__(self) -> str:
        return f"sentence {self.number:,}"


@dataclass
class NBestDecoder:
    """Decodes sentences; `cpu_seconds` is what all workers have spent on them."""

    model: PhraseBasedModel
    table: Path
    phrase_pairs: int  # in the table
    settings: StackSearchSettings
    workers: WorkerPool
    cpu_seconds: float = 0.0

    def nbest_lists(
        self, sentences: Sequence[Sequence[int]], weights: DoubleArray, size: int, label: str
    ) -> Iterator[list[PhraseHypothesis]]:
        """Yield the `size` best translations of each sentence, best first; none of an empty one."""
        numbered = (NumberedSentence(*pair) for pair in enumerate(sentences, 1))
        decode = partial(decode_sentence, self.model, self.table, self.settings, weights, size)
        decoded = self.workers.map_in_order(decode, numbered)
        for hypotheses, cpu_seconds in track(decoded, len(sentences), label, "sentences"):
            self.cpu_seconds += cpu_seconds
            yield hypotheses


@contextmanager
def open_decoder(
    model: PhraseBasedModel, sentences: Sequence[Sequence[int]], settings: StackSearchSettings
) -> Iterator[NBestDecoder]:
    """Open a decoder with the phrase table of these sentences; its processes keep both open."""
    lexical_table = model.lexicon()
    for side, trained_size in zip(SIDES, lexical_table.rows.tolist(), strict=True):
        size = len(model.codec(side).vocabulary)
        if size != trained_size:
            raise UserError(
                f"{model.directory / side}.vocab: has {size:,} rows instead of {trained_size:,}; "
                "run `covnmt smt train` again"
            )
    text = concatenate_sentences(sentences)
    max_phrase_length, options = model.settings.max_phrase, model.settings.options
    with TemporaryDirectory(prefix="covnmt-smt-") as directory:
        table = build_phrase_table(
            model.bitext(), model.occurrences(), lexical_table, text, max_phrase_length, options
        )
        path, pairs = Path(directory) / "table.npz", len(table)
        table.save(path)
        del lexical_table, table  # workers need the memory
        try:
            with WorkerPool(settings.processes) as workers:
                yield NBestDecoder(model, path, pairs, settings, workers)
        finally:
            _load.cache_clear()


def decode_sentence(
    model: PhraseBasedModel,
    table_path: Path,
    settings: StackSearchSettings,
    weights: DoubleArray,
    size: int,
    sentence: NumberedSentence,
) -> tuple[list[PhraseHypothesis], float]:
    """Return the best translations of one sentence, and the CPU seconds spent on them."""
    if not len(sentence.source_ids):
        return [], 0.0
    table, language_model = _load(table_path, model.directory / LANGUAGE_MODEL_DIRECTORY)
    began = time.process_time()
    max_phrase_length = model.settings.max_phrase
    options = collect_options(sentence.source_ids, table, language_model, max_phrase_length)
    search = StackSearch(options, weights, language_model, settings.reorder, settings.stack)
    return best_translations(search, size), time.process_time() - began


@lru_cache(maxsize=1)
def _load(table: Path, language_model: Path) -> tuple[PhraseTable, LanguageModel]:
    """Load the model once per process."""
    return PhraseTable.load(table), LanguageModel.load(language_model)
