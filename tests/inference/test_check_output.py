"""What a check prints: findings by pair, JSON, and a summary."""

import json
from dataclasses import replace

import pytest

from covnmt.inference.check_output import CheckSummary, findings, format_pairs
from covnmt.inference.domain import DomainMonitor, DomainStatistics
from covnmt.inference.omissions import (
    CheckedPair,
    Omission,
    OmissionReport,
    SkippedPair,
    TextPair,
)

CLAUSE = Omission("b c", 1, 3, 4.25, 0.91, "clause", 2, 5)


def report(*omissions: Omission, unrelated: float = 0.0, unusual: bool = False) -> OmissionReport:
    return OmissionReport(("a", "b", "c"), omissions, unrelated, unusual, words=3, judged=2)


PAIRS = [
    CheckedPair(TextPair("1", "a b c", "A"), report(CLAUSE)),
    CheckedPair(TextPair("2", "a b c", "A B C"), report()),
    CheckedPair(TextPair("7", "a b c", "X"), report(unrelated=0.99, unusual=True)),
    CheckedPair(TextPair("9", "a b c", "A A A"), SkippedPair(200)),
]


def test_findings_are_printed_one_a_line() -> None:
    assert list(format_pairs(PAIRS, as_json=False)) == [
        "1\tOMISSION\t0.91\tb c",
        "7\tNOT A TRANSLATION\t0.99\t",
    ]


def test_json_has_an_object_for_every_pair() -> None:
    rows = [json.loads(line) for line in format_pairs(PAIRS, as_json=True)]
    assert [row["id"] for row in rows] == ["1", "2", "7", "9"]
    assert rows[0]["left_out"] == [
        {
            "text": "b c",
            "start": 1,
            "end": 3,
            "gain": 4.25,
            "probability": 0.91,
            "kind": "clause",
            "start_char": 2,
            "end_char": 5,
        }
    ]
    assert (rows[1]["left_out"], rows[2]["unrelated"], rows[2]["unusual"]) == ([], 0.99, True)
    assert rows[3] == {"id": "9", "skipped": "200 tokens"}


def test_a_finding_is_on_one_line_and_in_one_column() -> None:
    wrapped = replace(CLAUSE, text="b\n\tc")
    assert [str(found) for found in findings(report(wrapped))] == ["OMISSION\t0.91\tb c"]


@pytest.mark.parametrize(
    ("unrelated", "limit", "is_found"),
    [(0.6, 0.5, True), (0.6, 0.8, False), (0.4, 0.5, False), (0.4, 0.3, True), (0.0, 0.0, False)],
)
def test_no_translation_at_all_is_found_from_the_probability_that_was_asked_for(
    unrelated: float, limit: float, is_found: bool
) -> None:
    made = replace(report(unrelated=unrelated), min_probability=limit)
    assert bool(list(findings(made))) is is_found


def test_a_skipped_pair_has_no_findings() -> None:
    assert list(findings(SkippedPair(200))) == []


def test_the_summary_counts_pairs_also_when_nothing_is_found() -> None:
    assert str(CheckSummary(None)) == "0 pairs checked, 0 marked"
    summary = CheckSummary(None)
    assert list(summary.watch(PAIRS[1:2])) == PAIRS[1:2]
    assert str(summary).startswith("1 pair checked, 0 marked (0.0%); 2 of 3 source words could")


def test_the_summary_warns_of_long_and_of_unusual_pairs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    monitor = DomainMonitor(DomainStatistics(name="laws", source_scripts=("LATIN",)), "zh-en")
    summary = CheckSummary(monitor, "s and t, line")
    assert list(summary.watch(PAIRS)) == PAIRS
    assert str(summary).startswith("3 pairs checked, 2 marked (66.7%); 1 too long, not checked")
    shown = " ".join(capsys.readouterr().err.split())
    assert "s and t, line 9: 200 tokens, not checked" in shown
    assert "1 of 3 lines are unlike what zh-en was trained on (laws)" in shown


def test_the_summary_suspects_exchanged_sides_where_most_pairs_are_no_translations(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for complete in (2, 3):
        pairs = [PAIRS[2]] * 3 + [PAIRS[1]] * complete
        assert list(CheckSummary(None).watch(pairs)) == pairs
        shown = " ".join(capsys.readouterr().err.split())
        assert ("3 of 5 pairs are no translations: is the source first" in shown) == (complete == 2)
