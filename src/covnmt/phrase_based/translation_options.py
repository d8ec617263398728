"""The phrase pairs that can translate a part of one sentence.

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
    """Of one sentence."""

    length: int  # J
    begin: IntArray  # [S]
    end: IntArray  # [S]
    span: IntArray  # [O] in order
    words: IntArray  # [O, T] 0 after the last
    own: DoubleArray  # [O, features of their own]
    orientation: DoubleArray  # [O, 3]
    alone: DoubleArray  # [O] log-probability of the words, whatever comes before them


def collect_options(
    ids: Sequence[int], table: PhraseTable, model: LanguageModel, longest: int
) -> TranslationOptions:
    """What the table has for a sentence, and copies."""
    spans = all_spans(concatenate_sentences([ids]), longest)
    places = find_hashes(hash_spans(np.array(ids), spans), table.sources)
    lone = np.flatnonzero((places < 0) & (spans.lengths == 1))
    known = np.flatnonzero(places >= 0)
    rows, span = _rows(table.bounds, places[known])
    width = table.words.shape[1]
    copies = len(lone)
    words = np.concatenate([table.words[rows], np.tile([UNK_ID] + [0] * (width - 1), (copies, 1))])
    scores = np.concatenate([table.scores[rows], np.full((copies, 4), COPY_SCORE)])
    order = np.concatenate(
        [table.orientation[rows], np.full((copies, ORIENTATIONS), -np.log(ORIENTATIONS))]
    )
    numbers = np.count_nonzero(words, axis=1)
    chosen = spans[np.concatenate([known, lone])]
    begin = chosen.starts.astype(np.int64)
    return TranslationOptions(
        length=len(ids),
        begin=begin,
        end=begin + chosen.lengths,
        span=np.concatenate([span, len(known) + np.arange(copies)]),
        words=words,
        own=np.column_stack([scores, np.ones(len(words)), numbers]),
        orientation=order,
        alone=score_without_context(words, model),
    )


def _rows(bounds: IntArray, phrases: IntArray) -> tuple[IntArray, IntArray]:
    """The rows of some phrases one after the other, and which of the phrases each belongs to."""
    numbers = bounds[phrases + 1] - bounds[phrases]
    which = np.repeat(np.arange(len(phrases)), numbers)
    within = np.arange(len(which)) - np.repeat(np.cumsum(numbers) - numbers, numbers)
    return bounds[phrases][which] + within, which


def score_without_context(words: IntArray, model: LanguageModel) -> DoubleArray:
    """Log-probability of each row of words without a history."""
    return score_continuations(words, np.zeros(len(words), dtype=np.int64), model)[0]


def score_continuations(
    words: IntArray, histories: IntArray, model: LanguageModel
) -> tuple[DoubleArray, IntArray]:
    """Log-probability of each row of words after its history, and the history after it."""
    total, histories = np.zeros(len(words)), histories.copy()
    for column in words.T:
        inside = np.flatnonzero(column)
        if not len(inside):
            break
        scores, histories[inside] = model.step(histories[inside], column[inside])
        total[inside] += scores
    return total, histories
