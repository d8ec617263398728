"""Compute statistics of attention: coverage, fertility, entropy (paper, sections 3.1 and 3.2).

Soft matrices are [I, J]: alpha_ij is the weight of source word j for target word i, without the
end symbols. C_ij is the attention that word j has received up to step i, Phi_j its predicted
fertility.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from covnmt.base.arrays import DoubleArray, FloatArray


@dataclass(frozen=True)
class FertilityFit:
    """How predicted fertility Phi_j fits the attention received, over all source words."""

    correlation: float
    mean_predicted: float
    mean_received: float
    mean_absolute_difference: float


def coverage_correlation(attention: Sequence[FloatArray]) -> float:
    """Compute the Pearson correlation of C_{i-1,j} with alpha_ij over all steps but the first.

    The paper finds it negative: covered words get less attention.
    """
    coverage, next_attention = [], []
    for alpha in attention:
        C = np.cumsum(alpha, axis=0, dtype=np.float64)  # [I, J]
        coverage.append(C[:-1].ravel())
        next_attention.append(alpha[1:].ravel())
    return _correlation(_concatenate(coverage), _concatenate(next_attention))


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
