"""Phrase pairs that can translate a part of one sentence.

S source spans that have translations, O options in all, T target words at most, J source words. A
word that no phrase of its own translates can be copied: its only target word is the unknown one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from covnmt.base.arrays import DoubleArray, IntArray
from covnmt.phrase_based.bitext import concatenate_sentences
from covnmt.phrase_based.language_model import LanguageModel
from covnmt.phrase_based.phrase_table import ORIENTATIONS, PhraseTable
from covnmt.phrase_based.phrases import all_spans, find_hashes, hash_spans
from covnmt.text.vocabulary import UNK_ID

COPY_SCORE = -7.0  # log-probability of a copied word, in each of the table's four scores


@dataclass(frozen=True)
class TranslationOptions:
    """All options of one sentence, in the order of their spans."""

    length: int  # J
    begin: IntArray  # [S]
    end: IntArray  # [S]
    span: IntArray  # [O]
    target_ids: IntArray  # [O, T] 0 after the last
    features: DoubleArray  # [O, features of a phrase pair]
    orientation: DoubleArray  # [O, 3]
    language: DoubleArray  # [O] log-probability of the target words without context


def collect_options(
    source_ids: Sequence[int], table: PhraseTable, model: LanguageModel, max_phrase_length: int
) -> TranslationOptions:
    """Look up the phrase pairs of a sentence, and add copies."""
    spans = all_spans(concatenate_sentences([source_ids]), max_phrase_length)
    phrases = find_hashes(hash_spans(np.array(source_ids), spans), table.sources)
    copied = np.flatnonzero((phrases < 0) & (spans.lengths == 1))
    translated = np.flatnonzero(phrases >= 0)
    rows, span = _table_rows(table.bounds, phrases[translated])
    width, copies = table.target_ids.shape[1], len(copied)
    target_ids = np.concatenate(
        [table.target_ids[rows], np.tile([UNK_ID] + [0] * (width - 1), (copies, 1))]
    )
    scores = np.concatenate([table.scores[rows], np.full((copies, 4), COPY_SCORE)])
    uniform = np.full((copies, ORIENTATIONS), -np.log(ORIENTATIONS))
    lengths = np.count_nonzero(target_ids, axis=1)
    chosen = spans[np.concatenate([translated, copied])]
    begin = chosen.starts.astype(np.int64)
    return TranslationOptions(
        length=len(source_ids),
        begin=begin,
        end=begin + chosen.lengths,
        span=np.concatenate([span, len(translated) + np.arange(copies)]),
        target_ids=target_ids,
        features=np.column_stack([scores, np.ones(len(target_ids)), lengths]),
        orientation=np.concatenate([table.orientation[rows], uniform]),
        language=score_continuations(target_ids, np.zeros(len(target_ids), np.int64), model)[0],
    )


def _table_rows(bounds: IntArray, phrases: IntArray) -> tuple[IntArray, IntArray]:
    """List the table rows of some phrases, and the number of the phrase each row belongs to."""
    counts = bounds[phrases + 1] - bounds[phrases]
    owner = np.repeat(np.arange(len(phrases)), counts)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    return bounds[phrases][owner] + within, owner


def score_continuations(
    target_ids: IntArray, states: IntArray, model: LanguageModel
) -> tuple[DoubleArray, IntArray]:
    """Compute the log-probability of each row of words after its state, and the new state."""
    total, states = np.zeros(len(target_ids)), states.copy()
    for column in target_ids.T:
        rows = np.flatnonzero(column)
        if not len(rows):
            break
        scores, states[rows] = model.step(states[rows], column[rows])
        total[rows] += scores
    return total, states
