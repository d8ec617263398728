"""Does it hold up on long sentences? Scores by source length (paper, section 5.4).

Sentences are grouped by the number of source words, ten to a group, with an open last group.
Each group gets the paper's BLEU and the length of the output, both with a band that 95% of
bootstrap samples of its sentences fall into.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from covnmt.base.arrays import DoubleArray, IntArray
from covnmt.metrics.bleu import OUTPUT_LENGTH, REFERENCE_LENGTH, corpus_bleu
from covnmt.metrics.bootstrap import (
    BOOTSTRAP_SAMPLES,
    BOOTSTRAP_SEED,
    ConfidenceInterval,
    confidence_interval,
    resample_counts,
)

SubsetMeasure = Callable[[Sequence[int]], float]

BUCKET_WIDTH, BUCKET_COUNT = (
    10,
    7,
)  # source words of a group; the last group takes everything longer


@dataclass(frozen=True)
class LengthBucket:
    """Sentences of `low` to `high` source words (no `high`: or more), and how they came out."""

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
        """For a table or an axis."""
        return f"{self.low}-{self.high}" if self.high is not None else f"{self.low}+"

    @property
    def length_ratio(self) -> float:
        """Output length over reference length."""
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
    """Group sentences by source length; groups without a sentence are left out.

    `statistics` are the BLEU counts [N, 10] of `covnmt.metrics.bleu`, whose tokens also make the
    lengths. `measures` name further figures, each a function of the chosen sentence numbers.
    """
    last = BUCKET_COUNT - 1
    numbers = np.clip((np.asarray(source_lengths, dtype=np.int64) - 1) // BUCKET_WIDTH, 0, last)
    if len(numbers) != len(statistics):
        raise ValueError(f"{len(numbers)} source lengths for {len(statistics)} sentences")
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    buckets = []
    for number in np.unique(numbers).tolist():
        chosen = np.flatnonzero(numbers == number)
        rows = statistics[chosen]
        scores, lengths = _resampled(rows, samples, rng)
        buckets.append(
            LengthBucket(
                low=number * BUCKET_WIDTH + 1,
                high=None if number == last else (number + 1) * BUCKET_WIDTH,
                sentences=len(rows),
                bleu=float(corpus_bleu(rows.sum(axis=0))),
                bleu_interval=confidence_interval(scores),
                output_length=float(rows[:, OUTPUT_LENGTH].mean()),
                output_length_interval=confidence_interval(lengths),
                reference_length=float(rows[:, REFERENCE_LENGTH].mean()),
                measures={name: f(chosen.tolist()) for name, f in (measures or {}).items()},
            )
        )
    return tuple(buckets)


def _resampled(
    rows: IntArray, samples: int, rng: np.random.Generator
) -> tuple[DoubleArray, DoubleArray]:
    """BLEU and mean output length of as many sentences drawn anew, `samples` times."""
    totals = resample_counts(len(rows), samples, rng) @ rows  # [samples, 10]
    return corpus_bleu(totals), totals[:, OUTPUT_LENGTH] / len(rows)
