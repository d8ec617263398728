"""Summarize the results of an experiment: mean and spread over seeds, gains, sign tests, speed.

A system is compared only with the baseline of the same seed, and in speed only on the same machine.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, groupby
from statistics import mean
from typing import Any

from covnmt.base.config import PAPER_SYSTEMS, flatten_keys
from covnmt.metrics.bleu import PAPER_BLEU
from covnmt.metrics.bootstrap import ConfidenceInterval, bleu_gain_interval
from covnmt.metrics.significance import SignTest, sign_test
from covnmt.paper.experiments import Experiment
from covnmt.paper.plan import choose_jobs
from covnmt.paper.results import Result
from covnmt.paper.systems import PHRASE_BASED, VARIANTS

BASELINE = "baseline"
COVERAGE_SYSTEM = "gru10"  # shown next to the baseline
# Settings in which the systems of one table may differ.
OWN_SETTINGS = ("model.coverage.", "train.seed", "train.minutes")


@dataclass(frozen=True)
class Spread:
    """The values of a figure over the seeds."""

    mean: float
    low: float
    high: float
    seeds: int

    @classmethod
    def from_values(cls, values: Sequence[float]) -> "Spread":
        """Summarize at least one value."""
        return cls(mean(values), min(values), max(values), len(values))


@dataclass(frozen=True)
class SystemSummary:
    """One system over its seeds; gain, sign tests and speed ratio compare it with the baseline.

    Intervals are 95% bootstrap confidence intervals over the test sentences.
    """

    system: str
    seeds: tuple[int, ...]
    parameters: int
    scores: Mapping[str, Spread]
    gain: float | None  # in BLEU, over the baseline of the same seeds
    gain_interval: ConfidenceInterval | None
    sign_tests: Mapping[int, SignTest]  # by seed
    phrase_tests: Mapping[int, SignTest]  # against the phrase-based system, which has one seed
    words_per_second: Spread | None
    speed_ratio: float | None
    updates: Spread
    change: float | None  # of a variant: in BLEU, over the system it modifies, same seeds
    change_interval: ConfidenceInterval | None

    def to_json(self) -> dict[str, Any]:
        """Return plain values under the keys of summary.json (`gain_band` is an interval)."""
        return {key.replace("_interval", "_band"): value for key, value in asdict(self).items()}


@dataclass(frozen=True)
class Summary:
    """All systems of an experiment, and which results are missing."""

    experiment: str
    systems: tuple[SystemSummary, ...]
    missing: tuple[str, ...]
    commits: tuple[str, ...]
    machines: tuple[str, ...]
    unequal: tuple[str, ...]  # settings in which the paper's systems differ, but should not

    def find(self, system: str) -> SystemSummary | None:
        """Return the summary of a system, if it has results."""
        return next((summary for summary in self.systems if summary.system == system), None)

    def to_json(self) -> dict[str, Any]:
        """Return the content of summary.json."""
        return {**asdict(self), "systems": [system.to_json() for system in self.systems]}


def summarize_results(experiment: Experiment, results: Sequence[Result]) -> Summary:
    """Summarize all results, systems in the paper's order."""
    finished = {(result.system, result.seed) for result in results}
    groups = group_by_system(results)
    baseline = {result.seed: result for result in groups.get(BASELINE, [])}
    phrase_based = next(iter(groups.get(PHRASE_BASED, [])), None)
    return Summary(
        experiment=experiment.name,
        systems=tuple(
            summarize_system(
                group,
                baseline,
                phrase_based,
                groups.get(VARIANTS[system].base, []) if system in VARIANTS else [],
            )
            for system, group in groups.items()
        ),
        missing=tuple(
            job.name for job in choose_jobs(experiment) if (job.system, job.seed) not in finished
        ),
        commits=_unique(result.commit for result in results),
        machines=_unique(result.machine.name for result in results),
        unequal=differing_settings([r for r in results if r.system in PAPER_SYSTEMS]),
    )


def group_by_system(results: Iterable[Result]) -> dict[str, list[Result]]:
    """Group results by system, sorted by seed: the paper's rows, our variants, then any other."""
    order = [PHRASE_BASED, *PAPER_SYSTEMS, *VARIANTS]
    rank = {system: number for number, system in enumerate(order)}
    ordered = sorted(results, key=lambda r: (rank.get(r.system, len(order)), r.system, r.seed))
    return {system: list(group) for system, group in groupby(ordered, lambda r: r.system)}


def summarize_system(
    results: Sequence[Result],
    baseline: Mapping[int, Result],
    phrase_based: Result | None,
    base_results: Sequence[Result],
) -> SystemSummary:
    """Compare a system's results with the baseline, the phrase-based system, and its base."""
    first = results[0]
    with_baseline = [
        (result, baseline[result.seed])
        for result in results
        if result.seed in baseline and result.system != BASELINE
    ]
    with_base = [(r, base) for r in results for base in base_results if r.seed == base.seed]
    gain, gain_interval = _mean_gain(with_baseline)
    change, change_interval = _mean_gain(with_base)
    ratios = [
        result.speed / base.speed
        for result, base in with_baseline
        # code may get faster between commits
        if (result.machine.name, result.commit) == (base.machine.name, base.commit)
        if result.speed and base.speed
    ]
    speeds = [result.speed for result in results if result.speed]
    values = [result.score_values for result in results]
    return SystemSummary(
        system=first.system,
        seeds=tuple(result.seed for result in results),
        parameters=first.parameters["total"],
        scores={
            name: Spread.from_values([scores[name] for scores in values if name in scores])
            for name in dict.fromkeys(chain.from_iterable(values))
        },
        gain=gain,
        gain_interval=gain_interval,
        sign_tests={r.seed: sign_test(base.statistics, r.statistics) for r, base in with_baseline},
        phrase_tests={
            result.seed: sign_test(phrase_based.statistics, result.statistics)
            for result in results
            if phrase_based and result.system != PHRASE_BASED
        },
        words_per_second=Spread.from_values(speeds) if speeds else None,
        speed_ratio=mean(ratios) if ratios else None,
        updates=Spread.from_values([result.training.update for result in results]),
        change=change,
        change_interval=change_interval,
    )


def _mean_gain(
    pairs: Sequence[tuple[Result, Result]],
) -> tuple[float | None, ConfidenceInterval | None]:
    """Compute by how much BLEU the first of each pair is better, on average, and its interval."""
    if not pairs:
        return None, None
    scores = [[result.score_values.get(PAPER_BLEU, 0.0) for result in pair] for pair in pairs]
    gain = mean(bleu - reference_bleu for bleu, reference_bleu in scores)
    statistics = [(reference.statistics, result.statistics) for result, reference in pairs]
    return gain, bleu_gain_interval(statistics)


def differing_settings(results: Sequence[Result]) -> tuple[str, ...]:
    """List settings with more than one value, except those that define the systems.

    A penalty that is chosen on the dev set counts as one setting for all systems.
    """
    chosen = {"decode.length_penalty": "chosen on the dev set"}
    recipes = [flatten_keys(r.recipe) | (chosen if r.tuning else {}) for r in results]
    keys = dict.fromkeys(key for recipe in recipes for key in recipe)
    values = {key: {str(recipe.get(key)) for recipe in recipes} for key in keys}
    return tuple(
        f"{key}: {' or '.join(sorted(different))}"
        for key, different in values.items()
        if len(different) > 1 and not key.startswith(OWN_SETTINGS)
    )


def _unique(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))
