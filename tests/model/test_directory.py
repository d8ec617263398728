"""Weights tell what they were made with, and other settings beside them are refused."""

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
from covnmt.decoding.onnx.runtime import load_exported
from covnmt.model.checkpoint import (
    BEST_WEIGHTS,
    LAST_CHECKPOINT,
    average_checkpoints,
    load_model,
    load_tensors,
    save_tensors,
    write_last_weights,
)
from covnmt.model.directory import check_model_signature, load_config, model_signature
from covnmt.text.codec import vocabulary_fingerprint
from covnmt.training.loop import train

CPU = torch.device("cpu")

# What changes no shape, and what it becomes.
SILENT: dict[str, object] = {
    "model.order": "paper",
    "model.cell": "reset_after",
    "model.coverage.accumulate": "subtract",
    "model.coverage.max_fertility": 3.0,
}
HARMLESS: dict[str, object] = {"model.dropout": 0.3, "model.init": "paper", "decode.beam": 2}


def load(directory: Path) -> None:
    load_model(directory, CPU)


def average(directory: Path) -> None:
    average_checkpoints(directory, directory.with_name("made"), 2)


def keep_last(directory: Path) -> None:
    write_last_weights(directory, directory.with_name("made"))


def export(directory: Path) -> None:
    export_model(directory, directory.with_name("made"), "fp32")


def resume(directory: Path) -> None:
    train(load_config(directory).config, directory, CPU)


def open_export(directory: Path) -> None:
    load_exported(directory, load_config(directory), threads=1)


# Who opens a model, and the file whose weights it reads first.
OPENED: dict[Callable[[Path], None], str] = {
    load: BEST_WEIGHTS,
    export: BEST_WEIGHTS,
    average: "recent/00000030.safetensors",
    keep_last: LAST_CHECKPOINT,
    resume: LAST_CHECKPOINT,
    open_export: MANIFEST_FILE,
}


Copied = Callable[[Callable[[Path], None]], Path]


@pytest.fixture
def copied(tiny_model: Path, tmp_path: Path) -> Copied:
    """A model directory that a test may change, exported where that is what is opened."""

    def copied(opened: Callable[[Path], None]) -> Path:
        if opened is open_export:
            export_model(tiny_model, tmp_path / "model", "fp32")
            return tmp_path / "model"
        return shutil.copytree(tiny_model, tmp_path / "model")

    return copied


def set_key(directory: Path, key: str, value: object) -> Any:
    """Change config.json; gives what was there."""
    tree = branch = read_json(directory / "config.json")
    *groups, last = key.split(".")
    for group in groups:
        branch = branch[group]
    before, branch[last] = branch[last], value
    write_json(directory / "config.json", tree)
    return before


def forget(directory: Path) -> None:
    """Make the weights those of an older covnmt, which told nothing of their settings."""
    for path in directory.rglob("*.safetensors"):
        tensors, about = load_tensors(path)
        del about["settings"]
        save_tensors(path, tensors, about)
    if (path := directory / MANIFEST_FILE).exists():
        about = read_json(path)
        del about["settings"]
        write_json(path, about)


@pytest.mark.parametrize("key", SILENT)
@pytest.mark.parametrize("opened", OPENED)
def test_weights_of_other_settings_are_refused_though_shapes_agree(
    opened: Callable[[Path], None], key: str, copied: Copied
) -> None:
    directory = copied(opened)
    before = set_key(directory, key, SILENT[key])
    told = rf"{key}: {before!r} for them, {SILENT[key]!r} there"
    with pytest.raises(UserError, match=told) as caught:
        opened(directory)
    assert str(caught.value).startswith(str(directory / OPENED[opened]))
    assert not directory.with_name("made").exists()


# a run knows its data by a digest of their own
@pytest.mark.parametrize("opened", [each for each in OPENED if each is not resume])
def test_vocabularies_of_another_model_are_refused_though_sizes_agree(
    opened: Callable[[Path], None], copied: Copied
) -> None:
    directory = copied(opened)
    path = directory / "source.vocab"
    first, second, *rest = path.read_text("utf-8").splitlines(keepends=True)
    path.write_text("".join([second, first, *rest]), "utf-8")
    set_key(directory, "fingerprint", vocabulary_fingerprint(directory))
    with pytest.raises(UserError, match=re.escape(OPENED[opened]) + ": .*vocabularies: "):
        opened(directory)


@pytest.mark.parametrize("opened", OPENED)
def test_weights_without_signature_open(opened: Callable[[Path], None], copied: Copied) -> None:
    directory = copied(opened)
    forget(directory)
    set_key(directory, "model.order", "paper")
    opened(directory)


@pytest.mark.parametrize("opened", [load, export, average, keep_last, open_export])
@pytest.mark.parametrize("key", HARMLESS)
def test_training_only_settings_may_differ(
    opened: Callable[[Path], None], key: str, copied: Copied
) -> None:
    directory = copied(opened)
    set_key(directory, key, HARMLESS[key])
    opened(directory)


def test_derived_models_keep_the_signature(tiny_model: Path, tmp_path: Path) -> None:
    average_checkpoints(tiny_model, tmp_path / "mean", 2)
    write_last_weights(tiny_model, tmp_path / "last")
    export_model(tmp_path / "mean", tmp_path / "exported", "fp32")
    written = [load_tensors(tmp_path / name / BEST_WEIGHTS)[1] for name in ("mean", "last")]
    told = [metadata["settings"] for metadata in written]
    told.append(read_json(tmp_path / "exported" / MANIFEST_FILE)["settings"])
    known = model_signature(load_config(tiny_model))
    assert told == [json.loads(json.dumps(known))] * 3
    assert {*SILENT, "model.hidden", "vocabularies"} <= known.keys()
    assert not HARMLESS.keys() & known.keys()


@pytest.mark.parametrize("told", [None, [], "x", {}, {"model.colour": "red"}])
def test_missing_signature_keys_are_not_compared(told: object, tiny_model: Path) -> None:
    check_model_signature(told, load_config(tiny_model), tiny_model)
