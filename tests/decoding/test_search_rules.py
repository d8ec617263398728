"""The rules that all searches share: limits, retries, penalties."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from covnmt.base.arrays import AnyArray
from covnmt.base.config import DecodeConfig
from covnmt.decoding.search_rules import (
    are_loops,
    coverage_log_sum,
    judge_continuations,
    penalized_score,
    search_attempts,
    step_limits,
)

ATTEMPTS: list[tuple[DecodeConfig, list[tuple[int, bool]]]] = [
    (DecodeConfig(beam=10), [(10, False), (20, False), (40, False), (80, False), (160, False)]),
    (DecodeConfig(beam=60, forbid_unk=True), [(60, True), (60, False), (120, False)]),
    (DecodeConfig(beam=100, forbid_unk=True), [(100, True), (100, False)]),
    (DecodeConfig(beam=100), [(100, False)]),
    (DecodeConfig(beam=5, max_retry_beam=20), [(5, False), (10, False), (20, False)]),
    (DecodeConfig(beam=30, max_retry_beam=20), [(30, False)]),
]


@pytest.mark.parametrize(("config", "expected"), ATTEMPTS)
def test_retries_allow_unk_then_double_the_beam(
    config: DecodeConfig, expected: list[tuple[int, bool]]
) -> None:
    assert [(tried.beam, tried.forbid_unk) for tried in search_attempts(config)] == expected


def test_step_limits_follow_source_length_or_setting() -> None:
    lengths = np.array([1, 2, 5])
    first, most = step_limits(lengths, DecodeConfig())
    assert (first.tolist(), most.tolist()) == ([0, 1, 2], [3, 6, 15])
    first, most = step_limits(lengths, DecodeConfig(length_rules=False, max_length=9))
    assert (first.tolist(), most.tolist()) == ([0, 0, 0], [9, 9, 9])


TAILS = {
    "aaaaaaaaaaaaaaaa": True,
    "abcdabcdabcdabcdabcd": True,
    "the cat sat on a mat": False,
    "a": False,
    "": False,
}


@pytest.mark.parametrize("tail", TAILS)
def test_few_different_bigrams_are_a_loop(tail: str) -> None:
    assert are_loops(np.array([list(tail.encode())], dtype=np.int64)).tolist() == [TAILS[tail]]


COVERAGE: list[tuple[list[float], float]] = [
    ([1.0, 0.5], math.log(0.5)),
    ([2.0, 1.0], 0.0),  # more than enough is enough
    ([], 0.0),  # an empty source has only its end symbol
    ([0.0], math.log(float(np.finfo(np.float32).tiny))),  # finite
]


@pytest.mark.parametrize(("received", "expected"), COVERAGE)
def test_coverage_log_sum_sums_log_attention_up_to_one(
    received: list[float], expected: float
) -> None:
    assert coverage_log_sum(np.array(received, dtype=np.float32)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("alpha", "beta", "expected"),
    [(0.0, 0.0, -3.0), (0.5, 0.0, -1.5), (1.0, 2.0, -0.75 + 2 * math.log(0.5))],
)
def test_penalized_score_of_one_hypothesis_and_of_several(
    alpha: float, beta: float, expected: float
) -> None:
    received = np.array([0.5, 1.0])
    config = DecodeConfig(length_penalty=alpha, coverage_penalty=beta)
    assert penalized_score(-3.0, 4, lambda: received, config) == pytest.approx(expected)
    log_probs, lengths = np.array([-3.0, -3.0]), np.array([4, 4])
    scores = penalized_score(log_probs, lengths, lambda: np.stack([received] * 2), config)
    assert scores == pytest.approx(np.array([expected] * 2))


def test_attention_is_not_summed_without_a_coverage_penalty() -> None:
    def received() -> AnyArray:
        raise AssertionError

    assert penalized_score(-3.0, 2, received, DecodeConfig(length_penalty=1.0)) == -1.5


@pytest.mark.parametrize("convert", [np.array, torch.tensor])
def test_judged_continuations(convert: Callable[[Any], Any]) -> None:
    """Two sentences: the first has room for two hypotheses, the second is at its last step."""
    END = 9
    outcome = judge_continuations(
        convert([[-1.0, -2.0, -3.0], [-1.0, -2.0, -math.inf]]),
        convert([[END, 5, 6], [5, END, 6]]),
        convert([0, 1, 2]),
        convert([2, 3]),
        convert([7, 4]),
        3,
        END,
    )
    assert outcome.finished.tolist() == [[True, False, False], [False, True, False]]
    assert outcome.ended.tolist() == [[True, False, False], [True, True, False]]
    assert outcome.live.tolist() == [[False, True, False], [False, False, False]]
