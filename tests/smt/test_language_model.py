"""The language model: counts against counting, smoothing against its formula and against Thot."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covnmt.smt.aligner import thot_module
from covnmt.smt.bitext import lay_out
from covnmt.smt.language_model import (
    BUCKETS,
    Floats,
    Ngrams,
    _em_round,
    count_ngrams,
    equal_weights,
    find_weights,
    perplexity,
    probabilities,
    relative_frequencies,
    write_language_model,
)

Gram = tuple[int, ...]
END, BEGIN = 9, 10  # ids 1 to 8 are words

texts = st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=8), min_size=1, max_size=8)


def with_ends(row: list[int]) -> list[int]:
    return [BEGIN, *row, END]


def counted(rows: list[list[int]], n: int) -> Counter[Gram]:
    return Counter(
        tuple(row[k : k + n]) for row in map(with_ends, rows) for k in range(len(row) - n + 1)
    )


def grams(ngrams: Ngrams) -> list[dict[Gram, int]]:
    """The orders as dictionaries."""
    result: list[dict[Gram, int]] = []
    names: list[Gram] = [()]
    for order in ngrams.orders:
        names = [
            (*names[prefix], word)
            for prefix, word in zip(order.prefix.tolist(), order.word.tolist(), strict=True)
        ]
        result.append(dict(zip(names, order.count.tolist(), strict=True)))
    return result


@given(texts, st.integers(1, 4))
@settings(deadline=None)
def test_counts(rows: list[list[int]], order: int) -> None:
    found = grams(count_ngrams(lay_out(rows), END, order, 1))
    assert found == [counted(rows, n) for n in range(1, order + 1)]


@given(texts)
@settings(deadline=None)
def test_rare_ngrams_are_left_out_from_three_words_on(rows: list[list[int]]) -> None:
    found = grams(count_ngrams(lay_out(rows), END, 4, 2))
    assert found[:2] == [counted(rows, 1), counted(rows, 2)]
    for n in (3, 4):
        assert found[n - 1] == {g: c for g, c in counted(rows, n).items() if c > 1}


def by_formula(rows: list[list[int]], weights: Floats, history: Gram, word: int) -> float:
    """p(w | h), read off the module's docstring."""
    n = len(history) + 1
    shorter = by_formula(rows, weights, history[1:], word) if history else 0.0
    if not history:
        shorter = 1 / len(counted(rows, 1))
    total = counted(rows, n - 1)[history] if history else sum(counted(rows, 1).values())
    b = weights[n - 1, min(total, BUCKETS - 1)]
    frequency = counted(rows, n)[(*history, word)] / total if total else 0.0
    return float(b * frequency + (1 - b) * shorter)


@given(texts, st.lists(st.integers(1, 8), min_size=1, max_size=5), st.integers(0, 100))
@settings(deadline=None)
def test_probabilities_follow_the_formula(
    rows: list[list[int]], sentence: list[int], seed: int
) -> None:
    known = {word for row in rows for word in row}
    sentence = [word for word in sentence if word in known] or [rows[0][0]]
    ngrams = count_ngrams(lay_out(rows), END, 3, 1)
    weights = equal_weights(3) * np.random.default_rng(seed).uniform(0.2, 1.8, (3, BUCKETS + 1))
    frequency, bucket = relative_frequencies(ngrams, lay_out([sentence]))
    found = probabilities(weights, frequency, bucket, ngrams.size)[-1]
    words = with_ends(sentence)
    expected = []
    for place in range(1, len(words)):
        history = tuple(words[max(0, place - 2) : place])
        expected.append(by_formula(rows, weights, history, words[place]))
    assert found == pytest.approx(expected)


@given(texts, texts)
@settings(deadline=None)
def test_em_never_lowers_the_likelihood(rows: list[list[int]], heldout: list[list[int]]) -> None:
    known = {word for row in rows for word in row}
    heldout = [[w for w in row if w in known] for row in heldout]
    ngrams = count_ngrams(lay_out(rows), END, 3, 1)
    frequency, bucket = relative_frequencies(ngrams, lay_out(heldout))
    weights = equal_weights(3)
    likelihood = []
    for _ in range(6):
        p = probabilities(weights, frequency, bucket, ngrams.size)[-1]
        likelihood.append(float(np.log(p).sum()))
        weights = _em_round(weights, frequency, bucket, ngrams.size)
    # weights stay a little off 0 and 1, which may cost next to nothing
    assert all(b >= a - 0.01 for a, b in pairwise(likelihood))
    assert perplexity(ngrams, find_weights(ngrams, lay_out(heldout)), lay_out(heldout)) > 0


def test_thot_gives_the_same_probabilities(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    rows = [draw.integers(1, 9, size=draw.integers(1, 9)).tolist() for _ in range(60)]
    ngrams = count_ngrams(lay_out(rows), END, 3, 1)
    weights = find_weights(ngrams, lay_out(rows[:20]))
    write_language_model(tmp_path / "lm", ngrams, weights)
    model = thot_module("common").NGramLanguageModel()
    assert model.load(str(tmp_path / "lm"))
    for row in rows[:10]:
        frequency, bucket = relative_frequencies(ngrams, lay_out([row]))
        p = probabilities(weights, frequency, bucket, ngrams.size)[-1]
        words = ["<unk>" if i == 1 else f"t{i}" for i in row]
        assert model.get_sentence_log_probability(words) == pytest.approx(
            float(np.log10(p).sum()), abs=1e-3
        )


def test_the_model_predicts_its_language(tmp_path: Path) -> None:
    rows = [[2, 3, 4, 5]] * 30 + [[5, 4, 3, 2]] * 10
    ngrams = count_ngrams(lay_out(rows), END, 3, 1)
    weights = find_weights(ngrams, lay_out([[2, 3, 4, 5]]))
    assert perplexity(ngrams, weights, lay_out([[2, 3, 4, 5]])) < 1.5
    assert perplexity(ngrams, weights, lay_out([[3, 5, 2, 4]])) > 10
