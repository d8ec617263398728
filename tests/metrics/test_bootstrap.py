"""Bootstrap confidence intervals: their bounds and widths."""

import numpy as np
import pytest
from numpy.typing import NDArray

from covnmt.metrics.bleu import bleu_from_totals, bleu_statistics
from covnmt.metrics.bootstrap import (
    ConfidenceInterval,
    bleu_gain_interval,
    confidence_interval,
    resample_counts,
)

SENTENCES = 80
WORDS = [f"w{number}" for number in range(12)]


def counts(wrong: float, seed: int, sentences: int = SENTENCES) -> NDArray[np.int64]:
    """Return statistics of outputs in which this share of the words is wrong."""
    rng = np.random.default_rng(1)
    references = [rng.choice(WORDS, size=9).tolist() for _ in range(sentences)]
    rng = np.random.default_rng(seed)
    outputs = [
        " ".join("other" if rng.random() < wrong else word for word in words)
        for words in references
    ]
    return bleu_statistics(outputs, [[" ".join(words) for words in references]])


def slow_band(
    base: NDArray[np.int64], system: NDArray[np.int64], samples: int = 2000
) -> ConfidenceInterval:
    """Draw one sample after the other by sentence numbers."""
    rng = np.random.default_rng(99)
    gains = []
    for _ in range(samples):
        chosen = rng.integers(0, len(base), len(base))
        totals = [rows[chosen].sum(axis=0) for rows in (base, system)]
        gains.append(float(bleu_from_totals(totals[1]) - bleu_from_totals(totals[0])))
    return confidence_interval(np.array(gains))


def test_a_sample_has_as_many_sentences_as_the_set() -> None:
    drawn = resample_counts(7, 50, np.random.default_rng(3))
    assert drawn.shape == (50, 7)
    assert (drawn.sum(axis=1) == 7).all()
    assert drawn.std() > 0


def test_interval_leaves_out_the_extremes() -> None:
    assert confidence_interval(np.arange(1001.0)) == (25, 975)


def test_interval_equals_that_of_samples_drawn_one_by_one() -> None:
    base, system = counts(0.3, 2), counts(0.25, 3)
    assert bleu_gain_interval([(base, system)]) == pytest.approx(slow_band(base, system), abs=0.7)


def test_gain_over_itself_is_zero() -> None:
    base = counts(0.3, 2)
    assert bleu_gain_interval([(base, base)]) == (0, 0)


def test_swapped_systems_have_negated_intervals() -> None:
    base, system = counts(0.4, 2), counts(0.1, 3)
    low, high = bleu_gain_interval([(base, system)])
    assert 0 < low < high
    assert bleu_gain_interval([(system, base)]) == pytest.approx((-high, -low))


def test_more_seeds_narrow_the_interval() -> None:
    seeds = [(counts(0.3, 10 + seed), counts(0.3, 20 + seed)) for seed in range(6)]
    (low, high), (all_low, all_high) = bleu_gain_interval(seeds[:1]), bleu_gain_interval(seeds)
    assert all_high - all_low < 0.7 * (high - low)
