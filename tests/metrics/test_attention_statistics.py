"""Attention statistics of small matrices by hand."""

import numpy as np
import pytest

from covnmt.metrics.attention_statistics import (
    AttendedPair,
    attention_entropy,
    coverage_effect,
    fertility_fit,
)


def test_coverage_effect_by_hand() -> None:
    """One word is covered after the first step, and coverage halves the attention to it."""
    alpha = np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.6]], dtype=np.float32)
    without = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.3]], dtype=np.float32)
    effect = coverage_effect([AttendedPair(alpha, without)])
    # C before each step: [0, 0], [0.9, 0.1], [1.1, 0.9]
    assert [effect.uncovered.words, effect.partly.words, effect.covered.words] == [3, 2, 1]
    assert effect.covered.change == pytest.approx(-np.log(2), abs=1e-6)
    assert effect.partly.change == pytest.approx(np.log(2) / 2, abs=1e-6)
    assert effect.uncovered.change == 0
    assert effect.covered.log_attention == pytest.approx(np.log(0.3), abs=1e-6)
    assert effect.difference == pytest.approx(-np.log(2), abs=1e-6)
    assert effect.difference_interval == pytest.approx((-np.log(2), -np.log(2)), abs=1e-6)


def test_effect_of_attention_received_is_measured_against_words_never_attended_to() -> None:
    """Coverage that halves the attention to all words, attended to or not, does not count."""
    alpha = np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.6]], dtype=np.float32)
    without = 2 * alpha
    unattended = np.array([[0.9, 0.1], [0.2, 0.8], [0.9, 0.6]], dtype=np.float32)
    effect = coverage_effect([AttendedPair(alpha, without, None, unattended)])
    assert effect.difference == pytest.approx(0, abs=1e-6)
    assert effect.attended == pytest.approx(-np.log(3), abs=1e-6)
    assert coverage_effect([AttendedPair(alpha, without)]).attended is None


def test_coverage_is_attention_received_over_fertility() -> None:
    alpha = np.array([[0.5, 0.5], [0.5, 0.5]], dtype=np.float32)
    fertility = np.array([0.25, 2.0], dtype=np.float32)  # C before the second step: 2, 0.25
    effect = coverage_effect([AttendedPair(alpha, alpha, fertility)])
    assert [effect.uncovered.words, effect.partly.words, effect.covered.words] == [2, 1, 1]


def test_interval_of_the_coverage_effect_grows_with_the_spread_of_the_pairs() -> None:
    alpha = np.array([[1.0, 0.5], [0.5, 0.5], [0.5, 0.5]], dtype=np.float32)
    equal = [AttendedPair(alpha, alpha)] * 4
    mixed = [AttendedPair(alpha, alpha * np.float32(1 + k / 4)) for k in range(4)]
    narrow, wide = coverage_effect(equal).covered, coverage_effect(mixed).covered
    assert narrow.change_interval == (0, 0)
    low, high = wide.change_interval
    assert low < wide.change < high


def test_nothing_to_measure_has_no_effect() -> None:
    effect = coverage_effect([])
    assert effect.covered.words == effect.difference == 0


def test_fertility_fit_by_hand() -> None:
    soft = np.array([[1.0, 0.0], [0.5, 0.5]], dtype=np.float32)  # received 1.5 and 0.5
    fit = fertility_fit([[1.0, 0.5]], [soft])
    assert fit.correlation == pytest.approx(1)
    assert (fit.mean_predicted, fit.mean_received) == pytest.approx((0.75, 1.0))
    assert fit.mean_absolute_difference == pytest.approx(0.25)
    with pytest.raises(ValueError, match="3 fertilities for 2 source words"):
        fertility_fit([[1.0] * 3], [soft])


def test_entropy_in_bits_counts_the_end_symbol() -> None:
    one_word = np.array([[1.0, 0.0]], dtype=np.float32)
    even = np.array([[0.25, 0.25, 0.25]], dtype=np.float32)  # a quarter is on the end symbol
    assert attention_entropy([one_word]) == 0
    assert attention_entropy([even]) == pytest.approx(2)
    assert attention_entropy([one_word, even]) == pytest.approx(1)
    assert attention_entropy([]) == 0
