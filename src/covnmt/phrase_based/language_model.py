"""An n-gram model of the target side with interpolated, modified Kneser-Ney smoothing.

    p(w | h) = (a(h w) - D(a(h w))) / a(h) + g(h) p(w | h without its first word)

down to p(w) = 1 / V. The longest n-grams, and those at the beginning of a sentence, have their
count for a(h w); of all others it is the number of different words seen before them. The discount
D depends on whether a is 1, 2 or more, and g(h) is what the discounts of h leave over (Chen and
Goodman, 1998).

N-grams are nodes of a tree, numbered order by order; the root is 0. Keys, of a node its parent and
its last word, are sorted then, and a history is a node, one number for the search to carry. After
a history whose n-gram was never seen comes the one without its first word.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covnmt.base.arrays import DoubleArray, IntArray
from covnmt.base.console import track
from covnmt.base.files import atomic_write
from covnmt.data.corpus import SentenceIds
from covnmt.phrase_based.bitext import map_array

DISCOUNT_CLASSES = 3  # of discounts: for 1, for 2, for more
DEFAULT_DISCOUNTS = np.array([0.0, 0.5, 1.0, 1.5])  # where a text is too small to tell


@dataclass(frozen=True)
class NgramCounts:
    """The n-grams of one length, sorted: number of the (n-1)-gram before, last word, count."""

    prefix: IntArray
    word: IntArray
    count: IntArray


@dataclass(frozen=True)
class LanguageModel:
    """The tree; row n of each array belongs to node n."""

    keys: IntArray  # parent * rows + word; -1 for the root
    score: NDArray[np.float32]  # log p(last word | parent)
    fallback: NDArray[np.float32]  # log g
    shorter: NDArray[np.int32]  # the n-gram without its first word
    history: NDArray[np.int32]  # the longest end of the n-gram that was seen with a word after it
    rows: int  # ids, with one more for the beginning of a sentence

    @property
    def end(self) -> int:
        """The id of the end of a sentence."""
        return self.rows - 2

    @property
    def beginning(self) -> int:
        """The history of the first word of a sentence."""
        return int(self.history[self.rows])

    def step(self, histories: IntArray, words: IntArray) -> tuple[DoubleArray, IntArray]:
        """log p of each word after its history, and the history after it."""
        scores, found = np.zeros(len(words)), np.zeros(len(words), dtype=np.int64)
        left, here = np.arange(len(words)), histories
        while len(left):
            node = find_keys(self.keys, here * self.rows + words[left])
            seen = node >= 0  # at the root every word is
            found[left[seen]] = node[seen]
            left, here = left[~seen], here[~seen]
            scores[left] += self.fallback[here]
            here = self.shorter[here].astype(np.int64)
        return scores + self.score[found], self.history[found].astype(np.int64)

    def perplexity(self, text: SentenceIds) -> float:
        """Of a text, ends of sentences counted."""
        lengths, total = text.lengths(), 0.0
        histories = np.full(len(lengths), self.beginning)
        for place in range(int(lengths.max(initial=0)) + 1):
            rows = np.flatnonzero(lengths >= place)
            words = np.full(len(rows), self.end)
            inside = lengths[rows] > place
            words[inside] = text.ids[text.offsets[rows[inside]] + place]
            scores, histories[rows] = self.step(histories[rows], words)
            total += float(scores.sum())
        return float(np.exp(-total / (lengths + 1).sum()))

    def save(self, directory: Path) -> None:
        """One file for each array, so that processes can share them."""
        for field in fields(self):
            with atomic_write(directory / f"{field.name}.npy") as stream:
                np.save(stream, getattr(self, field.name), allow_pickle=False)

    @classmethod
    def load(cls, directory: Path) -> "LanguageModel":
        """Map what `save` wrote."""

        def array(name: str) -> NDArray[Any]:
            return map_array(directory / f"{name}.npy")

        return cls(
            keys=array("keys"),
            score=array("score"),
            fallback=array("fallback"),
            shorter=array("shorter"),
            history=array("history"),
            rows=int(array("rows")),
        )


def find_keys(keys: IntArray, wanted: IntArray) -> IntArray:
    """Where each value stands among sorted keys, -1 for nowhere."""
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, at, -1)


def count_ngrams(text: SentenceIds, end: int, longest: int) -> list[NgramCounts]:
    """Count n-grams of up to `longest` words; both ends of a sentence are words."""
    words, place = _with_ends(text, end)
    rows = end + 2
    number = words
    count = np.bincount(words, minlength=rows)
    orders = [NgramCounts(np.zeros(rows, np.int64), np.arange(rows), count)]
    for n in track(range(2, longest + 1), longest - 1, "counting n-grams", "orders"):
        inside = np.flatnonzero(place >= n - 1)
        # the n-gram that ends before a word is the beginning of the one that ends with it
        keys = number[inside - 1] * rows + words[inside]
        different, which, count = np.unique(keys, return_inverse=True, return_counts=True)
        orders.append(NgramCounts(different // rows, different % rows, count))
        number = np.zeros(len(words), dtype=np.int64)
        number[inside] = which
    return orders


def _with_ends(text: SentenceIds, end: int) -> tuple[IntArray, IntArray]:
    """All words with a beginning and an end of each sentence, and their places in it."""
    lengths = text.lengths() + 2
    starts = np.cumsum(lengths) - lengths
    place = np.arange(lengths.sum()) - np.repeat(starts, lengths)
    last = np.repeat(lengths, lengths) - 1
    words = np.where(place == 0, end + 1, end)
    words[(place > 0) & (place < last)] = text.ids
    return words, place


def smooth_counts(orders: Sequence[NgramCounts]) -> LanguageModel:
    """The model of these counts."""
    rows = len(orders[0].word)
    firsts = np.cumsum([0, 1, *(len(order.word) for order in orders)]).tolist()
    levels = [slice(a, b) for a, b in pairwise(firsts)]  # the root, then the nodes of each order
    parent = np.concatenate(
        [[0], *(first + order.prefix for first, order in zip(firsts, orders, strict=False))]
    )
    word = np.concatenate([[-1], *(order.word for order in orders)])
    count = np.concatenate([[0], *(order.count for order in orders)])
    keys = parent * rows + word
    shorter = np.zeros_like(keys)
    for level in levels[2:]:
        shorter[level] = find_keys(keys, shorter[parent[level]] * rows + word[level])
    p, left = _probabilities(parent, shorter, count, rows, levels)
    history = np.arange(len(keys))
    childless = np.bincount(parent[1:], minlength=len(keys)) == 0
    for level in levels[1:]:
        history[level][childless[level]] = history[shorter[level]][childless[level]]
    score, fallback = (np.log(each).astype(np.float32) for each in (p, left))
    return LanguageModel(
        keys, score, fallback, shorter.astype(np.int32), history.astype(np.int32), rows
    )


def _probabilities(
    parent: IntArray, shorter: IntArray, count: IntArray, rows: int, levels: Sequence[slice]
) -> tuple[DoubleArray, DoubleArray]:
    """p of each node's last word after its parent, and g of each node."""
    before = np.bincount(shorter[rows + 1 :], minlength=len(count))
    amount = np.where(before > 0, before, count)
    amount[rows] = 0  # the beginning of a sentence is never predicted
    discount = np.zeros(len(amount))
    for level in levels[1:]:
        discount[level] = kneser_ney_discounts(amount[level])[
            np.minimum(amount[level], DISCOUNT_CLASSES)
        ]
    total, left = (
        np.bincount(parent[1:], weights=each[1:], minlength=len(count))
        for each in (amount, discount)
    )
    p = (amount - discount) / np.maximum(total[parent], 1)
    g = np.where(total > 0, left / np.maximum(total, 1), 1.0)
    p[0] = 1 / rows
    for level in levels[1:]:
        p[level] += g[parent[level]] * p[shorter[level]]
    return p, g


def kneser_ney_discounts(amounts: IntArray) -> DoubleArray:
    """For 0, 1, 2 and more, from how many n-grams have 1, 2, 3 and 4."""
    ones, twos, threes, fours = np.bincount(np.minimum(amounts, 5), minlength=6)[1:5]
    if min(ones, twos, threes, fours) == 0:
        return DEFAULT_DISCOUNTS
    y = ones / (ones + 2 * twos)
    found = [1 - 2 * y * twos / ones, 2 - 3 * y * threes / twos, 3 - 4 * y * fours / threes]
    usual = all(0 < d < n for n, d in enumerate(found, 1))
    return np.array([0.0, *found]) if usual else DEFAULT_DISCOUNTS
