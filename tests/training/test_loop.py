"""The training loop in one process: limits, selection of the best, signals, divergence, updates."""

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
from covnmt.inference.model import Model
from covnmt.inference.translate import Translation
from covnmt.model.checkpoint import BEST_WEIGHTS, LAST_CHECKPOINT, load_tensors
from covnmt.training import loop as training
from covnmt.training.loop import batches_by_update, elapsed_share, train
from covnmt.training.loss import batch_loss
from covnmt.training.optimizer import build_optimizer_step
from covnmt.training.state import open_run
from covnmt.training.step import TrainStep
from covnmt.training.validation import ValidationResult
from tests.training.runs import CPU, assert_same, at_update, changed, log_of, stop_at, train_changed

# Limits, and the number of updates after which they end the run.
LIMITS: list[tuple[dict[str, object], int]] = [
    ({"train__updates": 3}, 3),
    ({"train__minutes": 1e-9}, 1),
    ({"train__epochs": 1, "data__batching": "paper", "data__batch_size": 100}, 3),
]


def test_log_has_every_report_and_validation(tiny_model: Path) -> None:
    log = log_of(tiny_model)
    assert [e["update"] for e in log if "loss" in e] == [10, 20, 30, 40]
    validations = [e for e in log if "validation" in e]
    assert [e["update"] for e in validations] == [20, 40]
    assert all(e["words_per_second"] > 0 for e in log if "loss" in e)
    losses = [e["loss"] for e in log if "loss" in e]
    assert losses[-1] < 0.8 * losses[0]
    assert [len(e["validation"]["samples"]) for e in validations] == [3, 3]
    assert sorted(log, key=lambda e: e["words"]) == log


def test_best_weights_have_the_lowest_dev_loss(tiny_config: Config, tmp_path: Path) -> None:
    train_changed(tiny_config, tmp_path, train__select="loss", train__validate_every=8)
    validations = [entry for entry in log_of(tmp_path) if "validation" in entry]
    best = min(validations, key=lambda entry: entry["validation"]["loss"])
    _, about = load_tensors(tmp_path / BEST_WEIGHTS)
    assert (about["update"], about["loss"]) == (best["update"], best["validation"]["loss"])
    assert [entry["best"] for entry in validations if entry["update"] == best["update"]] == [True]


def test_ema_weights_are_validated_and_kept(short: Config, tmp_path: Path) -> None:
    train_changed(short, tmp_path, train__ema=0.9, train__keep=1)
    last, _ = load_tensors(tmp_path / LAST_CHECKPOINT)
    best, _ = load_tensors(tmp_path / BEST_WEIGHTS)
    recent, _ = load_tensors(tmp_path / "recent" / "00000006.safetensors")
    for name in best:
        assert torch.equal(best[name], last[f"average.{name}"])
        assert torch.equal(recent[name], last[f"average.{name}"])
    assert not torch.equal(best["source.E"], last["model.source.E"])


# Limits and signals


@pytest.mark.parametrize("batching", ["paper", "tokens"])
@pytest.mark.parametrize("epochs", [1, 2])
def test_epochs_are_complete_passes(
    batching: str, epochs: int, short: Config, tmp_path: Path
) -> None:
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
    assert outcome.counters.target_tokens == epochs * int((split.target.lengths() + 1).sum())


@pytest.mark.parametrize("batching", ["paper", "tokens"])
def test_run_resumed_after_an_epoch_equals_uninterrupted_run(
    batching: str, short: Config, tmp_path: Path
) -> None:
    config = changed(
        short,
        train__updates=1000,
        train__accumulate=2,
        data__batching=batching,
        data__batch_size=20,
        data__pool=5,
        data__batch_tokens=400,
    )
    train_changed(config, tmp_path / "whole", train__epochs=2)
    for epochs in (1, 2):
        train_changed(config, tmp_path / "parts", train__epochs=epochs)
    (whole, about), (parts, note) = (
        load_tensors(tmp_path / name / LAST_CHECKPOINT) for name in ("whole", "parts")
    )
    assert [name for name in whole if not torch.equal(whole[name], parts[name])] == []
    for counter in ("update", "block", "batch", "epoch", "words"):
        assert about["counters"][counter] == note["counters"][counter]


def test_time_share_includes_time_before_a_resume(short: Config, tmp_path: Path) -> None:
    """The learning rate of a resumed run continues to fall where it was."""
    with open_run(short, tmp_path / "unlimited", CPU) as run:
        assert elapsed_share(run) == 0
    train_changed(short, tmp_path / "run", train__updates=1)
    with open_run(changed(short, train__minutes=2.0), tmp_path / "run", CPU) as run:
        assert run.previous_seconds == run.counters.seconds > 0
        run.counters.seconds += 60
        assert elapsed_share(run) == (run.previous_seconds + 60) / (run.previous_seconds + 120)


def test_time_limit_holds_for_each_call(short: Config, tmp_path: Path) -> None:
    limited = {"train__minutes": 1e-9, "train__updates": 3}
    for update in (1, 2):
        outcome = train_changed(short, tmp_path, **limited)
        assert outcome.reason == "1e-09 minutes are over"
        assert outcome.counters.update == update
    assert train_changed(short, tmp_path, **limited).reason == "made 3 updates"


def test_patience_ends_the_run_after_validations_without_gain(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_equal_bleu_prefers_lower_loss(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BLEU 0 is common at the start. Lower BLEU never wins."""
    scores = iter([(3.0, 0.0), (2.0, 0.0), (2.5, 0.0), (9.0, 1.0), (9.0, 1.0), (1.0, 0.5)])
    monkeypatch.setattr(training, "validate", lambda *_: ValidationResult(*next(scores), ()))
    outcome = train_changed(short, tmp_path, train__validate_every=1)
    log = [entry["best"] for entry in log_of(tmp_path) if "validation" in entry]
    assert log == [True, True, False, True, False, False]
    assert (outcome.counters.best_update, outcome.counters.validations_since_best) == (4, 2)


@pytest.mark.parametrize(("limit", "updates"), LIMITS)
def test_last_update_is_validated_once(
    limit: dict[str, object], updates: int, short: Config, tmp_path: Path
) -> None:
    for every in (100, updates):  # the schedule does not or does include the last update
        directory = tmp_path / str(every)
        assert (
            train_changed(short, directory, train__validate_every=every, **limit).counters.update
            == updates
        )
        validations = [entry["update"] for entry in log_of(directory) if "validation" in entry]
        assert validations == [updates]
        assert load_tensors(directory / BEST_WEIGHTS)[1]["update"] == updates


@pytest.mark.parametrize("moment", ["in the last update", "in its validation", "in both calls"])
def test_signal_at_the_end_postpones_the_last_validation(
    moment: str, short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resuming makes that validation and nothing else."""
    train_changed(short, tmp_path / "whole")
    run = tmp_path / "run"
    if moment == "in the last update":
        stop_at(6, signal.SIGTERM, monkeypatch)
    else:
        stop_in_validation(signal.SIGTERM, monkeypatch)
    for _ in range(2 if moment == "in both calls" else 1):
        outcome = train_changed(short, run)
        assert (outcome.reason, outcome.finished) == ("stopped by SIGTERM", False)
        assert outcome.counters.update == 6
    monkeypatch.undo()
    outcome = train_changed(short, run)
    assert (outcome.reason, outcome.finished) == ("made 6 updates", True)
    assert_same(tmp_path / "whole", run)
    assert entries(run) == entries(tmp_path / "whole")


def stop_in_validation(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send this process a signal while the dev set is being translated."""

    def interrupted(translator: Model, *arguments: Any, **options: Any) -> list[Translation]:
        os.kill(os.getpid(), number)
        return translate(translator, *arguments, **options)

    translate = Model.translate
    monkeypatch.setattr(Model, "translate", interrupted)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_validation_interrupted_by_a_signal_is_repeated_after_resuming(
    number: signal.Signals, short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = changed(short, train__validate_every=3, train__ema=0.9, model__dropout=0.2)
    train_changed(config, tmp_path / "whole")
    stop_in_validation(number, monkeypatch)
    outcome = train_changed(config, tmp_path / "run")
    assert (outcome.finished, outcome.counters.update) == (False, 3)
    assert outcome.reason == f"stopped by {number.name}"
    assert [e["update"] for e in log_of(tmp_path / "run") if "validation" in e] == []
    monkeypatch.undo()
    assert train_changed(config, tmp_path / "run").finished
    assert_same(tmp_path / "whole", tmp_path / "run")
    assert entries(tmp_path / "run") == entries(tmp_path / "whole")


def entries(run: Path) -> list[tuple[int, dict[str, Any] | None]]:
    return [(entry["update"], entry.get("validation")) for entry in log_of(run)]


def test_no_validation_before_validate_from(short: Config, tmp_path: Path) -> None:
    train_changed(short, tmp_path, train__validate_every=1, train__validate_from=4)
    assert [e["update"] for e in log_of(tmp_path) if "validation" in e] == [4, 5, 6]


def test_resuming_a_finished_run_changes_nothing(short: Config, tmp_path: Path) -> None:
    train_changed(short, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    outcome = train_changed(short, tmp_path)
    assert (outcome.reason, outcome.finished) == ("made 6 updates", True)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_signal_after_the_last_update_is_reported(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "save_best", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    outcome = train_changed(short, tmp_path)
    assert (outcome.finished, outcome.interrupted) == (True, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_stopped_by_a_signal_resumes_bit_identically(
    number: signal.Signals, short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    train_changed(short, tmp_path / "whole")
    stop_at(3, number, monkeypatch)
    outcome = train_changed(short, tmp_path / "parts")
    assert (outcome.finished, outcome.counters.update) == (False, 3)
    assert outcome.reason == f"stopped by {number.name}"
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == handlers
    monkeypatch.undo()
    assert train_changed(short, tmp_path / "parts").finished
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_ignored_sigint_stays_ignored_after_a_stop_signal(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under nohup, or in a command that a script starts in the background."""
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)

    at_update(1, stop, monkeypatch)
    try:
        outcome = train_changed(short, tmp_path)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, handler)
    assert (outcome.reason, outcome.counters.update) == ("stopped by SIGTERM", 1)


def test_second_ctrl_c_ends_at_once(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice() -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    at_update(1, twice, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        train_changed(short, tmp_path)


# Divergence


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_infinite_or_nan_loss_ends_the_run(
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
        train_changed(short, tmp_path)
    message = str(caught.value)
    assert f"the loss has become {value}" in message
    assert f"the last good checkpoint is {tmp_path / LAST_CHECKPOINT}" in message
    assert "lower train.learning_rate" in message
    assert (tmp_path / LAST_CHECKPOINT).read_bytes() == saved["last"]
    monkeypatch.undo()
    assert train_changed(short, tmp_path).counters.update == 6


def beyond_reason(config: Config) -> Config:
    """Set a learning rate that no recipe can have."""
    return config.model_copy(
        update={"train": config.train.model_copy(update={"learning_rate": 1e30})}
    )


def test_divergence_before_the_first_checkpoint(short: Config, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no checkpoint yet"):
        train(beyond_reason(changed(short, train__checkpoint_every=50)), tmp_path, CPU)


def test_nan_dev_loss_ends_the_run(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_changed(short, tmp_path, train__updates=2)
    before = (tmp_path / BEST_WEIGHTS).read_bytes()
    monkeypatch.setattr(training, "validate", lambda *_: ValidationResult(math.nan, 1.0, ()))
    with pytest.raises(UserError, match="the dev loss is nan"):
        train_changed(short, tmp_path, train__updates=3)
    assert (tmp_path / BEST_WEIGHTS).read_bytes() == before
    assert load_tensors(tmp_path / LAST_CHECKPOINT)[1]["counters"]["update"] == 2


# Updates


def first_update(config: Config, directory: Path) -> dict[str, Tensor]:
    """Return the gradients of the first update."""
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


def test_token_mean_is_the_sum_divided_by_target_tokens(short: Config, tmp_path: Path) -> None:
    config = changed(short, train__clip=0)
    with open_run(config, tmp_path / "a", CPU) as run:
        batches, target_tokens = next(batches_by_update(run))
    assert target_tokens == sum(int(batch.target_mask.sum()) for batch in batches)
    mean = first_update(config, tmp_path / "b")
    total = first_update(changed(config, train__loss="sum"), tmp_path / "c")
    for name, gradient in total.items():
        np.testing.assert_allclose(gradient / target_tokens, mean[name], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("precision", ["bf16", "auto"])
def test_bf16_gradients_are_close_to_fp32(
    precision: str, tiny_config: Config, tmp_path: Path
) -> None:
    """On a CPU auto is plain fp32; bf16 is close to it, and weights stay fp32."""
    plain = first_update(tiny_config, tmp_path / "fp32")
    mixed = first_update(changed(tiny_config, train__precision=precision), tmp_path / "mixed")
    assert {gradient.dtype for gradient in mixed.values()} == {torch.float32}
    same = all(torch.equal(plain[name], mixed[name]) for name in plain)
    assert same == (precision == "auto")
    for name, gradient in plain.items():
        torch.testing.assert_close(mixed[name], gradient, rtol=0.2, atol=0.02, msg=name)


# TensorBoard


def test_tensorboard_curves_continue_after_resuming(tiny_config: Config, tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for updates in (15, 25):  # the second call resumes the first
        train_changed(tiny_config, tmp_path, train__tensorboard=True, train__updates=updates)
    events = reading.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"loss", "words_per_second", "dev/loss", "dev/bleu"}
    assert [event.step for event in events.Scalars("loss")] == [10, 20]
    logged = [entry["loss"] for entry in log_of(tmp_path) if "loss" in entry]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(logged)
    assert [event.step for event in events.Scalars("dev/bleu")] == [15, 20, 25]


def test_missing_tensorboard_is_reported(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"pip install .*\[tensorboard\]"):
        train_changed(short, tmp_path, train__tensorboard=True)
    assert train_changed(short, tmp_path).finished
