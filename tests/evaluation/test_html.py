"""The report is one self-contained page with escaped texts, and figures beside it."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from covnmt.base.errors import UserError
from covnmt.evaluation.evaluate import EvaluationOptions
from covnmt.evaluation.html import write_report
from covnmt.evaluation.interesting_sentences import LENGTH_PROXY, REP_PROXY
from covnmt.evaluation.system_output import OutputLine
from covnmt.evaluation.test_set import EvaluationSet
from covnmt.metrics.alignment import GoldAlignment

HOSTILE = "<script>alert(1)</script>&\"'$title ${body}"
SOURCE = ["ka mo ti su", "ka ka mo", f"{HOSTILE} su ka", "mo ti"]
REFERENCE = ["big house now here", "big big house", f"{HOSTILE} here big", "house now"]
LOSSY = ["big now now", "big big house", "here big", ""]
LINKS = [frozenset((k, k) for k in range(len(line.split()))) for line in SOURCE]
EXACT = EvaluationSet(
    [REFERENCE], SOURCE, [GoldAlignment(x, x) for x in LINKS], unique_reference=True
)
PLAIN = EvaluationSet([REFERENCE], SOURCE)
FAST = EvaluationOptions(samples=2, ter=False)

VOID = {"br", "hr", "img", "meta"}


class Page(HTMLParser):
    """Parse a page; unbalanced tags are an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src")]
        self.open += [] if tag in VOID else [tag]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data


def plain(lines: list[str]) -> list[OutputLine]:
    return [OutputLine(text=line) for line in lines]


def with_attention(lines: list[str]) -> list[OutputLine]:
    rows = []
    for source, line in zip(SOURCE, lines, strict=True):
        words = line.split()
        matrix = np.eye(len(words), len(source.split()), dtype=np.float32)
        tokens = tuple(source.split())
        rows.append(OutputLine(line, tokens, tuple(words), -1.0, matrix, matrix.sum(axis=0)))
    return rows


def read(path: Path) -> Page:
    return Page(path.read_text("utf-8"))


SYSTEMS = {"base": with_attention(LOSSY), f"gru {HOSTILE}": with_attention(REFERENCE)}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("report")
    return write_report(directory, f"Title {HOSTILE}", EXACT, SYSTEMS, options=FAST)


def test_hostile_text_is_escaped(report: Path) -> None:
    page = read(report)
    assert "script" not in page.tags
    assert f"Title {HOSTILE}" in page.text
    assert f"gru {HOSTILE}" in page.text
    assert f"{HOSTILE} here big" in page.text


def test_page_is_self_contained(report: Path) -> None:
    page = read(report)
    embedded = "data:image/png;base64,"
    for address in page.addresses:
        if address.startswith(embedded):
            continue
        assert address.startswith(("#", "figures/"))
        target = address.removeprefix("#")
        if address.startswith("#"):
            assert f'id="{target}"' in report.read_text("utf-8")
        else:
            assert (report.parent / address).is_file()
    text = report.read_text("utf-8")
    assert "http:" not in text
    assert "https:" not in text
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)  # clips refer to the page itself


def test_figures_are_written_as_files_too(report: Path) -> None:
    figures = {path.name for path in (report.parent / "figures").iterdir()}
    # sentence 2 is the same under both systems
    numbered = {f"sentence-{k}.{kind}" for k in (1, 3, 4) for kind in ("png", "svg")}
    assert figures == {"length.png", "length.svg"} | numbered


def test_scores_are_those_of_the_comparison(report: Path) -> None:
    page = read(report)
    scores = json.loads((report.parent / "scores.json").read_text("utf-8"))
    for system in scores["systems"].values():
        for kind in ("translation", "adequacy", "proxies"):
            for score in system[kind]:
                assert f"{score['value']:.2f}" in page.text
                assert score["signature"] in page.text


def test_headings_of_several_lines_keep_their_lines(report: Path) -> None:
    text = report.read_text("utf-8")
    assert ">omitted ↓\nwords</th>" in text
    assert "white-space: pre; vertical-align: bottom;" in text


def test_curves_have_a_label(report: Path) -> None:
    text = report.read_text("utf-8")
    assert 'aria-label="BLEU and output length by source length"' in text


def test_exact_omissions_and_repetitions_are_marked(report: Path) -> None:
    text = report.read_text("utf-8")
    section = text[text.index('id="lost"') : text.index('id="twice"')]
    assert "source words omitted (exact)" in section
    assert 'ka <mark class="lost">mo</mark> ti <mark class="lost">su</mark>' in section
    assert "(nothing)" in section
    assert "proxy" not in section
    assert '<mark class="twice">ti</mark>' in text[text.index('id="twice"') :]


def test_proxies_are_labeled(tmp_path: Path) -> None:
    systems = {"base": plain(LOSSY), "gru": plain(REFERENCE)}
    page = read(write_report(tmp_path, "t", PLAIN, systems, options=FAST))
    assert LENGTH_PROXY in page.text
    assert REP_PROXY in page.text
    assert "(exact)" not in page.text
    assert "covnmt translate --json" in page.text
    assert sorted(p.name for p in (tmp_path / "figures").iterdir()) == ["length.png", "length.svg"]


def test_report_of_a_single_system(tmp_path: Path) -> None:
    page = read(write_report(tmp_path, "t", PLAIN, {"base": with_attention(LOSSY)}, options=FAST))
    assert "one system" in page.text
    assert "No sentence differs" in page.text
    # the last output is empty and cannot be drawn
    assert (tmp_path / "figures" / "sentence-3.png").is_file()
    assert not (tmp_path / "figures" / "sentence-4.png").exists()


def test_numbers_of_sentences_and_heat_maps_are_limited(tmp_path: Path) -> None:
    page = write_report(tmp_path, "t", EXACT, SYSTEMS, options=FAST, sentences=1, maps=1)
    assert page.read_text("utf-8").count("<article") == 3
    assert len(list((tmp_path / "figures").glob("sentence-*.png"))) == 1


@pytest.mark.parametrize(
    ("test_set", "systems", "message"),
    [
        (EvaluationSet([REFERENCE]), SYSTEMS, "needs the source"),
        (PLAIN, {}, "at least one system"),
        (PLAIN, {"a": plain(["x"]), "b": plain(LOSSY)}, "has 1 sentences"),
    ],
)
def test_bad_reports_are_errors_before_anything_is_written(
    tmp_path: Path, test_set: EvaluationSet, systems: dict[str, list[OutputLine]], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        write_report(tmp_path, "t", test_set, systems, options=FAST)
    assert list(tmp_path.iterdir()) == []
