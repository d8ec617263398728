"""Settings: the paper's defaults, descriptions, and comparisons."""

from pathlib import Path

import pytest

from covnmt.base.config import (
    Config,
    changed_settings,
    describe_keys,
    flatten_keys,
    read_if_made_from,
    require_same_settings,
)
from covnmt.base.errors import UserError
from covnmt.base.files import write_json


def test_defaults_are_those_of_the_paper() -> None:
    flat = flatten_keys(Config().model_dump())
    paper = {
        "data.batch_size": 80,
        "data.pool": 20,
        "data.max_length": 80,
        "model.embedding": 620,
        "model.hidden": 1000,
        "model.rank": 620,
        "model.dropout": 0.0,
        "model.coverage.max_fertility": 2.0,
        "train.seed": 1234,
        "train.optimizer": "adadelta",
        "train.rho": 0.95,
        "train.epsilon": 1e-6,
        "train.learning_rate": 1.0,
        "train.clip": 1.0,
        "train.loss": "sum",
        "train.validate_every": 10_000,
        "decode.beam": 10,
        "decode.length_penalty": 0.0,
    }
    assert {key: flat[key] for key in paper} == paper


def test_every_key_is_described() -> None:
    rows = describe_keys()
    assert [name for name, *_ in rows] == list(flatten_keys(Config().model_dump()))
    assert [name for name, _, _, meaning in rows if len(meaning) < 5] == []
    by_name = {name: (kind, default) for name, kind, default, _ in rows}
    assert by_name["model.order"] == ("code | paper", '"code"')
    assert by_name["train.tensorboard"] == ("bool", "false")
    assert by_name["data.directory"] == ("path", '"data"')


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().train.seed = 3  # type: ignore[misc]


def test_changed_settings_have_both_values() -> None:
    config = Config.model_validate({"train": {"seed": 5}, "model": {"hidden": 10}})
    changes = {"model.hidden": (1000, 10), "train.seed": (1234, 5)}
    assert changed_settings(Config(), config) == changes
    assert changed_settings({"a": 1, "b": {"c": 2}}, {"b": {"c": 2, "d": 3}}) == {
        "b.d": (None, 3),
        "a": (1, None),
    }


def test_an_error_names_changed_settings_but_no_long_values() -> None:
    before, now = {"kind": "a", "digest": 64 * "0"}, {"kind": "b", "digest": 64 * "1"}
    with pytest.raises(UserError, match=r"out: made .*\(kind: 'a' before, 'b' now; digest\); go"):
        require_same_settings(before, now, "out: made", "go")
    require_same_settings(before, now, "out: made", "go", may_change=("kind", "dig"))


def test_a_record_counts_where_it_says_the_same_and_the_outputs_are_there(tmp_path: Path) -> None:
    record, output = tmp_path / "record.json", tmp_path / "output"
    assert read_if_made_from(record, {"a": 1}) is None
    write_json(record, {"made_from": {"a": 1}, "figure": 2})
    assert read_if_made_from(record, {"a": 1}, [output]) is None
    output.touch()
    assert read_if_made_from(record, {"a": 1}, [output]) == {"made_from": {"a": 1}, "figure": 2}
    assert read_if_made_from(record, {"a": 2}, [output]) is None
    write_json(record, [])
    assert read_if_made_from(record, {}) is None


def test_nested_settings_are_flattened_to_dotted_keys() -> None:
    assert flatten_keys({"a": 1, "b": {"c": [2], "d": {"e": None}}}) == {
        "a": 1,
        "b.c": [2],
        "b.d.e": None,
    }
