"""Outputs are read from JSON lines and plain text; errors name file, line and key."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covnmt.base.errors import UserError
from covnmt.evaluation.system_output import (
    OutputLine,
    combine_output_lines,
    parse_output_line,
    read_outputs,
)

ROW: dict[str, Any] = {
    "source": "ka mo",
    "source_tokens": ["ka", "mo"],
    "text": "big house now",
    "tokens": ["big", "house", "now"],
    "score": -1.5,
    "alignment": [[0.9, 0.1], [0.2, 0.7], [0.0, 1.0]],
    "coverage": [1.1, 1.8],
    "fertility": None,
}

# changes of ROW, and the key that the message names
BAD_ROWS: list[tuple[dict[str, Any], str]] = [
    ({"text": None}, '"text"'),
    ({"text": "half \ud800"}, '"text"'),
    ({"tokens": ["\udc00"]}, '"tokens"'),
    ({"coverage": [10**400, 1]}, '"coverage"'),
    ({"tokens": "big house now"}, '"tokens"'),
    ({"source_tokens": [1, 2]}, '"source_tokens"'),
    ({"alignment": [[0.9, 0.1]]}, '"alignment"'),
    ({"alignment": [[0.9], [0.1, 0.2], [0.3, 0.4]]}, '"alignment"'),
    ({"alignment": [["a", "b"]] * 3}, '"alignment"'),
    ({"alignment": [[-0.1, 0.9]] * 3}, '"alignment"'),
    ({"coverage": [1.0]}, '"coverage"'),
    ({"coverage": [1.0, float("nan")]}, '"coverage"'),
    ({"fertility": [1.0, 1.0, 1.0]}, '"fertility"'),
]


def written(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def test_json_lines_have_all_fields(tmp_path: Path) -> None:
    (output,) = read_outputs(written(tmp_path / "out.json", ROW))
    assert output.text == "big house now"
    assert output.source_tokens == ("ka", "mo")
    assert output.tokens == ("big", "house", "now")
    assert output.score == -1.5
    assert output.alignment is not None
    assert output.coverage is not None
    assert output.alignment.dtype == np.float32
    assert output.alignment.tolist() == np.array(ROW["alignment"], dtype=np.float32).tolist()
    assert output.coverage.shape == (2,)
    assert output.fertility is None


@pytest.mark.parametrize(
    "line",
    ["", "a plain line", "{not JSON", "[1, 2]", '{"a": 1}', "17", "1" * 5000, "[" * 100_000],
    ids=lambda line: line[:20],
)
def test_other_lines_are_text(tmp_path: Path, line: str) -> None:
    path = tmp_path / "out.txt"
    path.write_text(f"{line}\r\nsecond\r\n", "utf-8")
    outputs = read_outputs(path)
    assert [output.text for output in outputs] == [line, "second"]
    assert all(output.alignment is None and output.tokens == () for output in outputs)


def test_compressed_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(ROW).encode()))
    assert read_outputs(path)[0].text == ROW["text"]


@pytest.mark.parametrize(
    ("last", "sentences", "read"),
    [("", None, 3), ("", 2, 2), ("", 3, 3), ("", 1, 3), ("three", 2, 3)],
)
def test_one_empty_line_too_many_is_ignored(
    tmp_path: Path, last: str, sentences: int | None, read: int
) -> None:
    path = tmp_path / "out.txt"
    path.write_text(f"one\ntwo\n{last}\n", "utf-8")
    assert len(read_outputs(path, sentences)) == read


@pytest.mark.parametrize(("change", "key"), BAD_ROWS)
def test_bad_rows_name_file_and_line(tmp_path: Path, change: Any, key: str) -> None:
    path = written(tmp_path / "out.jsonl", ROW, ROW | change)
    with pytest.raises(UserError, match="line 2") as raised:
        read_outputs(path)
    assert key in str(raised.value)
    assert str(path) in str(raised.value)


def test_truncated_and_empty_files_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + json.dumps(ROW)[:40], "utf-8")
    with pytest.raises(UserError, match=r"out\.jsonl, line 2: "):
        read_outputs(path)
    path.write_text(json.dumps(ROW) + "\n" + "1" * 5000, "utf-8")
    with pytest.raises(UserError, match=r"out\.jsonl, line 2: "):
        read_outputs(path)
    path.write_text("", "utf-8")
    with pytest.raises(UserError, match=r"out\.jsonl: "):
        read_outputs(path)


@given(st.integers(0, 4), st.integers(0, 4))
def test_alignment_of_any_size_is_parsed(I: int, J: int) -> None:
    row = {
        "text": " ".join("y" * I),
        "tokens": ["y"] * I,
        "source_tokens": ["x"] * J,
        "alignment": np.full((I, J), 0.5).tolist(),
        "coverage": [1.0] * J,
    }
    output = parse_output_line(json.dumps(row), "here")
    assert output.alignment is not None
    assert output.alignment.shape == (I, J)


def test_attention_is_kept_only_if_all_sentences_have_it() -> None:
    full = parse_output_line(json.dumps(ROW | {"fertility": [1.0, 2.0]}), "here")
    both = combine_output_lines([full, full])
    assert both.attention is not None
    assert len(both.attention) == 2
    assert both.fertility == [[1.0, 2.0], [1.0, 2.0]]
    mixed = combine_output_lines([full, OutputLine(text="x")])
    assert list(mixed.text) == ["big house now", "x"]
    assert mixed.attention is None
    assert mixed.fertility is None
