"""A run: the files it leaves, and resuming it after a checkpoint, a crash, or not at all.

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
    load_tensors,
    named_weights,
    save_tensors,
)
from covnmt.training import log as training_log
from covnmt.training import loop as training
from covnmt.training.log import TrainingLog, open_log
from covnmt.training.loop import train
from covnmt.training.state import Counters, TrainingRun, last_update, open_run
from covnmt.training.step import TrainStep
from tests.model.small import load_model
from tests.training.runs import CPU, assert_same, at_update, changed, log_of, stop_at, train_changed

# Settings that may not differ when a run is resumed, and some that may.
FIXED = {"model.order": "paper", "train.seed": 9, "train.learning_rate": 0.5, "data.max_length": 9}
FREE = {"train.report_every": 7, "decode.beam": 2, "train.keep": 0, "train.checkpoint_every": 9}


# What a run leaves behind


def test_run_leaves_a_model_directory(tiny_model: Path, tiny_config: Config) -> None:
    names = {path.name for path in tiny_model.iterdir()}
    vocabularies = {"source.vocab", "target.vocab"}
    assert names >= {"config.json", *vocabularies, BEST_WEIGHTS, LAST_CHECKPOINT, "log.jsonl"}
    assert not [name for name in names if name.endswith(".tmp")]
    assert load_model(tiny_model)[1] == tiny_config
    counters = Counters(**load_tensors(tiny_model / LAST_CHECKPOINT)[1]["counters"])
    split = Corpus.open(tiny_config.data.directory).split("train")
    place = BatchPosition(counters.block, counters.batch)
    plans = train_batches(split, tiny_config.data, tiny_config.train.seed)
    assert [plan.position for plan in islice(plans, 41)][40] == place
    assert counters.update == 40


def test_recent_weights_are_those_of_the_last_checkpoints(short: Config, tmp_path: Path) -> None:
    train_changed(short, tmp_path, train__keep=2)
    names = sorted(path.name for path in (tmp_path / "recent").iterdir())
    assert names == ["00000004.safetensors", "00000006.safetensors"]
    last, _ = load_tensors(tmp_path / LAST_CHECKPOINT)
    recent = load_tensors(tmp_path / "recent" / names[-1])
    assert all(torch.equal(w, last[f"model.{name}"]) for name, w in recent[0].items())


def test_recent_weights_do_not_depend_on_interruptions(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_changed(short, tmp_path / "whole", train__keep=4)
    stop_at(3, signal.SIGTERM, monkeypatch)
    train_changed(short, tmp_path / "parts", train__keep=4)
    train_changed(short, tmp_path / "parts", train__keep=4)
    whole, parts = (
        {path.name: path.read_bytes() for path in (tmp_path / name / "recent").iterdir()}
        for name in ("whole", "parts")
    )
    assert whole == parts


def count_a_second_per_update(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only updates advance, by one second each."""
    now = [0.0]
    make_update = TrainStep.__call__

    def update(*arguments: Any) -> None:
        make_update(*arguments)
        now[0] += 1

    for module in (training, training_log):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(TrainStep, "__call__", update)
    return now


def test_speed_excludes_validations(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A validation takes a thousand seconds on this clock."""
    now = count_a_second_per_update(monkeypatch)

    def validate(run: TrainingRun, *others: Any) -> None:
        run.counters.validation_pending = False
        now[0] += 1000

    monkeypatch.setattr(training, "validate_and_keep_best", validate)
    train_changed(short, tmp_path, train__validate_every=1)
    words = [0] + [entry["words"] for entry in log_of(tmp_path)]
    rates = [entry["words_per_second"] for entry in log_of(tmp_path)]
    assert rates == [round((after - before) / 2) for before, after in pairwise(words)]


def test_seconds_add_up_over_resumes(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = count_a_second_per_update(monkeypatch)
    for updates in (2, 4):
        train_changed(short, tmp_path, train__updates=updates)
        now[0] += 1000
    assert [entry["seconds"] for entry in log_of(tmp_path)] == [2, 2, 4, 4]


def test_run_stopped_before_its_first_validation_leaves_a_model(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(3, signal.SIGTERM, monkeypatch)
    train_changed(short, tmp_path)
    assert "validation" not in (tmp_path / "log.jsonl").read_text()
    assert load_tensors(tmp_path / BEST_WEIGHTS)[1]["update"] == 3


def test_same_settings_give_bit_identical_models(short: Config, tmp_path: Path) -> None:
    train_changed(short, tmp_path / "a")
    torch.rand(3)
    train_changed(short, tmp_path / "b")
    assert_same(tmp_path / "a", tmp_path / "b")
    train_changed(short, tmp_path / "c", train__seed=5)
    first, second = (
        load_tensors(tmp_path / x / LAST_CHECKPOINT)[0]["model.source.E"] for x in "ac"
    )
    assert not torch.equal(first, second)


# Resuming


@pytest.mark.parametrize("batching", ["paper", "tokens"])
@pytest.mark.parametrize("optimizer", ["adadelta", "adamw"])
def test_resumed_run_equals_uninterrupted_run(
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
        train_changed(config, tmp_path / "parts", train__updates=updates)
    # the parts also validate at their ends, so the best weights may differ
    first, second = (load_tensors(tmp_path / x / LAST_CHECKPOINT) for x in ("whole", "parts"))
    assert [name for name in first[0] if not torch.equal(first[0][name], second[0][name])] == []
    assert first[1]["counters"]["batch"] == second[1]["counters"]["batch"] == 12


def power_cut() -> None:
    raise RuntimeError


def test_log_has_each_update_once_after_a_crash(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash after update 5: saved at 4, logged at 5. Entries after the checkpoint are dropped."""
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


def test_repeated_validation_is_logged_once(short: Config, tmp_path: Path) -> None:
    """A crash after it was logged, and before the next checkpoint."""
    train_changed(short, tmp_path)
    tensors, about = load_tensors(tmp_path / LAST_CHECKPOINT)
    about["counters"]["unchecked"] = True
    save_tensors(tmp_path / LAST_CHECKPOINT, tensors, about)
    log = log_of(tmp_path)
    train_changed(short, tmp_path)
    again = log_of(tmp_path)
    assert [entry["update"] for entry in again if "validation" in entry] == [6]
    assert [entry for entry in again if "loss" in entry] == [e for e in log if "loss" in e]


def test_log_keeps_lines_with_unicode_line_separators(short: Config, tmp_path: Path) -> None:
    train_changed(short, tmp_path)
    path = tmp_path / "log.jsonl"
    odd = json.dumps({"update": 1, "text": "a\u2028b\x85c"}, ensure_ascii=False)
    path.write_text(odd + "\n" + path.read_text())
    before = path.read_text()
    train_changed(short, tmp_path)
    assert path.read_text() == before


def test_run_without_checkpoint_restarts(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_update(2, power_cut, monkeypatch)
    with pytest.raises(RuntimeError):
        train_changed(short, tmp_path, train__report_every=1)
    monkeypatch.undo()
    train_changed(short, tmp_path, train__report_every=1)
    assert [e["update"] for e in log_of(tmp_path) if "loss" in e] == [1, 2, 3, 4, 5, 6]


def test_first_checkpoint_precedes_best_weights(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seldom = {"train__validate_every": 2, "train__checkpoint_every": 100}
    train_changed(short, tmp_path / "whole", **seldom)

    def crash(log: TrainingLog, entry: dict[str, Any]) -> None:
        if "validation" in entry:
            power_cut()
        write(log, entry)

    write = TrainingLog.write
    monkeypatch.setattr(TrainingLog, "write", crash)
    with pytest.raises(RuntimeError):
        train_changed(short, tmp_path / "run", **seldom)
    assert (tmp_path / "run" / BEST_WEIGHTS).exists()
    monkeypatch.undo()
    train_changed(short, tmp_path / "run", **seldom)
    assert_same(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize("key", FIXED)
def test_resuming_with_changed_settings_is_refused(key: str, short: Config, tmp_path: Path) -> None:
    train_changed(short, tmp_path, train__updates=2)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    old = flatten_keys(short.model_dump(mode="json"))[key]
    with pytest.raises(UserError) as caught:
        train_changed(short, tmp_path, **{key.replace(".", "__"): FIXED[key]})
    assert f"{key}: {old!r} before, {FIXED[key]!r} now" in str(caught.value)
    assert "choose another directory" in str(caught.value)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_resuming_allows_changing_some_settings(short: Config, tmp_path: Path) -> None:
    train_changed(short, tmp_path, train__updates=2)
    free = {key.replace(".", "__"): value for key, value in FREE.items()}
    assert train_changed(short, tmp_path, **free).counters.update == 6


def test_resuming_accepts_moved_data_and_refuses_other_data(
    short: Config, tmp_path: Path, tiny_text: Path
) -> None:
    run, moved, other = (tmp_path / name for name in ("run", "moved", "other"))
    train_changed(short, run, train__updates=2)
    shutil.copytree(short.data.directory, moved)
    assert train_changed(short, run, train__updates=4, data__directory=moved).counters.update == 4
    shutil.copytree(short.data.directory, other)
    report = json.loads((other / "corpus.json").read_text())
    report["inputs"]["train"][0] = "0" * 64  # as if made from other text, by an older version
    report["checksums"] = {}
    (other / "corpus.json").write_text(json.dumps(report))
    before = (run / LAST_CHECKPOINT).read_bytes()
    with pytest.raises(UserError, match=f"other data than {other}.*choose another run directory"):
        train_changed(short, run, data__directory=other)
    assert (run / LAST_CHECKPOINT).read_bytes() == before


def test_preparing_data_again_does_not_change_a_run_in_progress(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_changed(short, tmp_path / "whole", train__validate_every=2)
    data = tmp_path / "data"
    shutil.copytree(short.data.directory, data)
    settings = Corpus.open(data).report.settings.model_copy(update={"source_size": 500, "seed": 5})
    at_update(4, lambda: prepare_corpus(settings, data, overwrite=True), monkeypatch)
    train_changed(short, tmp_path / "run", train__validate_every=2, data__directory=data)
    rows = [load_tensors(tmp_path / run / BEST_WEIGHTS) for run in ("whole", "run")]
    assert rows[0][1] == rows[1][1]
    assert all(torch.equal(rows[0][0][name], rows[1][0][name]) for name in rows[0][0])
    whole, run = ([e.get("validation") for e in log_of(tmp_path / n)] for n in ("whole", "run"))
    assert whole == run


def test_missing_data_is_refused(short: Config, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="covnmt prepare"):
        train_changed(short, tmp_path / "run", data__directory=tmp_path)
    assert not (tmp_path / "run").exists()


def test_data_without_dev_set_is_refused(short: Config, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(short.data.directory, data)
    report = json.loads((data / "corpus.json").read_text())
    del report["splits"]["dev"]
    report["checksums"] = {}
    (data / "corpus.json").write_text(json.dumps(report))
    with pytest.raises(UserError, match="without dev files"):
        train_changed(short, tmp_path / "run", data__directory=data)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kept", [0, 50, -100])
def test_truncated_checkpoint_is_refused(kept: int, short: Config, tmp_path: Path) -> None:
    train_changed(short, tmp_path, train__updates=2)
    path = tmp_path / LAST_CHECKPOINT
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"last\.safetensors: damaged"):
        train_changed(short, tmp_path)


def test_incomplete_or_foreign_checkpoint_is_refused(short: Config, tmp_path: Path) -> None:
    train_changed(short, tmp_path, train__updates=2)
    tensors, about = load_tensors(tmp_path / LAST_CHECKPOINT)
    del tensors["random.cpu"]
    save_tensors(tmp_path / LAST_CHECKPOINT, tensors, about)
    with pytest.raises(UserError, match=r"last\.safetensors: damaged: not a complete checkpoint"):
        train_changed(short, tmp_path)
    shutil.copy(tmp_path / BEST_WEIGHTS, tmp_path / LAST_CHECKPOINT)
    with pytest.raises(UserError, match="not a checkpoint of `covnmt train`"):
        train_changed(short, tmp_path)


def test_damaged_metadata_of_a_checkpoint_are_reported(tmp_path: Path) -> None:
    assert last_update(tmp_path) == 0
    path = tmp_path / LAST_CHECKPOINT
    save_tensors(path, {}, {"counters": {"update": 7}})
    assert last_update(tmp_path) == 7
    save_tensors(path, {}, {"counters": {"update": "seven"}})
    with pytest.raises(UserError, match=r"last\.safetensors: damaged: .*counters\.update"):
        last_update(tmp_path)


def test_partial_checkpoint_files_are_removed(short: Config, tmp_path: Path) -> None:
    (tmp_path / "recent").mkdir()
    for name in (
        f".{LAST_CHECKPOINT}.abc.tmp",
        f".{BEST_WEIGHTS}.0.tmp",
        "recent/.00000050.safetensors.x_y.tmp",
    ):
        (tmp_path / name).write_bytes(b"half")
    train_changed(short, tmp_path, train__updates=2)
    assert not list(tmp_path.rglob(".*"))


# Failures


def full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_full_disk_leaves_the_previous_checkpoint(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_changed(short, tmp_path / "whole")
    train_changed(short, tmp_path / "run", train__updates=2)
    before = (tmp_path / "run" / LAST_CHECKPOINT).read_bytes()
    at_update(3, lambda: monkeypatch.setattr(os, "fsync", full_disk), monkeypatch)
    with pytest.raises(UserError, match=r"last\.safetensors: cannot be written \(No space left"):
        train_changed(short, tmp_path / "run")
    monkeypatch.undo()
    assert (tmp_path / "run" / LAST_CHECKPOINT).read_bytes() == before
    assert not list((tmp_path / "run").glob(".*"))
    train_changed(short, tmp_path / "run")
    # the call that made two updates ended with an extra validation, so best weights may differ
    first, second = (load_tensors(tmp_path / x / LAST_CHECKPOINT)[0] for x in ("whole", "run"))
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def test_unwritable_log_is_reported(short: Config, tmp_path: Path) -> None:
    with open_run(short, tmp_path, CPU) as run, open_log(run) as log:
        (tmp_path / "log.jsonl").mkdir()
        with pytest.raises(UserError, match=r"log\.jsonl: cannot be written \(Is a directory\)"):
            log.write({"loss": 1.0})


def test_infinite_weights_are_not_saved(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss is computed before the step, so it does not show that the step went wrong."""

    def break_weights(
        step: TrainStep, batches: list[Any], tokens: int, update: int, *rest: Any
    ) -> None:
        make_update(step, batches, tokens, update, *rest)
        if update == 3:
            named_weights(step.model)["source.E"][0, 0] = math.nan

    train_changed(short, tmp_path, train__updates=2)
    before = (tmp_path / LAST_CHECKPOINT).read_bytes()
    make_update = TrainStep.__call__
    monkeypatch.setattr(TrainStep, "__call__", break_weights)
    with pytest.raises(UserError, match=r"update 4 made weights infinite.*last good checkpoint"):
        train_changed(short, tmp_path)
    assert (tmp_path / LAST_CHECKPOINT).read_bytes() == before
