"""Commands of a pipeline are killed at random, given again, and end as if nothing had happened.

Each runs in a process forked from a server that has imported everything and done nothing, so that
20 rounds take seconds. Half of the kills come at a random moment, half just before a random access
to a file: between two of these nothing changes on disk but the content of temporary files.
"""

import json
import os
import shutil
import signal
import sys
import time
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from covnmt.data.synthetic import write_synthetic_corpus
from covnmt.model.checkpoint import load_tensors
from tests.conftest import LANGUAGE

ROUNDS, MIN_ROUNDS = 20, 5
MAX_SECONDS = 40  # after which a busy machine begins no more rounds
SIZES = "model.embedding=8 model.hidden=8 model.rank=8 data.batch_tokens=150"
STEPS = "train.updates=6 train.checkpoint_every=2 train.report_every=2 train.validate_every=4"
PIPELINE = {
    "prepare": "prepare data --train train.src train.tgt --dev dev.src dev.tgt --workers 1 "
    "--source-tokenizer whitespace --target-tokenizer whitespace --source-vocab 22",
    "train": f"train demo/gru10 --run run --threads 1 data.directory=data train.keep=2 {SIZES} "
    f"{STEPS} train.validate_lines=3 train.warmup=2",
    "average": "average run mean --last 2",
    "export": "export run --output exported",
    "translate": "translate test.src --model exported --output out.txt",
    "evaluate": "evaluate out.txt --reference test.tgt -o scores.json",
}
FILE_EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree")
PRELOADED = ["covnmt.cli.app", "covnmt.training.loop", "covnmt.decoding.onnx.export"]
PRELOADED += ["covnmt.data.prepare", "covnmt.inference.parallel", "covnmt.evaluation.evaluate"]


def run_command(command: str, directory: Path, kill_at: int) -> None:
    """Run `covnmt`; die of SIGKILL before this access to a file of the directory (0: never)."""
    from covnmt.cli import app

    os.chdir(directory)
    log = os.open(directory.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    accesses = 0

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal accesses
        if event in FILE_EVENTS and is_inside(arguments[0], directory):
            accesses += 1
            if accesses == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    sys.argv = ["covnmt", *command.split()]
    try:
        app.main()
    finally:
        directory.with_suffix(".accesses").write_text(str(accesses))


def is_inside(path: object, directory: Path) -> bool:
    """Whether a path, relative or not, is in the working directory."""
    if not isinstance(path, str | Path):
        return False
    return Path.cwd().joinpath(os.fspath(path)).is_relative_to(directory)


class Undisturbed(NamedTuple):
    """What a command did when nothing disturbed it."""

    before: Path  # the files that it found
    after: Path
    seconds: float
    accesses: int


class Pipeline:
    """The working directory, always the same, and how commands are started in it."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.context = get_context("forkserver")
        self.context.set_forkserver_preload(PRELOADED)

    def start(self, command: str, kill_at: int = 0) -> ForkServerProcess:
        process = self.context.Process(
            target=run_command, args=(PIPELINE[command], self.work, kill_at)
        )
        process.start()
        return process

    def finish(self, command: str) -> None:
        process = self.start(command)
        process.join()
        assert process.exitcode == 0, self.work.with_suffix(".log").read_text()

    def restore(self, snapshot: Path) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(snapshot, self.work)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return Pipeline(tmp_path_factory.mktemp("chaos") / "work")


@pytest.fixture(scope="module")
def undisturbed(pipeline: Pipeline) -> dict[str, Undisturbed]:
    write_synthetic_corpus(pipeline.work, seed=1, train=100, dev=6, test=6, settings=LANGUAGE)
    results = {}
    snapshot = shutil.copytree(pipeline.work, pipeline.work.with_name("start"))
    pipeline.finish("prepare")  # starts the server
    pipeline.restore(snapshot)
    for command in PIPELINE:
        began = time.monotonic()
        pipeline.finish(command)
        seconds = time.monotonic() - began
        accesses = int(pipeline.work.with_suffix(".accesses").read_text())
        after = shutil.copytree(pipeline.work, pipeline.work.with_name(command))
        results[command] = Undisturbed(snapshot, after, seconds, accesses)
        snapshot = after
    return results


TIMES = {"seconds", "words_per_second", "warm_up_seconds"}


def without_times(value: Any) -> Any:
    """Leave out of JSON what differs between equal runs."""
    if isinstance(value, dict):
        return {key: without_times(v) for key, v in value.items() if key not in TIMES}
    return [without_times(v) for v in value] if isinstance(value, list) else value


def content(path: Path) -> Any:
    """Return what must be equal: all but times, and the loss since the last report."""
    if path.name == "log.jsonl":
        entries = [without_times(json.loads(line)) for line in path.read_text().splitlines()]
        return [entry | {"loss": 0} if "loss" in entry else entry for entry in entries]
    if path.name == "last.safetensors":
        tensors, metadata = load_tensors(path)
        return {k: t.tolist() for k, t in tensors.items()}, without_times(metadata)
    return path.read_bytes()


def contents(directory: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(directory)): content(path)
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_killed_commands_end_as_undisturbed_when_given_again(
    pipeline: Pipeline, undisturbed: dict[str, Undisturbed]
) -> None:
    random, began = Random(1), time.monotonic()
    for number in range(ROUNDS):
        if number >= MIN_ROUNDS and time.monotonic() - began > MAX_SECONDS:
            break
        command = random.choice([*PIPELINE, "train"])  # which has the most to lose
        known = undisturbed[command]
        pipeline.restore(known.before)
        for _ in range(random.choice((1, 1, 2))):
            if random.random() < 0.5:
                process = pipeline.start(command, random.randint(1, known.accesses))
            else:
                process = pipeline.start(command)
                time.sleep(random.uniform(0, known.seconds))
                process.kill()
            process.join()
            assert process.exitcode in (0, -signal.SIGKILL)
        pipeline.finish(command)
        found, expected = contents(pipeline.work), contents(known.after)
        assert found.keys() == expected.keys(), f"round {number}, {command}"
        different = [name for name in found if found[name] != expected[name]]
        assert not different, f"round {number}, {command}"
