"""MERT: exact line search against trying every interval, and guarantees of the optimizer."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covnmt.base.arrays import DoubleArray, IntArray
from covnmt.metrics.bleu import bleu_from_totals, sentence_bleu_statistics
from covnmt.phrase_based.mert import (
    NBestLists,
    envelope,
    line_search,
    optimize_weights,
    step_range,
)

WORDS = [*"abcdefgh"]
FREE = np.full(3, -np.inf)


def random_lists(seed: int, sentences: int = 4, longest: int = 6, ties: bool = False) -> NBestLists:
    """Lists of different lengths with whole-number features, so that lines often cross together."""
    rng = np.random.default_rng(seed)
    features, statistics = [], []
    for _ in range(sentences):
        n = int(rng.integers(1, longest + 1))
        values = rng.integers(-2, 3, size=(n, 3)) if ties else rng.normal(size=(n, 3))
        features.append(values.astype(np.float64))
        reference = rng.choice(WORDS, size=8).tolist()
        rows = []
        for _ in range(n):
            kept = rng.random(8) < 0.8
            noisy = [
                w if k else str(rng.choice(WORDS)) for w, k in zip(reference, kept, strict=True)
            ]
            rows.append(sentence_bleu_statistics(noisy[: int(rng.integers(5, 9))], [reference]))
        statistics.append(np.array(rows, dtype=np.int64))
    return NBestLists.from_lists(features, statistics)


def best_by_exhaustive_search(
    lists: NBestLists, weights: DoubleArray, direction: DoubleArray, least: float, most: float
) -> float:
    """Find the best BLEU on the line by trying a step between every two crossings."""
    crossings = []
    for rows, real in zip(lists.features, lists.real, strict=True):
        height, slope = rows[real] @ weights, rows[real] @ direction
        for h, s in zip(height, slope, strict=True):
            other = slope != s
            crossings += ((h - height[other]) / (slope[other] - s)).tolist()
    inside = sorted({c for c in crossings if least < c < most})
    low = least if np.isfinite(least) else min([*inside, 0.0, most]) - 1
    high = most if np.isfinite(most) else max([*inside, low]) + 1
    edges = [low, *inside, high]
    middles = [(a + b) / 2 for a, b in pairwise(edges) if b - a > 1e-9]
    return max(lists.bleu(weights + step * direction) for step in middles)


@given(st.integers(0, 10_000), st.booleans())
@settings(max_examples=150)
def test_line_search_is_exact(seed: int, bounded: bool) -> None:
    lists = random_lists(seed)
    rng = np.random.default_rng(seed)
    weights, direction = np.abs(rng.normal(size=3)), rng.normal(size=3)
    lower = np.array([0.0, -np.inf, 0.0]) if bounded else FREE
    least, most = step_range(weights, direction, lower)
    step, bleu = line_search(lists, weights, direction, lower)
    assert least <= step <= most
    assert bleu == pytest.approx(best_by_exhaustive_search(lists, weights, direction, least, most))
    assert lists.bleu(weights + step * direction) == pytest.approx(bleu)


@given(st.integers(0, 10_000), st.booleans(), st.sampled_from([-np.inf, -2.0, 0.5]))
@settings(deadline=None)
def test_envelope_is_never_below_a_line(seed: int, ties: bool, least: float) -> None:
    """Also where three and more lines meet in a point, and where several are the same."""
    lists = random_lists(seed, ties=ties)
    weights, direction = np.array([1.0, 2.0, -1.0]), np.array([0.5, 1.0, 1.0])
    sentence, where, before, after, first = envelope(lists, weights, direction, least)
    low = least if np.isfinite(least) else where.min(initial=0.0) - 1
    for step in np.linspace(low, max(low, where.max(initial=0.0)) + 1, 23):
        scores = np.where(lists.real, lists.features @ (weights + step * direction), -np.inf)
        for n in range(len(first)):
            passed = (sentence == n) & (where <= step)
            now = after[passed][-1] if passed.any() else first[n]
            assert scores[n, now] == pytest.approx(scores[n].max())
    for n in range(len(first)):  # one change begins where the one before it has ended
        changes = sentence == n
        assert before[changes].tolist() == [first[n], *after[changes][:-1]][: changes.sum()]


@pytest.mark.parametrize(
    ("weights", "direction", "expected"),
    [
        ([1.0, 1.0, 1.0], [1.0, 0.0, 0.0], (-1.0, np.inf)),
        ([1.0, 1.0, 1.0], [-2.0, 0.0, 0.0], (-np.inf, 0.5)),
        ([1.0, 1.0, 1.0], [1.0, 5.0, -1.0], (-1.0, 1.0)),
        ([1.0, 1.0, 1.0], [0.0, 5.0, 0.0], (-np.inf, np.inf)),
        ([0.0, 1.0, 1.0], [1.0, 0.0, 0.0], (0.0, np.inf)),
    ],
)
def test_step_range_keeps_weights_above_their_minimum(
    weights: list[float], direction: list[float], expected: tuple[float, float]
) -> None:
    lower = np.array([0.0, -np.inf, 0.0])
    assert step_range(np.array(weights), np.array(direction), lower) == expected


@given(st.integers(0, 1_000))
@settings(max_examples=20)
def test_optimizer_never_lowers_bleu_and_keeps_minimum_weights(seed: int) -> None:
    lists = random_lists(seed, sentences=6)
    start, lower = np.array([0.2, 0.5, 0.3]), np.array([0.0, -np.inf, 0.0])
    weights, bleu = optimize_weights(lists, start, lower, restarts=2, seed=seed)
    assert bleu >= lists.bleu(start)
    assert lists.bleu(weights) == pytest.approx(bleu)
    assert (weights >= lower - 1e-12).all()
    assert np.abs(weights).sum() == pytest.approx(1.0)


def test_optimizer_is_deterministic_for_a_seed() -> None:
    lists = random_lists(7, sentences=8)
    start = np.ones(3) / 3
    one, again = (optimize_weights(lists, start, FREE, restarts=3, seed=5) for _ in range(2))
    assert one[0].tolist() == again[0].tolist()
    assert one[1] == again[1]


def test_padding_is_never_chosen() -> None:
    features = [np.array([[-5.0]]), np.array([[-1.0], [-2.0], [-3.0]])]
    statistics: list[IntArray] = [np.full((1, 10), 4), np.full((3, 10), 4)]
    lists = NBestLists.from_lists(features, statistics)
    assert lists.best(np.array([1.0])).tolist() == [0, 0]
    assert lists.best(np.array([-1.0])).tolist() == [0, 2]
    assert lists.bleu(np.array([1.0])) == pytest.approx(float(bleu_from_totals(np.full(10, 8))))
