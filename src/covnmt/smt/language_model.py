"""An n-gram model of the target side with Jelinek-Mercer smoothing, the one that Thot reads.

    p(w | h) = b(h) c(h w) / c(h) + (1 - b(h)) p(w | h without its first word)

down to p(w) = 1 / V. The weights b depend on the length of h and on how often it was seen: one
weight for each count below `BUCKETS`, and one for all above. They are found on the dev set by EM
(deleted interpolation; Jelinek and Mercer, 1980), which never lowers its likelihood.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covnmt.files import atomic_text, write_lines
from covnmt.progress import track
from covnmt.smt.bitext import Integers
from covnmt.text.corpus import Sentences
from covnmt.text.vocab import UNK

Floats = NDArray[np.float64]

BUCKETS = 30
ABSENT = BUCKETS  # the bucket of a history that begins before its sentence; it has no weight
EM_ROUNDS = 50
LEAST, MOST = 1e-4, 1 - 1e-4  # weights, so that no probability is ever 0


@dataclass(frozen=True)
class Order:
    """The n-grams of one length, sorted: number of the (n-1)-gram before, last word, count."""

    prefix: Integers
    word: Integers
    count: Integers


@dataclass(frozen=True)
class Ngrams:
    """Counts of all orders; an n-gram is known by its number in its order."""

    orders: tuple[Order, ...]
    words: int  # running words, with both ends of every sentence
    rows: int  # ids, with one more for the beginning of a sentence

    @property
    def begin(self) -> int:
        """The id of the beginning of a sentence."""
        return self.rows - 1

    @property
    def size(self) -> int:
        """Different words, with the ends of a sentence and the unknown word."""
        return len(self.orders[0].word)


def count_ngrams(text: Sentences, end: int, order: int, min_count: int) -> Ngrams:
    """Count n-grams up to `order`; from 3 words on, those rarer than `min_count` are left out."""
    words, place = _with_ends(text, end)
    rows = end + 2
    prefix, inside = np.zeros(len(words), dtype=np.int64), np.ones(len(words), dtype=bool)
    orders = []
    for n in track(range(1, order + 1), order, "counting n-grams", "orders"):
        inside &= place >= n - 1
        keys = prefix[inside] * rows + words[inside]
        different, which, count = np.unique(keys, return_inverse=True, return_counts=True)
        kept = count >= (min_count if n > 2 else 1)
        orders.append(Order(different[kept] // rows, different[kept] % rows, count[kept]))
        number = np.where(kept, np.cumsum(kept) - 1, -1)[which]
        # the n-gram that ends before a word is the prefix of the (n + 1)-gram that ends with it
        here = np.full(len(words), -1)
        here[inside] = number
        prefix = np.concatenate([[-1], here[:-1]])
        inside = prefix >= 0
    return Ngrams(tuple(orders), len(words), rows)


def _with_ends(text: Sentences, end: int) -> tuple[Integers, Integers]:
    """All words with a beginning and an end of each sentence, and their places in it."""
    lengths = text.lengths() + 2
    starts = np.cumsum(lengths) - lengths
    place = np.arange(lengths.sum()) - np.repeat(starts, lengths)
    last = np.repeat(lengths, lengths) - 1
    words = np.where(place == 0, end + 1, end)
    words[(place > 0) & (place < last)] = text.ids
    return words, place


def find_weights(ngrams: Ngrams, heldout: Sentences) -> Floats:
    """The weights [orders, buckets] under which the held-out text is most likely."""
    known = np.isin(heldout.ids, ngrams.orders[0].word)
    ids = np.where(known, heldout.ids, UNK)
    frequency, bucket = relative_frequencies(ngrams, Sentences(ids, heldout.offsets))
    weights = equal_weights(len(ngrams.orders))
    for _ in track(range(EM_ROUNDS), EM_ROUNDS, "weighting n-grams", "rounds"):
        weights = _em_round(weights, frequency, bucket, ngrams.size)
    return weights


def equal_weights(orders: int) -> Floats:
    """Half of what is left for each order, [orders, buckets]."""
    return np.where(np.arange(BUCKETS + 1) == ABSENT, 0.0, np.full((orders, 1), 0.5))


def relative_frequencies(ngrams: Ngrams, text: Sentences) -> tuple[Floats, Integers]:
    """For each word to be predicted and each order: c(h w) / c(h), and the bucket of c(h)."""
    words, place = _with_ends(text, ngrams.rows - 2)
    predicted = place > 0
    frequency, bucket = [], []
    prefix, history = np.zeros(len(words), dtype=np.int64), np.full(len(words), ngrams.words)
    for n, order in enumerate(ngrams.orders):
        number = _find(order, prefix, words, ngrams.rows)
        count = np.where(number >= 0, order.count[number], 0)
        used = predicted & (place >= n)
        frequency.append(np.where(used, count / np.maximum(history, 1), 0.0)[predicted])
        bucket.append(np.where(used, np.minimum(history, BUCKETS - 1), ABSENT)[predicted])
        prefix = np.concatenate([[-1], number[:-1]])
        history = np.concatenate([[0], count[:-1]])
    return np.array(frequency), np.array(bucket)  # [orders, words]


def _find(order: Order, prefix: Integers, words: Integers, rows: int) -> Integers:
    """The number of each n-gram, -1 where it was never seen."""
    keys = order.prefix * rows + order.word
    wanted = prefix * rows + words
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where((keys[at] == wanted) & (prefix >= 0), at, -1)


def probabilities(weights: Floats, frequency: Floats, bucket: Integers, size: int) -> Floats:
    """p(w | h) for every order from none upwards, [orders + 1, words]."""
    rows = [np.full(frequency.shape[1], 1.0 / size)]
    for b, f, k in zip(weights, frequency, bucket, strict=True):
        rows.append(b[k] * f + (1 - b[k]) * rows[-1])
    return np.array(rows)


def _em_round(weights: Floats, frequency: Floats, bucket: Integers, size: int) -> Floats:
    """One step: how probable it is that each order gave each word, then the mean by bucket."""
    p = probabilities(weights, frequency, bucket, size)
    renewed = weights.copy()
    reached = np.ones(frequency.shape[1])  # chance that no longer history has given the word
    for n in reversed(range(len(weights))):
        b = weights[n][bucket[n]]
        given = reached * b * frequency[n] / p[n + 1]
        mass = np.bincount(bucket[n], weights=reached, minlength=BUCKETS + 1)
        own = np.bincount(bucket[n], weights=given, minlength=BUCKETS + 1)
        renewed[n] = np.where(mass > 0, own / np.maximum(mass, 1e-300), weights[n])
        reached = reached - given
    return np.where(np.arange(BUCKETS + 1) == ABSENT, 0.0, np.clip(renewed, LEAST, MOST))


def perplexity(ngrams: Ngrams, weights: Floats, text: Sentences) -> float:
    """Of a text with known words, ends of sentences counted."""
    frequency, bucket = relative_frequencies(ngrams, text)
    p = probabilities(weights, frequency, bucket, ngrams.size)[-1]
    return float(np.exp(-np.log(p).mean()))


def write_language_model(path: Path, ngrams: Ngrams, weights: Floats) -> None:
    """As Thot loads it: n-gram, count of its prefix, count; the weights beside it."""
    with atomic_text(path) as stream:
        stream.writelines(_lines(ngrams))
    flat = " ".join(f"{weight:.6f}" for weight in weights[:, :BUCKETS].ravel())
    write_lines(Path(f"{path}.weights"), [f"{len(weights)} {BUCKETS} 1 {flat}"])


def _lines(ngrams: Ngrams) -> Iterator[str]:
    texts, counts = [""], np.array([ngrams.words])
    names = {UNK: "<unk>", ngrams.begin: "<s>", ngrams.begin - 1: "</s>"}
    for n, order in enumerate(ngrams.orders, 1):
        rows = zip(order.prefix.tolist(), order.word.tolist(), order.count.tolist(), strict=True)
        made = []
        for prefix, word, count in track(rows, len(order.word), f"writing {n}-grams", "n-grams"):
            made.append(f"{texts[prefix]}{names.get(word) or f't{word}'} ")
            yield f"{made[-1]}{counts[prefix]} {count}\n"
        texts, counts = made, order.count
