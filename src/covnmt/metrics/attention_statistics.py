"""Compute statistics of attention: effect of coverage, fertility, entropy (paper, section 3).

Soft matrices are [I, J]: alpha_ij is the weight of source word j for target word i, without the
end symbols. C_ij is the attention that word j has received up to step i, Phi_j its predicted
fertility.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from covnmt.base.arrays import DoubleArray, FloatArray
from covnmt.metrics.bootstrap import (
    BOOTSTRAP_SAMPLES,
    BOOTSTRAP_SEED,
    ConfidenceInterval,
    confidence_interval,
    resample_counts,
)

# Coverage under which a source word is not yet covered, and above which it is covered.
UNCOVERED, COVERED = 0.2, 1.0
GROUPS = ("uncovered", "partly", "covered")
# columns of the sums over the words of a group
WORDS, LOG_ATTENTION, CHANGE = range(3)


@dataclass(frozen=True)
class FertilityFit:
    """How predicted fertility Phi_j fits the attention received, over all source words."""

    correlation: float
    mean_predicted: float
    mean_received: float
    mean_absolute_difference: float


class AttendedPair(NamedTuple):
    """The attention of one pair, and what it would be without coverage at each step."""

    attention: FloatArray  # [I, J]
    without_coverage: FloatArray  # [I, J]
    fertility: FloatArray | None = None  # [J] Phi, which divides the attention received
    unattended: FloatArray | None = None  # [I, J] with the coverage of words never attended to


@dataclass(frozen=True)
class WordGroup:
    """Word-step pairs whose source word had this much coverage before the step."""

    words: int
    log_attention: float  # mean, in nats
    change: float  # mean of log attention with coverage minus without
    change_interval: ConfidenceInterval


@dataclass(frozen=True)
class CoverageEffect:
    """How the coverage changes the attention to words that are covered, and to others."""

    uncovered: WordGroup
    partly: WordGroup
    covered: WordGroup
    difference: float  # change of covered words minus that of words not yet covered
    difference_interval: ConfidenceInterval
    # The same difference against the coverage that words would have without any attention. Neural
    # coverage changes without attention too, so only this one says what attention received does.
    attended: float | None = None
    attended_interval: ConfidenceInterval | None = None


def coverage_effect(pairs: Iterable[AttendedPair]) -> CoverageEffect:
    """Compare attention with the coverage and without it, by what words have received before.

    A word's coverage is the attention received so far, divided by its fertility where the model has
    one. Intervals are 95% bootstrap confidence intervals over the pairs.
    """
    pairs = list(pairs)
    effect = _compare_attention(pairs)
    unattended = [
        pair._replace(without_coverage=pair.unattended)
        for pair in pairs
        if pair.unattended is not None
    ]
    if not unattended:
        return effect
    attended = _compare_attention(unattended)
    return replace(
        effect, attended=attended.difference, attended_interval=attended.difference_interval
    )


def _compare_attention(pairs: Sequence[AttendedPair]) -> CoverageEffect:
    rows = [_sums_of_pair(pair) for pair in pairs] or [np.zeros((len(GROUPS), 3))]
    sums = np.stack(rows)  # [N, groups, 3]
    samples = resample_counts(len(sums), BOOTSTRAP_SAMPLES, np.random.default_rng(BOOTSTRAP_SEED))
    resampled = np.tensordot(samples, sums, axes=1)  # [samples, groups, 3]
    means, mean_samples = _group_means(sums.sum(axis=0)), _group_means(resampled)
    groups = [
        WordGroup(
            words=int(sums[:, group, WORDS].sum()),
            log_attention=float(means[group, LOG_ATTENTION]),
            change=float(means[group, CHANGE]),
            change_interval=confidence_interval(mean_samples[:, group, CHANGE]),
        )
        for group in range(len(GROUPS))
    ]
    changes = mean_samples[:, :, CHANGE]
    differences = changes[:, GROUPS.index("covered")] - changes[:, GROUPS.index("uncovered")]
    uncovered, partly, covered = groups
    return CoverageEffect(
        uncovered,
        partly,
        covered,
        difference=covered.change - uncovered.change,
        difference_interval=confidence_interval(differences),
    )


def _sums_of_pair(pair: AttendedPair) -> DoubleArray:
    """Return words, sum of log attention and sum of its change by group [groups, 3]."""
    alpha, without = (matrix.astype(np.float64) for matrix in pair[:2])
    fertility = 1.0 if pair.fertility is None else pair.fertility
    before = (np.cumsum(alpha, axis=0) - alpha) / fertility  # C_{i-1} [I, J]
    groups = np.digitize(before, (UNCOVERED, np.nextafter(COVERED, 2)))
    valid = (alpha > 0) & (without > 0)  # weights too small for float32 are 0
    logs = np.log(np.where(valid, alpha, 1))
    changes = logs - np.log(np.where(valid, without, 1))
    rows = [valid & (groups == group) for group in range(len(GROUPS))]
    return np.array([[row.sum(), logs[row].sum(), changes[row].sum()] for row in rows])


def _group_means(sums: DoubleArray) -> DoubleArray:
    """Divide sums [..., groups, 3] by the words; 0 for a group without words."""
    words = sums[..., [WORDS]]
    return np.divide(sums, words, out=np.zeros_like(sums), where=words > 0)


def fertility_fit(
    fertility: Sequence[Sequence[float]], attention: Sequence[FloatArray]
) -> FertilityFit:
    """Compare Phi_j with the attention that each source word received, sum over i of alpha_ij."""
    predicted = _concatenate(fertility)
    received = _concatenate([alpha.sum(axis=0, dtype=np.float64) for alpha in attention])
    if predicted.shape != received.shape:
        raise ValueError(f"{predicted.size} fertilities for {received.size} source words")
    return FertilityFit(
        correlation=_correlation(predicted, received),
        mean_predicted=_mean(predicted),
        mean_received=_mean(received),
        mean_absolute_difference=_mean(np.abs(predicted - received)),
    )


def attention_entropy(attention: Sequence[FloatArray]) -> float:
    """Compute the mean entropy of attention per target word in bits; 0 is attention to one word.

    What a row lacks to 1 is the weight on the source end symbol, which counts as a word.
    """
    return _mean(_concatenate([_row_entropies(alpha) for alpha in attention]))


def _row_entropies(alpha: FloatArray) -> DoubleArray:
    rows = alpha.astype(np.float64)
    end = np.maximum(0.0, 1.0 - rows.sum(axis=1, keepdims=True))  # [I, 1]
    weights = np.concatenate([rows, end], axis=1)  # [I, J + 1]
    logs = np.log2(weights, out=np.zeros_like(weights), where=weights > 0)
    return np.asarray(-(weights * logs).sum(axis=1))  # [I]


def _concatenate(arrays: Sequence[ArrayLike]) -> DoubleArray:
    return np.concatenate([np.zeros(0), *(np.asarray(array, dtype=np.float64) for array in arrays)])


def _mean(values: DoubleArray) -> float:
    return float(values.mean()) if values.size else 0.0


def _correlation(first: DoubleArray, second: DoubleArray) -> float:
    """Compute Pearson's r; 0 where one array never varies."""
    if first.size < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])
