"""Sheets hide the systems, come back filled in many ways, and give the paper's Table 2."""

import csv
import json
import re
from collections import Counter
from dataclasses import asdict
from html.parser import HTMLParser
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from covnmt.base.errors import UserError
from covnmt.evaluation.human_evaluation import (
    ADEQUACY,
    FLUENCY,
    RatingSheets,
    RatingSummary,
    given_source_words,
    make_rating_sheets,
    score_rating_sheets,
    weighted_kappa,
)
from covnmt.evaluation.system_output import OutputLine
from covnmt.evaluation.tables import agreement_table, ratings_table

SOURCE = [f"ka{k} mo{k} ti{k} su{k}" for k in range(12)]
# the text gives the system away, so that tests can tell which it was
SYSTEMS = {name: [f"{name} says {k}" for k in range(12)] for name in ("base", "gru")}

# column, what the rater wrote, what the message must say
BAD_CELLS = [
    ("id", "r00000-001-A"),
    ("id", ""),
    ("adequacy", "0"),
    ("adequacy", "6"),
    ("adequacy", "3.5"),
    ("fluency", "good"),
    ("left_out", "5"),
    ("left_out", "0"),
    ("said_twice", "ka3"),
    ("said_twice", "1" * 5000),
]


@pytest.fixture
def sheets(tmp_path: Path) -> RatingSheets:
    return make_rating_sheets(SYSTEMS, SOURCE, 5, seed=7, directory=tmp_path / "rating")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        return list(csv.DictReader(stream))


def fill(
    sheets: RatingSheets,
    name: str,
    answers: dict[str, tuple[str, str, str, str]],
    delimiter: str = ",",
) -> Path:
    """Fill a sheet with answers by the first word of the output, which names the system."""
    filled = rows(sheets.sheet)
    for row in filled:
        given = answers.get(row["output"].split()[0], ("", "", "", ""))
        row.update(zip(("adequacy", "fluency", "left_out", "said_twice"), given, strict=True))
    return save(sheets.sheet.with_name(name), filled, delimiter)


def save(path: Path, filled: list[dict[str, str]], delimiter: str = ",") -> Path:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(filled[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(filled)
    return path


def test_sheet_and_form_do_not_name_the_systems(tmp_path: Path) -> None:
    neutral = {"base": ["x"] * 12, "gru": ["x"] * 12}
    sheets = make_rating_sheets(neutral, SOURCE, 5, 7, tmp_path)
    for path in (sheets.sheet, sheets.form):
        text = path.read_text("utf-8").casefold()
        assert not re.search(r"\b(base|gru)\b", text)
    assert "gru" in sheets.key.read_text("utf-8")


def test_every_sentence_has_every_system_in_changing_order(tmp_path: Path) -> None:
    sheets = make_rating_sheets(SYSTEMS, SOURCE, 12, 7, tmp_path)
    orders: Counter[tuple[str, str]] = Counter()
    for first, second in zip(rows(sheets.sheet)[::2], rows(sheets.sheet)[1::2], strict=True):
        assert first["source"] == second["source"]
        orders[first["output"].split()[0], second["output"].split()[0]] += 1
    assert set(orders) == {("base", "gru"), ("gru", "base")}


def test_sheet_opens_in_spreadsheets(tmp_path: Path) -> None:
    outputs = ["=1+1", "-3 degrees", "@home", "+x", "'quoted, really'", "日本"]
    sheets = make_rating_sheets({"a": outputs}, ["s"] * 6, 6, 1, tmp_path)
    assert sheets.sheet.read_bytes().startswith(b"\xef\xbb\xbf")
    texts = [row["output"] for row in rows(sheets.sheet)]
    assert texts == ["'=1+1", "'-3 degrees", "'@home", "'+x", "'quoted, really'", "日本"]


def test_seed_determines_the_sample(tmp_path: Path) -> None:
    texts = [
        make_rating_sheets(SYSTEMS, SOURCE, 5, seed, tmp_path / f"{n}").sheet.read_text("utf-8")
        for n, seed in enumerate((7, 7, 8))
    ]
    assert texts[0] == texts[1] != texts[2]


def test_empty_source_lines_are_not_drawn(tmp_path: Path) -> None:
    sheets = make_rating_sheets({"a": ["x"] * 4}, ["one", "", "two", "  "], 2, 1, tmp_path)
    assert [row["source"] for row in rows(sheets.sheet)] == ["1:one", "1:two"]


@pytest.mark.parametrize(
    ("systems", "n", "message"),
    [
        ({}, 1, "0 systems"),
        ({"a": ["x"]}, 1, "a has 1 sentences but the source has 12"),
        (SYSTEMS, 13, "cannot draw 13 sentences: the source has 12"),
        (SYSTEMS, 0, "cannot draw 0"),
    ],
)
def test_bad_samples_are_errors(
    tmp_path: Path, systems: dict[str, list[str]], n: int, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make_rating_sheets(systems, SOURCE, n, 1, tmp_path)
    assert list(tmp_path.iterdir()) == []


class Scripts(HTMLParser):
    """Collect the scripts of a page, and every address it refers to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.addresses: list[str | None] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag == "script"
        self.scripts += [""] if self.inside else []
        self.addresses += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.scripts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self.inside = False


def test_form_is_self_contained_and_keeps_text_as_text(tmp_path: Path) -> None:
    hostile = "</script><script>alert(1)</script><!-- $data ${x}"
    sheets = make_rating_sheets({"a": [hostile]}, [hostile], 1, 1, tmp_path)
    page = Scripts(sheets.form.read_text("utf-8"))
    assert len(page.scripts) == 2
    assert page.addresses == []
    data = json.loads(page.scripts[0])
    assert data["questions"][0]["outputs"][0]["text"] == hostile
    assert data["questions"][0]["words"] == hostile.split()
    for name, scale in (("adequacy", ADEQUACY), ("fluency", FLUENCY)):
        assert dict(data["scales"][name]) == scale
        assert sorted(scale) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ("▁ 金 閣 寺 は ▁Ky oto", "金 閣 寺 は Kyoto"),
        ("▁เด็ก อ่าน หน ังสือ ▁ในปี ▁ 1 9 98", "เด็ก อ่าน หนังสือ ในปี 1998"),
        ("▁학교 에 ▁갔 습니다 .", "학교에 갔습니다."),
        ("▁ein ▁Sa tz . ▁", "ein Satz."),
        ("e i n ▁ S a t z", "ein Satz"),
        ("ein Satz .", "ein Satz ."),
        ("金閣寺 は", "金閣寺 は"),
    ],
)
def test_subwords_are_joined_to_words(tokens: str, words: str) -> None:
    line = OutputLine("x", source_tokens=tuple(tokens.split()))
    assert given_source_words([[line]], ["x"]) == [tuple(words.split())]


def test_ratings_are_summarized_as_in_table_2(sheets: RatingSheets) -> None:
    sheet = fill(
        sheets, "anna.csv", {"base": ("3", "4", "1 2", "4"), "gru": ("5", "4.0", "", "3;4")}
    )
    ratings = score_rating_sheets(sheets.key, [sheet])
    base, gru = ratings.systems
    assert (base.system, base.ratings, base.adequacy, base.fluency) == ("base", 5, 3.0, 4.0)
    # two and one of four words in every sentence
    assert (base.left_out, base.said_twice) == (50.0, 25.0)
    assert (gru.adequacy, gru.left_out, gru.said_twice) == (5.0, 0.0, 50.0)
    assert ratings.agreement == ()
    assert ratings.unfilled == {str(sheet): ()}


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_order_of_rows_and_delimiter_do_not_matter(sheets: RatingSheets, delimiter: str) -> None:
    answers = {"base": ("2", "3", "1,4", ""), "gru": ("4", "5", "", "2")}
    plain = score_rating_sheets(sheets.key, [fill(sheets, "a.csv", answers)])
    sheet = fill(sheets, "b.csv", answers, delimiter)
    with sheet.open(encoding="utf-8", newline="") as stream:
        table = list(csv.DictReader(stream, delimiter=delimiter))
    save(sheet, table[::-1], delimiter)
    assert score_rating_sheets(sheets.key, [sheet]).systems == plain.systems


def test_carriage_returns_end_lines(sheets: RatingSheets) -> None:
    sheet = fill(sheets, "a.csv", {"base": ("2", "3", "1,4", ""), "gru": ("4", "5", "", "2")})
    plain = score_rating_sheets(sheets.key, [sheet])
    sheet.write_bytes(sheet.read_bytes().replace(b"\r\n", b"\r"))
    assert score_rating_sheets(sheets.key, [sheet]) == plain


def test_half_filled_rows_are_reported(sheets: RatingSheets) -> None:
    sheet = fill(sheets, "a.csv", {"base": ("3", "4", "", ""), "gru": ("5", "", "1", "")})
    ratings = score_rating_sheets(sheets.key, [sheet])
    assert [row.system for row in ratings.systems] == ["base"]
    of_gru = {row["id"] for row in rows(sheets.sheet) if row["output"].startswith("gru")}
    assert set(ratings.unfilled[str(sheet)]) == of_gru


def test_missing_rows_are_reported(sheets: RatingSheets) -> None:
    sheet = fill(sheets, "a.csv", {"base": ("3", "4", "", ""), "gru": ("5", "1", "1", "")})
    table = rows(sheet)
    save(sheet, table[1:])
    assert score_rating_sheets(sheets.key, [sheet]).unfilled[str(sheet)] == (table[0]["id"],)


@pytest.mark.parametrize(("column", "cell"), BAD_CELLS)
def test_bad_cells_name_file_and_line(sheets: RatingSheets, column: str, cell: str) -> None:
    table = rows(fill(sheets, "a.csv", {"base": ("3", "4", "", ""), "gru": ("5", "1", "1", "")}))
    table[2][column] = cell
    sheet = save(sheets.sheet.with_name("a.csv"), table)
    with pytest.raises(UserError, match=re.escape(f"{sheet}, line 4: ")) as raised:
        score_rating_sheets(sheets.key, [sheet])
    assert column in str(raised.value)


def test_bad_sheets_and_keys_are_errors(sheets: RatingSheets, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ratings\.csv: "):
        score_rating_sheets(sheets.key, [sheets.sheet])
    with pytest.raises(UserError, match="no filled sheet"):
        score_rating_sheets(sheets.key, [])
    other = tmp_path / "other.csv"
    other.write_text("", "utf-8")
    with pytest.raises(UserError, match=r"other\.csv: "):
        score_rating_sheets(sheets.key, [other])
    other.write_text("id,adequacy\n", "utf-8")
    with pytest.raises(UserError, match=r"other\.csv, line 1: .*fluency, left_out, said_twice"):
        score_rating_sheets(sheets.key, [other])
    other.write_text('{"items": 3}', "utf-8")
    with pytest.raises(UserError, match=r"other\.csv: "):
        score_rating_sheets(other, [sheets.sheet])
    table = rows(sheets.sheet)
    other.write_text("id," + "x" * 200_000, "utf-8")
    with pytest.raises(UserError, match=r"other\.csv, after line "):
        score_rating_sheets(sheets.key, [other])
    with pytest.raises(UserError, match=r"other\.csv: "):
        score_rating_sheets(sheets.key, [other, tmp_path / "x" / ".." / other.name])
    twice = save(tmp_path / "twice.csv", [table[0], table[0]])
    with pytest.raises(UserError, match=r"twice\.csv, line 3: "):
        score_rating_sheets(sheets.key, [twice])


@pytest.mark.parametrize(
    ("after", "message"),
    [(10, r"id '\w+-001-A,.{,30}' "), (200_000, "after line 1: ")],
)
def test_open_quotation_mark_gives_a_short_error(
    sheets: RatingSheets, after: int, message: str
) -> None:
    first, second, *_ = sheets.sheet.read_text("utf-8-sig").splitlines()
    sheets.sheet.write_text(f'{first}\n"{second}\n{"x" * after}', "utf-8")
    with pytest.raises(UserError, match=message) as raised:
        score_rating_sheets(sheets.key, [sheets.sheet])
    assert len(str(raised.value)) < 300


def test_key_of_other_sheets_is_an_error(sheets: RatingSheets, tmp_path: Path) -> None:
    other = make_rating_sheets(SYSTEMS, SOURCE, 5, seed=8, directory=tmp_path / "other")
    sheet = fill(sheets, "a.csv", {"base": ("3", "4", "", "")})
    with pytest.raises(UserError, match="is it the key of this sheet"):
        score_rating_sheets(other.key, [sheet])


def two_raters(sheets: RatingSheets) -> RatingSummary:
    first = fill(sheets, "a.csv", {"base": ("2", "4", "4", ""), "gru": ("4", "4", "", "")})
    second = fill(sheets, "b.csv", {"base": ("3", "4", "3 4", ""), "gru": ("4", "4", "", "")})
    return score_rating_sheets(sheets.key, [first, second])


def test_raters_are_averaged_and_compared(sheets: RatingSheets) -> None:
    ratings = two_raters(sheets)
    base = ratings.systems[0]
    assert (base.ratings, base.adequacy, base.left_out) == (10, 2.5, 37.5)
    agreement = {row.question: row for row in ratings.agreement}
    assert (agreement["adequacy"].answers, agreement["adequacy"].same) == (10, 50.0)
    # half the items one apart: observed 0.5; a varies by 1, b by 0.25, means 0.5 apart
    assert agreement["adequacy"].kappa == pytest.approx(1 - 0.5 / 1.5)
    assert (agreement["fluency"].same, agreement["fluency"].kappa) == (100.0, None)
    assert agreement["left out, by word"].answers == 40
    assert agreement["left out, by word"].same == pytest.approx(87.5)
    # 5 and 10 of 40 words marked, 5 of them by one rater only
    expected = 1 / 8 * 7 / 8 + 1 / 4 * 3 / 4 + (1 / 4 - 1 / 8) ** 2
    assert agreement["left out, by word"].kappa == pytest.approx(1 - 1 / 8 / expected)


def slow_kappa(pairs: list[tuple[int, int]]) -> float:
    """Compute kappa from the tables of observed and expected counts."""
    values = sorted({value for pair in pairs for value in pair})
    n = len(pairs)
    firsts, seconds, both = (
        Counter(a for a, _ in pairs),
        Counter(b for _, b in pairs),
        Counter(pairs),
    )
    observed = expected = 0.0
    for a, b in product(values, values):
        weight = (a - b) ** 2
        observed += weight * both[a, b] / n
        expected += weight * firsts[a] / n * seconds[b] / n
    return 1 - observed / expected if expected else float("nan")


ANSWERS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=30)


@given(ANSWERS)
def test_kappa_equals_a_slow_rewrite(pairs: list[tuple[int, int]]) -> None:
    kappa = weighted_kappa(pairs)
    slow = slow_kappa(pairs)
    assert (kappa is None) == np.isnan(slow)
    if kappa is not None:
        assert kappa == pytest.approx(slow)
        assert kappa <= 1
        assert weighted_kappa([(b, a) for a, b in pairs]) == pytest.approx(kappa)


def test_tables_can_be_printed(sheets: RatingSheets) -> None:
    ratings = two_raters(sheets)
    console = Console(width=100)
    with console.capture() as capture:
        console.print(ratings_table(ratings), agreement_table(ratings))
    text = capture.get()
    for expected in ("base", "2.50", "37.5%", "a.csv / b.csv", "0.67", "87.5%"):
        assert expected in text
    assert json.loads(json.dumps(asdict(ratings)))["systems"][0]["system"] == "base"
