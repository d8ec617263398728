"""The page of an experiment, with all results and with few."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from covnmt.base.errors import UserError
from covnmt.evaluation.evaluate import Comparison
from covnmt.paper.experiments import find_experiment
from covnmt.paper.markdown_report import (
    MIN_VALIDATIONS,
    choose_pictures,
    count_attention_errors,
    examples_section,
    one_result_per_system,
    write_page,
)
from covnmt.paper.results import ExampleSentence, Result, write_result
from covnmt.paper.systems import PHRASE_BASED
from tests.paper.sample_results import (
    KFTT,
    sample_content,
    sample_result,
)


def test_page_has_all_sections_and_figures(
    results: list[Result], tmp_path: Path, comparison: Comparison
) -> None:
    extra = sample_result(sample_content(comparison, "gru4", 1))
    for result in [*results, extra]:
        write_result(tmp_path, result)
    page = write_page(KFTT, tmp_path).read_text("utf-8")
    for fragment in (
        "# KFTT, Japanese to English",
        "## Translation (Table 1)",
        "On 3 made-up pairs: force-decoded",
        "a proxy cannot confirm",
        "| `gru4` | d = 4 |",
        "   - `baseline`: a b a b",
        "![Sentence 1](example-1.png)",
        "Not run yet: `linguistic-seed1`, `gru1-seed1`, `fertility-seed2`.",
        "0.833 | 0.833 |",
        "`gru10`: made 20 updates.",
    ):
        assert fragment in page
    assert "Not one recipe" not in page
    assert "the same for all systems of a table" in page
    headings = [line for line in page.splitlines() if line.startswith("## ")]
    assert all(first != second for first, second in pairwise(headings))
    for file in ("lengths.png", "lengths.svg", "example-1.png"):
        assert (tmp_path / file).stat().st_size > 1000
    assert not (tmp_path / "training.png").exists()  # too few validations
    summary = json.loads((tmp_path / "summary.json").read_text("utf-8"))
    assert summary["missing"] == ["linguistic-seed1", "gru1-seed1", "fertility-seed2"]
    again = write_page(KFTT, tmp_path).read_text("utf-8")
    assert again == page


def test_training_curves_are_drawn_where_there_are_enough_validations(
    results: list[Result], tmp_path: Path, comparison: Comparison
) -> None:
    content = sample_content(comparison, "baseline", 1)
    content["training"]["validations"] *= MIN_VALIDATIONS
    for result in [*results, sample_result(content)]:
        write_result(tmp_path, result)
    assert "![Training curves](training.png)" in write_page(KFTT, tmp_path).read_text("utf-8")
    for file in ("training.png", "training.svg"):
        assert (tmp_path / file).stat().st_size > 1000


def test_page_of_two_recipes_says_so(
    results: list[Result], tmp_path: Path, comparison: Comparison
) -> None:
    other = sample_content(comparison, "gru10", 7)
    other["recipe"]["model"]["hidden"] = 16
    for result in [*results, sample_result(other)]:
        write_result(tmp_path, result)
    page = write_page(KFTT, tmp_path).read_text("utf-8")
    assert "Not one recipe" in page
    assert "the same for all systems" not in page


def test_page_of_one_result_explains_what_is_missing(
    tmp_path: Path, comparison: Comparison
) -> None:
    nothing = {"gold": {"pairs": 0, "what": None}, "examples": []}
    content = sample_content(comparison, "gru10", 1, **nothing)
    write_result(tmp_path, sample_result(content))
    page = write_page(KFTT, tmp_path).read_text("utf-8")
    assert "No gold alignments were given" in page
    assert "Example sentences" not in page
    shipped = write_page(find_experiment("kftt", "shipped"), tmp_path).read_text("utf-8")
    assert "There is no AER: the subwords" in shipped
    with pytest.raises(UserError, match="empty: "):
        write_page(KFTT, tmp_path / "empty")


def test_page_of_the_phrase_based_system_alone_has_no_curves(
    tmp_path: Path, comparison: Comparison
) -> None:
    write_result(tmp_path, sample_result(sample_content(comparison, PHRASE_BASED, 1)))
    page = write_page(KFTT, tmp_path).read_text("utf-8")
    assert "| `pbsmt`, phrase-based | - |" in page
    assert "lengths.png" not in page
    assert "Not run yet: `baseline-seed1`" in page


@pytest.mark.parametrize(
    ("done", "shown"),
    [
        ([("baseline", 2), ("gru10", 1), ("gru10", 2)], {"baseline": 2, "gru10": 2}),
        (
            [("baseline", 1), ("baseline", 2), ("gru10", 1), ("gru10", 2)],
            {"baseline": 1, "gru10": 1},
        ),
        ([("baseline", 1), ("gru1", 2), ("gru10", 2)], {"baseline": 1, "gru1": 2, "gru10": 2}),
        ([(PHRASE_BASED, 1)], {}),
    ],
)
def test_figures_show_the_seed_that_most_systems_have(
    done: list[tuple[str, int]], shown: dict[str, int], comparison: Comparison
) -> None:
    results = [sample_result(sample_content(comparison, *job)) for job in done]
    assert {name: result.seed for name, result in one_result_per_system(results).items()} == shown


def example_of(tokens: str) -> ExampleSentence:
    """Return a translation with attention to all source words."""
    words = tokens.split()
    return ExampleSentence(
        source_tokens=["x", "y"],
        text=tokens,
        tokens=words,
        alignment=[[0.5, 0.5]] * len(words),
        coverage=[len(words) / 2] * 2,
    )


@pytest.mark.parametrize(
    ("baseline", "coverage", "captions"),
    [
        (
            "a b a b",
            "a b c d",
            ["Where the number of attention errors falls most from baseline to gru10"],
        ),
        (
            "a b c d",
            "a b a b",
            ["Where the number of attention errors rises most from baseline to gru10"],
        ),
        ("a b c d", "a b d c", []),
    ],
)
def test_pictures_are_of_sentences_that_gain_or_lose(
    baseline: str, coverage: str, captions: list[str]
) -> None:
    pictures = choose_pictures([(example_of(baseline), example_of(coverage))])
    assert [picture.caption.partition(" (")[0] for picture in pictures] == captions
    assert all(picture.number == 1 for picture in pictures)


def test_equal_outputs_are_not_pictured_whatever_their_attention() -> None:
    even = example_of("a b a b")
    neglecting = even.model_copy(update={"alignment": [[1.0, 0.0]] * 4})
    assert count_attention_errors(neglecting) > count_attention_errors(even)
    assert choose_pictures([(neglecting, even), (even, neglecting)]) == []


def test_equal_translations_are_shown_once() -> None:
    same = example_of("a b"), example_of("a b")
    assert "   - both: a b" in examples_section([same], [])
    different = example_of("a b"), example_of("a c")
    assert "both" not in examples_section([different], [])


# translation, attention to "x" and "y", source words hardly seen and target words said again
ATTENTION_ERRORS = [
    ("a b", [[1.0, 0.0], [0.9, 0.1]], 1),
    ("a b a b", [[0.5, 0.5]] * 4, 2),
    ("a a a", [[1.0, 0.0]] * 3, 3),
    ("", [], 2),
]


@pytest.mark.parametrize(("text", "alignment", "expected"), ATTENTION_ERRORS)
def test_attention_errors_are_counted(
    text: str, alignment: list[list[float]], expected: int
) -> None:
    example = ExampleSentence(
        source_tokens=["x", "y"],
        text=text,
        tokens=text.split(),
        alignment=alignment,
        coverage=[0.0, 0.0],
    )
    assert count_attention_errors(example) == expected
