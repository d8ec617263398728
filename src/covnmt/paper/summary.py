"""Results of one experiment put together: mean and spread over seeds, gains, sign tests, speed.

A system is compared with the baseline of the same seed only, and in speed only on the same machine.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

from covnmt.base.config import PAPER_SYSTEMS, flatten_keys
from covnmt.evaluation.evaluate import SIGNIFICANCE_LEVEL
from covnmt.metrics.bootstrap import ConfidenceInterval, bleu_gain_interval
from covnmt.metrics.significance import SignTest, sign_test
from covnmt.paper.experiments import Experiment
from covnmt.paper.jobs import choose_jobs
from covnmt.paper.results import PAPER_BLEU, Result
from covnmt.paper.systems import PHRASE_BASED, VARIANTS, base_system

BASELINE = "baseline"
# What may differ between the systems of one table.
OWN = ("model.coverage.", "train.seed", "train.minutes")


@dataclass(frozen=True)
class Spread:
    """A figure over the seeds."""

    mean: float
    low: float
    high: float
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        return cls(mean(values), min(values), max(values), len(values))


@dataclass(frozen=True)
class SystemSummary:
    """One system over its seeds; gain, tests and ratio are against the baseline.

    `phrase_tests` are against the phrase-based system, which has one seed.
    """

    system: str
    seeds: tuple[int, ...]
    parameters: int
    scores: Mapping[str, Spread]
    gain: float | None
    gain_band: ConfidenceInterval | None  # 95% of bootstrap samples of the test set
    sign_tests: Mapping[int, SignTest]  # by seed
    phrase_tests: Mapping[int, SignTest]
    words_per_second: Spread | None
    speed_ratio: float | None
    updates: Spread
    change: float | None  # of a variant: BLEU against what it is made of, same seeds
    change_band: ConfidenceInterval | None

    def better(self) -> int:
        """Seeds with which it is better than the baseline, p below 0.01."""
        return _won(self.sign_tests)

    def better_than_phrases(self) -> int:
        """Seeds with which it is better than the phrase-based system, p below 0.01."""
        return _won(self.phrase_tests)


def _won(tests: Mapping[int, SignTest]) -> int:
    return sum(test.p_value < SIGNIFICANCE_LEVEL and test.up > test.down for test in tests.values())


@dataclass(frozen=True)
class Summary:
    """All systems of an experiment, and what is not there."""

    experiment: str
    systems: tuple[SystemSummary, ...]
    missing: tuple[str, ...]
    commits: tuple[str, ...]
    machines: tuple[str, ...]
    unequal: tuple[str, ...]  # settings in which the six systems differ, but should not

    def find(self, system: str) -> SystemSummary | None:
        """A system by its name."""
        return next((each for each in self.systems if each.system == system), None)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def summarize_results(experiment: Experiment, results: Sequence[Result]) -> Summary:
    """Put the results together, systems in the paper's order."""
    done = {(result.system, result.seed) for result in results}
    groups = group_by_system(results)
    baseline = {result.seed: result for result in groups.get(BASELINE, [])}
    phrases = next(iter(groups.get(PHRASE_BASED, [])), None)
    planned = choose_jobs(experiment)
    return Summary(
        experiment=experiment.name,
        systems=tuple(
            summarize_system(group, baseline, phrases, groups.get(base_system(system), []))
            for system, group in groups.items()
        ),
        missing=tuple(job.name for job in planned if (job.system, job.seed) not in done),
        commits=_unique(result.commit for result in results),
        machines=_unique(result.machine.name for result in results),
        unequal=differing_settings([r for r in results if r.system in PAPER_SYSTEMS]),
    )


def group_by_system(results: Iterable[Result]) -> dict[str, list[Result]]:
    """Results of each system by seed: the paper's rows, our variants, then any other."""
    order = [PHRASE_BASED, *PAPER_SYSTEMS, *VARIANTS]
    rank = {system: number for number, system in enumerate(order)}
    groups: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda r: (rank.get(r.system, len(order)), r.system, r.seed)):
        groups.setdefault(result.system, []).append(result)
    return groups


def summarize_system(
    group: Sequence[Result],
    baseline: Mapping[int, Result],
    phrases: Result | None,
    origin: Sequence[Result],
) -> SystemSummary:
    """One system's results against the baseline's, the phrase-based system's, and those of the
    system it is a variant of."""
    first = group[0]
    pairs = [(r, baseline[r.seed]) for r in group if r.seed in baseline]
    rivals = [] if first.system == BASELINE else pairs
    origins = [(r, other) for r in group for other in origin if r.seed == other.seed]
    gain, band = _against(rivals)
    change, change_band = _against(origins)
    ratios = [
        system.speed / base.speed
        for system, base in rivals
        if system.speed and base.speed and speeds_comparable(system, base)
    ]
    speeds = [result.speed for result in group if result.speed]
    return SystemSummary(
        system=first.system,
        seeds=tuple(result.seed for result in group),
        parameters=first.parameters["total"],
        scores={name: Spread.of(values) for name, values in _scores(group).items()},
        gain=gain,
        gain_band=band,
        sign_tests={s.seed: sign_test(base.statistics, s.statistics) for s, base in rivals},
        phrase_tests={
            s.seed: sign_test(phrases.statistics, s.statistics)
            for s in group
            if phrases and s.system != PHRASE_BASED
        },
        words_per_second=Spread.of(speeds) if speeds else None,
        speed_ratio=mean(ratios) if ratios else None,
        updates=Spread.of([result.training.update for result in group]),
        change=change,
        change_band=change_band,
    )


def _against(
    pairs: Sequence[tuple[Result, Result]],
) -> tuple[float | None, ConfidenceInterval | None]:
    """By how much BLEU the first of each pair is ahead, in the mean, and within what band."""
    if not pairs:
        return None, None
    ahead = mean(_bleu(one) - _bleu(other) for one, other in pairs)
    return ahead, bleu_gain_interval([(other.statistics, one.statistics) for one, other in pairs])


def speeds_comparable(one: Result, other: Result) -> bool:
    """Whether their speeds are: code may have become faster between two commits."""
    return one.machine.name == other.machine.name and one.commit == other.commit


def differing_settings(results: Sequence[Result]) -> tuple[str, ...]:
    """Settings with more than one value, other than those that make the systems."""
    recipes = [shared_settings(result) for result in results]
    keys = dict.fromkeys(key for recipe in recipes for key in recipe)
    values = {key: {str(recipe.get(key)) for recipe in recipes} for key in keys}
    return tuple(
        f"{key}: {' or '.join(sorted(found))}"
        for key, found in values.items()
        if len(found) > 1 and not key.startswith(OWN)
    )


def shared_settings(result: Result) -> dict[str, Any]:
    """The recipe, flat; what was chosen on the dev set was chosen by one rule."""
    chosen = {"decode.length_penalty": "chosen on the dev set"} if result.tuning else {}
    return {**flatten_keys(result.recipe), **chosen}


def _bleu(result: Result) -> float:
    return result.score_values.get(PAPER_BLEU, 0.0)


def _scores(group: Sequence[Result]) -> dict[str, list[float]]:
    """The values of each score over the seeds."""
    found: dict[str, list[float]] = {}
    for result in group:
        for name, value in result.score_values.items():
            found.setdefault(name, []).append(value)
    return found


def _unique(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))
