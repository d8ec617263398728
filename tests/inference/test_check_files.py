"""Pairs to check, from files of several formats, and reports of a check that was interrupted."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from covnmt.base.errors import UserError
from covnmt.base.files import write_lines
from covnmt.inference.check_files import CheckInput, Report, SavedReports
from covnmt.inference.check_output import format_pairs
from covnmt.inference.model import ModelLoader
from covnmt.inference.omissions import (
    CheckedPair,
    Omission,
    OmissionReport,
    SkippedPair,
    TextPair,
)

OMISSION = Omission("b", 1, 2, 0.1234567, 0.7654321, "word", 2, 3)
REPORTS: list[Report] = [
    OmissionReport(("a", "b"), (OMISSION,), 0.25, True, 2, 1, min_probability=0.3),
    SkippedPair(200),
    OmissionReport((), (), 0.0, False, 0, 0),
]
PAIRS = [TextPair(str(number), "a b", "x") for number in range(3)]


class Checks:
    """Stands in for a model; counts the pairs it is asked for, and may be interrupted."""

    def __init__(self, limit: int = 3) -> None:
        self.limit, self.asked = limit, list[str]()

    def __call__(self, pairs: Iterable[TextPair]) -> Iterator[CheckedPair]:
        for pair in pairs:
            if len(self.asked) == self.limit:
                raise KeyboardInterrupt
            self.asked.append(pair.id)
            yield CheckedPair(pair, REPORTS[int(pair.id)])


def resume(saved: SavedReports, checks: Checks) -> list[str]:
    return list(format_pairs(saved.resume(PAIRS, checks), as_json=True))


EXPECTED = list(format_pairs(map(CheckedPair, PAIRS, REPORTS), as_json=True))


def test_an_interrupted_check_resumes_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / ".out.check.jsonl"
    with pytest.raises(KeyboardInterrupt):
        resume(SavedReports(path, {"input": "1"}), Checks(2))
    path.write_text(path.read_text("utf-8") + '{"tok', "utf-8")  # killed while it wrote
    again = Checks()
    saved = SavedReports(path, {"input": "1"})
    assert resume(saved, again) == EXPECTED
    assert again.asked == ["2"]
    assert resume(SavedReports(path, {"input": "1"}), again) == EXPECTED
    assert again.asked == ["2"]
    saved.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["", "x\n", '{"input": "2"}\n', '{"input": "1"}\n[1]\n'])
def test_reports_of_another_check_are_not_used(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "saved"
    path.write_text(damage)
    checks = Checks()
    assert resume(SavedReports(path, {"input": "1"}), checks) == EXPECTED
    assert checks.asked == ["0", "1", "2"]


def test_two_checks_do_not_write_one_file(tmp_path: Path) -> None:
    saved = SavedReports(tmp_path / "saved", {})
    running = saved.resume(PAIRS, Checks())
    next(running)
    with pytest.raises(UserError, match="another covnmt command is writing"):
        resume(replace(saved), Checks())
    running.close()  # type: ignore[attr-defined]
    assert len(resume(replace(saved), Checks())) == 3


def test_files_with_different_numbers_of_lines_are_refused_with_both(tmp_path: Path) -> None:
    write_lines(tmp_path / "s", ["a"] * 1200)
    write_lines(tmp_path / "t", ["a"])
    with pytest.raises(UserError, match=r"s has 1,200 lines but .*t has 1:"):
        _ = CheckInput(tmp_path / "s", tmp_path / "t").counts
    write_lines(tmp_path / "t", ["b"] * 1200)
    assert CheckInput(tmp_path / "s", tmp_path / "t").counts == (1200, 0)
    assert CheckInput(Path("-"), tmp_path / "t").counts is None


@pytest.mark.parametrize("name", ["a.tsv", "a.po", "a.xlf.gz"])
def test_a_file_of_both_texts_beside_another_is_refused_unless_it_is_called_text(
    name: str, tmp_path: Path, tiny_model: Path
) -> None:
    first, other = tmp_path / name, tmp_path / "a.en"
    loader = ModelLoader.find([tiny_model], "cpu")
    for files in ((first, other), (other, first)):
        with pytest.raises(UserError) as caught:
            CheckInput.find(*files, None, loader)
        assert str(first) in str(caught.value)
        assert CheckInput.find(*files, "text", loader).paths == list(files)


def test_a_file_without_finished_translations_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.xlf"
    path.write_text('<xliff><trans-unit id="1"><source>a</source></trans-unit></xliff>')
    with pytest.raises(UserError, match=r"a\.xlf: no finished translation"):
        _ = CheckInput(path, format="xliff").counts
