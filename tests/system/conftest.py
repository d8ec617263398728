"""A place where commands meet bad input, and what must come of it."""

import json
import shutil
from pathlib import Path

import pytest

from covnmt.base.config import Config, flatten_keys
from tests.conftest import Run, RunCli

from .bad_input import Case, Refused, check, contents


@pytest.fixture
def desk(
    tiny_text: Path,
    tiny_model: Path,
    tiny_corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A directory to spoil; relative paths are in it."""
    shutil.copytree(tiny_model, tmp_path / "model")
    shutil.copytree(tiny_corpus, tmp_path / "data")
    shutil.copy(tiny_text / "test.src", tmp_path / "s")
    shutil.copy(tiny_text / "test.tgt", tmp_path / "t")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def tiny(tiny_config: Config) -> str:
    """The recipe of the model, as overrides of another one."""
    settings = flatten_keys(tiny_config.model_dump(mode="json")) | {"data.directory": "data"}
    values = (f"{key}={json.dumps(value)}".replace(" ", "") for key, value in settings.items())
    return " ".join(["demo/gru10", *values])


@pytest.fixture
def refused(desk: Path, tiny: str, run: Run) -> Refused:
    """The command of a case is refused."""

    def refused(case: Case) -> None:
        case.damage(desk)
        before = contents(desk)
        done = run(*case.command.format(tiny=tiny).split(), stdin=case.stdin, code=2)
        check(case, done.err, before, desk)

    return refused


@pytest.fixture
def refused_in_a_process(desk: Path, run_cli: RunCli) -> Refused:
    """So it is in a process of its own, without a word on standard output."""

    def refused(case: Case) -> None:
        case.damage(desk)
        before = contents(desk)
        done = run_cli(*case.command.split(), stdin=case.stdin, cwd=desk)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        check(case, done.stderr, before, desk)

    return refused
