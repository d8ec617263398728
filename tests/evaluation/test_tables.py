"""Tables have every score in its place, the best in bold, and captions that explain marks."""

import pytest
from rich.console import Console

from covnmt.base.table import Table
from covnmt.evaluation.evaluate import Evaluation, EvaluationOptions, compare, evaluate
from covnmt.evaluation.system_output import SystemOutput
from covnmt.evaluation.tables import (
    comparison_table,
    evaluation_table,
    length_table,
    significance_table,
)
from covnmt.evaluation.test_set import EvaluationSet
from covnmt.metrics.alignment import GoldAlignment
from covnmt.metrics.significance import Alternative

REFERENCES = [" ".join("abcdefghijklmno"[: 4 + n % 11]) for n in range(40)]
GOLD = [
    GoldAlignment(frozenset((k, k) for k in range(len(line.split()))), frozenset())
    for line in REFERENCES
]
SET = EvaluationSet([REFERENCES], REFERENCES, GOLD, unique_reference=True)
GOOD = SystemOutput(REFERENCES, links=[row.sure for row in GOLD])
BAD = SystemOutput([line[:-2] for line in REFERENCES], links=[frozenset({(0, 0)})] * 40)


def shown(table: Table, styles: bool = False) -> str:
    console = Console(width=160, force_terminal=styles, color_system="standard" if styles else None)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def row(text: str, start: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.strip().startswith(start))


@pytest.fixture(scope="module")
def systems() -> dict[str, Evaluation]:
    return {"bad": evaluate(BAD, SET), "good": evaluate(GOOD, SET)}


def test_evaluation_table_has_values_and_signatures(systems: dict[str, Evaluation]) -> None:
    text = shown(evaluation_table(systems["good"]))
    assert "40 sentences" in text
    assert row(text, "BLEU (paper)")[2] == "100.00"
    assert "len:shortest" in text
    assert "proxies" in text
    for score in systems["good"].translation:
        assert score.signature in text.replace("\n", "")


def test_comparison_table_has_marks_and_the_best_in_bold() -> None:
    table = comparison_table(compare({"bad": BAD, "good": GOOD}, SET), "Table 1")
    text = shown(table)
    assert row(text, "good")[1:3] == ["100.00", "†"]
    assert "†" not in "".join(row(text, "bad"))
    assert "† better than bad (p < 0.01" in text
    assert "AER ↓" in text
    assert "BLEU ↑" in text
    assert "SAER" not in text  # no soft matrices, no column
    styled = shown(table, styles=True)
    assert "\x1b[1m100.00\x1b[0m" in styled
    assert styled.count("\x1b[1m100.00\x1b[0m") == 3  # BLEU twice and chrF, each in one row


def test_equal_scores_are_not_bold() -> None:
    styled = shown(comparison_table(compare({"one": GOOD, "two": GOOD}, SET)), styles=True)
    assert "\x1b[1m100.00" not in styled


def test_significance_table_has_counts_and_p_values() -> None:
    text = shown(significance_table(compare({"bad": BAD, "good": GOOD}, SET)))
    assert row(text, "bad")[:6] == ["bad", "good", "40", "0", "0", "<"]
    other = shown(significance_table(compare({"bad": BAD, "good": GOOD}, SET, ["good"])))
    assert row(other, "good")[-2:] == ["-", "-"]  # sacreBLEU tests against the first system only


@pytest.mark.parametrize(("alternative", "sides"), [("two-sided", "two"), ("greater", "one")])
def test_captions_name_the_test(alternative: Alternative, sides: str) -> None:
    options = EvaluationOptions(alternative=alternative, ter=False)
    comparison = compare({"bad": BAD, "good": GOOD}, SET, options=options)
    for table in (comparison_table(comparison), significance_table(comparison)):
        assert f"{sides}-sided sign test" in shown(table)


def test_length_table_has_all_sentences_and_each_bucket(systems: dict[str, Evaluation]) -> None:
    text = shown(length_table(systems))
    lines = [line.split() for line in text.splitlines()]
    overall = next(line for line in lines if line[:1] == ["all"])
    assert overall[:3] == ["all", "40", "bad"]
    assert any(line[:2] == ["1-10", "28"] for line in lines)
    assert "omitted ↓" in text
    assert sum(line[:1] == ["good"] for line in lines) == 3  # all, 1-10, 11-20
