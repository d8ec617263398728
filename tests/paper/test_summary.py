"""Summaries: which results are compared."""

import pytest

from covnmt.evaluation.evaluate import Comparison
from covnmt.paper import tables
from covnmt.paper.results import Result
from covnmt.paper.summary import summarize_results
from tests.paper.sample_results import KFTT, sample_content, sample_result


def test_significance_marks_agree_with_compare(
    results: list[Result], comparison: Comparison
) -> None:
    summary = summarize_results(KFTT, results)
    assert [system.system for system in summary.systems] == [
        "baseline",
        "fertility",
        "tanh1",
        "gru10",
    ]
    for system in summary.systems[1:]:
        expected = comparison.sign_tests["baseline", system.system]
        assert set(system.sign_tests.values()) == {expected}
        assert ("†" in tables.significance_marks(system)) == bool(comparison.marks(system.system))
    assert [tables.significance_marks(system) for system in summary.systems] == [
        "",
        "†",
        "",
        "† 2 of 2",
    ]


def test_gains_speed_ratios_and_spreads_over_seeds(
    results: list[Result], comparison: Comparison
) -> None:
    summary = summarize_results(KFTT, results)
    gru10, fertility = summary.find("gru10"), summary.find("fertility")
    assert gru10 is not None
    assert fertility is not None
    bleu = {
        name: evaluation.translation[0].value for name, evaluation in comparison.systems.items()
    }
    assert gru10.gain == pytest.approx(bleu["gru10"] - bleu["baseline"])
    assert gru10.gain_interval is not None
    low, high = gru10.gain_interval
    assert low < bleu["gru10"] - bleu["baseline"] < high
    assert gru10.speed_ratio == pytest.approx(800 / 960)
    aer = gru10.scores["AER"]
    assert (aer.mean, aer.low, aer.high, aer.seeds) == (51.5, 51, 52, 2)
    assert tables.format_spread(aer) == "51.50 [51.00, 52.00]"
    assert tables.format_spread(fertility.scores["AER"]) == "51.00"
    assert summary.missing == ("linguistic-seed1", "gru1-seed1", "fertility-seed2")


def test_only_equal_seeds_machines_and_commits_are_compared(comparison: Comparison) -> None:
    baseline = sample_result(sample_content(comparison, "baseline", 1))
    elsewhere = {"gpu": "Another GPU", "cpu": "A CPU", "cores": 8}
    moved = sample_result(sample_content(comparison, "gru10", 1, machine=elsewhere))
    newer = sample_result(sample_content(comparison, "gru1", 1, commit="another"))
    other_seed = sample_result(sample_content(comparison, "fertility", 2))
    other_size = sample_content(comparison, "tanh1", 1)
    other_size["recipe"]["model"]["hidden"] = 16
    summary = summarize_results(
        KFTT, [baseline, moved, newer, other_seed, sample_result(other_size)]
    )
    systems = {system.system: system for system in summary.systems}
    assert systems["gru10"].speed_ratio is None
    assert systems["gru1"].speed_ratio is None
    assert systems["tanh1"].speed_ratio is not None
    assert systems["gru10"].gain is not None
    assert (systems["fertility"].gain, systems["fertility"].gain_interval) == (None, None)
    assert systems["fertility"].sign_tests == {}
    assert summary.unequal == ("model.hidden: 16 or 8",)
    assert summary.machines == ("A GPU", "Another GPU")


def test_variants_are_compared_with_their_base_of_the_same_seed(comparison: Comparison) -> None:
    """The other seed of its base is another training."""
    weak = sample_content(comparison, "baseline", 2) | {"system": "gru10"}
    jobs = [("gru10", 1), ("gru4", 1), ("gru16", 3)]
    done = [sample_result(sample_content(comparison, *job)) for job in jobs]
    summary = summarize_results(KFTT, [*done, sample_result(weak)])
    bleu = {
        name: evaluation.translation[0].value for name, evaluation in comparison.systems.items()
    }
    changes = {system.system: system.change for system in summary.systems}
    assert changes["gru4"] == pytest.approx(bleu["baseline"] - bleu["gru10"])
    assert (changes["gru16"], changes["gru10"]) == (None, None)
