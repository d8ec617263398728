"""Attention statistics of small matrices by hand."""

import numpy as np
import pytest

from covnmt.metrics.attention_statistics import (
    attention_entropy,
    coverage_correlation,
    fertility_fit,
)


def test_attention_that_moves_on_correlates_negatively_with_coverage() -> None:
    moving_on = np.eye(6, dtype=np.float32)
    staying = np.zeros((6, 6), np.float32)
    staying[:, 2] = 1
    assert coverage_correlation([moving_on]) < -0.1
    assert coverage_correlation([staying]) > 0.8


def test_coverage_correlation_by_hand() -> None:
    soft = np.array([[0.8, 0.2], [0.3, 0.7], [0.5, 0.5]], dtype=np.float32)
    before = [0.8, 0.2, 1.1, 0.9]
    after = [0.3, 0.7, 0.5, 0.5]
    expected = np.corrcoef(before, after)[0, 1]
    assert coverage_correlation([soft]) == pytest.approx(expected, abs=1e-6)
    # one step says nothing, and sentences are pooled
    assert coverage_correlation([soft[:1], soft]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("shape", [(0, 0), (1, 3), (4, 3)])
def test_constant_attention_has_correlation_zero(shape: tuple[int, int]) -> None:
    assert coverage_correlation([np.zeros(shape, np.float32)]) == 0


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
