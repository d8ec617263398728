"""The tables of a page, with the paper's figures next to ours."""

from dataclasses import replace

import pytest

from covnmt.base.config import PAPER_SYSTEMS
from covnmt.evaluation.evaluate import Comparison
from covnmt.paper import tables
from covnmt.paper.results import Result
from covnmt.paper.summary import summarize_results
from covnmt.paper.systems import PHRASE_BASED, recipe_overrides
from tests.paper.sample_results import KFTT, rows_of, sample_content, sample_result


def test_translation_table_has_our_scores_and_those_of_the_paper(
    results: list[Result], comparison: Comparison
) -> None:
    rows = {
        row["system"].split("`")[1]: row
        for row in rows_of(tables.translation_table(summarize_results(KFTT, results)))
    }
    assert rows["baseline"]["parameters"] == "1,000"
    assert rows["gru10"]["parameters"] == "+100"
    assert rows["gru10"]["BLEU"] == "100.00 [100.00, 100.00]"
    expected = comparison.systems["tanh1"]
    assert rows["tanh1"]["BLEU"] == f"{expected.translation[0].value:.2f}"
    assert rows["tanh1"]["sacreBLEU"] == f"{expected.translation[1].value:.2f}"
    assert (rows["gru10"]["published BLEU"], rows["gru10"]["published gain"]) == ("30.14", "+1.82")
    assert rows["baseline"]["95%"] == "-"
    assert rows["gru10"]["95%"].startswith("+")
    assert " to +" in rows["gru10"]["95%"]


def test_phrase_based_row_comes_first_with_its_own_mark(
    results: list[Result], comparison: Comparison
) -> None:
    """It has no parameters, and systems that beat it get a double dagger."""
    # as good as `fertility`: better than the baseline, worse than gru10
    phrases = sample_content(comparison, "fertility", 1) | {"system": PHRASE_BASED}
    summary = summarize_results(KFTT, [*results, sample_result(phrases)])
    assert [system.system for system in summary.systems][:2] == [PHRASE_BASED, "baseline"]
    assert [tables.significance_marks(system) for system in summary.systems] == [
        "†",
        "",
        "†",
        "",
        "† 2 of 2 ‡ 2 of 2",
    ]
    first, *_ = rows_of(tables.translation_table(summary))
    alone, *_ = rows_of(tables.translation_table(summarize_results(KFTT, results)))
    assert ("† ‡" in first, "† ‡" in alone, "†" in alone) == (True, False, True)
    assert first["system"] == "`pbsmt`, phrase-based"
    assert (first["parameters"], first["published BLEU"]) == ("-", "28.41")
    aligned, *_ = rows_of(tables.alignment_table(summary))
    assert (aligned["AER ↓"], aligned["published AER"]) == ("51.00", "-")
    assert "pbsmt" not in tables.speed_table(summary) + tables.attention_table(summary)
    assert recipe_overrides(PHRASE_BASED) == []


def test_figures_of_the_paper_are_consistent() -> None:
    assert list(tables.PAPER_ROWS) == [PHRASE_BASED, *PAPER_SYSTEMS]
    baseline = tables.PAPER_ROWS["baseline"].bleu
    for system, row in tables.PAPER_ROWS.items():
        if row.gain is not None:
            assert row.bleu - baseline == pytest.approx(row.gain), system
    for before, after, fewer in zip(*tables.PAPER_RATES.values(), (33.2, 40.0), strict=True):
        assert 100 * (1 - after / before) == pytest.approx(fewer, abs=0.05)


def test_relative_change_from_the_baseline(results: list[Result]) -> None:
    summary = summarize_results(KFTT, results)
    base, gru10 = summary.find("baseline"), summary.find("gru10")
    assert base is not None
    assert gru10 is not None
    changed = replace(gru10, scores={"DROP": replace(gru10.scores["AER"], mean=15.0)})
    before = replace(base, scores={"DROP": replace(gru10.scores["AER"], mean=20.0)})
    assert tables.format_change_from_baseline(changed, before, "DROP") == "15.00 (-25%)"
    assert tables.format_change_from_baseline(changed, None, "DROP").startswith("15.00 [")
    assert tables.format_change_from_baseline(changed, before, "REP") == "-"


def test_variants_are_listed_after_what_they_are_compared_with(comparison: Comparison) -> None:
    """Sizes of coverage come after GRU d=1 and d=10."""
    systems = ("baseline", "tanh1", "gru1", "gru10", "gru4")
    results = [sample_result(sample_content(comparison, system, 1)) for system in systems]
    rows = list(rows_of(tables.variants_table(summarize_results(KFTT, results))))
    assert [row["system"] for row in rows] == ["`gru1`", "`gru10`", "`gru4`"]
    assert [row["what"] for row in rows] == ["as above", "as above", "d = 4"]
    assert [(row["change"], row["95%"]) for row in rows[:2]] == [("-", "-")] * 2
    low, high = map(float, rows[2]["95%"].split(" to "))
    assert low <= float(rows[2]["change"]) <= high < 0
    assert {row["updates"] for row in rows} == {"20"}
    assert tables.variants_table(summarize_results(KFTT, results[:2])) == ""


def test_speed_table_leaves_out_shared_machines(comparison: Comparison) -> None:
    results = [
        sample_result(sample_content(comparison, system, 1)) for system in ("baseline", "gru10")
    ]
    ratios = [row["ratio"] for row in rows_of(tables.speed_table(summarize_results(KFTT, results)))]
    assert ratios == ["1.000", "0.833"]
    results = [
        result.model_copy(
            update={"training": result.training.model_copy(update={"words_per_second": None})}
        )
        for result in results
    ]
    [baseline, gru10] = rows_of(tables.speed_table(summarize_results(KFTT, results)))
    assert (baseline["tokens/s"], baseline["ratio"], gru10["ratio"]) == ("-", "-", "-")
