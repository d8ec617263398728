"""The tree of settings: the paper's defaults, and what it tells about itself."""

import pytest

from covnmt.base.config import Config, config_differences, describe_keys, flatten_keys


def test_defaults_are_the_papers() -> None:
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


def test_differences_name_keys_and_values() -> None:
    tree = {"train": {"seed": 5}, "model": {"hidden": 10}}
    found = config_differences(Config(), Config.model_validate(tree))
    assert found == [("model.hidden", 1000, 10), ("train.seed", 1234, 5)]


def test_flatten() -> None:
    assert flatten_keys({"a": 1, "b": {"c": [2], "d": {"e": None}}}) == {
        "a": 1,
        "b.c": [2],
        "b.d.e": None,
    }
