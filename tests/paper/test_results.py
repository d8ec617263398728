"""Result files: their layout, damaged ones, and those that are committed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covnmt.base.errors import UserError
from covnmt.evaluation.evaluate import Comparison
from covnmt.paper.results import Result, format_json, read_results, result_path, write_result
from tests.paper.sample_results import (
    REFERENCES,
    sample_content,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_formatted_json_is_equal_to_its_value(value: Any) -> None:
    assert json.loads(format_json(value)) == value


def test_lists_of_plain_values_are_on_one_line() -> None:
    text = format_json({"a": [[1, 2], [3, 4]], "b": ["x", "y"]})
    assert text == '{\n  "a": [\n    [1, 2],\n    [3, 4]\n  ],\n  "b": ["x", "y"]\n}'


def test_damaged_results_are_refused_with_their_file_and_keys(
    tmp_path: Path, comparison: Comparison
) -> None:
    good = sample_content(comparison, "gru10", 1)
    for content, message in (
        ({"format": 9}, "gru10-seed1.json: not a result of `covnmt reproduce`"),
        ({"format": 1, **good, "seed": 2}, "holds gru10, seed 2"),
        (
            {"format": 1, "system": "gru10", "seed": 1, "test": {}},
            "has no .*parameters, training, .*test.statistics",
        ),
    ):
        (tmp_path / "gru10-seed1.json").write_text(json.dumps(content), "utf-8")
        with pytest.raises(UserError, match=message):
            read_results(tmp_path)


def test_statistics_are_an_integer_array(results: list[Result]) -> None:
    assert results[0].statistics.shape == (len(REFERENCES), 10)
    assert results[0].statistics.dtype == np.int64


RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.parametrize(
    "directory",
    sorted(path for path in RESULTS.iterdir() if path.is_dir()),
    ids=lambda path: path.name,
)
def test_committed_results_keep_every_key(directory: Path, tmp_path: Path) -> None:
    """A result that was read can be written again without loss."""
    results = read_results(directory)
    assert results
    for result in results:
        original = result_path(directory, result.system, result.seed)
        copy = write_result(tmp_path, result)
        assert json.loads(copy.read_text("utf-8")) == json.loads(original.read_text("utf-8"))
