"""Omission and addition rates by a model as a judge."""

import json
from pathlib import Path

import pytest

from covnmt.base.errors import UserError
from covnmt.base.files import write_lines
from covnmt.evaluation.judged_omissions import judged_scores
from covnmt.inference.model import ModelLoader
from tests.conftest import Run

SOURCE = ["金閣寺は京都にある有名な寺です。", "この橋は江戸時代に作られた。"]
COMPLETE = [
    "Kinkaku-ji Temple is a famous temple in Kyoto.",
    "This bridge was built in the Edo period.",
]
SHORTER = ["Kinkaku-ji is a famous temple.", COMPLETE[1]]
LONGER = [COMPLETE[0], "This bridge was built in the Edo period by the emperor with the army."]


def rates(output: list[str]) -> tuple[float, ...]:
    scores = judged_scores(ModelLoader.find(["ja-en"], threads=1), SOURCE, output)
    assert [score.name for score in scores] == ["judged omissions", "judged additions"]
    assert all("judge:ja-en|" in score.signature for score in scores)
    return tuple(score.value for score in scores)


def test_a_system_that_omits_or_adds_words_has_higher_rates() -> None:
    complete, shorter, longer = rates(COMPLETE), rates(SHORTER), rates(LONGER)
    assert complete[0] == 0 < shorter[0] < 100
    assert complete[1] < longer[1]


def test_a_model_without_lexicon_is_no_judge(tiny_model: Path) -> None:
    with pytest.raises(UserError, match=r"cannot judge without check\.json"):
        judged_scores(ModelLoader.find([tiny_model]), SOURCE, COMPLETE)


def test_compare_judges_all_systems(run: Run, tmp_path: Path) -> None:
    for name, lines in (("s", SOURCE), ("r", COMPLETE), ("a", SHORTER), ("b", LONGER)):
        write_lines(tmp_path / name, lines)
    files = [tmp_path / "a", tmp_path / "b", "-r", tmp_path / "r", "--no-ter"]
    run("compare", *files, "--judge", "ja-en", code=2)
    done = run("compare", *files, "-s", tmp_path / "s", "--judge", "ja-en", "-o", tmp_path / "json")
    assert "omissions" in done.out
    systems = json.loads((tmp_path / "json").read_text("utf-8"))["systems"]
    first, second = (systems[name]["judged"] for name in ("a", "b"))
    assert first[0]["value"] > second[0]["value"] == 0
