"""How far might a figure move on other test sentences? Bootstrap samples (Koehn, 2004).

Sentences are drawn anew, with replacement, as many as there are, many times over; a band holds the
figure in 95% of these samples.
"""

from collections.abc import Sequence

import numpy as np

from covnmt.base.arrays import DoubleArray, IntArray
from covnmt.metrics.bleu import corpus_bleu

ConfidenceInterval = tuple[float, float]

BOOTSTRAP_SAMPLES, BOOTSTRAP_SEED = 1000, 1234


def resample_counts(sentences: int, samples: int, rng: np.random.Generator) -> DoubleArray:
    """How often each sentence is in each sample [samples, sentences]."""
    # whole numbers this small are exact as floats
    each = np.full(sentences, 1 / sentences)
    return rng.multinomial(sentences, each, size=samples).astype(np.float64)


def confidence_interval(values: DoubleArray) -> ConfidenceInterval:
    """What lies between the lowest and the highest 2.5%."""
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def bleu_gain_interval(pairs: Sequence[tuple[IntArray, IntArray]]) -> ConfidenceInterval:
    """Of the gain in BLEU over a baseline, as the mean over pairs of baseline and system.

    Pairs are BLEU counts [N, 10] of the same N sentences, as of several seeds; a sample has the
    same sentences of all of them.
    """
    drawn = resample_counts(
        len(pairs[0][0]), BOOTSTRAP_SAMPLES, np.random.default_rng(BOOTSTRAP_SEED)
    )  # [samples, N]
    gains = [corpus_bleu(drawn @ system) - corpus_bleu(drawn @ base) for base, system in pairs]
    return confidence_interval(np.mean(gains, axis=0))
