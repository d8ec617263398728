"""Settings of the server: by options, environment variables and a file."""

from pathlib import Path
from typing import Any

import pytest

from covnmt.serve import server
from covnmt.serve.settings import ServeSettings
from tests.conftest import Run


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the server would be started with."""
    calls: list[Any] = []
    monkeypatch.setattr(server, "run_server", lambda *arguments: calls.extend(arguments))
    return calls


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "serve.toml"
    path.write_text(
        'model = "ja-en"\nport = 1\nqueue = 2\nmax-beam = 3\nallow_host = ["a.example"]\nwait = 4\n'
    )
    return path


def test_options_come_before_the_environment_and_that_before_the_file(
    run: Run, started: list[Any], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COVNMT_MODEL", "zh-en law=ja-en")
    monkeypatch.setenv("COVNMT_PORT", "10")
    monkeypatch.setenv("COVNMT_LOG_TEXT", "1")
    run("serve", "--settings", file, "--queue", "20", "--port", "100")
    models, settings = started[:2]
    assert models == ["zh-en", "law=ja-en"]
    assert settings == ServeSettings(
        port=100, queue=20, max_beam=3, allow_hosts=("a.example",), wait=0.004, log_text=True
    )


def test_the_file_can_be_named_by_the_environment(
    run: Run, started: list[Any], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COVNMT_SETTINGS", str(file))
    run("serve")
    assert started[0] == ["ja-en"]
    assert started[1].port == 1


BAD_FILES = {
    "unknown setting": ("prot = 1", "prot; did you mean port?"),
    "wrong type": ('port = "x"', "port: "),
    "out of range": ("port = 99999", "port: "),
    "not finite": ("rate = nan", "rate: nan is not a finite"),
    "table": ("[port]\na = 1", "port: "),
    "not TOML": ("port 1", "not valid TOML"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_errors_name_the_file_and_the_setting(run: Run, tmp_path: Path, case: str) -> None:
    content, message = BAD_FILES[case]
    path = tmp_path / "serve.toml"
    path.write_text(content)
    printed = run("serve", "-m", "ja-en", "--settings", path, code=2).err
    assert f"{path}: " in printed.replace("\n", "")
    assert message in printed


def test_bad_variables_name_their_option(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVNMT_PORT", "x")
    assert "'--port'" in run("serve", "-m", "ja-en", code=2).err
