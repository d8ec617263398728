"""What many tests share: a tiny corpus, settings for a tiny model, that model trained, the command.

Everything is made once per worker, so tests must not change what these fixtures give them.
"""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple, Protocol

import hypothesis
import pytest
import torch

from covnmt.base.config import Config
from covnmt.base.files import read_lines
from covnmt.cli import app as main
from covnmt.data.prepare import prepare_corpus
from covnmt.data.settings import SPLIT_NAMES, PrepareSettings
from covnmt.data.synthetic import SyntheticSettings, write_synthetic_corpus
from covnmt.inference.model import Model
from covnmt.text.tokenize import WHITESPACE_SETTINGS
from covnmt.training.loop import train

# A shell has what it starts in the background ignore Ctrl-C; tests send it to their processes.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, each taking the time it takes.
hypothesis.settings.load_profile("ci")

# Few words, short sentences: a tiny model learns something of it within seconds.
LANGUAGE = SyntheticSettings(
    nouns=8, verbs=4, adjectives=3, adverbs=3, mean_clauses=1.2, max_length=12, relative=0
)

# `make test-fast` leaves these out: whole commands, a browser, servers, tests of several seconds.
SLOW_DIRECTORIES = ("tests/system/", "tests/browser/")
SLOW_FILES = (
    "tests/base/test_ray_cluster.py",
    "tests/serve/test_app.py",
    "tests/serve/test_memory.py",
    "tests/serve/test_routes.py",
    "tests/serve/test_schema.py",
    "tests/serve/test_server.py",
    "tests/serve/test_worker.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith((*SLOW_DIRECTORIES, *SLOW_FILES)):
            item.add_marker(pytest.mark.slow)


class RunCli(Protocol):
    """Run `covnmt` with these arguments in a process of its own."""

    def __call__(
        self, *arguments: object, stdin: str | bytes = "", cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]: ...


class Printed(NamedTuple):
    """What a command wrote."""

    out: str
    err: str


class Run(Protocol):
    """Run `covnmt` with these arguments in this process; it must end with this exit code."""

    def __call__(self, *arguments: object, stdin: str | bytes = "", code: int = 0) -> Printed: ...


@pytest.fixture(scope="session")
def tiny_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw text: train, dev and test (.src, .tgt, .align)."""
    directory = tmp_path_factory.mktemp("text")
    write_synthetic_corpus(directory, seed=1, train=300, dev=20, test=20, settings=LANGUAGE)
    return directory


@pytest.fixture(scope="session")
def source(tiny_text: Path) -> Path:
    """Its 20 sentences to translate."""
    return tiny_text / "test.src"


@pytest.fixture(scope="session")
def lines(source: Path) -> list[str]:
    """The same, read."""
    return list(read_lines(source))


@pytest.fixture(scope="session")
def tiny_corpus(tiny_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The text, prepared."""
    directory = tmp_path_factory.mktemp("corpus")
    # small enough that the rarest words are unknown
    prepare_synthetic_text(tiny_text, directory, source_size=22, target_size=32)
    return directory


def prepare_synthetic_text(text: Path, directory: Path, **sizes: int) -> None:
    """Prepare the words of what `write_synthetic_corpus` wrote."""
    train, dev, test = ((text / f"{name}.src", text / f"{name}.tgt") for name in SPLIT_NAMES)
    words = WHITESPACE_SETTINGS
    settings = PrepareSettings(
        source=words, target=words, train=(train,), dev=dev, test=test, **sizes
    )
    prepare_corpus(settings, directory)


@pytest.fixture(scope="session")
def tiny_config(tiny_corpus: Path) -> Config:
    """A model of some thousand parameters with every part, and 40 updates to train it."""
    return Config.model_validate(
        {
            "data": {"directory": tiny_corpus, "batching": "tokens", "batch_tokens": 150},
            "model": {
                "embedding": 8,
                "hidden": 12,
                "rank": 8,
                "init": "modern",
                "coverage": {"kind": "fertility"},
            },
            "train": {
                "updates": 40,
                "optimizer": "adamw",
                "learning_rate": 0.02,
                "loss": "token_mean",
                "report_every": 10,
                "validate_every": 20,
                "validate_beam": 1,
                "validate_lines": 5,
                "checkpoint_every": 10,
                "keep": 2,
            },
            "decode": {"beam": 3},
        }
    )


@pytest.fixture(scope="session")
def short(tiny_config: Config) -> Config:
    """Six updates of the same with a save after every second; no validation but the last."""
    train = {
        "updates": 6,
        "checkpoint_every": 2,
        "report_every": 2,
        "validate_every": 100,
        "keep": 0,
    }
    return tiny_config.model_copy(update={"train": tiny_config.train.model_copy(update=train)})


@pytest.fixture(scope="session")
def tiny_model(tiny_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of that model, trained."""
    directory = tmp_path_factory.mktemp("models") / "tiny"
    train(tiny_config, directory, torch.device("cpu"))
    return directory


@pytest.fixture(scope="session")
def translator(tiny_model: Path) -> Model:
    """That model at work."""
    return Model.load(tiny_model, device="cpu")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command `covnmt`, in this process; gives what it wrote."""

    def run(*arguments: object, stdin: str | bytes = "", code: int = 0) -> Printed:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "argv", ["covnmt", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        with pytest.raises(SystemExit) as ended:
            main.main()
        printed = Printed(*capsys.readouterr())
        assert (ended.value.code or 0) == code, printed.err
        return printed

    return run


@pytest.fixture(scope="session")
def run_cli() -> RunCli:
    """The command `covnmt`, as a person would run it; gives what it wrote and its exit code."""

    def run(
        *arguments: object, stdin: str | bytes = "", cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            [sys.executable, "-m", "covnmt", *map(str, arguments)],
            input=data,
            capture_output=True,
            cwd=cwd,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"},
            timeout=300,
            check=False,
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    return run
