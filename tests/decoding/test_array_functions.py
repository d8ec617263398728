"""Functions of arrays: NumPy and torch give the same, and ties go to the lower position."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covnmt.base.arrays import AnyArray
from covnmt.decoding.array_functions import mean_log_probs, mean_or_none, top_k


def coarse_scores(seed: int, *shape: int) -> AnyArray:
    """Draw few different scores, so that ties are common; some are -inf."""
    scores = np.random.default_rng(seed).integers(-3, 3, shape).astype(np.float32)
    scores[scores == -3] = -math.inf
    return scores


def assert_top_k(found: tuple[AnyArray, AnyArray], scores: AnyArray, k: int) -> None:
    order = (-scores).argsort(axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(found[0], np.take_along_axis(scores, order, axis=1))
    np.testing.assert_array_equal(found[1], order)


@settings(max_examples=100)
@given(st.integers(1, 3), st.integers(1, 200), st.integers(1, 30), st.integers(0, 10**6))
def test_top_k_breaks_ties_by_position(R: int, N: int, k: int, seed: int) -> None:
    scores, k = coarse_scores(seed, R, N), min(k, N)
    assert_top_k(top_k(scores, k), scores, k)
    values, positions = top_k(torch.from_numpy(scores), k)
    assert_top_k((values.numpy(), positions.numpy()), scores, k)


@settings(max_examples=100)
@given(
    R=st.integers(1, 3),
    slots=st.integers(1, 5),
    blocks=st.integers(1, 3),
    block=st.sampled_from([1, 4, 128]),
    k=st.integers(1, 9),
    seed=st.integers(0, 10**6),
)
def test_top_k_of_sums_equals_top_k_of_all_sums(
    R: int, slots: int, blocks: int, block: int, k: int, seed: int
) -> None:
    """Rows of as many parts as there are offsets, as a beam search on a GPU has them."""
    scores = coarse_scores(seed, R, slots * blocks * block) / 4
    offsets = coarse_scores(seed + 1, R, slots)
    k = min(k, slots * blocks)
    sums = scores + offsets.repeat(blocks * block, axis=1)
    values, positions = top_k(torch.from_numpy(scores), k, block, torch.from_numpy(offsets))
    assert_top_k((values.numpy(), positions.numpy()), sums, k)
    assert_top_k(top_k(scores, k, block, offsets), sums, k)


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
def test_mean_log_probs_averages_probabilities(convert: type) -> None:
    probabilities = [np.array([[0.2, 0.8]]), np.array([[0.6, 0.4]])]
    members = [convert(np.log(member)) for member in probabilities]
    np.testing.assert_allclose(np.exp(np.asarray(mean_log_probs(members))), [[0.4, 0.6]])


def test_mean_is_none_where_a_member_has_no_value() -> None:
    ones = np.ones(2)
    np.testing.assert_array_equal(mean_or_none([ones, 3 * ones]), 2 * ones)
    assert mean_or_none([ones, None]) is None
