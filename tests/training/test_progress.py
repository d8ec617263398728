"""What `covnmt train` says while it works, and what it refuses before it makes a model."""

import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from covnmt.base.config import Config
from covnmt.base.errors import UserError
from covnmt.model import checkpoint
from covnmt.training import log as training_log
from covnmt.training import state
from covnmt.training.step import TrainStep
from tests.training.runs import changed, log_of, stop_at, train_changed


def test_first_line_has_device_data_sizes_and_parameters(
    short: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before: list[str] = []

    def new_model(config: Config, source_size: int, target_size: int) -> object:
        before.append(capsys.readouterr().err)
        return checkpoint.new_model(config, source_size, target_size)

    monkeypatch.setattr(state, "new_model", new_model)
    monkeypatch.setattr(state, "LARGEST_FOR_CPU", 100)
    train_changed(short, tmp_path)
    first, hint = before[0].splitlines()
    assert first.startswith("training on CPU (threads: ")
    sizes, _, memory = first.partition("; ")
    assert sizes.endswith("300 pairs, vocabularies of 23 and 33, 5,045 parameters, up to 6 updates")
    assert memory == "weights, gradients and optimizer take 0.0 GB"
    assert "needs a GPU" in hint


def test_progress_shows_within_seconds_and_every_minute_between_reports(
    short: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An update takes four seconds on this clock."""
    now = [0.0]
    call = TrainStep.__call__

    def update(step: TrainStep, *others: object) -> None:
        now[0] += 4
        call(step, *others)  # type: ignore[arg-type]

    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(training_log, "time", clock)
    monkeypatch.setattr("covnmt.base.console.time", clock)
    monkeypatch.setattr(TrainStep, "__call__", update)
    train_changed(short, tmp_path, train__updates=40, train__report_every=100)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("training ")]
    assert [line.split()[1] for line in lines[1:]] == ["2/40", "17/40", "32/40"]
    assert lines[1].endswith(" words/s  3 min left")
    assert log_of(tmp_path)[:-1] == []  # log.jsonl has reports and validations only


def test_loss_reported_after_resuming_includes_updates_before_the_checkpoint(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"train__updates": 8, "train__report_every": 4, "train__checkpoint_every": 3}
    train_changed(short, tmp_path / "whole", **settings)
    with monkeypatch.context() as patch:
        stop_at(6, signal.SIGINT, patch)
        train_changed(short, tmp_path / "parts", **settings)
    train_changed(short, tmp_path / "parts", **settings)
    whole, parts = (
        [entry["loss"] for entry in log_of(tmp_path / name) if "loss" in entry]
        for name in ("whole", "parts")
    )
    assert len(whole) == 2
    assert parts == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("problem", ["file", "other settings", "data"])
def test_run_directory_is_checked_before_the_model_is_made(
    problem: str, short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, settings = tmp_path / "run", short
    if problem == "file":
        run.touch()
    elif problem == "data":
        run = short.data.directory
    else:
        train_changed(short, run)
        settings = changed(short, train__seed=2)
    monkeypatch.setattr(state, "new_model", None)
    with pytest.raises(UserError, match="run"):
        train_changed(settings, run)
