"""Helpers for short training runs: change settings, stop them, compare their files."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from covnmt.base.config import Config
from covnmt.model.checkpoint import BEST_WEIGHTS, LAST_CHECKPOINT, load_tensors
from covnmt.training.loop import TrainingOutcome, train
from covnmt.training.step import TrainStep

CPU = torch.device("cpu")


def changed(config: Config, **values: object) -> Config:
    """Return the settings with these keys changed (`train__updates=3`)."""
    tree = config.model_dump()
    for key, value in values.items():
        *groups, last = key.split("__")
        branch = tree
        for group in groups:
            branch = branch[group]
        branch[last] = value
    return Config.model_validate(tree)


def train_changed(config: Config, directory: Path, **values: object) -> TrainingOutcome:
    return train(changed(config, **values), directory, CPU)


def log_of(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]


def assert_same(first: Path, second: Path) -> None:
    """Compare best weights and last checkpoint to the bit, except for the time they took."""
    for name in (BEST_WEIGHTS, LAST_CHECKPOINT):
        (one, about), (two, note) = load_tensors(first / name), load_tensors(second / name)
        assert one.keys() == two.keys()
        assert [key for key in one if not torch.equal(one[key], two[key])] == []
        for counters in (about.get("counters", {}), note.get("counters", {})):
            counters.pop("seconds", None)
        assert about == note


def at_update(number: int, happens: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call a function when this update (from 1) begins."""

    def call(step: TrainStep, batches: list[Any], tokens: int, update: int, *rest: Any) -> None:
        if update + 1 == number:
            happens()
        make_update(step, batches, tokens, update, *rest)

    make_update = TrainStep.__call__
    monkeypatch.setattr(TrainStep, "__call__", call)


def stop_at(update: int, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send this process a signal in the middle of an update."""
    at_update(update, lambda: os.kill(os.getpid(), number), monkeypatch)
