"""The phrase table of a text: the source phrases that occur in it, each with its best translations.

Scores of a phrase pair (Koehn et al., 2003 and 2005):

    p(target | source), p(source | target)   counts of the pair over counts of the phrase
    lexical weights, both ways               for each word the best word of the other phrase
    orientation                              how likely the pair follows the phrase before it so
"""

from dataclasses import dataclass

import numpy as np

from covnmt.base.arrays import AnyArray, DoubleArray, IntArray
from covnmt.data.corpus import SentenceIds
from covnmt.phrase_based.bitext import ArrayFile, Bitext
from covnmt.phrase_based.lexicon import NULL_WORD, LinkCounts
from covnmt.phrase_based.phrases import (
    Hashes,
    PhraseOccurrences,
    Spans,
    all_spans,
    find_hashes,
    hash_spans,
    mix_bits,
)

ORIENTATIONS = 3
ORIENTATION_PRIOR = 1.5  # occurrences that the distribution over all pairs counts for
MIN_LEXICAL_PROBABILITY = 1e-7  # of words that were never linked


@dataclass(frozen=True)
class PhraseTable(ArrayFile):
    """Phrase pairs, grouped by source phrase; T target words at most."""

    sources: Hashes  # [phrases] sorted
    bounds: IntArray  # [phrases + 1] the first row of each phrase
    target_ids: IntArray  # [rows, T] 0 after the last
    # [rows, 4] logs of relative frequencies, then of lexical weights, each in both directions
    scores: DoubleArray
    orientation: DoubleArray  # [rows, 3] log-probabilities

    def __len__(self) -> int:
        return len(self.target_ids)


def build_phrase_table(
    bitext: Bitext,
    occurrences: PhraseOccurrences,
    lexical_table: LinkCounts,
    text: SentenceIds,
    max_phrase_length: int,
    options: int,
) -> PhraseTable:
    """Build the table of a text: of each source phrase in it the `options` best pairs."""
    wanted = np.unique(hash_spans(text.ids, all_spans(text, max_phrase_length)))
    source = hash_spans(bitext.source.ids, occurrences.source)
    target = hash_spans(bitext.target.ids, occurrences.target)
    relevant = np.flatnonzero(find_hashes(source, wanted) >= 0)
    source = source[relevant]
    _, first, pair, joint = np.unique(
        mix_bits(source) + target[relevant],
        return_index=True,
        return_inverse=True,
        return_counts=True,
    )
    rows = relevant[first]
    p_target = joint / count_occurrences(source, source[first])
    p_source = joint / count_occurrences(target, target[rows])
    kept = best_of_each_group(source[first], p_target * p_source, first, options)
    new_number = np.full(len(first), -1)
    new_number[kept] = np.arange(len(kept))
    orientation = orientation_scores(new_number[pair], occurrences.orientation[relevant], len(kept))
    source_ids = pad_spans(bitext.source, occurrences.source[rows[kept]])
    target_ids = pad_spans(bitext.target, occurrences.target[rows[kept]])
    lexical = (
        lexical_weights(source_ids, target_ids, lexical_table),
        lexical_weights(target_ids, source_ids, lexical_table.swapped()),
    )
    scores = np.log(np.stack([p_target[kept], p_source[kept], *lexical], axis=1))
    sources, bounds = np.unique(source[first[kept]], return_index=True)
    return PhraseTable(sources, np.append(bounds, len(kept)), target_ids, scores, orientation)


def count_occurrences(values: Hashes, wanted: Hashes) -> IntArray:
    """Count how often each wanted hash occurs among the values."""
    different, inverse = np.unique(wanted, return_inverse=True)
    positions = find_hashes(values, different)
    return np.bincount(positions[positions >= 0], minlength=len(different))[inverse]


def best_of_each_group(
    group: Hashes, score: DoubleArray, first_seen: IntArray, number: int
) -> IntArray:
    """Return the indices of the top `number` rows of each group; of equals, the first seen."""
    order = np.lexsort((first_seen, -score, group))
    is_new = np.concatenate([[True], group[order][1:] != group[order][:-1]])[: len(order)]
    begin = np.maximum.accumulate(np.where(is_new, np.arange(len(order)), 0))
    return np.asarray(order[np.arange(len(order)) - begin < number])


def orientation_scores(pair: IntArray, orientation: AnyArray, pairs: int) -> DoubleArray:
    """Compute log-probabilities [pairs, 3] from the orientation of every occurrence.

    `pair` is the number of an occurrence's pair, or -1 where it counts for the prior only.
    """
    overall = np.bincount(orientation, minlength=ORIENTATIONS) + 1.0
    numbered = pair >= 0
    keys = pair[numbered] * ORIENTATIONS + orientation[numbered]
    counts = np.bincount(keys, minlength=pairs * ORIENTATIONS).reshape(pairs, ORIENTATIONS)
    smoothed = counts + ORIENTATION_PRIOR * overall / overall.sum()
    return np.asarray(np.log(smoothed / smoothed.sum(axis=1, keepdims=True)))


def pad_spans(side: SentenceIds, spans: Spans) -> IntArray:
    """Return the ids of spans as rows, padded with 0."""
    inside = np.arange(int(spans.lengths.max(initial=1))) < spans.lengths[:, None]
    positions = np.minimum(spans.starts[:, None] + np.arange(inside.shape[1]), len(side.ids) - 1)
    return np.where(inside, side.ids[positions], 0).astype(np.int64)


def lexical_weights(source: IntArray, target: IntArray, lexical_table: LinkCounts) -> DoubleArray:
    """Multiply, over the target words of each row, w(t | s) of the best source word or NULL."""
    best = lexical_table.weight(np.full_like(target, NULL_WORD), target)
    for column in source.T:
        best = np.maximum(
            best, lexical_table.weight(np.broadcast_to(column[:, None], target.shape), target)
        )
    smoothed = np.maximum(best, MIN_LEXICAL_PROBABILITY)
    return np.asarray(np.where(target > 0, smoothed, 1.0).prod(axis=1))
