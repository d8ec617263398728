"""Compute scores by source length (paper, section 5.4).

Sentences are grouped by their number of source words in buckets of ten, the last one open. Each
bucket gets the paper's BLEU and the mean output length with their bootstrap confidence intervals.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from covnmt.base.arrays import DoubleArray, IntArray
from covnmt.metrics.bleu import OUTPUT_LENGTH, REFERENCE_LENGTH, bleu_from_totals
from covnmt.metrics.bootstrap import (
    BOOTSTRAP_SAMPLES,
    BOOTSTRAP_SEED,
    ConfidenceInterval,
    confidence_interval,
    resample_counts,
)

# Maps sentence indices to a score.
SubsetMeasure = Callable[[Sequence[int]], float]

BUCKET_WIDTH = 10  # source words
BUCKET_COUNT = 7  # the last one takes everything longer


@dataclass(frozen=True)
class LengthBucket:
    """The scores of sentences with `low` to `high` source words (None: or more)."""

    low: int
    high: int | None
    sentences: int
    bleu: float
    bleu_interval: ConfidenceInterval
    output_length: float
    output_length_interval: ConfidenceInterval
    reference_length: float
    measures: Mapping[str, float]

    @property
    def label(self) -> str:
        return f"{self.low}-{self.high}" if self.high is not None else f"{self.low}+"

    @property
    def length_ratio(self) -> float:
        return self.output_length / self.reference_length if self.reference_length else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain values under the keys of the result files (`bleu_band` is an interval)."""
        fields = {name.replace("_interval", "_band"): value for name, value in asdict(self).items()}
        return {"label": self.label, **fields, "length_ratio": self.length_ratio}


def scores_by_length(
    statistics: IntArray,
    source_lengths: Sequence[int],
    measures: Mapping[str, SubsetMeasure] | None = None,
    samples: int = BOOTSTRAP_SAMPLES,
) -> tuple[LengthBucket, ...]:
    """Score each non-empty bucket of source lengths.

    `statistics` are BLEU statistics [N, 10], which also give output and reference lengths.
    `measures` names further scores, each a function of sentence indices.
    """
    if len(source_lengths) != len(statistics):
        raise ValueError(f"{len(source_lengths)} source lengths for {len(statistics)} sentences")
    last = BUCKET_COUNT - 1
    bucket_numbers = np.clip(
        (np.asarray(source_lengths, dtype=np.int64) - 1) // BUCKET_WIDTH, 0, last
    )
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    buckets = []
    for number in np.unique(bucket_numbers).tolist():
        sentences = np.flatnonzero(bucket_numbers == number)
        rows = statistics[sentences]
        bleu_samples, length_samples = _bootstrap(rows, samples, rng)
        buckets.append(
            LengthBucket(
                low=number * BUCKET_WIDTH + 1,
                high=None if number == last else (number + 1) * BUCKET_WIDTH,
                sentences=len(rows),
                bleu=float(bleu_from_totals(rows.sum(axis=0))),
                bleu_interval=confidence_interval(bleu_samples),
                output_length=float(rows[:, OUTPUT_LENGTH].mean()),
                output_length_interval=confidence_interval(length_samples),
                reference_length=float(rows[:, REFERENCE_LENGTH].mean()),
                measures={
                    name: measure(sentences.tolist()) for name, measure in (measures or {}).items()
                },
            )
        )
    return tuple(buckets)


def _bootstrap(
    statistics: IntArray, samples: int, rng: np.random.Generator
) -> tuple[DoubleArray, DoubleArray]:
    """Return BLEU and mean output length of every bootstrap sample, each [samples]."""
    totals = resample_counts(len(statistics), samples, rng) @ statistics  # [samples, 10]
    return bleu_from_totals(totals), totals[:, OUTPUT_LENGTH] / len(statistics)
