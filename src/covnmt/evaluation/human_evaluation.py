"""Blind human evaluation (paper, section 5.2 and Table 2).

`make_rating_sheets` samples sentences, hides which system wrote which output, and writes the same
questions as a sheet for a spreadsheet and as a form for a browser, which saves such a sheet.
`score_rating_sheets` reads filled sheets, looks the systems up in the key, and computes adequacy,
fluency, the percentages of omitted and repeated source words, and the raters' agreement.
"""

import csv
import hashlib
import json
import random
import string
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from covnmt.base.errors import UserError
from covnmt.base.files import atomic_write_text, read_json, read_lines, write_json
from covnmt.evaluation.rendering import render_template
from covnmt.evaluation.system_output import OutputLine
from covnmt.text.characters import is_grapheme_extension, is_unspaced_script
from covnmt.text.tokenize import SPACE_SYMBOL

KEY_FILE, SHEET_FILE, FORM_FILE = "key.json", "ratings.csv", "form.html"
COLUMNS = ("id", "source", "output", "adequacy", "fluency", "left_out", "said_twice")
MIN_RATING, MAX_RATING = 1, 5
ADEQUACY = {
    5: "all of the source's meaning is there",
    4: "most of it is there; only details are missing or wrong",
    3: "about half is there; something important is missing or wrong",
    2: "little is there; scraps of the meaning come through",
    1: "nothing is there, or it says something else",
}
FLUENCY = {
    5: "reads as if a native speaker had written it",
    4: "reads well, with a small slip",
    3: "understandable, but clumsy or with plain mistakes",
    2: "hard to follow; one has to read it twice",
    1: "not a sentence of the language",
}


@dataclass(frozen=True)
class RatedOutput:
    """One output to rate; only the key file has the system."""

    id: str
    sentence: int  # line of the files, from 1
    system: str
    words: Annotated[int, Field(gt=0)]  # source words that can be marked


class RatingKey(BaseModel):
    """The content of the key file; tag and seed are not needed to read it."""

    tag: str = ""
    seed: int = 0
    systems: list[str]
    items: list[RatedOutput]


@dataclass(frozen=True)
class RatingSheets:
    """The files of a human evaluation: raters get the sheet or the form, not the key."""

    key: Path
    sheet: Path
    form: Path


def make_rating_sheets(
    systems: Mapping[str, Sequence[str]],
    source: Sequence[str],
    n: int,
    seed: int,
    directory: Path,
    source_words: Sequence[Sequence[str]] | None = None,
) -> RatingSheets:
    """Sample `n` sentences and write key, sheet and form for all systems.

    Source words are split at white space unless `source_words` gives them, as it must for
    languages without spaces. Equal arguments give equal files.
    """
    words = [list(row) for row in (source_words or [line.split() for line in source])]
    _check_sizes(systems, source, words, n)
    rng = random.Random(seed)
    tag = _sheet_tag(systems, source, n, seed)
    not_empty = [k for k, row in enumerate(words) if row]
    items, questions = [], []
    for number, k in enumerate(sorted(rng.sample(not_empty, n)), 1):
        order = rng.sample(sorted(systems), len(systems))
        outputs = [
            RatedOutput(f"{tag}-{number:03d}-{letter}", k + 1, name, len(words[k]))
            for letter, name in zip(string.ascii_uppercase, order, strict=False)
        ]
        items += outputs
        texts = [{"id": item.id, "text": systems[item.system][k]} for item in outputs]
        questions.append({"words": words[k], "outputs": texts})
    key = RatingKey(tag=tag, seed=seed, systems=list(systems), items=items)
    sheets = RatingSheets(directory / KEY_FILE, directory / SHEET_FILE, directory / FORM_FILE)
    if sheets.sheet.exists():
        raise UserError(f"{sheets.sheet}: exists, and may be filled in; choose another directory")
    write_json(sheets.key, key.model_dump())
    _write_sheet(sheets.sheet, questions)
    _write_form(sheets.form, tag, questions)
    return sheets


def given_source_words(
    systems: Iterable[Sequence[OutputLine]], source: Sequence[str]
) -> list[tuple[str, ...]] | None:
    """Return the source words of the first system that has them for every line with text."""
    for outputs in systems:
        lines = zip(outputs, source, strict=False)
        if all(output.source_tokens or not line.strip() for output, line in lines):
            return [join_subwords(output.source_tokens) for output in outputs]
    return None


def join_subwords(tokens: Sequence[str]) -> tuple[str, ...]:
    """Join subwords and characters to words.

    In Chinese, Japanese and Thai, which have no spaces, every subword stays a word.
    """
    if not any(SPACE_SYMBOL in token for token in tokens):
        return tuple(tokens)
    text = ""
    for token in tokens:
        subword = token.replace(SPACE_SYMBOL, " ")
        apart = any(map(is_unspaced_script, text[-1:] + subword[:1])) and not is_grapheme_extension(
            subword[0]
        )
        text += f" {subword}" if apart else subword
    return tuple(text.split())


def _check_sizes(
    systems: Mapping[str, Sequence[str]],
    source: Sequence[str],
    words: Sequence[Sequence[str]],
    n: int,
) -> None:
    if not 1 <= len(systems) <= len(string.ascii_uppercase):
        raise UserError(f"{len(systems)} systems; rate between 1 and 26 of them")
    for name, lines in {**systems, "list of source words": words}.items():
        if len(lines) != len(source):
            raise UserError(
                f"{name} has {len(lines)} sentences but the source has {len(source)}; "
                "they must match line by line"
            )
    not_empty = sum(map(bool, words))
    if not 1 <= n <= not_empty:
        raise UserError(f"cannot draw {n} sentences: the source has {not_empty} that are not empty")


def _sheet_tag(
    systems: Mapping[str, Sequence[str]], source: Sequence[str], n: int, seed: int
) -> str:
    """Return a short hash of these sheets, so that ratings are never read with another key."""
    content = json.dumps([list(systems.items()), list(source), n, seed], default=list)
    return "r" + hashlib.sha256(content.encode()).hexdigest()[:5]


def _write_sheet(path: Path, questions: Sequence[Mapping[str, Any]]) -> None:
    with atomic_write_text(path) as stream:
        # byte order mark, by which spreadsheets know UTF-8
        stream.write("\ufeff")
        writer = csv.writer(stream, lineterminator="\r\n")
        writer.writerow(COLUMNS)
        for question in questions:
            numbered = " ".join(f"{k}:{word}" for k, word in enumerate(question["words"], 1))
            for output in question["outputs"]:
                blank = [""] * (len(COLUMNS) - 3)
                writer.writerow([output["id"], _cell(numbered), _cell(output["text"]), *blank])


def _cell(text: str) -> str:
    """Quote text that a spreadsheet would take for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text


def _write_form(path: Path, tag: str, questions: Sequence[Mapping[str, Any]]) -> None:
    data = {
        "tag": tag,
        "columns": COLUMNS,
        "scales": {
            name: [[value, words] for value, words in scale.items()]
            for name, scale in (("adequacy", ADEQUACY), ("fluency", FLUENCY))
        },
        "questions": questions,
    }
    with atomic_write_text(path) as stream:
        stream.write(render_template("rating_form.html", data=data))


# Reading filled sheets


@dataclass(frozen=True)
class Rating:
    """The ratings of one output by one rater; marked source words count from 0."""

    item: RatedOutput
    adequacy: int
    fluency: int
    left_out: frozenset[int]
    said_twice: frozenset[int]


@dataclass(frozen=True)
class SystemRating:
    """A row of the paper's Table 2; `left_out` and `said_twice` are percentages of source words."""

    system: str
    ratings: int
    adequacy: float
    fluency: float
    left_out: float
    said_twice: float


@dataclass(frozen=True)
class RaterAgreement:
    """How far two raters agree on one question, over what both have answered.

    `same` is the percentage of equal answers. `kappa` is Cohen's kappa with squared weights, which
    corrects for chance: 1 is full agreement, 0 that of chance. It is None if all answers of both
    are the same.
    """

    question: str
    raters: tuple[str, str]
    answers: int
    same: float
    kappa: float | None


@dataclass(frozen=True)
class RatingSummary:
    """The results; `unfilled` names, for each sheet, the outputs without both scales."""

    systems: tuple[SystemRating, ...]
    agreement: tuple[RaterAgreement, ...]
    unfilled: Mapping[str, tuple[str, ...]]


def score_rating_sheets(key: Path, sheets: Sequence[Path]) -> RatingSummary:
    """Read the filled sheets of one or more raters and compute the results of each system."""
    if not sheets:
        raise UserError("no filled sheet given")
    for first, second in combinations(sheets, 2):
        if first.resolve() == second.resolve():
            raise UserError(f"{second}: given twice; give the sheet of each rater once")
    systems, items = _read_key(key)
    raters = {str(sheet): _read_sheet(sheet, items) for sheet in sheets}
    all_ratings = [rating for ratings in raters.values() for rating in ratings.values()]
    if not all_ratings:
        raise UserError(f"{', '.join(raters)}: nothing filled in yet")
    by_system = {
        name: [rating for rating in all_ratings if rating.item.system == name] for name in systems
    }
    return RatingSummary(
        systems=tuple(_system_rating(name, rows) for name, rows in by_system.items() if rows),
        agreement=tuple(
            agreement
            for first, second in combinations(raters, 2)
            for agreement in _compute_agreement((first, second), raters[first], raters[second])
        ),
        unfilled={
            rater: tuple(name for name in items if name not in ratings)
            for rater, ratings in raters.items()
        },
    )


def _read_key(path: Path) -> tuple[list[str], dict[str, RatedOutput]]:
    try:
        key = RatingKey.model_validate(read_json(path))
    except ValidationError:
        raise UserError(f"{path}: not a key that `covnmt rate make` wrote") from None
    return key.systems, {item.id: item for item in key.items}


def _read_sheet(path: Path, items: Mapping[str, RatedOutput]) -> dict[str, Rating]:
    """Read filled rows by id; rows without both scales are skipped."""
    ratings: dict[str, Rating] = {}
    seen: set[str] = set()
    for where, row in _read_rows(path):
        name = row["id"].strip()
        if name not in items:
            start = shorten(name, 40)
            raise UserError(
                f"{where}: id {start!r} is not in the key; is it the key of this sheet?"
            )
        if name in seen:
            raise UserError(f"{where}: id {name!r} is in an earlier row too; remove one of them")
        seen.add(name)
        item = items[name]
        adequacy, fluency = (_parse_scale(row, scale, where) for scale in ("adequacy", "fluency"))
        omitted, repeated = (
            _parse_positions(row, k, item.words, where) for k in ("left_out", "said_twice")
        )
        if adequacy is not None and fluency is not None:
            ratings[name] = Rating(item, adequacy, fluency, omitted, repeated)
    return ratings


def _read_rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows of a sheet, with comma, semicolon or tab, and where each one is."""
    # some spreadsheets on a Mac end lines with a carriage return alone
    lines = [row for line in read_lines(path) for row in line.split("\r")]
    if not lines:
        raise UserError(f"{path}: empty; expected the sheet that `covnmt rate make` wrote")
    lines[0] = lines[0].removeprefix("\ufeff")
    delimiter = max(",;\t", key=lines[0].count)
    reader = csv.DictReader(lines, delimiter=delimiter, restval="")
    try:
        # source and output are there for the rater only
        missing = set(COLUMNS) - {"source", "output"} - set(reader.fieldnames or ())
        if missing:
            raise UserError(f"{path}, line 1: no column {', '.join(sorted(missing))}")
        for row in reader:
            if any(isinstance(cell, str) and cell.strip() for cell in row.values()):
                yield f"{path}, line {reader.line_num}", row
    except csv.Error as error:
        raise UserError(
            f"{path}, after line {reader.line_num}: {error}; is a quotation mark left open?"
        ) from None


def _parse_scale(row: Mapping[str, str], name: str, where: str) -> int | None:
    cell = row[name].strip()
    if not cell:
        return None
    # spreadsheets may write 4 as 4.0
    value = cell.removesuffix(".0")
    if value not in map(str, range(MIN_RATING, MAX_RATING + 1)):
        raise UserError(
            f"{where}: {name} is {cell!r}; expected a whole number from {MIN_RATING} to "
            f"{MAX_RATING}"
        )
    return int(value)


def _parse_positions(row: Mapping[str, str], name: str, words: int, where: str) -> frozenset[int]:
    """Parse numbers of source words, from 1 in the sheet and from 0 in the result."""
    cells = row[name].replace(",", " ").replace(";", " ").split()
    numbers = [cell.removesuffix(".0") for cell in cells]
    positions = {str(j + 1): j for j in range(words)}
    for number in numbers:
        if number not in positions:
            raise UserError(
                f"{where}: {name} has {shorten(number, 40)!r}; expected numbers of source "
                f"words from 1 to {words}"
            )
    return frozenset(positions[number] for number in numbers)


# Results


def _system_rating(system: str, ratings: Sequence[Rating]) -> SystemRating:
    words = sum(rating.item.words for rating in ratings)
    return SystemRating(
        system=system,
        ratings=len(ratings),
        adequacy=sum(rating.adequacy for rating in ratings) / len(ratings),
        fluency=sum(rating.fluency for rating in ratings) / len(ratings),
        left_out=100 * sum(len(rating.left_out) for rating in ratings) / words,
        said_twice=100 * sum(len(rating.said_twice) for rating in ratings) / words,
    )


def _compute_agreement(
    raters: tuple[str, str], first: Mapping[str, Rating], second: Mapping[str, Rating]
) -> Iterator[RaterAgreement]:
    rated_by_both = [(first[name], second[name]) for name in first if name in second]
    answers: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for one, other in rated_by_both:
        answers["adequacy"].append((one.adequacy, other.adequacy))
        answers["fluency"].append((one.fluency, other.fluency))
        for j in range(one.item.words):
            answers["left out, by word"].append((j in one.left_out, j in other.left_out))
            answers["said twice, by word"].append((j in one.said_twice, j in other.said_twice))
    for question, pairs in answers.items():
        same = 100 * sum(a == b for a, b in pairs) / len(pairs)
        yield RaterAgreement(question, raters, len(pairs), same, weighted_kappa(pairs))


def weighted_kappa(pairs: Sequence[tuple[int, int]]) -> float | None:
    """Compute Cohen's kappa with squared weights; for yes and no the weights change nothing.

    kappa = 1 - mean of (a - b)^2 over pairs / its mean over all combinations of a and b
    """
    a, b = np.asarray(pairs, dtype=np.float64).T
    observed = ((a - b) ** 2).mean()
    # the mean of (a_k - b_l)^2 over all k and l
    expected = a.var() + b.var() + (a.mean() - b.mean()) ** 2
    return None if expected == 0 else float(1 - observed / expected)
