"""A run: what it leaves behind, and going on from a save, from a crash, or not at all.

tests/system/test_resume.py kills the real command.
"""

import json
import math
import os
import shutil
import signal
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from covnmt.base.config import Config, flatten_keys
from covnmt.base.errors import UserError
from covnmt.data.batching import BatchPosition, train_batches
from covnmt.data.corpus import Corpus
from covnmt.data.prepare import prepare_corpus
from covnmt.model.checkpoint import (
    BEST_WEIGHTS,
    LAST_CHECKPOINT,
    load_model,
    load_tensors,
    named_weights,
    save_tensors,
)
from covnmt.training import log as training_log
from covnmt.training import loop as training
from covnmt.training.log import TrainingLog, open_log
from covnmt.training.loop import train
from covnmt.training.state import Counters, TrainingRun, open_run
from covnmt.training.step import TrainStep
from tests.training.runs import CPU, assert_same, at_update, changed, go, log_of, stop_at

# Settings that a run may not change half-way, and some that it may.
FIXED = {"model.order": "paper", "train.seed": 9, "train.learning_rate": 0.5, "data.max_length": 9}
FREE = {"train.report_every": 7, "decode.beam": 2, "train.keep": 0, "train.checkpoint_every": 9}


# What a run leaves behind


def test_a_run_leaves_a_model_directory(tiny_model: Path, tiny_config: Config) -> None:
    names = {path.name for path in tiny_model.iterdir()}
    vocabularies = {"source.vocab", "target.vocab"}
    assert names >= {"config.json", *vocabularies, BEST_WEIGHTS, LAST_CHECKPOINT, "log.jsonl"}
    assert not [name for name in names if name.endswith(".tmp")]
    assert load_model(tiny_model, CPU)[1] == tiny_config
    counters = Counters(**load_tensors(tiny_model / LAST_CHECKPOINT)[1]["counters"])
    split = Corpus.open(tiny_config.data.directory).split("train")
    place = BatchPosition(counters.block, counters.batch)
    plans = train_batches(split, tiny_config.data, tiny_config.train.seed)
    assert [plan.position for plan in islice(plans, 41)][40] == place
    assert counters.update == 40


def test_kept_weights(short: Config, tmp_path: Path) -> None:
    go(short, tmp_path, train__keep=2)
    names = sorted(path.name for path in (tmp_path / "recent").iterdir())
    assert names == ["00000004.safetensors", "00000006.safetensors"]
    last, _ = load_tensors(tmp_path / LAST_CHECKPOINT)
    recent = load_tensors(tmp_path / "recent" / names[-1])
    assert all(torch.equal(w, last[f"model.{name}"]) for name, w in recent[0].items())


def test_a_stop_is_not_told_by_the_kept_weights(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(short, tmp_path / "whole", train__keep=4)
    stop_at(3, signal.SIGTERM, monkeypatch)
    go(short, tmp_path / "parts", train__keep=4)
    go(short, tmp_path / "parts", train__keep=4)
    whole, parts = (
        {path.name: path.read_bytes() for path in (tmp_path / name / "recent").iterdir()}
        for name in ("whole", "parts")
    )
    assert whole == parts


def a_second_each(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time on a clock that only updates move."""
    now = [0.0]
    make_update = TrainStep.__call__

    def update(*arguments: Any) -> None:
        make_update(*arguments)
        now[0] += 1

    for module in (training, training_log):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(TrainStep, "__call__", update)
    return now


def test_the_speed_is_that_of_updates(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A validation takes a thousand seconds here."""
    now = a_second_each(monkeypatch)

    def validate(run: TrainingRun, *others: Any) -> None:
        run.counters.validation_pending = False
        now[0] += 1000

    monkeypatch.setattr(training, "validate_and_keep_best", validate)
    go(short, tmp_path, train__validate_every=1)
    words = [0] + [entry["words"] for entry in log_of(tmp_path)]
    rates = [entry["words_per_second"] for entry in log_of(tmp_path)]
    assert rates == [round((after - before) / 2) for before, after in pairwise(words)]


def test_the_time_of_all_calls_adds_up(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = a_second_each(monkeypatch)
    for updates in (2, 4):
        go(short, tmp_path, train__updates=updates)
        now[0] += 1000
    assert [entry["seconds"] for entry in log_of(tmp_path)] == [2, 2, 4, 4]


def test_a_run_without_validation_still_leaves_a_model(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(3, signal.SIGTERM, monkeypatch)
    go(short, tmp_path)
    assert "validation" not in (tmp_path / "log.jsonl").read_text()
    assert load_tensors(tmp_path / BEST_WEIGHTS)[1]["update"] == 3


def test_the_same_settings_give_the_same_model(short: Config, tmp_path: Path) -> None:
    go(short, tmp_path / "a")
    torch.rand(3)
    go(short, tmp_path / "b")
    assert_same(tmp_path / "a", tmp_path / "b")
    go(short, tmp_path / "c", train__seed=5)
    one, two = (load_tensors(tmp_path / x / LAST_CHECKPOINT)[0]["model.source.E"] for x in "ac")
    assert not torch.equal(one, two)


# Going on


@pytest.mark.parametrize("batching", ["paper", "tokens"])
@pytest.mark.parametrize("optimizer", ["adadelta", "adamw"])
def test_two_halves_make_a_whole(
    batching: str, optimizer: str, short: Config, tmp_path: Path
) -> None:
    config = changed(
        short,
        data__batching=batching,
        data__batch_size=16,
        train__optimizer=optimizer,
        train__accumulate=2,
        train__ema=0.9,
        train__warmup=4,
        model__dropout=0.2,
    )
    train(config, tmp_path / "whole", CPU)
    for updates in (3, 4, 6):
        go(config, tmp_path / "parts", train__updates=updates)
    # the parts also validate where they end
    one, two = (load_tensors(tmp_path / x / LAST_CHECKPOINT) for x in ("whole", "parts"))
    assert [name for name in one[0] if not torch.equal(one[0][name], two[0][name])] == []
    assert one[1]["counters"]["batch"] == two[1]["counters"]["batch"] == 12


def power_cut() -> None:
    raise RuntimeError


def test_the_log_has_each_update_once(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash after update 5, saved at 4 and logged at 5: what was after the save goes."""
    every = changed(short, train__report_every=1, train__validate_every=1)
    at_update(6, power_cut, monkeypatch)
    with pytest.raises(RuntimeError):
        train(every, tmp_path, CPU)
    assert log_of(tmp_path)[-1]["update"] == 5
    with (tmp_path / "log.jsonl").open("a") as stream:
        stream.write('{"update": 6, "epo')  # cut off
    monkeypatch.undo()
    train(every, tmp_path, CPU)
    log = log_of(tmp_path)
    assert [entry["update"] for entry in log if "loss" in entry] == [1, 2, 3, 4, 5, 6]
    assert [entry["update"] for entry in log if "validation" in entry] == [1, 2, 3, 4, 5, 6]


def test_a_validation_that_is_made_again_is_logged_once(short: Config, tmp_path: Path) -> None:
    """A crash after it was logged, and before the save that knows of it."""
    go(short, tmp_path)
    tensors, about = load_tensors(tmp_path / LAST_CHECKPOINT)
    about["counters"]["unchecked"] = True
    save_tensors(tmp_path / LAST_CHECKPOINT, tensors, about)
    log = log_of(tmp_path)
    go(short, tmp_path)
    again = log_of(tmp_path)
    assert [entry["update"] for entry in again if "validation" in entry] == [6]
    assert [entry for entry in again if "loss" in entry] == [e for e in log if "loss" in e]


def test_odd_characters_do_not_cut_the_log(short: Config, tmp_path: Path) -> None:
    go(short, tmp_path)
    path = tmp_path / "log.jsonl"
    odd = json.dumps({"update": 1, "text": "a\u2028b\x85c"}, ensure_ascii=False)
    path.write_text(odd + "\n" + path.read_text())
    before = path.read_text()
    go(short, tmp_path)
    assert path.read_text() == before


def test_a_run_that_never_saved_begins_again(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_update(2, power_cut, monkeypatch)
    with pytest.raises(RuntimeError):
        go(short, tmp_path, train__report_every=1)
    monkeypatch.undo()
    go(short, tmp_path, train__report_every=1)
    assert [e["update"] for e in log_of(tmp_path) if "loss" in e] == [1, 2, 3, 4, 5, 6]


def test_there_is_a_save_before_there_is_a_model(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seldom = {"train__validate_every": 2, "train__checkpoint_every": 100}
    go(short, tmp_path / "whole", **seldom)

    def crash(log: TrainingLog, entry: dict[str, Any]) -> None:
        if "validation" in entry:
            power_cut()
        write(log, entry)

    write = TrainingLog.write
    monkeypatch.setattr(TrainingLog, "write", crash)
    with pytest.raises(RuntimeError):
        go(short, tmp_path / "run", **seldom)
    assert (tmp_path / "run" / BEST_WEIGHTS).exists()
    monkeypatch.undo()
    go(short, tmp_path / "run", **seldom)
    assert_same(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize("key", FIXED)
def test_other_settings_are_refused(key: str, short: Config, tmp_path: Path) -> None:
    go(short, tmp_path, train__updates=2)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    old = flatten_keys(short.model_dump(mode="json"))[key]
    with pytest.raises(UserError) as caught:
        go(short, tmp_path, **{key.replace(".", "__"): FIXED[key]})
    assert f"{key}: {old!r} before, {FIXED[key]!r} now" in str(caught.value)
    assert "choose another directory" in str(caught.value)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_free_settings_may_change(short: Config, tmp_path: Path) -> None:
    go(short, tmp_path, train__updates=2)
    free = {key.replace(".", "__"): value for key, value in FREE.items()}
    assert go(short, tmp_path, **free).counters.update == 6


def test_data_may_move_but_not_change(short: Config, tmp_path: Path, tiny_text: Path) -> None:
    run, moved, other = (tmp_path / name for name in ("run", "moved", "other"))
    go(short, run, train__updates=2)
    shutil.copytree(short.data.directory, moved)
    assert go(short, run, train__updates=4, data__directory=moved).counters.update == 4
    shutil.copytree(short.data.directory, other)
    report = json.loads((other / "corpus.json").read_text())
    report["inputs"]["train"][0] = "0" * 64  # as if made from other text
    (other / "corpus.json").write_text(json.dumps(report))
    before = (run / LAST_CHECKPOINT).read_bytes()
    with pytest.raises(UserError, match=f"other data than {other}.*choose another run directory"):
        go(short, run, data__directory=other)
    assert (run / LAST_CHECKPOINT).read_bytes() == before


def test_data_prepared_anew_do_not_reach_a_run(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights, its validations and its samples are those of the data that it began with."""
    go(short, tmp_path / "whole", train__validate_every=2)
    data = tmp_path / "data"
    shutil.copytree(short.data.directory, data)
    settings = Corpus.open(data).report.settings.model_copy(update={"source_size": 500, "seed": 5})
    at_update(4, lambda: prepare_corpus(settings, data, overwrite=True), monkeypatch)
    go(short, tmp_path / "run", train__validate_every=2, data__directory=data)
    rows = [load_tensors(tmp_path / run / BEST_WEIGHTS) for run in ("whole", "run")]
    assert rows[0][1] == rows[1][1]
    assert all(torch.equal(rows[0][0][name], rows[1][0][name]) for name in rows[0][0])
    whole, run = ([e.get("validation") for e in log_of(tmp_path / n)] for n in ("whole", "run"))
    assert whole == run


def test_no_data(short: Config, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no prepared corpus"):
        go(short, tmp_path / "run", data__directory=tmp_path)
    assert not (tmp_path / "run").exists()


def test_data_without_dev_is_refused_at_once(short: Config, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(short.data.directory, data)
    report = json.loads((data / "corpus.json").read_text())
    del report["splits"]["dev"]
    (data / "corpus.json").write_text(json.dumps(report))
    with pytest.raises(UserError, match="without dev files"):
        go(short, tmp_path / "run", data__directory=data)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kept", [0, 50, -100])
def test_a_truncated_save(kept: int, short: Config, tmp_path: Path) -> None:
    go(short, tmp_path, train__updates=2)
    path = tmp_path / LAST_CHECKPOINT
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"last\.safetensors: damaged"):
        go(short, tmp_path)


def test_a_save_of_something_else(short: Config, tmp_path: Path) -> None:
    go(short, tmp_path, train__updates=2)
    tensors, about = load_tensors(tmp_path / LAST_CHECKPOINT)
    del tensors["random.cpu"]
    save_tensors(tmp_path / LAST_CHECKPOINT, tensors, about)
    with pytest.raises(UserError, match=r"last\.safetensors: damaged: not a complete checkpoint"):
        go(short, tmp_path)
    shutil.copy(tmp_path / BEST_WEIGHTS, tmp_path / LAST_CHECKPOINT)
    with pytest.raises(UserError, match="not a checkpoint of `covnmt train`"):
        go(short, tmp_path)


def test_leftovers_of_a_killed_save_are_removed(short: Config, tmp_path: Path) -> None:
    (tmp_path / f".{LAST_CHECKPOINT}.abc.tmp").write_bytes(b"half")
    go(short, tmp_path, train__updates=2)
    assert not list(tmp_path.glob(".*"))


# What goes wrong on the way


def full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_disk_leaves_the_old_save(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(short, tmp_path / "whole")
    go(short, tmp_path / "run", train__updates=2)
    before = (tmp_path / "run" / LAST_CHECKPOINT).read_bytes()
    at_update(3, lambda: monkeypatch.setattr(os, "fsync", full_disk), monkeypatch)
    with pytest.raises(UserError, match=r"last\.safetensors: cannot be written \(No space left"):
        go(short, tmp_path / "run")
    monkeypatch.undo()
    assert (tmp_path / "run" / LAST_CHECKPOINT).read_bytes() == before
    assert not list((tmp_path / "run").glob(".*"))
    go(short, tmp_path / "run")
    # the first two updates ended with a validation of their own
    one, two = (load_tensors(tmp_path / x / LAST_CHECKPOINT)[0] for x in ("whole", "run"))
    assert [name for name in one if not torch.equal(one[name], two[name])] == []


def test_a_log_that_cannot_be_written(short: Config, tmp_path: Path) -> None:
    with open_run(short, tmp_path, CPU) as run, open_log(run) as log:
        (tmp_path / "log.jsonl").mkdir()
        with pytest.raises(UserError, match=r"log\.jsonl: cannot be written \(Is a directory\)"):
            log.write({"loss": 1.0})


def test_broken_weights_are_never_saved(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss is taken before the step, so it cannot tell that the step went wrong."""

    def break_weights(
        step: TrainStep, batches: list[Any], tokens: int, update: int, *rest: Any
    ) -> None:
        make_update(step, batches, tokens, update, *rest)
        if update == 3:
            named_weights(step.model)["source.E"][0, 0] = math.nan

    go(short, tmp_path, train__updates=2)
    before = (tmp_path / LAST_CHECKPOINT).read_bytes()
    make_update = TrainStep.__call__
    monkeypatch.setattr(TrainStep, "__call__", break_weights)
    with pytest.raises(UserError, match=r"update 4 made weights infinite.*last good checkpoint"):
        go(short, tmp_path)
    assert (tmp_path / LAST_CHECKPOINT).read_bytes() == before
