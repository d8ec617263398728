"""The rules of a search: limits, second tries, penalties."""

import math

import numpy as np
import pytest

from covnmt.base.config import DecodeConfig
from covnmt.decoding.penalties import (
    coverage_penalty,
    length_penalty,
    penalized_score,
    search_attempts,
    step_limits,
)

ATTEMPTS: list[tuple[DecodeConfig, list[tuple[int, bool]]]] = [
    (DecodeConfig(beam=10), [(10, False), (20, False), (40, False), (80, False), (160, False)]),
    (DecodeConfig(beam=60, forbid_unk=True), [(60, True), (60, False), (120, False)]),
    (DecodeConfig(beam=100, forbid_unk=True), [(100, True), (100, False)]),
    (DecodeConfig(beam=100), [(100, False)]),
]


@pytest.mark.parametrize(("config", "expected"), ATTEMPTS)
def test_attempts(config: DecodeConfig, expected: list[tuple[int, bool]]) -> None:
    assert [(tried.beam, tried.forbid_unk) for tried in search_attempts(config)] == expected


def test_step_limits() -> None:
    lengths = np.array([1, 2, 5])
    first, most = step_limits(lengths, DecodeConfig())
    assert (first.tolist(), most.tolist()) == ([0, 1, 2], [3, 6, 15])
    first, most = step_limits(lengths, DecodeConfig(length_rules=False, max_length=9))
    assert (first.tolist(), most.tolist()) == ([0, 0, 0], [9, 9, 9])


def test_length_penalty() -> None:
    assert [length_penalty(4, alpha) for alpha in (0.0, 0.5, 1.0)] == [1.0, 2.0, 4.0]


COVERAGE: list[tuple[list[list[float]], float]] = [
    ([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]], math.log(0.5)),
    ([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]], 0.0),  # more than enough is enough
    ([[1.0]], 0.0),  # an empty source: only its end symbol
    ([[0.0, 1.0]], math.log(float(np.finfo(np.float32).tiny))),  # finite
]


@pytest.mark.parametrize(("attention", "expected"), COVERAGE)
def test_coverage_penalty(attention: list[list[float]], expected: float) -> None:
    table = np.array(attention, dtype=np.float32)
    assert coverage_penalty(table, 1.0) == pytest.approx(expected)
    assert coverage_penalty(table, 0.5) == pytest.approx(expected / 2)
    assert coverage_penalty(table, 0.0) == 0.0


def test_penalised_score() -> None:
    attention = np.array([[0.5, 0.5], [0.0, 1.0]])
    config = DecodeConfig(length_penalty=1.0, coverage_penalty=2.0)
    assert penalized_score(-3.0, attention, config) == pytest.approx(-1.5 + 2 * math.log(0.5))
    assert penalized_score(-3.0, attention, DecodeConfig()) == -3.0
