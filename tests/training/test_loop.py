"""Training: limits, selection, signals, numbers that are none, updates (in one process)."""

import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from covnmt.base.config import Config
from covnmt.base.errors import UserError
from covnmt.data.batching import build_batching
from covnmt.data.corpus import Corpus
from covnmt.inference.translate import Translation, Translator
from covnmt.model.checkpoint import BEST_WEIGHTS, LAST_CHECKPOINT, load_tensors
from covnmt.training import loop as training
from covnmt.training.loop import batches_by_update, time_share, train
from covnmt.training.loss import batch_loss
from covnmt.training.optimizer import build_optimizer_step
from covnmt.training.state import open_run
from covnmt.training.step import TrainStep
from covnmt.training.validation import ValidationResult
from tests.training.runs import CPU, assert_same, at_update, changed, go, log_of, stop_at

# Settings that end a run, and the updates it then has made.
ENDS: list[tuple[dict[str, object], int]] = [
    ({"train__updates": 3}, 3),
    ({"train__minutes": 1e-9}, 1),
    ({"train__epochs": 1, "data__batching": "paper", "data__batch_size": 100}, 3),
]


def test_the_log_tells_every_report_and_validation(tiny_model: Path) -> None:
    log = log_of(tiny_model)
    assert [e["update"] for e in log if "loss" in e] == [10, 20, 30, 40]
    checks = [e for e in log if "validation" in e]
    assert [e["update"] for e in checks] == [20, 40]
    assert all(e["words_per_second"] > 0 for e in log if "loss" in e)
    losses = [e["loss"] for e in log if "loss" in e]
    assert losses[-1] < 0.8 * losses[0]
    assert [len(e["validation"]["samples"]) for e in checks] == [3, 3]
    assert sorted(log, key=lambda e: e["words"]) == log


def test_the_best_model_is_the_best(tiny_config: Config, tmp_path: Path) -> None:
    """By loss, against the log."""
    go(tiny_config, tmp_path, train__select="loss", train__validate_every=8)
    checks = [entry for entry in log_of(tmp_path) if "validation" in entry]
    best = min(checks, key=lambda entry: entry["validation"]["loss"])
    _, about = load_tensors(tmp_path / BEST_WEIGHTS)
    assert (about["update"], about["loss"]) == (best["update"], best["validation"]["loss"])
    assert [entry["best"] for entry in checks if entry["update"] == best["update"]] == [True]


def test_averages_are_what_is_validated_and_kept(short: Config, tmp_path: Path) -> None:
    go(short, tmp_path, train__ema=0.9, train__keep=1)
    last, _ = load_tensors(tmp_path / LAST_CHECKPOINT)
    best, _ = load_tensors(tmp_path / BEST_WEIGHTS)
    recent, _ = load_tensors(tmp_path / "recent" / "00000006.safetensors")
    for name in best:
        assert torch.equal(best[name], last[f"average.{name}"])
        assert torch.equal(recent[name], last[f"average.{name}"])
    assert not torch.equal(best["source.E"], last["model.source.E"])


# When it ends


@pytest.mark.parametrize("batching", ["paper", "tokens"])
@pytest.mark.parametrize("epochs", [1, 2])
def test_epochs_are_whole_passes(batching: str, epochs: int, short: Config, tmp_path: Path) -> None:
    config = changed(
        short,
        train__epochs=epochs,
        train__updates=1000,
        data__batching=batching,
        data__batch_size=20,  # 300 pairs: 15 batches
        data__pool=5,
        data__batch_tokens=400,
    )
    outcome = train(config, tmp_path, CPU)
    assert outcome.finished
    assert outcome.reason == f"read the corpus {epochs} times"
    split = Corpus.open(config.data.directory).split("train")
    block = len(build_batching(split, config.data, config.train.seed).block(0))
    assert outcome.counters.update == epochs * (15 if batching == "paper" else block)
    assert outcome.counters.target_tokens == epochs * int(
        (split.target_sentences.lengths() + 1).sum()
    )


@pytest.mark.parametrize("batching", ["paper", "tokens"])
def test_a_run_goes_on_after_an_epoch(batching: str, short: Config, tmp_path: Path) -> None:
    """A call that ended with the corpus is followed by the next pass, neither more nor less."""
    config = changed(
        short,
        train__updates=1000,
        train__accumulate=2,
        data__batching=batching,
        data__batch_size=20,
        data__pool=5,
        data__batch_tokens=400,
    )
    go(config, tmp_path / "whole", train__epochs=2)
    for epochs in (1, 2):
        go(config, tmp_path / "parts", train__epochs=epochs)
    (whole, about), (parts, note) = (
        load_tensors(tmp_path / name / LAST_CHECKPOINT) for name in ("whole", "parts")
    )
    assert [name for name in whole if not torch.equal(whole[name], parts[name])] == []
    for counter in ("update", "block", "batch", "epoch", "words"):
        assert about["counters"][counter] == note["counters"][counter]


def test_time_that_was_spent_counts(short: Config, tmp_path: Path) -> None:
    """A run of two calls has the time of both; its rate goes on falling where it was."""
    with open_run(short, tmp_path / "unlimited", CPU) as run:
        assert time_share(run) == 0
    go(short, tmp_path / "run", train__updates=1)
    with open_run(changed(short, train__minutes=2.0), tmp_path / "run", CPU) as run:
        assert run.previous_seconds == run.counters.seconds > 0
        run.counters.seconds += 60
        assert time_share(run) == (run.previous_seconds + 60) / (run.previous_seconds + 120)


def test_minutes(short: Config, tmp_path: Path) -> None:
    limited = {"train__minutes": 1e-9, "train__updates": 3}
    for update in (1, 2):
        outcome = go(short, tmp_path, **limited)
        assert outcome.reason == "1e-09 minutes are over"
        assert outcome.counters.update == update
    assert go(short, tmp_path, **limited).reason == "made 3 updates"


def test_patience(short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two validations without gain after the third, which was the best."""
    scores = iter([1.0, 2.0, 3.0, 3.0, 2.5, 9.0])
    monkeypatch.setattr(training, "validate", lambda *_: ValidationResult(1.0, next(scores), ()))
    patient = changed(short, train__patience=2, train__validate_every=1)
    outcome = train(patient, tmp_path, CPU)
    assert outcome.reason == "no gain in 2 validations"
    assert (outcome.counters.update, outcome.counters.best_update) == (5, 3)
    assert load_tensors(tmp_path / BEST_WEIGHTS)[1]["update"] == 3
    # the same command again: still no gain, and nothing more is done
    assert train(patient, tmp_path, CPU).counters.update == 5


def test_equal_scores_are_broken_by_the_loss(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that cannot translate yet still gets better; a worse score is never preferred."""
    found = iter([(3.0, 0.0), (2.0, 0.0), (2.5, 0.0), (9.0, 1.0), (9.0, 1.0), (1.0, 0.5)])
    monkeypatch.setattr(training, "validate", lambda *_: ValidationResult(*next(found), ()))
    outcome = go(short, tmp_path, train__validate_every=1)
    log = [entry["best"] for entry in log_of(tmp_path) if "validation" in entry]
    assert log == [True, True, False, True, False, False]
    assert (outcome.counters.best_update, outcome.counters.validations_since_best) == (4, 2)


@pytest.mark.parametrize(("limit", "made"), ENDS)
def test_the_last_weights_are_validated(
    limit: dict[str, object], made: int, short: Config, tmp_path: Path
) -> None:
    for every in (100, made):  # not before, and just then: once in either case
        directory = tmp_path / str(every)
        assert go(short, directory, train__validate_every=every, **limit).counters.update == made
        checks = [entry["update"] for entry in log_of(directory) if "validation" in entry]
        assert checks == [made]
        assert load_tensors(directory / BEST_WEIGHTS)[1]["update"] == made


@pytest.mark.parametrize("moment", ["in the last update", "in its validation", "in both calls"])
def test_a_signal_at_the_end(
    moment: str, short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last validation is put off; the same command makes it, and nothing else."""
    go(short, tmp_path / "whole")
    run = tmp_path / "run"
    if moment == "in the last update":
        stop_at(6, signal.SIGTERM, monkeypatch)
    else:
        stop_in_validation(signal.SIGTERM, monkeypatch)
    for _ in range(2 if moment == "in both calls" else 1):
        outcome = go(short, run)
        assert (outcome.reason, outcome.finished) == ("stopped by SIGTERM", False)
        assert outcome.counters.update == 6
    monkeypatch.undo()
    outcome = go(short, run)
    assert (outcome.reason, outcome.finished) == ("made 6 updates", True)
    assert_same(tmp_path / "whole", run)
    assert entries(run) == entries(tmp_path / "whole")


def stop_in_validation(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send this process a signal when the dev set is being translated."""

    def interrupted(translator: Translator, *arguments: Any, **options: Any) -> list[Translation]:
        os.kill(os.getpid(), number)
        return translate(translator, *arguments, **options)

    translate = Translator.translate
    monkeypatch.setattr(Translator, "translate", interrupted)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_breaks_a_validation_off(
    number: signal.Signals, short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next call makes it, and the run goes on as if nothing had been."""
    config = changed(short, train__validate_every=3, train__ema=0.9, model__dropout=0.2)
    go(config, tmp_path / "whole")
    stop_in_validation(number, monkeypatch)
    outcome = go(config, tmp_path / "run")
    assert (outcome.finished, outcome.counters.update) == (False, 3)
    assert outcome.reason == f"stopped by {number.name}"
    assert [e["update"] for e in log_of(tmp_path / "run") if "validation" in e] == []
    monkeypatch.undo()
    assert go(config, tmp_path / "run").finished
    assert_same(tmp_path / "whole", tmp_path / "run")
    assert entries(tmp_path / "run") == entries(tmp_path / "whole")


def entries(run: Path) -> list[tuple[int, dict[str, Any] | None]]:
    return [(entry["update"], entry.get("validation")) for entry in log_of(run)]


def test_validation_waits(short: Config, tmp_path: Path) -> None:
    go(short, tmp_path, train__validate_every=1, train__validate_from=4)
    assert [e["update"] for e in log_of(tmp_path) if "validation" in e] == [4, 5, 6]


def test_a_finished_run_stays_finished(short: Config, tmp_path: Path) -> None:
    go(short, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    outcome = go(short, tmp_path)
    assert (outcome.reason, outcome.finished) == ("made 6 updates", True)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_signal_too_late_for_the_run_is_told(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "save_best", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    outcome = go(short, tmp_path)
    assert (outcome.finished, outcome.interrupted) == (True, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_after_the_update_in_hand(
    number: signal.Signals, short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    go(short, tmp_path / "whole")
    stop_at(3, number, monkeypatch)
    outcome = go(short, tmp_path / "parts")
    assert (outcome.finished, outcome.counters.update) == (False, 3)
    assert outcome.reason == f"stopped by {number.name}"
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == handlers
    monkeypatch.undo()
    assert go(short, tmp_path / "parts").finished
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_a_second_ctrl_c_ends_at_once(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice() -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    at_update(1, twice, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        go(short, tmp_path)


# What goes wrong on the way


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number(
    value: float, short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: dict[str, bytes] = {}

    def spoiled(*arguments: Any) -> tuple[Tensor, Tensor]:
        loss, nll = batch_loss(*arguments)
        if (tmp_path / LAST_CHECKPOINT).exists():  # since update 2
            saved["last"] = (tmp_path / LAST_CHECKPOINT).read_bytes()
            return loss * value, nll * value
        return loss, nll

    monkeypatch.setattr("covnmt.training.step.batch_loss", spoiled)
    with pytest.raises(UserError) as caught:
        go(short, tmp_path)
    message = str(caught.value)
    assert f"the loss has become {value}" in message
    assert f"the last good checkpoint is {tmp_path / LAST_CHECKPOINT}" in message
    assert "lower train.learning_rate" in message
    assert (tmp_path / LAST_CHECKPOINT).read_bytes() == saved["last"]
    monkeypatch.undo()
    assert go(short, tmp_path).counters.update == 6


def beyond_reason(config: Config) -> Config:
    """With a rate that no recipe can have."""
    return config.model_copy(
        update={"train": config.train.model_copy(update={"learning_rate": 1e30})}
    )


def test_divergence_before_the_first_save(short: Config, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no checkpoint yet"):
        train(beyond_reason(changed(short, train__checkpoint_every=50)), tmp_path, CPU)


def test_a_dev_loss_that_is_no_number(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(short, tmp_path, train__updates=2)
    before = (tmp_path / BEST_WEIGHTS).read_bytes()
    monkeypatch.setattr(training, "validate", lambda *_: ValidationResult(math.nan, 1.0, ()))
    with pytest.raises(UserError, match="the dev loss is nan"):
        go(short, tmp_path, train__updates=3)
    assert (tmp_path / BEST_WEIGHTS).read_bytes() == before
    assert load_tensors(tmp_path / LAST_CHECKPOINT)[1]["counters"]["update"] == 2


# Updates


def first_update(config: Config, directory: Path) -> dict[str, Tensor]:
    """The gradients of the first update."""
    with open_run(config, directory, CPU) as run:
        optimizer_step = build_optimizer_step(run.model, run.optimizer, run.ema, config.train)
        TrainStep(run.model, optimizer_step, config.train)(*next(batches_by_update(run)), update=0)
    return {name: p.grad for name, p in run.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("loss", ["sum", "token_mean"])
def test_accumulation_equals_one_large_batch(loss: str, short: Config, tmp_path: Path) -> None:
    """48 pairs in one batch, or in three batches of one update."""
    config = changed(
        short, train__loss=loss, train__clip=0, train__fertility_weight=0.3, data__batching="paper"
    )
    large = changed(config, data__batch_size=48, data__pool=1)
    small = changed(config, data__batch_size=16, data__pool=3, train__accumulate=3)
    one, three = (first_update(c, tmp_path / str(c.data.batch_size)) for c in (large, small))
    for name, gradient in one.items():
        torch.testing.assert_close(three[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_token_mean_is_the_sum_over_words(short: Config, tmp_path: Path) -> None:
    config = changed(short, train__clip=0)
    with open_run(config, tmp_path / "a", CPU) as run:
        batches, words = next(batches_by_update(run))
    assert words == sum(int(batch.target_mask.sum()) for batch in batches)
    mean = first_update(config, tmp_path / "b")
    total = first_update(changed(config, train__loss="sum"), tmp_path / "c")
    for name, gradient in total.items():
        np.testing.assert_allclose(gradient / words, mean[name], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("precision", ["bf16", "auto"])
def test_mixed_precision(precision: str, tiny_config: Config, tmp_path: Path) -> None:
    """On a CPU auto is plain fp32; bf16 is close to it, and weights stay fp32."""
    plain = first_update(tiny_config, tmp_path / "fp32")
    mixed = first_update(changed(tiny_config, train__precision=precision), tmp_path / "mixed")
    assert {gradient.dtype for gradient in mixed.values()} == {torch.float32}
    same = all(torch.equal(plain[name], mixed[name]) for name in plain)
    assert same == (precision == "auto")
    for name, gradient in plain.items():
        torch.testing.assert_close(mixed[name], gradient, rtol=0.2, atol=0.02, msg=name)


# TensorBoard


def test_tensorboard_curves(tiny_config: Config, tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for updates in (15, 25):  # in two parts, to see that the second goes on
        go(tiny_config, tmp_path, train__tensorboard=True, train__updates=updates)
    events = reading.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"loss", "words_per_second", "dev/loss", "dev/bleu"}
    assert [event.step for event in events.Scalars("loss")] == [10, 20]
    logged = [entry["loss"] for entry in log_of(tmp_path) if "loss" in entry]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(logged)
    assert [event.step for event in events.Scalars("dev/bleu")] == [15, 20, 25]


def test_tensorboard_is_not_installed(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"pip install .*\[tensorboard\]"):
        go(short, tmp_path, train__tensorboard=True)
    assert go(short, tmp_path).finished
