"""Weights are signed with the settings they need, and refused beside other settings."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from covnmt.base.errors import UserError
from covnmt.base.files import read_json, write_json
from covnmt.decoding.onnx.export import export_model
from covnmt.decoding.onnx.format import MANIFEST_FILE
from covnmt.decoding.onnx.runtime import OnnxModel
from covnmt.model.checkpoint import (
    BEST_WEIGHTS,
    LAST_CHECKPOINT,
    average_checkpoints,
    load_tensors,
    save_tensors,
    write_last_weights,
)
from covnmt.model.directory import check_model_signature, load_config, model_signature
from covnmt.text.codec import vocabulary_fingerprint
from covnmt.training.loop import train
from tests.model.small import load_model

CPU = torch.device("cpu")

# Settings that change no shape, and other values of them.
SHAPELESS: dict[str, object] = {
    "model.order": "paper",
    "model.cell": "reset_after",
    "model.coverage.accumulate": "subtract",
    "model.coverage.max_fertility": 3.0,
}
TRAINING_SETTINGS: dict[str, object] = {
    "model.dropout": 0.3,
    "model.init": "paper",
    "decode.beam": 2,
}


def load(directory: Path) -> None:
    load_model(directory)


def average(directory: Path) -> None:
    average_checkpoints(directory, directory.with_name("derived"), 2)


def keep_last(directory: Path) -> None:
    write_last_weights(directory, directory.with_name("derived"))


def export(directory: Path) -> None:
    export_model(directory, directory.with_name("derived"), "fp32")


def resume(directory: Path) -> None:
    train(load_config(directory).config, directory, CPU)


def open_export(directory: Path) -> None:
    OnnxModel(directory, load_config(directory), threads=1)


# Functions that open a model, and the file whose weights each reads first.
OPENERS: dict[Callable[[Path], None], str] = {
    load: BEST_WEIGHTS,
    export: BEST_WEIGHTS,
    average: "recent/00000030.safetensors",
    keep_last: LAST_CHECKPOINT,
    resume: LAST_CHECKPOINT,
    open_export: MANIFEST_FILE,
}


ModelCopier = Callable[[Callable[[Path], None]], Path]


@pytest.fixture
def copy_model(tiny_model: Path, tmp_path: Path) -> ModelCopier:
    """Copy a model directory so that a test may change it; export it for `open_export`."""

    def copy_model(open_model: Callable[[Path], None]) -> Path:
        if open_model is open_export:
            export_model(tiny_model, tmp_path / "model", "fp32")
            return tmp_path / "model"
        return shutil.copytree(tiny_model, tmp_path / "model")

    return copy_model


def set_key(directory: Path, key: str, value: object) -> Any:
    """Change a key of config.json; return its old value."""
    tree = branch = read_json(directory / "config.json")
    *groups, last = key.split(".")
    for group in groups:
        branch = branch[group]
    before, branch[last] = branch[last], value
    write_json(directory / "config.json", tree)
    return before


def remove_signatures(directory: Path) -> None:
    """Make the weights those of an older covnmt, without a signature."""
    for path in directory.rglob("*.safetensors"):
        tensors, about = load_tensors(path)
        del about["settings"]
        save_tensors(path, tensors, about)
    if (path := directory / MANIFEST_FILE).exists():
        about = read_json(path)
        del about["settings"]
        write_json(path, about)


@pytest.mark.parametrize("key", SHAPELESS)
@pytest.mark.parametrize("open_model", OPENERS)
def test_weights_of_other_settings_are_refused_though_shapes_agree(
    open_model: Callable[[Path], None], key: str, copy_model: ModelCopier
) -> None:
    directory = copy_model(open_model)
    before = set_key(directory, key, SHAPELESS[key])
    difference = rf"{key}: weights {before!r}, config.json {SHAPELESS[key]!r}"
    with pytest.raises(UserError, match=difference) as caught:
        open_model(directory)
    assert str(caught.value).startswith(str(directory / OPENERS[open_model]))
    assert not directory.with_name("derived").exists()


# a run knows its data by a digest of their own
@pytest.mark.parametrize("open_model", [opener for opener in OPENERS if opener is not resume])
def test_vocabularies_of_another_model_are_refused_though_sizes_agree(
    open_model: Callable[[Path], None], copy_model: ModelCopier
) -> None:
    directory = copy_model(open_model)
    path = directory / "source.vocab"
    first, second, *rest = path.read_text("utf-8").splitlines(keepends=True)
    path.write_text("".join([second, first, *rest]), "utf-8")
    set_key(directory, "fingerprint", vocabulary_fingerprint(directory))
    with pytest.raises(UserError, match=re.escape(OPENERS[open_model]) + ": .*vocabularies: "):
        open_model(directory)


@pytest.mark.parametrize("open_model", OPENERS)
def test_weights_without_signature_open(
    open_model: Callable[[Path], None], copy_model: ModelCopier
) -> None:
    directory = copy_model(open_model)
    remove_signatures(directory)
    set_key(directory, "model.order", "paper")
    open_model(directory)


@pytest.mark.parametrize("open_model", [load, export, average, keep_last, open_export])
@pytest.mark.parametrize("key", TRAINING_SETTINGS)
def test_training_only_settings_may_differ(
    open_model: Callable[[Path], None], key: str, copy_model: ModelCopier
) -> None:
    directory = copy_model(open_model)
    set_key(directory, key, TRAINING_SETTINGS[key])
    open_model(directory)


def test_derived_models_keep_the_signature(tiny_model: Path, tmp_path: Path) -> None:
    average_checkpoints(tiny_model, tmp_path / "mean", 2)
    write_last_weights(tiny_model, tmp_path / "last")
    export_model(tmp_path / "mean", tmp_path / "exported", "fp32")
    written = [load_tensors(tmp_path / name / BEST_WEIGHTS)[1] for name in ("mean", "last")]
    signatures = [metadata["settings"] for metadata in written]
    signatures.append(read_json(tmp_path / "exported" / MANIFEST_FILE)["settings"])
    expected = model_signature(load_config(tiny_model))
    assert signatures == [json.loads(json.dumps(expected))] * 3
    assert {*SHAPELESS, "model.hidden", "vocabularies"} <= expected.keys()
    assert not TRAINING_SETTINGS.keys() & expected.keys()


@pytest.mark.parametrize("signature", [None, [], "x", {}, {"model.colour": "red"}])
def test_missing_signature_keys_are_not_compared(signature: object, tiny_model: Path) -> None:
    check_model_signature(signature, load_config(tiny_model), tiny_model)
