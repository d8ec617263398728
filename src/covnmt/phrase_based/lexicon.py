"""Word translation probabilities, for the lexical weights of phrases (Koehn et al., 2003).

    w(t | s) = c(s, t) / c(s)

where c(s, t) counts links, and id 0, which is never a word, stands for NULL: no word at all.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from covnmt.base.arrays import DoubleArray, IntArray
from covnmt.phrase_based.aligner import WordLinks
from covnmt.phrase_based.bitext import ArrayFile, Bitext

NULL_WORD = 0


@dataclass(frozen=True)
class LinkCounts(ArrayFile):
    """Linked words with their counts, sorted by source and then target id."""

    source: IntArray
    target: IntArray
    count: IntArray
    rows: IntArray  # [2] vocabulary sizes of source and target

    def swapped(self) -> "LinkCounts":
        """Return the lexicon of the other direction."""
        order = np.lexsort((self.source, self.target))
        target, source, count = self.target[order], self.source[order], self.count[order]
        return LinkCounts(target, source, count, self.rows[::-1])

    def probabilities(self) -> DoubleArray:
        """Compute w(t | s) of each entry; 0 for NULL targets."""
        is_word = self.target != NULL_WORD
        totals = np.bincount(
            self.source[is_word], weights=self.count[is_word], minlength=self.rows[0]
        )
        return np.asarray(is_word * self.count / np.maximum(totals[self.source], 1))

    @cached_property
    def _lookup(self) -> tuple[IntArray, DoubleArray]:
        """Sorted keys of the entries and their w, ending with a sentinel of w = 0."""
        keys = self.source * self.rows[1] + self.target
        return np.append(keys, np.iinfo(np.int64).max), np.append(self.probabilities(), 0.0)

    def weight(self, source: IntArray, target: IntArray) -> DoubleArray:
        """Look up w(t | s) in arrays of one shape; 0 for words that were never linked."""
        keys, values = self._lookup
        wanted = source * self.rows[1] + target
        rows = np.searchsorted(keys, wanted)
        return np.where(keys[rows] == wanted, values[rows], 0.0)


def count_links(bitext: Bitext, links: WordLinks, source_size: int, target_size: int) -> LinkCounts:
    """Count linked words; a word without a link counts as linked to NULL."""
    pair = np.repeat(np.arange(len(bitext)), np.diff(links.offsets))
    j = links.source + bitext.source.offsets[pair]
    i = links.target + bitext.target.offsets[pair]
    source, target = (side.ids.astype(np.int64) for side in (bitext.source, bitext.target))
    unlinked_source = source[np.bincount(j, minlength=len(source)) == 0]
    unlinked_target = target[np.bincount(i, minlength=len(target)) == 0]
    keys = np.concatenate(
        [source[j] * target_size + target[i], unlinked_source * target_size, unlinked_target]
    )
    unique_keys, count = np.unique(keys, return_counts=True)
    sizes = np.array([source_size, target_size])
    return LinkCounts(unique_keys // target_size, unique_keys % target_size, count, sizes)
