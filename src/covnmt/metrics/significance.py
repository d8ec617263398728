"""Is one system better than another, or was it luck? (paper, section 5.1 and Table 1)

The paper's test is the sign test of Collins, Koehn and Kucerova (2005). Put one sentence of the
other system into the baseline's output and see whether corpus BLEU goes up or down; do so for
every sentence; ask how probable so uneven a split of ups and downs would be with a fair coin.
From kept statistics each swap costs a subtraction and an addition.

sacreBLEU's paired bootstrap and approximate randomization stand beside it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

import numpy as np
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest, Result

from covnmt.base.arrays import IntArray
from covnmt.metrics.bleu import corpus_bleu

Alternative = Literal["two-sided", "greater"]
ResamplingMethod = Literal["bootstrap", "randomization"]

# Far below what one n-gram changes in millions, far above rounding.
EQUAL_TOLERANCE = 1e-12


@dataclass(frozen=True)
class SignTest:
    """Sentences where the system raises, lowers or leaves the baseline's BLEU, and the p-value."""

    up: int
    down: int
    same: int
    p_value: float
    alternative: Alternative

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@dataclass(frozen=True)
class PairedTestResult:
    """sacreBLEU's verdict on one system: score, 95% interval, p-value against the baseline."""

    system: str
    metric: str
    score: float
    p_value: float | None
    mean: float | None
    half_width: float | None
    signature: str

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def sign_test(
    baseline: IntArray, system: IntArray, alternative: Alternative = "two-sided"
) -> SignTest:
    """Compare two outputs by their BLEU statistics [N, 10] (see `covnmt.metrics.bleu`).

    `greater` asks only whether the system is better, not whether it differs.
    """
    if baseline.shape != system.shape:
        raise ValueError(f"systems of {len(baseline)} and {len(system)} sentences")
    total = baseline.sum(axis=0)  # [10]
    before = corpus_bleu(total)
    after = corpus_bleu(total + system - baseline)  # [N]
    change = np.where(np.abs(after - before) <= EQUAL_TOLERANCE * before, 0.0, after - before)
    up, down = int((change > 0).sum()), int((change < 0).sum())
    p_value = (
        binomial_two_sided(up, down) if alternative == "two-sided" else binomial_tail(up, up + down)
    )
    return SignTest(up, down, len(change) - up - down, p_value, alternative)


def binomial_two_sided(up: int, down: int) -> float:
    """Probability of a split at least this uneven with a fair coin, exactly."""
    return min(1.0, 2.0 * binomial_tail(max(up, down), up + down))


def binomial_tail(successes: int, trials: int) -> float:
    """Probability of at least so many heads in so many throws of a fair coin.

    Summed in whole numbers, so there is nothing to round until the last division.
    """
    ways = math.comb(trials, successes)
    total = 0
    for k in range(successes, trials + 1):
        total += ways
        ways = ways * (trials - k) // (k + 1)
    return total / (1 << trials)


def paired_tests(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[Sequence[str]],
    method: ResamplingMethod,
    samples: int = 0,
    tokenize: str = "13a",
) -> list[PairedTestResult]:
    """sacreBLEU's paired test of every system against the first, for BLEU and chrF.

    `samples` 0 is sacreBLEU's own number (1,000 for bootstrap, 10,000 for randomization); its
    seed is 12345, or what the environment variable SACREBLEU_SEED says. Where two scores are
    equal sacreBLEU returns its smallest p-value; here there is nothing to explain, and p is 1.
    Likewise where only a few sentences differ: see `least_p_value`.
    """
    metrics: dict[str, Metric] = {"BLEU": BLEU(tokenize=tokenize, force=True), "chrF": CHRF()}
    kind = "bs" if method == "bootstrap" else "ar"
    signatures, results = PairedTest(
        list(systems.items()), metrics, references, test_type=kind, n_samples=samples
    )()
    first = next(iter(systems.values()))
    found = []
    for metric, signature in signatures.items():
        baseline, *others = [cast(Result, result) for result in results[metric]]
        for (system, lines), result in zip(systems.items(), [baseline, *others], strict=True):
            if result is not baseline:
                same = result.score == baseline.score
                least = 1.0 if same else smallest_p_value(first, lines)
                result.p_value = max(least, result.p_value or 0.0)
            found.append(_paired(system, metric, result, str(signature)))
    return found


def smallest_p_value(first: Sequence[str], second: Sequence[str]) -> float:
    """What no two-sided test of these outputs can go below.

    Were it chance which system wrote which line, the k lines that differ would lie in 2^k ways, and
    two of them, as it is and the other way round, are as uneven as what was seen. sacreBLEU counts
    only what is more uneven still, so it finds a single line that differs beyond doubt.
    """
    differing = sum(one != other for one, other in zip(first, second, strict=True))
    return min(1.0, 2.0 * 0.5**differing)


def _paired(system: str, metric: str, result: Result, signature: str) -> PairedTestResult:
    return PairedTestResult(
        system=system,
        metric=metric,
        score=float(result.score),
        p_value=_float(result.p_value),
        mean=_float(result.mean),
        half_width=_float(result.ci),
        signature=signature,
    )


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)
