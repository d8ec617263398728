"""Test whether one system is significantly better than another (paper, section 5.1, Table 1).

The paper uses the sign test of Collins, Koehn and Kucerova (2005): replace one sentence of the
baseline's output by the other system's, note whether corpus BLEU goes up or down, do so for every
sentence, and test the counts of ups and downs against a fair coin. With BLEU statistics a
replacement costs a subtraction and an addition.

sacreBLEU's paired bootstrap and approximate randomization are here too.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest, Result

from covnmt.base.arrays import IntArray
from covnmt.metrics.bleu import bleu_from_totals, sacre_bleu_metric

Alternative = Literal["two-sided", "greater"]
ResamplingMethod = Literal["bootstrap", "randomization"]

SIGNIFICANCE_LEVEL = 0.01
# Far below what one n-gram changes in millions, far above rounding.
EQUAL_TOLERANCE = 1e-12


@dataclass(frozen=True)
class SignTest:
    """How many sentences raise, lower or leave the baseline's BLEU, and the p-value."""

    up: int
    down: int
    same: int
    p_value: float
    alternative: Alternative

    @property
    def is_gain(self) -> bool:
        """Whether the system is significantly better than the baseline (paper: p < 0.01)."""
        return self.p_value < SIGNIFICANCE_LEVEL and self.up > self.down


@dataclass(frozen=True)
class PairedTestResult:
    """sacreBLEU's result for one system: score, 95% interval, p-value against the baseline."""

    system: str
    metric: str
    score: float
    p_value: float | None
    mean: float | None
    half_width: float | None
    signature: str


def sign_test(
    baseline: IntArray, system: IntArray, alternative: Alternative = "two-sided"
) -> SignTest:
    """Compare two outputs by their BLEU statistics [N, 10].

    With `greater` the alternative hypothesis is that the system is better, not that it differs.
    """
    if baseline.shape != system.shape:
        raise ValueError(f"systems of {len(baseline)} and {len(system)} sentences")
    total = baseline.sum(axis=0)  # [10]
    before = bleu_from_totals(total)
    after = bleu_from_totals(total + system - baseline)  # [N]
    change = np.where(np.abs(after - before) <= EQUAL_TOLERANCE * before, 0.0, after - before)
    up, down = int((change > 0).sum()), int((change < 0).sum())
    p_value = (
        binomial_two_sided(up, down) if alternative == "two-sided" else binomial_tail(up, up + down)
    )
    return SignTest(up, down, len(change) - up - down, p_value, alternative)


def binomial_two_sided(up: int, down: int) -> float:
    """Return the exact probability that a fair coin splits at least as unevenly."""
    return min(1.0, 2.0 * binomial_tail(max(up, down), up + down))


def binomial_tail(successes: int, trials: int) -> float:
    """Return the exact probability of at least so many heads in so many throws of a fair coin."""
    # integers: nothing is rounded before the division
    combinations = math.comb(trials, successes)
    total = 0
    for k in range(successes, trials + 1):
        total += combinations
        combinations = combinations * (trials - k) // (k + 1)
    return total / (1 << trials)


def paired_tests(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[Sequence[str]],
    method: ResamplingMethod,
    samples: int = 0,
    tokenize: str = "13a",
) -> list[PairedTestResult]:
    """Run sacreBLEU's paired test of every system against the first, for BLEU and chrF.

    `samples` 0 takes sacreBLEU's default (1,000 for bootstrap, 10,000 for randomization); its
    seed is 12345, or the environment variable SACREBLEU_SEED. For equal scores sacreBLEU returns
    its smallest p-value; we return 1. For few differing sentences see `smallest_p_value`.
    """
    metrics: dict[str, Metric] = {"BLEU": sacre_bleu_metric(tokenize), "chrF": CHRF()}
    kind = "bs" if method == "bootstrap" else "ar"
    signatures, results = PairedTest(
        list(systems.items()), metrics, references, test_type=kind, n_samples=samples
    )()
    baseline_lines = next(iter(systems.values()))
    tests = []
    for metric, signature in signatures.items():
        baseline, *others = [cast(Result, result) for result in results[metric]]
        for (system, lines), result in zip(systems.items(), [baseline, *others], strict=True):
            if result is not baseline:
                equal_scores = result.score == baseline.score
                least = 1.0 if equal_scores else smallest_p_value(baseline_lines, lines)
                result.p_value = max(least, result.p_value or 0.0)
            tests.append(
                PairedTestResult(
                    system=system,
                    metric=metric,
                    score=float(result.score),
                    p_value=_float_or_none(result.p_value),
                    mean=_float_or_none(result.mean),
                    half_width=_float_or_none(result.ci),
                    signature=str(signature),
                )
            )
    return tests


def smallest_p_value(first: Sequence[str], second: Sequence[str]) -> float:
    """Return the lower bound of the p-value of any two-sided test of these outputs.

    k differing lines can be assigned to the two systems in 2^k ways, of which at least two (the
    one observed and its mirror image) are as uneven as the one observed. sacreBLEU counts only
    assignments that are more uneven, so its p-value for a single differing line would be minimal.
    """
    differing = sum(one != other for one, other in zip(first, second, strict=True))
    return min(1.0, 2.0 * 0.5**differing)


def _float_or_none(value: float | None) -> float | None:
    return None if value is None else float(value)
