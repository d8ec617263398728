"""Compute 95% bootstrap confidence intervals over the sentences of a test set (Koehn, 2004)."""

from collections.abc import Sequence

import numpy as np

from covnmt.base.arrays import DoubleArray, IntArray
from covnmt.metrics.bleu import bleu_from_totals

ConfidenceInterval = tuple[float, float]

BOOTSTRAP_SAMPLES, BOOTSTRAP_SEED = 1000, 1234


def resample_counts(sentences: int, samples: int, rng: np.random.Generator) -> DoubleArray:
    """Draw bootstrap samples: how often each sentence is in each sample [samples, sentences]."""
    # integers this small are exact as floats, and the products with them are fast
    probabilities = np.full(sentences, 1 / sentences)
    return rng.multinomial(sentences, probabilities, size=samples).astype(np.float64)


def confidence_interval(values: DoubleArray) -> ConfidenceInterval:
    """Return the 2.5th and the 97.5th percentile of a statistic over bootstrap samples."""
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def bleu_gain_interval(pairs: Sequence[tuple[IntArray, IntArray]]) -> ConfidenceInterval:
    """Return the interval of the gain in BLEU over a baseline, averaged over pairs.

    A pair holds the BLEU statistics [N, 10] of baseline and system, for example of one seed; each
    sample takes the same sentences from all pairs.
    """
    counts = resample_counts(
        len(pairs[0][0]), BOOTSTRAP_SAMPLES, np.random.default_rng(BOOTSTRAP_SEED)
    )  # [samples, N]
    gains = [
        bleu_from_totals(counts @ system) - bleu_from_totals(counts @ baseline)
        for baseline, system in pairs
    ]
    return confidence_interval(np.mean(gains, axis=0))
