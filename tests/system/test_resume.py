"""Kill `covnmt train` at several moments; resumed, it ends with bit-identical weights.

Every run is a separate process. Dropout, EMA and accumulation are on, so that everything that a
checkpoint must hold matters.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from covnmt.model.checkpoint import BEST_WEIGHTS, LAST_CHECKPOINT, load_tensors
from tests.conftest import RunCli
from tests.system.workers import until
from tests.training.runs import assert_same, log_of

UPDATES, SAVE_EVERY, REPORT_EVERY, VALIDATE_EVERY = 96, 8, 3, 40

RECIPE = """
[data]
directory = "{data}"
batching = "{batching}"
batch_tokens = 150
batch_size = 16
pool = 5

[model]
embedding = 8
hidden = 12
rank = 8
init = "modern"
dropout = 0.2
coverage = {{ kind = "gru", size = 2 }}

[train]
updates = {updates}
optimizer = "{optimizer}"
learning_rate = 0.01
schedule = "cosine"
warmup = 5
loss = "token_mean"
accumulate = 2
ema = 0.9
report_every = {report}
checkpoint_every = {save}
validate_every = {validate}
validate_beam = 1
validate_lines = 3
"""

# Runs with a limit on file size, which fails like a full disk.
SMALL_DISK = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)),) * 2)
from covnmt.cli import main
main()
"""


@pytest.fixture(scope="module", params=["tokens", "paper"])
def recipe(
    request: pytest.FixtureRequest, tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Token batches with AdamW, or the paper's batches with Adadelta."""
    return write_recipe(tmp_path_factory.mktemp(request.param), tiny_corpus, request.param)


@pytest.fixture(scope="module")
def whole(recipe: Path, run_cli: RunCli) -> Path:
    """An uninterrupted run."""
    directory = recipe.parent / "whole"
    finish(run_cli, recipe, directory)
    return directory


def finish(run_cli: RunCli, recipe: Path, run: Path, *overrides: str) -> str:
    """Train to the end; returns stderr."""
    done = run_cli(*command(recipe, run, *overrides))
    assert done.returncode == 0, done.stderr
    return done.stderr


def write_recipe(directory: Path, data: Path, batching: str) -> Path:
    path = directory / "recipe.toml"
    optimizer = "adamw" if batching == "tokens" else "adadelta"
    text = RECIPE.format(
        data=data,
        batching=batching,
        optimizer=optimizer,
        updates=UPDATES,
        report=REPORT_EVERY,
        save=SAVE_EVERY,
        validate=VALIDATE_EVERY,
    )
    path.write_text(text, "utf-8")
    return path


def command(recipe: Path, run: Path, *overrides: str) -> tuple[object, ...]:
    return ("train", recipe, *overrides, "--run", run, "--device", "cpu", "--threads", 1)


def interrupt(
    arguments: tuple[object, ...], number: signal.Signals, moment: Callable[[], bool]
) -> tuple[int, str]:
    """Start the command and send it the signal at this moment; return exit code and stderr."""
    process = subprocess.Popen(
        [sys.executable, "-m", "covnmt", *map(str, arguments)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    until(moment, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=300)
    return process.returncode, errors


@contextmanager
def frozen(arguments: tuple[object, ...], moment: Callable[[], bool]) -> Iterator[None]:
    """Start the command, suspend it at this moment, and kill it at the end."""
    process = subprocess.Popen([sys.executable, "-m", "covnmt", *map(str, arguments)])
    until(moment, process)
    process.send_signal(signal.SIGSTOP)
    try:
        assert process.poll() is None
        yield
    finally:
        process.kill()
        process.wait(300)


def saved(run: Path, times: int) -> Callable[[], bool]:
    """Wait until the checkpoint has been replaced so many times from now on."""
    seen = {identity(run / LAST_CHECKPOINT)}

    def moment() -> bool:
        seen.add(identity(run / LAST_CHECKPOINT))
        return len(seen) > times

    return moment


def identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def update_of(run: Path) -> int:
    return int(load_tensors(run / LAST_CHECKPOINT)[1]["counters"]["update"])


def assert_complete_log(run: Path) -> None:
    log = log_of(run)
    reports = [entry["update"] for entry in log if "loss" in entry]
    assert reports == list(range(REPORT_EVERY, UPDATES + 1, REPORT_EVERY))
    checks = [entry["update"] for entry in log if "validation" in entry]
    assert checks == [*range(VALIDATE_EVERY, UPDATES, VALIDATE_EVERY), UPDATES]


def test_killed_run_resumes_bit_identically(
    recipe: Path, whole: Path, tmp_path: Path, run_cli: RunCli
) -> None:
    run = tmp_path / "run"
    moments = {
        "before the first save": lambda: (run / "config.json").exists(),
        "after the first save": saved(run, 1),
    }
    for name, moment in moments.items():
        assert interrupt(command(recipe, run), signal.SIGKILL, moment)[0] == -signal.SIGKILL, name
    reached = update_of(run)
    assert SAVE_EVERY <= reached < UPDATES
    code, _ = interrupt(command(recipe, run), signal.SIGKILL, saved(run, 3))
    assert code == -signal.SIGKILL
    assert reached + 2 * SAVE_EVERY <= update_of(run) < UPDATES
    assert f"made {UPDATES} updates" in finish(run_cli, recipe, run)
    assert_same(whole, run)
    assert_complete_log(run)
    assert not list(run.rglob(".*"))


@pytest.mark.parametrize("recipe", ["tokens"], indirect=True)
def test_run_directory_is_locked_while_training(
    recipe: Path, tiny_text: Path, tmp_path: Path, run_cli: RunCli
) -> None:
    """With one rank or several. Translating is possible meanwhile, and a kill releases the lock."""
    run = tmp_path / "run"

    def is_of_use() -> bool:
        return all((run / name).exists() for name in (LAST_CHECKPOINT, BEST_WEIGHTS))

    with frozen(command(recipe, run, "train.updates=1_000_000"), is_of_use):
        before = {path: path.read_bytes() for path in run.iterdir()}
        for workers in (1, 2):
            failed = run_cli(*command(recipe, run), "--gpus", workers)
            assert failed.returncode == 2
            assert f"error: {run}: " in failed.stderr
            assert "Traceback" not in failed.stderr
        assert {path: path.read_bytes() for path in run.iterdir()} == before
        assert run_cli("translate", tiny_text / "dev.src", "--model", run).returncode == 0
    finish(run_cli, recipe, run, "train.updates=1")
    assert not list(run.rglob(".*"))


@pytest.mark.parametrize("recipe", ["tokens"], indirect=True)
def test_run_stopped_by_signals_resumes_bit_identically(
    recipe: Path, whole: Path, tmp_path: Path, run_cli: RunCli
) -> None:
    run = tmp_path / "run"
    for number in (signal.SIGTERM, signal.SIGINT):
        code, errors = interrupt(command(recipe, run), number, saved(run, 1))
        assert code == 130
        assert f"stopped by {number.name}" in errors
        assert "resume" in errors
        assert "Traceback" not in errors
    assert 2 * SAVE_EVERY <= update_of(run) < UPDATES
    finish(run_cli, recipe, run)
    assert_same(whole, run)
    assert_complete_log(run)


@pytest.mark.parametrize("recipe", ["tokens"], indirect=True)
def test_run_resumes_after_a_full_disk(
    recipe: Path, whole: Path, tmp_path: Path, run_cli: RunCli
) -> None:
    run = tmp_path / "run"
    interrupt(command(recipe, run), signal.SIGKILL, saved(run, 1))
    before = (run / LAST_CHECKPOINT).read_bytes()
    failed = subprocess.run(
        [sys.executable, "-c", SMALL_DISK, str(len(before) // 2)]
        + [str(argument) for argument in command(recipe, run)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert failed.returncode == 2, failed.stderr
    assert "Traceback" not in failed.stderr
    assert f"{LAST_CHECKPOINT}: " in failed.stderr
    assert (run / LAST_CHECKPOINT).read_bytes() == before
    assert not list(run.rglob(".*"))
    finish(run_cli, recipe, run)
    assert_same(whole, run)


@pytest.mark.parametrize("recipe", ["tokens"], indirect=True)
def test_divergence_exits_with_a_remedy(recipe: Path, tmp_path: Path, run_cli: RunCli) -> None:
    run = tmp_path / "run"
    failed = run_cli(*command(recipe, run, "train.learning_rate=1e6", "train.weight_decay=1e6"))
    assert failed.returncode == 2
    assert "Traceback" not in failed.stderr
    assert "train.learning_rate" in failed.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupted_translation_leaves_no_output(number: signal.Signals, tmp_path: Path) -> None:
    text, output = tmp_path / "text", tmp_path / "out" / "text"
    output.parent.mkdir()
    text.write_text("この寺は京都市の北にある。\n" * 20_000, "utf-8")

    def begun() -> bool:
        return any(output.parent.iterdir())

    arguments = ("translate", text, "--model", "ja-en", "--output", output)
    code, errors = interrupt(arguments, number, begun)
    assert code == 130
    assert "Traceback" not in errors
    assert not list(output.parent.iterdir())
