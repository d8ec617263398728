"""The page of the paper's claims: figures from result files, and verdicts by their intervals."""

from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from covnmt.evaluation.evaluate import Comparison
from covnmt.metrics.attention_statistics import CoverageEffect, WordGroup
from covnmt.paper.checkpoint_tables import BLEU, MEASURES, PairedDifference
from covnmt.paper.claims import NOT_MEASURED, describe_support, verdict, write_claims_page
from covnmt.paper.results import (
    PartialResult,
    Result,
    partial_result_path,
    write_record,
    write_result,
)
from tests.paper.sample_results import rows_of, sample_content, sample_result

UPDATES = range(56_000, 76_000, 2_000)


def checkpoints(bleu: float, aer: float, drop: float) -> list[list[float]]:
    return [[u, bleu - 2, bleu + u % 3 / 10, 0.9, aer, 80, drop, 10, 3] for u in UPDATES]


def original(comparison: Comparison, system: str, seed: int, *values: float) -> Result:
    content = sample_content(comparison, system, seed) | {"experiment": "kftt-original"}
    averaged: dict[str, Any] = {key: content[key] for key in ("scores", "test")}
    averaged["updates"] = list(UPDATES)
    return sample_result(content | {"averaged": averaged, "checkpoints": checkpoints(*values)})


def table_of(page: str, heading: str, first: str) -> list[dict[str, str]]:
    """Return the rows of the first table of a section whose head begins so."""
    _, _, section = page.partition(f"## {heading}")
    lines = section.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows = takewhile(lambda line: line.startswith("|"), lines[start:])
    return list(rows_of("\n".join(rows)))


def test_nothing_is_claimed_where_nothing_was_measured(tmp_path: Path) -> None:
    page = write_claims_page(tmp_path).read_text("utf-8")
    assert page.count(f"The paper's training: {NOT_MEASURED}. AdamW: {NOT_MEASURED}.") == 2
    for heading in ("KFTT, Japanese to English", "Laws of Taiwan, Chinese to English"):
        for row in table_of(page, heading, "claim"):
            assert row["verdict"] == row["ours, AdamW"] == NOT_MEASURED
            assert row["ours, the paper's training"] == NOT_MEASURED
            assert row["rests on"] == "-"
        for row in table_of(page, heading, "training"):
            assert row["gain of GRU d=10"] == NOT_MEASURED


def test_verdicts_are_about_the_papers_own_training(
    tmp_path: Path, comparison: Comparison, results: list[Result]
) -> None:
    for result in results:
        write_result(tmp_path / "kftt", result)
    for seed in (1, 2):
        for system, values in {"baseline": (12, 73, 18), "gru10": (14, 73, 20)}.items():
            result = original(comparison, system, seed, *values)
            write_result(tmp_path / "kftt-original", result)
    page = write_claims_page(tmp_path).read_text("utf-8")
    assert "The paper's training: 2 of 6 systems, seeds 1, 2, 20 updates." in page
    rows = {row["claim"]: row for row in table_of(page, "KFTT, Japanese to English", "claim")}
    better = rows["GRU d=10 translates better"]
    assert better["ours, the paper's training"].startswith("(b) +2.00 (+2.00 to +2.00), +17%; (c) ")
    assert better["verdict"] == "holds"
    assert better["rests on"] == "2 seeds, which agree; better at 20 of 20 checkpoints"
    assert better["ours, AdamW"].endswith("2 seeds")
    assert rows["GRU d=10 aligns better (AER)"]["verdict"] == "not shown"
    [omits] = [row for name, row in rows.items() if "DROP" in name]
    assert omits["verdict"] == "the opposite"
    assert rows["Linguistic coverage translates better"]["verdict"] == NOT_MEASURED
    [bridge, *others] = table_of(page, "KFTT, Japanese to English", "training")
    assert bridge["gain of GRU d=10"].startswith("+2.00")
    assert {row["gain of GRU d=10"] for row in others} == {NOT_MEASURED}
    assert write_claims_page(tmp_path).read_text("utf-8") == page


def test_checkpoints_of_unfinished_jobs_count(tmp_path: Path, comparison: Comparison) -> None:
    content = sample_content(comparison, "baseline", 1)
    for system, bleu in (("baseline", 12.0), ("gru10", 13.0)):
        partial = PartialResult.model_validate(
            content | {"system": system, "checkpoints": checkpoints(bleu, 70, 15)}
        )
        path = partial_result_path(tmp_path / "kftt-original", system, 1)
        write_record(path, partial)
    page = write_claims_page(tmp_path).read_text("utf-8")
    row = table_of(page, "KFTT, Japanese to English", "claim")[0]
    assert row["ours, the paper's training"] == "(b) +1.00 (+1.00 to +1.00), +8%"
    assert row["verdict"] == "holds, with one seed"


def test_effect_of_coverage_is_judged_by_the_intervals_of_all_runs(
    tmp_path: Path, comparison: Comparison
) -> None:
    group = WordGroup(10, -3.0, -1.0, (-1.2, -0.8))
    for system, interval in (("gru10", (-1.2, -0.8)), ("tanh1", (-0.3, 0.2))):
        effect = CoverageEffect(group, group, group, -0.5, interval)
        if system == "gru10":  # this one counts if it was measured
            effect = replace(effect, difference_interval=(2.4, 2.6), attended=-1.0)
            effect = replace(effect, attended_interval=interval)
        result = original(comparison, system, 1, 12, 70, 15)
        averaged = result.averaged
        assert averaged is not None
        averaged = averaged.model_copy(update={"coverage_effect": effect})
        write_result(tmp_path / "kftt-original", result.model_copy(update={"averaged": averaged}))
    page = write_claims_page(tmp_path).read_text("utf-8")
    row = table_of(page, "KFTT, Japanese to English", "claim")[-1]
    assert row["ours, the paper's training"] == "`gru10` -1.00; `tanh1` -0.50 (against C_0)"
    assert row["verdict"] == "for some systems"


@pytest.mark.parametrize(
    ("interval", "by_seed", "bleu", "error"),
    [
        ((0.1, 0.9), {1: 0.5, 2: 0.3}, "holds", "the opposite"),
        ((-0.1, 0.9), {1: 0.5, 2: 0.3}, "not shown", "not shown"),
        ((-0.9, -0.1), {1: -0.5, 2: -0.3}, "the opposite", "holds"),
        ((0.1, 0.9), {1: 1.2, 2: -0.2}, "not shown", "not shown"),
        ((0.1, 0.9), {1: 0.5}, "holds, with one seed", "the opposite, with one seed"),
    ],
)
def test_verdict_follows_the_interval_and_the_seeds(
    interval: tuple[float, float], by_seed: dict[int, float], bleu: str, error: str
) -> None:
    difference = PairedDifference(0.4, interval, 3.0, 8, 10, 0.1, by_seed)
    aer = next(measure for measure in MEASURES if measure.field == "aer")
    assert (verdict(difference, BLEU), verdict(difference, aer)) == (bleu, error)


def test_confidence_says_whether_seeds_agree() -> None:
    difference = PairedDifference(0.4, (0.1, 0.9), 3.0, 8, 10, 0.1, {1: 0.5, 2: -0.2})
    assert describe_support(difference) == "2 seeds, which disagree; better at 8 of 10 checkpoints"
