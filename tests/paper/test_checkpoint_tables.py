"""Systems compared over the last checkpoints of their runs."""

import numpy as np
import pytest

from covnmt.paper.checkpoint_tables import (
    BLEU,
    MEASURES,
    MeasuredRun,
    baseline_of,
    block_interval,
    checkpoint_differences_table,
    checkpoint_means_table,
    format_mean_and_deviation,
    gain_over_training_table,
    paired_difference,
)
from covnmt.paper.results import CheckpointScores
from tests.paper.sample_results import rows_of

AER = next(measure for measure in MEASURES if measure.field == "aer")


def run(
    system: str, seed: int, bleu: list[float], first: int = 1, aer: float | None = 70.0
) -> MeasuredRun:
    """A run whose update k thousand has the k-th score."""
    scores = [
        CheckpointScores(1000 * update, value - 1, value, 0.9, aer, 80.0, 15.0, 10.0, 3.0)
        for update, value in enumerate(bleu, first)
    ]
    return MeasuredRun(system, seed, True, {row.update: row for row in scores})


def test_only_shared_updates_are_compared_and_of_these_the_last_ten() -> None:
    baseline = run("baseline", 1, [100.0, 100.0, *([10.0] * 10)])
    system = run("gru10", 1, [0.0, 0.0, *([11.0] * 10), 99.0])  # one more than the baseline
    difference = paired_difference([system], [baseline], BLEU)
    assert difference is not None
    assert difference.mean == pytest.approx(1)
    assert difference.relative == pytest.approx(10)
    assert (difference.better, difference.pairs) == (10, 10)
    assert difference.p_value == pytest.approx(2 / 2**10)
    assert difference.interval == pytest.approx((1, 1))


def test_seeds_are_compared_with_their_own_baseline_and_weigh_the_same() -> None:
    baselines = [run("baseline", 1, [10.0] * 4), run("baseline", 2, [20.0] * 2)]
    systems = [run("gru10", 2, [23.0] * 2), run("gru10", 1, [11.0] * 4), run("gru10", 3, [9.0])]
    difference = paired_difference(systems, baselines, BLEU)
    assert difference is not None
    assert difference.by_seed == {1: pytest.approx(1), 2: pytest.approx(3)}
    assert difference.mean == pytest.approx(2)
    assert paired_difference(systems[2:], baselines, BLEU) is None


def test_lower_is_better_for_error_rates() -> None:
    worse, better = run("baseline", 1, [1.0] * 3, aer=72.0), run("gru10", 1, [1.0] * 3, aer=70.0)
    difference = paired_difference([better], [worse], AER)
    assert difference is not None
    assert difference.mean == pytest.approx(-2)
    assert difference.better == 3
    assert paired_difference([run("gru10", 1, [1.0], aer=None)], [worse], AER) is None


def test_interval_of_dependent_checkpoints_is_wider_than_of_independent_ones() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=300)
    slow = np.convolve(noise, np.ones(3), mode="same")  # neighbors share two of three terms
    shuffled = rng.permutation(slow)
    (low, high), (a, b) = block_interval([slow.tolist()]), block_interval([shuffled.tolist()])
    assert high - low > 1.2 * (b - a)
    assert low < slow.mean() < high


def test_interval_with_few_checkpoints_lies_within_their_range() -> None:
    low, high = block_interval([[1.0], [2.0, 4.0]])
    assert (1 + 2) / 2 <= low <= high <= (1 + 4) / 2


def test_deviation_is_that_within_runs() -> None:
    runs = [run("gru10", 1, [10.0, 12.0]), run("gru10", 2, [30.0, 32.0])]
    assert format_mean_and_deviation(runs, BLEU) == "21.00 ± 1.41"
    assert format_mean_and_deviation(runs[:1], AER) == "70.00 ± 0.00"
    assert format_mean_and_deviation([run("gru10", 1, [5.0], aer=None)], AER) == "-"


def test_tables_show_systems_in_the_papers_order_and_variants_next_to_their_own_baseline() -> None:
    runs = [
        run("gru10-adamw", 1, [15.5] * 3),
        run("gru10", 1, [14.0] * 3),
        run("baseline-adamw", 1, [15.0] * 3),
        run("baseline", 1, [12.0] * 3),
    ]
    names = [row["system"] for row in rows_of(checkpoint_means_table(runs))]
    assert [name.split()[0] for name in names] == [
        "`baseline`",
        "`gru10`",
        "`gru10-adamw`",
        "`baseline-adamw`",
    ]
    gains = {row["system"]: row["BLEU"] for row in rows_of(checkpoint_differences_table(runs))}
    assert gains["`gru10` (+ NN GRU d=10)"] == "+2.00 (+2.00 to +2.00)"
    assert gains["`gru10-adamw`"] == "+0.50 (+0.50 to +0.50)"
    assert len(gains) == 2
    assert (baseline_of("gru10"), baseline_of("gru10-adamw")) == ("baseline", "baseline-adamw")


def test_course_shows_the_gain_at_every_shared_update() -> None:
    runs = [run("baseline", 1, [10.0, 12.0], aer=75.0), run("gru10", 1, [13.0], first=2)]
    [row] = rows_of(gain_over_training_table(runs, "gru10"))
    assert row["updates"] == "2,000"
    assert row["AER of the baseline"] == "75.0"
    assert gain_over_training_table(runs[1:], "gru10") == ""
