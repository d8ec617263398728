"""The rules of a search (SPEC 1.5): its limits, what it tries again, what ranks hypotheses.

Letters: I target and J source positions, both with the end symbol.
"""

from collections.abc import Iterator

import numpy as np

from covnmt.base.arrays import AnyArray, IntArray
from covnmt.base.config import DecodeConfig

MAX_RETRY_BEAM = 100  # a beam this wide is not doubled any more


def search_attempts(config: DecodeConfig) -> Iterator[DecodeConfig]:
    """What to try while no hypothesis finishes: first allow UNK, then double the beam."""
    yield config
    if not config.retry:
        return
    if config.forbid_unk:
        config = config.model_copy(update={"forbid_unk": False})
        yield config
    while config.beam < MAX_RETRY_BEAM:
        config = config.model_copy(update={"beam": 2 * config.beam})
        yield config


def step_limits(source_lengths: IntArray, config: DecodeConfig) -> tuple[IntArray, IntArray]:
    """Steps during which the end symbol is forbidden, and most steps, of every sentence."""
    if config.length_rules:
        return source_lengths // 2, 3 * source_lengths
    return np.zeros_like(source_lengths), np.full_like(source_lengths, config.max_length)


def length_penalty(length: int, alpha: float) -> float:
    """What a log-probability is divided by; the length counts the end symbol."""
    return float(length**alpha)


def coverage_penalty(attention: AnyArray, beta: float) -> float:
    """What is added for source words that got less than one word's attention (GNMT).

        beta * sum_j log(min(sum_i alpha_ij, 1))

    The last column, the source end symbol, needs no covering.
    """
    return beta * uncovered(attention[:, :-1].sum(axis=0)) if beta else 0.0


def uncovered(total: AnyArray) -> float:
    """That sum, for the attention that each source word got in all [J - 1]; 0: all are covered.

    A word without any attention counts as the smallest positive number, so that the sum stays
    finite.
    """
    return float(np.log(total.clip(np.finfo(total.dtype).tiny, 1)).sum())


def penalized_score(log_prob: float, attention: AnyArray, config: DecodeConfig) -> float:
    """The score that ranks hypotheses."""
    divisor = length_penalty(len(attention), config.length_penalty)
    return log_prob / divisor + coverage_penalty(attention, config.coverage_penalty)
