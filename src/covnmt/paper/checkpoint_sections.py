"""The sections of a page that only the paper's own training has."""

from collections.abc import Sequence

from covnmt.base.table import page_section
from covnmt.paper import tables
from covnmt.paper.checkpoint_tables import (
    MeasuredRun,
    checkpoint_differences_table,
    checkpoint_means_table,
    gain_over_training_table,
    systems_of,
)
from covnmt.paper.experiments import LAST_CHECKPOINTS
from covnmt.paper.summary import COVERAGE_SYSTEM, Summary


def measuring_section() -> str:
    """Explain the three ways in which a run of the paper's own training is measured."""
    text = (
        "With constant steps, single checkpoints of one run differ by more than systems do. So "
        "every run is measured in three ways: (a) the checkpoint with the best dev BLEU, as in the "
        f"paper; (b) mean and standard deviation over the last {LAST_CHECKPOINTS} "
        f"checkpoints; (c) the mean of the weights of these checkpoints. All sections but "
        "those that say otherwise show (c); example sentences are from (a)."
    )
    return page_section("How runs are measured", text)


def checkpoints_section(runs: Sequence[MeasuredRun]) -> str:
    """Write the section on the last checkpoints of every run."""
    note = (
        f"Means over seeds of the mean over the last {LAST_CHECKPOINTS} checkpoints, and the mean "
        "standard deviation within a run. Of unfinished runs, the last ones there are."
    )
    differences = checkpoint_differences_table(runs)
    paired = (
        "Differences from the baseline that was trained in the same way, paired by seed and "
        "update, with 95% intervals (blocks of three consecutive checkpoints are resampled, seeds "
        "are not); the share is of the baseline's BLEU. `better at` counts pairs with higher BLEU; "
        "its sign test takes them as independent, which they are not quite."
    )
    return page_section(
        "Last checkpoints (b)",
        *((checkpoint_means_table(runs), note) if runs else ("Not measured yet.",)),
        *((differences, paired) if differences else ()),
    )


def best_checkpoint_section(summary: Summary) -> str:
    """Write the section on the checkpoints that the paper would have taken."""
    return page_section(
        "Best dev checkpoint (a)",
        tables.translation_table(summary),
        tables.alignment_table(summary),
        tables.adequacy_table(summary),
        "The columns are those of the sections above.",
    )


def gain_over_training_section(runs: Sequence[MeasuredRun]) -> str:
    """Write the section on the gain along the runs."""
    gain_tables = [
        gain_over_training_table(runs, system)
        for system in systems_of(runs)
        if system.partition("-")[0] == COVERAGE_SYSTEM
    ]
    note = (
        "Does coverage gain while attention is poor? Each row compares both systems after the same "
        "number of updates."
    )
    return (
        page_section("Gain along the runs", note, *filter(None, gain_tables))
        if any(gain_tables)
        else ""
    )
