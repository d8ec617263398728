"""How words translate each other: the lexical weights of phrases (Koehn et al., 2003).

    w(t | s) = c(s, t) / c(s)

where c(s, t) counts links, and id 0, which is never a word, stands for no word at all. Thot reads
them as IBM-1 models of both directions: a phrase's probability is mixed with the product over its
words. On disk such a model is a vocabulary per side, a binary table of (source, target,
log c(s, t), log c(s)), and the lengths of sentences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covnmt.files import atomic_write, write_lines
from covnmt.smt.aligner import WordLinks
from covnmt.smt.bitext import Arrays, Bitext, Integers
from covnmt.text.corpus import Sentences

NOTHING = 0
ENTRY = np.dtype([("source", "<u4"), ("target", "<u4"), ("joint", "<f4"), ("total", "<f4")])
RESERVED = ("NULL", "UNKNOWN_WORD", "<UNUSED_WORD>")  # the first words of Thot's vocabularies


@dataclass(frozen=True)
class Lexicon:
    """Linked words with their counts, by source and then target id."""

    source: Integers
    target: Integers
    count: Integers
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
        words = self.target != NOTHING
        totals = np.bincount(
            self.source[words], weights=self.count[words], minlength=self.source_rows
        )
        return np.asarray(words * self.count / np.maximum(totals[self.source], 1))

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


def write_ibm1(
    prefix: Path, lexicon: Lexicon, letters: tuple[str, str], source: Sentences, target: Sentences
) -> None:
    """The files that Thot loads as an IBM-1 model; `letters` begin the words of the two sides."""
    _write_vocabulary(Path(f"{prefix}.svcb"), letters[0], lexicon.source_rows)
    _write_vocabulary(Path(f"{prefix}.tvcb"), letters[1], lexicon.target_rows)
    words = lexicon.target != NOTHING
    totals = np.bincount(lexicon.source[words], weights=lexicon.count[words])
    table = np.empty(int(words.sum()), dtype=ENTRY)
    table["source"] = thot_index(lexicon.source[words])
    table["target"] = thot_index(lexicon.target[words])
    table["joint"] = np.log(lexicon.count[words])
    table["total"] = np.log(totals[lexicon.source[words]])
    with atomic_write(Path(f"{prefix}.ibm_lexnd")) as stream:
        stream.write(table.tobytes())
    write_lines(Path(f"{prefix}.slmodel"), _length_model(source.lengths(), target.lengths()))
    write_lines(Path(f"{prefix}.yml"), ["model: ibm1", "variationalBayes: false", "alpha: 0.01"])
    for ending in ("src", "trg", "srctrgc"):  # the pairs it was trained on, of no use to a decoder
        write_lines(Path(f"{prefix}.{ending}"), [])


def thot_index(ids: Integers) -> Integers:
    """Words come after Thot's reserved ones, and no word is NULL."""
    return np.where(ids == NOTHING, 0, ids + len(RESERVED) - 1)


def _write_vocabulary(path: Path, letter: str, rows: int) -> None:
    words = [*RESERVED, *(f"{letter}{i}" for i in range(1, rows))]
    write_lines(path, (f"{number} {word}" for number, word in enumerate(words)))


def _length_model(source: Integers, target: Integers) -> Sequence[str]:
    """For each source length: pairs, twice, mean target length, sum of squared differences."""
    numbers = np.bincount(source)
    sums, squares = (np.bincount(source, weights=target.astype(float) ** k) for k in (1, 2))
    lines = [
        "Weighted incr. gaussian sentence length model...",
        f"numsents: {len(source)} ; slensum: {source.sum()} ; tlensum: {target.sum()}",
    ]
    for length in np.flatnonzero(numbers):
        n, mean = int(numbers[length]), sums[length] / numbers[length]
        spread = max(squares[length] - n * mean * mean, 0.0)
        lines.append(f"{length} {n} {n:.8f} {mean:.8f} {spread:.8f}")
    return lines
