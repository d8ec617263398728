"""How words translate each other: the lexical weights of phrases (Koehn et al., 2003).

    w(t | s) = c(s, t) / c(s)

where c(s, t) counts links, and id 0, which is never a word, stands for no word at all.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from covnmt.base.arrays import IntArray
from covnmt.phrase_based.aligner import WordLinks
from covnmt.phrase_based.bitext import Arrays, Bitext

NULL_WORD = 0


@dataclass(frozen=True)
class Lexicon:
    """Linked words with their counts, by source and then target id."""

    source: IntArray
    target: IntArray
    count: IntArray
    source_rows: int  # of the vocabularies
    target_rows: int

    def turned(self) -> "Lexicon":
        """The other direction."""
        order = np.lexsort((self.source, self.target))
        return Lexicon(
            self.target[order],
            self.source[order],
            self.count[order],
            self.target_rows,
            self.source_rows,
        )

    def probabilities(self) -> NDArray[np.float64]:
        """w(t | s) of each entry."""
        words = self.target != NULL_WORD
        totals = np.bincount(
            self.source[words], weights=self.count[words], minlength=self.source_rows
        )
        return np.asarray(words * self.count / np.maximum(totals[self.source], 1))

    @cached_property
    def _lookup(self) -> tuple[IntArray, NDArray[np.float64]]:
        """Sorted keys of the entries and their w; a last one for what is unknown."""
        keys = self.source * self.target_rows + self.target
        return np.append(keys, np.iinfo(np.int64).max), np.append(self.probabilities(), 0.0)

    def weight(self, source: IntArray, target: IntArray) -> NDArray[np.float64]:
        """w(t | s) of words in arrays of one shape; 0 where they were never linked."""
        keys, values = self._lookup
        wanted = source * self.target_rows + target
        at = np.searchsorted(keys, wanted)
        return np.where(keys[at] == wanted, values[at], 0.0)

    def arrays(self) -> Arrays:
        """For a file."""
        return {
            "source": self.source,
            "target": self.target,
            "count": self.count,
            "rows": np.array([self.source_rows, self.target_rows]),
        }

    @classmethod
    def of(cls, arrays: Arrays) -> "Lexicon":
        """From such a file."""
        rows = arrays["rows"].tolist()
        return cls(arrays["source"], arrays["target"], arrays["count"], *rows)


def count_links(bitext: Bitext, links: WordLinks, source_rows: int, target_rows: int) -> Lexicon:
    """Count the linked words, and those without a link as linked to nothing."""
    pair = np.repeat(np.arange(len(bitext)), np.diff(links.offsets))
    j = links.source + bitext.source.offsets[pair]
    i = links.target + bitext.target.offsets[pair]
    source, target = (side.ids.astype(np.int64) for side in (bitext.source, bitext.target))
    lone_source = source[np.bincount(j, minlength=len(source)) == 0]
    lone_target = target[np.bincount(i, minlength=len(target)) == 0]
    keys = np.concatenate(
        [source[j] * target_rows + target[i], lone_source * target_rows, lone_target]
    )
    different, count = np.unique(keys, return_counts=True)
    return Lexicon(
        different // target_rows, different % target_rows, count, source_rows, target_rows
    )
