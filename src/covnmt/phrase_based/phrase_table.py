"""The phrase table of a text: only source phrases that occur in it, with the best of their
translations, and what the search weighs (Koehn et al., 2003 and 2005).

    p(target | source), p(source | target)   counts of the pair over counts of the phrase
    lexicon, both ways                       for each word the best word of the other phrase
    orientation                              how likely the pair follows the phrase before it so
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covnmt.base.arrays import DoubleArray, IntArray
from covnmt.data.corpus import SentenceIds
from covnmt.phrase_based.bitext import Bitext, load_arrays, save_arrays
from covnmt.phrase_based.lexicon import Lexicon
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
ORIENTATION_PRIOR = 1.5  # occurrences that the orientation of all pairs counts for
MIN_LEXICAL_PROBABILITY = 1e-7  # the lexicon's probability of words that were never linked


@dataclass(frozen=True)
class PhraseTable:
    """Phrase pairs, those of one source phrase together; T target words at most."""

    sources: Hashes  # [phrases] sorted
    bounds: IntArray  # [phrases + 1] the rows of each
    words: IntArray  # [rows, T] target ids, 0 after the last
    scores: (
        DoubleArray  # [rows, 4] log-probabilities: phrases, then lexicon, each in both directions
    )
    orientation: DoubleArray  # [rows, 3] log-probabilities

    def __len__(self) -> int:
        return len(self.words)

    def save(self, path: Path) -> None:
        """To one file."""
        save_arrays(path, dict(self.__dict__))

    @classmethod
    def load(cls, path: Path) -> "PhraseTable":
        """Read what `save` wrote."""
        return cls(**load_arrays(path))


def build_phrase_table(
    bitext: Bitext,
    found: PhraseOccurrences,
    lexicon: Lexicon,
    text: SentenceIds,
    longest: int,
    options: int,
) -> PhraseTable:
    """The phrase pairs whose source occurs in the text, the `options` best of each."""
    wanted = np.unique(hash_spans(text.ids, all_spans(text, longest)))
    source = hash_spans(bitext.source.ids, found.source)
    target = hash_spans(bitext.target.ids, found.target)
    chosen = np.flatnonzero(find_hashes(source, wanted) >= 0)
    source = source[chosen]
    _, first, pair, joint = np.unique(
        mix_bits(source) + target[chosen],
        return_index=True,
        return_inverse=True,
        return_counts=True,
    )
    rows = chosen[first]
    given_source = joint / count_occurrences(source, source[first])
    given_target = joint / count_occurrences(target, target[rows])
    kept = best_of_each(source[first], given_source * given_target, first, options)
    turned = np.full(len(first), -1)
    turned[kept] = np.arange(len(kept))
    orientation = orientation_scores(turned[pair], found.orientation[chosen], len(kept))
    pairs = found[rows[kept]]
    words = pad_spans(bitext.source, pairs.source), pad_spans(bitext.target, pairs.target)
    lexical = lexical_weights(*words, lexicon), lexical_weights(*words[::-1], lexicon.turned())
    scores = np.log(np.stack([given_source[kept], given_target[kept], *lexical], axis=1))
    sources, bounds = np.unique(source[first[kept]], return_index=True)
    return PhraseTable(sources, np.append(bounds, len(kept)), words[1], scores, orientation)


def count_occurrences(values: Hashes, of: Hashes) -> IntArray:
    """How often each of `of` occurs among the values."""
    different, which = np.unique(of, return_inverse=True)
    places = find_hashes(values, different)
    return np.bincount(places[places >= 0], minlength=len(different))[which]


def best_of_each(group: Hashes, score: DoubleArray, first: IntArray, number: int) -> IntArray:
    """Rows that are among the `number` best of their group, by group; ties to the first seen."""
    order = np.lexsort((first, -score, group))
    new = np.concatenate([[True], group[order][1:] != group[order][:-1]])[: len(order)]
    begin = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    return np.asarray(order[np.arange(len(order)) - begin < number])


def orientation_scores(pair: IntArray, seen: NDArray[np.int8], pairs: int) -> DoubleArray:
    """Log-probabilities of each pair's orientations; -1 is a pair that counts only for all."""
    overall = np.bincount(seen, minlength=ORIENTATIONS) + 1.0
    known = pair >= 0
    keys = pair[known] * ORIENTATIONS + seen[known]
    count = np.bincount(keys, minlength=pairs * ORIENTATIONS).reshape(pairs, ORIENTATIONS)
    smoothed = count + ORIENTATION_PRIOR * overall / overall.sum()
    return np.asarray(np.log(smoothed / smoothed.sum(axis=1, keepdims=True)))


def pad_spans(side: SentenceIds, spans: Spans) -> IntArray:
    """The words of runs as rows, with 0 after the last."""
    inside = np.arange(int(spans.lengths.max(initial=1))) < spans.lengths[:, None]
    places = np.minimum(spans.starts[:, None] + np.arange(inside.shape[1]), len(side.ids) - 1)
    return np.where(inside, side.ids[places], 0).astype(np.int64)


def lexical_weights(source: IntArray, target: IntArray, lexicon: Lexicon) -> DoubleArray:
    """The product over target words of w(t | s) for the best source word, or for none."""
    best = lexicon.weight(np.zeros_like(target), target)
    for column in source.T:
        best = np.maximum(
            best, lexicon.weight(np.broadcast_to(column[:, None], target.shape), target)
        )
    return np.asarray(
        np.where(target > 0, np.maximum(best, MIN_LEXICAL_PROBABILITY), 1.0).prod(axis=1)
    )
