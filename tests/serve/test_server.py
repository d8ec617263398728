"""Options of the server; starting and stopping it."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from covnmt.base.errors import UserError
from covnmt.serve.monitoring import ServerMetrics
from covnmt.serve.served_model import ModelSpec, open_models, parse_spec
from covnmt.serve.server import open_socket
from covnmt.serve.settings import ServeSettings, parse_host, parse_origin, read_api_keys
from tests.conftest import RunCli

from .server import PATIENCE, wait_until

SPECS = {
    "models/gru10": ModelSpec("gru10", Path("models/gru10")),
    "best=models/gru10": ModelSpec("best", Path("models/gru10")),
    "best:ja-en=models/gru10": ModelSpec("best", Path("models/gru10"), "ja", "en"),
}


@pytest.fixture
def model_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make those that are named: others might be on the Hugging Face hub."""
    for name in ("gru10", "x", "a=b"):
        (tmp_path / "models" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("model_directories")
@pytest.mark.parametrize("text", SPECS)
def test_model_specs_are_parsed(text: str) -> None:
    assert parse_spec(text) == SPECS[text]


def test_a_model_is_looked_for_in_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs/mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse_spec("mine") == ModelSpec("mine", Path("runs/mine"))


def test_a_bundled_model_has_its_languages_by_default() -> None:
    """Others can be given: clients may have other codes for them."""
    found = [parse_spec(text) for text in ("ja-en", "kyoto=ja-en", "kyoto:jpn-eng=ja-en")]
    told = [(spec.name, spec.source, spec.target) for spec in found]
    assert told == [("ja-en", "ja", "en"), ("kyoto", "ja", "en"), ("kyoto", "jpn", "eng")]


@pytest.mark.usefixtures("model_directories")
@pytest.mark.parametrize("text", ["", "my name=models/x", "models/a=b", "=x"])
def test_bad_model_specs_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--model"):
        parse_spec(text)


def test_a_temporary_directory_with_a_long_path_is_refused(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are started through a socket in it, whose path has some hundred bytes at most."""
    directory = tmp_path / ("x" * 100)
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    done = run_cli("serve", "--model", "zh-en", "--port", "0")
    assert done.returncode == 2
    assert f"{directory}" in done.stderr
    assert "TMPDIR=" in done.stderr


def test_two_models_of_one_name_are_refused(tiny_model: Path) -> None:
    specs = [parse_spec(str(tiny_model))] * 2
    with pytest.raises(UserError, match="two models are named tiny"):
        open_models(specs, "cpu", ServeSettings(), ServerMetrics())


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid", "a..b"])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(UserError, match=f"cannot listen on {host}.* give --host an address"):
        open_socket(host, 0)


def test_a_port_in_use_is_refused() -> None:
    with open_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port}.*--port 0"):
            open_socket("127.0.0.1", port)
    with pytest.raises(UserError, match="cannot listen"):
        open_socket("no such host", 0)


@pytest.mark.parametrize("content", ["", "short\n", "schlüssel-schlüssel\n"])
def test_short_or_non_ascii_api_keys_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "key"
    path.write_text(content, "utf-8")
    with pytest.raises(UserError, match="line 1"):
        read_api_keys(path)


def test_the_api_key_is_the_first_line_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a-secret-key\nanother line\n", "utf-8")
    [key] = read_api_keys(tmp_path / "key")
    assert key.key == "a-secret-key"


HOSTS = {
    "Translate.Example.org": "translate.example.org",
    "*": "*",
    "2001:DB8::1": "[2001:db8::1]",
    "[2001:db8::1]": "[2001:db8::1]",
}
ORIGINS = {
    "https://Example.org/": "https://example.org",
    "http://localhost:3000": "http://localhost:3000",
    "http://[::1]:3000": "http://[::1]:3000",
}


def test_hosts_and_origins_are_normalized_like_browsers_do() -> None:
    assert {text: parse_host(text) for text in HOSTS} == HOSTS
    assert {text: parse_origin(text) for text in ORIGINS} == ORIGINS


@pytest.mark.parametrize("text", ["", "example.org:8000", "https://example.org", "a b", "*.org"])
def test_bad_hosts_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--allow-host"):
        parse_host(text)


@pytest.mark.parametrize("text", ["", "*", "null", "example.org", "https://example.org/page"])
def test_bad_origins_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--allow-origin"):
        parse_origin(text)


def test_defaults_are_safe() -> None:
    settings = ServeSettings()
    assert settings.host == "127.0.0.1"
    assert settings.rate > 0
    assert settings.allow_origins == ()
    assert not settings.log_text


@contextmanager
def command(model: Path, *options: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Run `covnmt serve` in a process of its own; give the process and its address."""
    code = "from covnmt.cli.serve import app; app()"
    words = [sys.executable, "-c", code, "--model", str(model), "--port", "0", *options]
    with subprocess.Popen(
        words, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", process.stderr.readline())
        assert found is not None
        try:
            yield process, found[0]
        finally:
            process.kill()


def test_the_command_serves_until_sigterm(tiny_model: Path) -> None:
    """It logs its address, listens on this machine only, and exits without a traceback."""
    with command(tiny_model) as (process, url):
        assert process.stderr is not None
        body = {"text": "not for the log"}
        assert httpx.post(f"{url}/v1/translate", json=body, timeout=PATIENCE).status_code == 200
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert process.wait(PATIENCE) == 0
    assert '"status": 200' in rest
    assert "not for the log" not in rest
    assert "Traceback" not in rest
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), PATIENCE)


def test_ctrl_c_answers_accepted_requests_first(tiny_model: Path, lines: list[str]) -> None:
    """Ctrl-C reaches the workers too, but they ignore it."""
    with command(tiny_model, "--wait", "500") as (process, url):
        with httpx.Client(base_url=url, timeout=PATIENCE) as client, ThreadPoolExecutor() as thread:
            asked = thread.submit(client.post, "/v1/translate", json={"text": lines})
            wait_until(lambda: f" {len(lines)}.0\n" in client.get("/metrics").text)
            os.killpg(process.pid, signal.SIGINT)
            assert asked.result().status_code == 200
        assert process.wait(PATIENCE) in (130, -signal.SIGINT)
