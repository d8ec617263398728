"""The language model: counts against a Counter, smoothing against its formula."""

from collections import Counter
from math import exp, log
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covnmt.base.errors import UserError
from covnmt.phrase_based.bitext import concatenate_sentences
from covnmt.phrase_based.language_model import (
    DEFAULT_DISCOUNTS,
    LanguageModel,
    NgramCounts,
    count_ngram_orders,
    kneser_ney_discounts,
    smooth_counts,
)

Gram = tuple[int, ...]
END, BEGIN = 9, 10  # ids 1 to 8 are words
ROWS = 11

texts = st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=8), min_size=1, max_size=8)


def with_ends(row: list[int]) -> list[int]:
    return [BEGIN, *row, END]


def counted(rows: list[list[int]], n: int) -> Counter[Gram]:
    return Counter(
        tuple(row[k : k + n]) for row in map(with_ends, rows) for k in range(len(row) - n + 1)
    )


def grams(orders: list[NgramCounts]) -> list[dict[Gram, int]]:
    """The orders as dictionaries, without words that were never seen."""
    result: list[dict[Gram, int]] = []
    names: list[Gram] = [()]
    for order in orders:
        names = [
            (*names[prefix], word)
            for prefix, word in zip(order.prefix.tolist(), order.word.tolist(), strict=True)
        ]
        result.append({k: n for k, n in zip(names, order.count.tolist(), strict=True) if n})
    return result


@given(texts, st.integers(1, 4))
@settings(deadline=None)
def test_ngrams_of_all_orders_are_counted(rows: list[list[int]], order: int) -> None:
    found = grams(count_ngram_orders(concatenate_sentences(rows), END, order))
    assert found == [counted(rows, n) for n in range(1, order + 1)]


class Formula:
    """p(w | h), read off the module's docstring."""

    def __init__(self, rows: list[list[int]], longest: int) -> None:
        self.longest = longest
        counts = {n: counted(rows, n) for n in range(1, longest + 1)}
        self.amount: dict[int, dict[Gram, int]] = {}
        for n in range(1, longest + 1):
            before = Counter(gram[1:] for gram in counts.get(n + 1, ()))
            self.amount[n] = {gram: before[gram] or count for gram, count in counts[n].items()}
        self.amount[1][BEGIN,] = 0
        self.discount = {
            n: kneser_ney_discounts(np.array(list(amount.values()), dtype=np.int64))
            for n, amount in self.amount.items()
        }

    def p(self, history: Gram, word: int) -> float:
        n = len(history) + 1
        shorter = self.p(history[1:], word) if history else 1 / ROWS
        amounts = {gram[-1]: a for gram, a in self.amount[n].items() if gram[:-1] == history}
        total = sum(amounts.values())
        if not total:
            return shorter
        taken = {w: float(self.discount[n][min(a, 3)]) for w, a in amounts.items()}
        kept = amounts.get(word, 0) - taken.get(word, 0.0)
        return (kept + sum(taken.values()) * shorter) / total


@given(texts, st.lists(st.integers(0, 8), min_size=1, max_size=6), st.integers(1, 4))
@settings(deadline=None)
def test_probabilities_follow_the_formula(
    rows: list[list[int]], sentence: list[int], longest: int
) -> None:
    model, formula = (
        smooth_counts(count_ngram_orders(concatenate_sentences(rows), END, longest)),
        Formula(rows, longest),
    )
    history, said, expected = np.array([model.beginning]), [BEGIN], []
    for word in [*sentence, END]:
        score, history = model.step(history, np.array([word]))
        before = tuple(said[max(0, len(said) - longest + 1) :])
        expected.append(log(formula.p(before, word)))
        said.append(word)
        assert score[0] == pytest.approx(expected[-1], abs=1e-4)
    whole = exp(-sum(expected) / len(expected))
    assert model.perplexity(concatenate_sentences([sentence])) == pytest.approx(whole, rel=1e-4)


@given(texts, st.integers(1, 3))
@settings(deadline=None)
def test_probabilities_sum_to_one_after_every_history(rows: list[list[int]], longest: int) -> None:
    model = smooth_counts(count_ngram_orders(concatenate_sentences(rows), END, longest))
    words = np.arange(ROWS)
    for node in np.unique(model.state).tolist():
        scores, _ = model.step(np.full(ROWS, node), words)
        assert np.exp(scores).sum() == pytest.approx(1.0, abs=1e-5)


def test_scores_do_not_depend_on_the_rest_of_the_batch() -> None:
    draw = np.random.default_rng(3)
    rows = [draw.integers(1, 9, size=draw.integers(1, 9)).tolist() for _ in range(60)]
    model = smooth_counts(count_ngram_orders(concatenate_sentences(rows), END, 4))
    histories, words = draw.choice(np.unique(model.state), 50), draw.integers(1, 9, size=50)
    together = model.step(histories, words)
    for k in range(50):
        alone = model.step(histories[k : k + 1], words[k : k + 1])
        assert (together[0][k], together[1][k]) == (alone[0][0], alone[1][0])


def test_discounts_follow_the_formula_or_fall_back() -> None:
    # ten n-grams once, five twice, three and two three and four times, one more often
    amounts = np.repeat([1, 2, 3, 4, 9, 0], [10, 5, 3, 2, 1, 4])
    y = 10 / 20
    expected = [0, 1 - 2 * y * 5 / 10, 2 - 3 * y * 3 / 5, 3 - 4 * y * 2 / 3]
    assert kneser_ney_discounts(amounts).tolist() == pytest.approx(expected)
    assert (
        kneser_ney_discounts(np.array([1, 2, 3])) is DEFAULT_DISCOUNTS
    )  # nothing was seen four times
    odd = np.repeat([1, 2, 3, 4], [1, 1, 5, 1])
    assert kneser_ney_discounts(odd) is DEFAULT_DISCOUNTS  # a discount would be negative


def test_model_predicts_its_training_text(tmp_path: Path) -> None:
    rows = [[2, 3, 4, 5]] * 30 + [[5, 4, 3, 2]] * 10
    model = smooth_counts(count_ngram_orders(concatenate_sentences(rows), END, 3))
    model.save(tmp_path)
    again = LanguageModel.load(tmp_path)
    assert (again.end, again.beginning) == (END, model.beginning)
    assert again.perplexity(concatenate_sentences([[2, 3, 4, 5]])) < 2
    assert again.perplexity(concatenate_sentences([[3, 5, 2, 4]])) > 10
    (tmp_path / "score.npy").write_bytes(b"")
    with pytest.raises(UserError, match=r"score\.npy: .*covnmt smt train"):
        LanguageModel.load(tmp_path)
