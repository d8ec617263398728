"""Files of other toolkits are read as they are; what does not fit names file and line."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covnmt.base.arrays import FloatArray
from covnmt.base.errors import UserError
from covnmt.evaluation.alignment_files import save_matrices
from covnmt.evaluation.system_output import SystemOutput
from covnmt.evaluation.test_set import (
    EvaluationSet,
    check_evaluation_inputs,
    load_evaluation_set,
    load_output,
)
from covnmt.metrics.alignment import GoldAlignment, parse_links

SOURCE, REFERENCE, HYPOTHESIS = ["s t", "u v w"], ["a b", "c d"], ["a b", "c"]
GOLD = ["0-0 1-1", "0-0 2p1"]


def write(path: Path, lines: list[str], end: str = "\n", extra: str = "") -> Path:
    data = "".join(line + end for line in lines) + extra
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(data.encode()))
    else:
        path.write_bytes(data.encode())
    return path


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, Path]:
    lines = {"source": SOURCE, "reference": REFERENCE, "hypothesis": HYPOTHESIS, "gold": GOLD}
    return {name: write(tmp_path / name, text) for name, text in lines.items()}


def ones(*shape: int) -> FloatArray:
    return np.ones(shape, np.float32)


def load(paths: dict[str, Path], **options: Any) -> tuple[EvaluationSet, SystemOutput]:
    test_set = load_evaluation_set([paths["reference"]], paths["source"], paths["gold"], **options)
    output = load_output(paths["hypothesis"], test_set)
    check_evaluation_inputs(test_set, output)
    return test_set, output


@pytest.mark.parametrize("name", ["source", "reference", "hypothesis", "gold"])
@pytest.mark.parametrize(
    ("suffix", "end", "extra"),
    [
        (".gz", "\n", ""),
        ("", "\r\n", ""),
        ("", "\n", "\n"),
        ("", "\r\n", "\r\n"),
        (".gz", "\n", "\n"),
    ],
)
def test_files_may_be_compressed_or_have_other_line_ends(
    paths: dict[str, Path], name: str, suffix: str, end: str, extra: str
) -> None:
    expected = load(paths)
    lines = paths[name].read_text().splitlines()
    paths[name] = write(paths[name].with_name(name + "-odd" + suffix), lines, end, extra)
    test_set, output = load(paths)
    assert replace(test_set, files={}) == replace(expected[0], files={})
    assert replace(output, files={}) == replace(expected[1], files={})


def test_last_line_may_lack_its_line_end(paths: dict[str, Path]) -> None:
    paths["hypothesis"].write_text("a b\nc")
    assert load(paths)[1].text == HYPOTHESIS


def test_empty_last_output_is_kept(paths: dict[str, Path]) -> None:
    write(paths["hypothesis"], ["a b", ""])
    assert load(paths)[1].text == ["a b", ""]


def test_gold_links_may_count_from_one(paths: dict[str, Path]) -> None:
    write(paths["gold"], ["1-1 2-2", "1-1 3p2"])
    assert load(paths, index_base=1)[0].gold == [parse_links(line) for line in GOLD]


# file, its new lines, what the message names
BAD = [
    ("hypothesis", ["a"], "hypothesis "),
    ("hypothesis", ["a", "b", "c"], "hypothesis "),
    ("hypothesis", ["a", "b", "", ""], "hypothesis "),
    ("source", ["s t"], "source "),
    ("gold", ["0-0"], "gold "),
    ("reference", ["", "c d"], "reference, line 1: "),
    ("reference", ["  ", "c d"], "reference, line 1: "),
    ("reference", [], "reference: "),
    ("gold", ["0-0", "3-0"], "gold, line 2: link 3-0"),
    ("gold", ["0-2", "0-0"], "gold, line 1: link 0-2"),
    ("gold", ["0-0", "0:0"], "gold, line 2: '0:0'"),
    ("gold", ["", ""], "gold: "),
]


@pytest.mark.parametrize(("name", "lines", "where"), BAD)
def test_files_that_do_not_fit_are_errors_with_file_and_line(
    paths: dict[str, Path], name: str, lines: list[str], where: str
) -> None:
    write(paths[name], lines)
    with pytest.raises(UserError, match=where):
        load(paths)


def test_missing_file_is_named(paths: dict[str, Path]) -> None:
    paths["source"].unlink()
    with pytest.raises(UserError, match="source: "):
        load(paths)


def test_reverse_links_alone_are_an_error() -> None:
    with pytest.raises(UserError, match="--links"):
        check_evaluation_inputs(
            EvaluationSet([["a"]]), SystemOutput(["a"], reverse_links=[frozenset()])
        )


def test_gold_without_source_is_an_error() -> None:
    test_set = EvaluationSet([["a"]], gold=[GoldAlignment(frozenset({(0, 0)}), frozenset())])
    with pytest.raises(UserError, match="source"):
        check_evaluation_inputs(test_set, SystemOutput(["a"]))


def test_links_and_matrices_of_a_system_are_loaded(paths: dict[str, Path], tmp_path: Path) -> None:
    test_set, _ = load(paths)
    links = write(tmp_path / "links", ["0-0", "1p1"])
    output_links = write(tmp_path / "own", ["0-0", "1-0"])
    save_matrices(tmp_path / "forced.npz", [ones(2, 2), ones(2, 3)])
    output = load_output(
        paths["hypothesis"],
        test_set,
        reference_attention=tmp_path / "forced.npz",
        links=links,
        reverse_links=links,
        output_links=output_links,
    )
    check_evaluation_inputs(test_set, output)
    assert output.links == output.reverse_links == [frozenset({(0, 0)}), frozenset({(1, 1)})]
    assert output.output_links == [frozenset({(0, 0)}), frozenset({(1, 0)})]
    assert output.reference_attention is not None
    assert [soft.shape for soft in output.reference_attention] == [(2, 2), (2, 3)]


@pytest.mark.parametrize("part", ["links", "reverse_links", "output_links"])
def test_system_links_outside_the_sentence_name_file_and_line(
    paths: dict[str, Path], tmp_path: Path, part: str
) -> None:
    test_set, output = load(paths)
    bad = write(tmp_path / "bad", ["0-0", "1-2"])
    wrong = load_output(
        paths["hypothesis"],
        test_set,
        links=bad if part == "links" else None,
        reverse_links=bad if part == "reverse_links" else None,
        output_links=bad if part == "output_links" else None,
    )
    check_evaluation_inputs(test_set, output)
    with pytest.raises(UserError, match=r"bad, line 2: link 1-2"):
        check_evaluation_inputs(test_set, wrong)


def test_reference_matrices_of_other_words_name_file_and_sentence(
    paths: dict[str, Path], tmp_path: Path
) -> None:
    test_set, _ = load(paths)
    save_matrices(tmp_path / "forced.npz", [ones(2, 2), ones(3, 3)])
    output = load_output(paths["hypothesis"], test_set, reference_attention=tmp_path / "forced.npz")
    with pytest.raises(UserError, match=r"forced\.npz, sentence 2: "):
        check_evaluation_inputs(test_set, output)


def translation(text: str, words: int, fertility: list[float] | None) -> dict[str, Any]:
    tokens = text.split()
    return {
        "source": "",
        "source_tokens": ["s"] * words,
        "text": text,
        "tokens": tokens,
        "score": -1.0,
        "alignment": [[1 / words] * words for _ in tokens],
        "coverage": [0.0] * words,
        "fertility": fertility,
    }


def test_json_lines_give_attention_and_fertility(paths: dict[str, Path], tmp_path: Path) -> None:
    rows = [translation("a b", 2, [1.0, 0.5]), translation("", 3, [1.0, 1.0, 1.0])]
    path = write(tmp_path / "out.jsonl.gz", [json.dumps(row) for row in rows])
    test_set, _ = load(paths)
    output = load_output(path, test_set)
    check_evaluation_inputs(test_set, output)
    assert output.text == ["a b", ""]
    assert output.fertility == [[1.0, 0.5], [1.0, 1.0, 1.0]]
    assert output.attention is not None
    assert [soft.shape for soft in output.attention] == [(2, 2), (0, 3)]
    rows[1]["fertility"] = None
    write(path, [json.dumps(row) for row in rows])
    assert load_output(path, test_set).fertility is None


@pytest.mark.parametrize("line", ["{", "[]", "{}", '"a"', '{"text": "a", "alignment": [[1, 2]]}'])
def test_bad_json_lines_name_file_and_line(
    paths: dict[str, Path], tmp_path: Path, line: str
) -> None:
    path = write(tmp_path / "out.jsonl", [json.dumps(translation("a", 1, None)), line])
    with pytest.raises(UserError, match=r"out\.jsonl, line 2: "):
        load_output(path, load(paths)[0])


def test_fertility_of_other_words_names_the_sentence() -> None:
    soft = [ones(1, 2)]
    test_set = EvaluationSet([["a"]])
    check_evaluation_inputs(test_set, SystemOutput(["a"], attention=soft, fertility=[[1.0, 1.0]]))
    with pytest.raises(UserError, match="fertility, sentence 1: "):
        check_evaluation_inputs(
            test_set, SystemOutput(["a"], attention=soft, fertility=[[1.0, 1.0, 1.0]])
        )
