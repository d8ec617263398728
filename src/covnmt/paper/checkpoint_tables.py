"""Compare systems over the last checkpoints of their runs, paired by seed and update.

Runs are compared only at updates that both have measured, the last ones. Checkpoints of one run
depend on each other: confidence intervals resample blocks of consecutive ones (Kunsch, 1989), and
the seeds stay as they are. They say how well the difference of these runs is known, not what
another seed would give; so every seed is shown.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import NamedTuple

import numpy as np

from covnmt.base.table import markdown_table
from covnmt.metrics.bootstrap import (
    BOOTSTRAP_SAMPLES,
    BOOTSTRAP_SEED,
    ConfidenceInterval,
    confidence_interval,
)
from covnmt.metrics.significance import binomial_two_sided
from covnmt.paper.experiments import LAST_CHECKPOINTS
from covnmt.paper.results import CheckpointScores, PartialResult, Result
from covnmt.paper.summary import BASELINE
from covnmt.paper.tables import (
    NOTHING,
    PAPER_ROWS,
    format_interval,
    format_number,
    system_label,
)

BLOCK = 3  # consecutive checkpoints that are resampled together


class CheckpointMeasure(NamedTuple):
    """A column of `CheckpointScores`."""

    field: str
    name: str
    higher_is_better: bool = False


BLEU = CheckpointMeasure("bleu", "BLEU", higher_is_better=True)
MEASURES = (
    CheckpointMeasure("dev_bleu", "dev BLEU", higher_is_better=True),
    BLEU,
    CheckpointMeasure("aer", "AER"),
    CheckpointMeasure("saer", "SAER"),
    CheckpointMeasure("drop", "DROP"),
    CheckpointMeasure("rep", "REP"),
    CheckpointMeasure("repeated_4grams", "repeated 4-grams"),
    CheckpointMeasure("length_ratio", "length ratio", higher_is_better=True),
)


@dataclass(frozen=True)
class MeasuredRun:
    """The checkpoints of one training, by update."""

    system: str
    seed: int
    finished: bool
    checkpoints: Mapping[int, CheckpointScores]

    @property
    def last(self) -> list[CheckpointScores]:
        """The last checkpoints, in order."""
        return [self.checkpoints[u] for u in sorted(self.checkpoints)[-LAST_CHECKPOINTS:]]

    def values(self, measure: CheckpointMeasure) -> list[float]:
        """Return a measure of the last checkpoints; empty if it was not measured."""
        values = [getattr(scores, measure.field) for scores in self.last]
        return [] if None in values else values


@dataclass(frozen=True)
class PairedDifference:
    """By how much a measure of a system differs from the baseline, at equal seeds and updates."""

    mean: float
    interval: ConfidenceInterval
    relative: float | None  # percent of the baseline
    better: int
    pairs: int
    p_value: float  # sign test over the pairs, as if they were independent
    by_seed: Mapping[int, float]


def collect_runs(results: Iterable[Result], partial: Iterable[PartialResult]) -> list[MeasuredRun]:
    """Collect the runs whose checkpoints were measured, finished or not."""
    everything: list[tuple[Result | PartialResult, bool]] = [
        *((result, True) for result in results),
        *((result, False) for result in partial),
    ]
    return [
        MeasuredRun(r.system, r.seed, finished, {scores.update: scores for scores in r.checkpoints})
        for r, finished in everything
        if r.checkpoints
    ]


def paired_difference(
    runs: Iterable[MeasuredRun], baselines: Iterable[MeasuredRun], measure: CheckpointMeasure
) -> PairedDifference | None:
    """Compare runs with those of the baseline with the same seeds; None if there are none."""
    by_seed = {run.seed: run for run in baselines}
    differences: dict[int, list[float]] = {}
    levels: list[float] = []
    for run in runs:
        if base := by_seed.get(run.seed):
            updates = sorted(run.checkpoints.keys() & base.checkpoints.keys())[-LAST_CHECKPOINTS:]
            sides = [
                [getattr(side.checkpoints[update], measure.field) for update in updates]
                for side in (base, run)
            ]
            if updates and None not in sides[0] + sides[1]:
                levels += sides[0]
                differences[run.seed] = [b - a for a, b in zip(*sides, strict=True)]
    if not differences:
        return None
    values = [value for row in differences.values() for value in row]
    signed = [value if measure.higher_is_better else -value for value in values]
    better, worse = sum(value > 0 for value in signed), sum(value < 0 for value in signed)
    seeds = {seed: mean(row) for seed, row in differences.items()}
    overall, level = mean(seeds.values()), mean(levels)
    return PairedDifference(
        mean=overall,
        interval=block_interval(list(differences.values())),
        relative=100 * overall / level if level else None,
        better=better,
        pairs=len(values),
        p_value=binomial_two_sided(better, worse),
        by_seed=seeds,
    )


def block_interval(rows: Sequence[Sequence[float]]) -> ConfidenceInterval:
    """Return the 95% interval of the mean over rows, resampling blocks within each row."""
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    means = []
    for row in rows:
        size = min(BLOCK, len(row))
        blocks = -(-len(row) // size)
        starts = rng.integers(0, len(row), (BOOTSTRAP_SAMPLES, blocks, 1))
        indices = (starts + np.arange(size)) % len(row)  # circular
        sampled = np.array(row)[indices].reshape(BOOTSTRAP_SAMPLES, -1)[:, : len(row)]
        means.append(sampled.mean(axis=1))
    return confidence_interval(np.mean(means, axis=0))


def runs_of(runs: Iterable[MeasuredRun], system: str) -> list[MeasuredRun]:
    """Return the runs of a system."""
    return [run for run in runs if run.system == system]


def systems_of(runs: Sequence[MeasuredRun]) -> list[str]:
    """Return the systems that have runs: the paper's in its order, then our variants."""
    systems = dict.fromkeys(run.system for run in runs)
    return [*(s for s in PAPER_ROWS if s in systems), *(s for s in systems if s not in PAPER_ROWS)]


def format_mean_and_deviation(runs: Sequence[MeasuredRun], measure: CheckpointMeasure) -> str:
    """Format the mean over the runs and the standard deviation within them."""
    rows = [values for run in runs if (values := run.values(measure))]
    if not rows:
        return NOTHING
    digits = 3 if measure.field == "length_ratio" else 2
    middle = f"{mean(mean(values) for values in rows):.{digits}f}"
    spreads = [stdev(values) for values in rows if len(values) > 1]
    return f"{middle} ± {mean(spreads):.{digits}f}" if spreads else middle


def checkpoint_means_table(runs: Sequence[MeasuredRun]) -> str:
    """Tabulate mean and standard deviation of every measure over the last checkpoints."""
    rows = []
    for system in systems_of(runs):
        of_system = runs_of(runs, system)
        last = [run.last for run in of_system]
        rows.append(
            [
                _label(system),
                ", ".join(f"{r.seed}{'' if r.finished else ' (unfinished)'}" for r in of_system),
                f"{min(c[0].update for c in last):,} to {max(c[-1].update for c in last):,}",
                *(format_mean_and_deviation(of_system, measure) for measure in MEASURES),
            ]
        )
    return markdown_table(("system", "seeds", "updates", *(m.name for m in MEASURES)), rows)


def checkpoint_differences_table(runs: Sequence[MeasuredRun]) -> str:
    """Tabulate differences from the baseline, paired by update; empty if there is nothing to."""
    rows = []
    for system in systems_of(runs):
        baseline = runs_of(runs, baseline_of(system))
        bleu = paired_difference(runs_of(runs, system), baseline, BLEU)
        if system == baseline_of(system) or bleu is None:
            continue
        others = [
            paired_difference(runs_of(runs, system), baseline, measure)
            for measure in MEASURES
            if measure.field in ("aer", "saer", "drop", "rep")
        ]
        p_value = f"{bleu.p_value:.2g}"
        rows.append(
            [
                _label(system),
                format_difference(bleu),
                f"{bleu.relative:+.1f}%" if bleu.relative is not None else NOTHING,
                f"{bleu.better} of {bleu.pairs} (p = {p_value})",
                "; ".join(f"{seed}: {value:+.2f}" for seed, value in bleu.by_seed.items()),
                *(format_difference(difference) for difference in others),
            ]
        )
    head = ("system", "BLEU", "share", "better at", "by seed", "AER", "SAER", "DROP", "REP")
    return markdown_table(head, rows) if rows else ""


def baseline_of(system: str) -> str:
    """Return the baseline that was trained in the same way as a system: `baseline-adamw`."""
    _, dash, ending = system.partition("-")
    return f"{BASELINE}{dash}{ending}"


def format_difference(difference: PairedDifference | None) -> str:
    """Format a difference with its interval, or a dash."""
    if difference is None:
        return NOTHING
    return f"{difference.mean:+.2f} ({format_interval(difference.interval)})"


def gain_over_training_table(runs: Sequence[MeasuredRun], system: str) -> str:
    """Tabulate gain against AER of the baseline along the runs; empty without both."""
    rows = []
    for run in runs_of(runs, system):
        for base in runs_of(runs, baseline_of(system)):
            if base.seed != run.seed:
                continue
            for update in sorted(run.checkpoints.keys() & base.checkpoints.keys()):
                before, after = base.checkpoints[update], run.checkpoints[update]
                rows.append(
                    [
                        f"{run.seed}",
                        f"{update:,}",
                        format_number(before.aer, ".1f"),
                        format_number(after.aer, ".1f"),
                        f"{before.dev_bleu:.2f}",
                        f"{after.dev_bleu - before.dev_bleu:+.2f}",
                        f"{before.bleu:.2f}",
                        f"{after.bleu - before.bleu:+.2f}",
                    ]
                )
    head = (
        *("seed", "updates", "AER of the baseline", f"AER of `{system}`"),
        *("dev BLEU of the baseline", "gain", "test BLEU of the baseline", "gain"),
    )
    return markdown_table(head, rows) if rows else ""


def _label(system: str) -> str:
    return system_label(system) if system in PAPER_ROWS else f"`{system}`"
