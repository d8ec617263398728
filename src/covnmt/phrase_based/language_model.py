"""An n-gram language model of the target side, with interpolated modified Kneser-Ney smoothing.

    p(w | h) = (a(h w) - D(a(h w))) / a(h) + g(h) p(w | h without its first word)

down to p(w) = 1 / V. For the longest n-grams, and those at the beginning of a sentence, a(h w) is
their count; for all others it is the number of different words seen before them. The discount D
depends on whether a is 1, 2 or more, and g(h) is the mass that the discounts of h leave over (Chen
and Goodman, 1998).

N-grams are nodes of a tree, numbered order by order; the root is 0. The key of a node combines its
parent and its last word; in this order keys are sorted. A state of the model, all that the
next word depends on, is a node, so the search carries one number. If an n-gram was never seen, the
model backs off to the state without the first word.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covnmt.base.arrays import DoubleArray, IntArray
from covnmt.base.console import track
from covnmt.base.errors import UserError
from covnmt.base.files import atomic_write
from covnmt.data.corpus import SentenceIds
from covnmt.phrase_based.bitext import map_array

DISCOUNT_CLASSES = 3  # discounts for counts of 1, 2 and more
DEFAULT_DISCOUNTS = np.array([0.0, 0.5, 1.0, 1.5])  # for texts that are too small to estimate them

# The file of each array of a model; names of files stay when those of attributes change.
ARRAY_FILES = {
    "keys": "keys.npy",
    "score": "score.npy",
    "backoff": "fallback.npy",
    "backoff_state": "shorter.npy",
    "state": "history.npy",
    "vocabulary_size": "rows.npy",
}


@dataclass(frozen=True)
class NgramCounts:
    """The n-grams of one order, sorted: number of the (n-1)-gram before, last word, count."""

    prefix: IntArray
    word: IntArray
    count: IntArray


@dataclass(frozen=True)
class LanguageModel:
    """The tree of n-grams; row n of each array belongs to node n."""

    keys: IntArray  # parent * vocabulary_size + word; -1 for the root
    score: NDArray[np.float32]  # log p(last word | parent)
    backoff: NDArray[np.float32]  # log g
    backoff_state: NDArray[np.int32]  # the n-gram without its first word
    state: NDArray[np.int32]  # the longest suffix of the n-gram that was seen before a word
    vocabulary_size: int  # with one more id for the beginning of a sentence

    @property
    def end(self) -> int:
        """Id of the sentence end."""
        return self.vocabulary_size - 2

    @property
    def beginning(self) -> int:
        """State before the first word of a sentence."""
        return int(self.state[self.vocabulary_size])

    def step(self, states: IntArray, words: IntArray) -> tuple[DoubleArray, IntArray]:
        """Compute log p of each word after its state, and the state after it."""
        scores, nodes = np.zeros(len(words)), np.zeros(len(words), dtype=np.int64)
        remaining, parents = np.arange(len(words)), states
        while len(remaining):
            node = find_keys(self.keys, parents * self.vocabulary_size + words[remaining])
            seen = node >= 0  # at the root every word is
            nodes[remaining[seen]] = node[seen]
            remaining, parents = remaining[~seen], parents[~seen]
            scores[remaining] += self.backoff[parents]
            parents = self.backoff_state[parents].astype(np.int64)
        return scores + self.score[nodes], self.state[nodes].astype(np.int64)

    def perplexity(self, text: SentenceIds) -> float:
        """Compute the perplexity of a text, sentence ends included."""
        lengths, total = text.lengths(), 0.0
        states = np.full(len(lengths), self.beginning)
        for position in range(int(lengths.max(initial=0)) + 1):
            rows = np.flatnonzero(lengths >= position)
            words = np.full(len(rows), self.end)
            inside = lengths[rows] > position
            words[inside] = text.ids[text.offsets[rows[inside]] + position]
            scores, states[rows] = self.step(states[rows], words)
            total += float(scores.sum())
        return float(np.exp(-total / (lengths + 1).sum()))

    def save(self, directory: Path) -> None:
        """Write one file for each array, so that processes can memory-map them."""
        for name, file in ARRAY_FILES.items():
            with atomic_write(directory / file) as stream:
                np.save(stream, getattr(self, name), allow_pickle=False)

    @classmethod
    def load(cls, directory: Path) -> "LanguageModel":
        """Memory-map what `save` wrote."""
        arrays: dict[str, Any] = {
            name: map_array(directory / file) for name, file in ARRAY_FILES.items()
        }
        size = arrays["vocabulary_size"]
        if size.shape or size.dtype.kind not in "iu":
            path = directory / ARRAY_FILES["vocabulary_size"]
            raise UserError(f"{path}: not a whole number; train the model again")
        return cls(**arrays | {"vocabulary_size": int(size)})


def find_keys(keys: IntArray, wanted: IntArray) -> IntArray:
    """Find the position of each value among sorted keys, or -1."""
    position = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[position] == wanted, position, -1)


def count_ngram_orders(text: SentenceIds, end: int, order: int) -> list[NgramCounts]:
    """Count n-grams of up to `order` words; beginning and end of a sentence are words."""
    words, position = _with_sentence_ends(text, end)
    size = end + 2
    number = words
    count = np.bincount(words, minlength=size)
    orders = [NgramCounts(np.zeros(size, np.int64), np.arange(size), count)]
    for n in track(range(2, order + 1), order - 1, "counting n-grams", "orders"):
        inside = np.flatnonzero(position >= n - 1)
        # the (n-1)-gram that ends before a word is the beginning of the n-gram that ends with it
        keys = number[inside - 1] * size + words[inside]
        unique_keys, inverse, count = np.unique(keys, return_inverse=True, return_counts=True)
        orders.append(NgramCounts(unique_keys // size, unique_keys % size, count))
        number = np.zeros(len(words), dtype=np.int64)
        number[inside] = inverse
    return orders


def _with_sentence_ends(text: SentenceIds, end: int) -> tuple[IntArray, IntArray]:
    """Return all words with sentence beginnings and ends, and their positions in the sentence."""
    lengths = text.lengths() + 2
    starts = np.cumsum(lengths) - lengths
    position = np.arange(lengths.sum()) - np.repeat(starts, lengths)
    last = np.repeat(lengths, lengths) - 1
    words = np.where(position == 0, end + 1, end)
    words[(position > 0) & (position < last)] = text.ids
    return words, position


def smooth_counts(orders: Sequence[NgramCounts]) -> LanguageModel:
    """Estimate the model from counts of all orders."""
    size = len(orders[0].word)
    bounds = np.cumsum([0, 1, *(len(order.word) for order in orders)]).tolist()
    levels = [slice(a, b) for a, b in pairwise(bounds)]  # the root, then the nodes of each order
    parent = np.concatenate(
        [[0], *(first + order.prefix for first, order in zip(bounds, orders, strict=False))]
    )
    word = np.concatenate([[-1], *(order.word for order in orders)])
    count = np.concatenate([[0], *(order.count for order in orders)])
    keys = parent * size + word
    backoff_state = np.zeros_like(keys)
    for level in levels[2:]:
        backoff_state[level] = find_keys(keys, backoff_state[parent[level]] * size + word[level])
    p, g = _probabilities(parent, backoff_state, count, size, levels)
    state = np.arange(len(keys))
    childless = np.bincount(parent[1:], minlength=len(keys)) == 0
    for level in levels[1:]:
        state[level][childless[level]] = state[backoff_state[level]][childless[level]]
    score, backoff = (np.log(values).astype(np.float32) for values in (p, g))
    return LanguageModel(
        keys, score, backoff, backoff_state.astype(np.int32), state.astype(np.int32), size
    )


def _probabilities(
    parent: IntArray, backoff_state: IntArray, count: IntArray, size: int, levels: Sequence[slice]
) -> tuple[DoubleArray, DoubleArray]:
    """Compute p of each node's last word after its parent, and g of each node."""
    before = np.bincount(backoff_state[size + 1 :], minlength=len(count))
    adjusted = np.where(before > 0, before, count)
    adjusted[size] = 0  # the beginning of a sentence is never predicted
    discount = np.zeros(len(adjusted))
    for level in levels[1:]:
        discount[level] = kneser_ney_discounts(adjusted[level])[
            np.minimum(adjusted[level], DISCOUNT_CLASSES)
        ]
    total, discounted = (
        np.bincount(parent[1:], weights=values[1:], minlength=len(count))
        for values in (adjusted, discount)
    )
    p = (adjusted - discount) / np.maximum(total[parent], 1)
    g = np.where(total > 0, discounted / np.maximum(total, 1), 1.0)
    p[0] = 1 / size
    for level in levels[1:]:
        p[level] += g[parent[level]] * p[backoff_state[level]]
    return p, g


def kneser_ney_discounts(adjusted_counts: IntArray) -> DoubleArray:
    """Estimate discounts for adjusted counts of 0, 1, 2 and more (Chen and Goodman, 1998)."""
    ones, twos, threes, fours = np.bincount(np.minimum(adjusted_counts, 5), minlength=6)[1:5]
    if min(ones, twos, threes, fours) == 0:
        return DEFAULT_DISCOUNTS
    y = ones / (ones + 2 * twos)
    estimates = [1 - 2 * y * twos / ones, 2 - 3 * y * threes / twos, 3 - 4 * y * fours / threes]
    valid = all(0 < d < n for n, d in enumerate(estimates, 1))
    return np.array([0.0, *estimates]) if valid else DEFAULT_DISCOUNTS
