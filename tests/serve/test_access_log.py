"""The access log, and the counts of requests."""

import json
import logging
import os
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from covnmt.serve.monitoring import BackgroundHandler, JsonFormatter, add_translated
from covnmt.serve.settings import ApiKey, ServeSettings

from .server import Running, serving, wait_until


def test_an_unexpected_error_is_answered_without_details_and_counted_once(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("private matters")

    caplog.set_level(logging.INFO, "covnmt.serve")
    lines: list[dict[str, Any]] = []
    handler = logging.Handler()
    handler.setFormatter(JsonFormatter())
    handler.emit = lambda record: lines.append(json.loads(handler.format(record)))  # type: ignore[method-assign]
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    with serving({"tiny": tiny_model}, ServeSettings(rate=0, workers=1)) as running:
        monkeypatch.setattr(running.models["tiny"], "submit", fail)
        with running.client() as client:
            answer = client.post("/v1/translate", json={"text": "a"})
        assert answer.status_code == 500
        assert answer.json() == {"error": "something failed here; see the server's log"}
        with running.client() as client:
            wait_until(lambda: 'path="/v1/translate",status="500"} 1' in metrics(client))
            assert 'status="499"' not in metrics(client)
    assert [each["status"] for each in lines if each.get("path") == "/v1/translate"] == [500]
    # the answer leads to the traceback, and every line of the log is JSON
    [failure] = [each for each in lines if "traceback" in each]
    assert failure["request_id"] == answer.headers["x-request-id"]
    assert failure["traceback"].endswith("RuntimeError: private matters")


@pytest.mark.slow
def test_all_sentences_and_models_of_a_request_are_logged(
    client: httpx.Client, lines: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A sentence that is translated again for a lost term counts twice."""
    headers = {"x-request-id": "with-terms"}
    caplog.set_level(logging.INFO, "covnmt.serve")
    terms = {lines[0].split()[0]: "<MY TERM>"}
    body = {"text": f"{lines[0]}\n{lines[0]}", "terms": terms}
    assert client.post("/v1/translate", json=body, headers=headers).status_code == 200
    found: list[dict[str, Any]] = []

    def is_logged() -> bool:
        told = [json.loads(text) for text in caplog.messages if text.startswith("{")]
        found[:] = [line for line in told if line.get("request_id") == "with-terms"]
        return bool(found)

    wait_until(is_logged)
    assert [line["sentences"] for line in found] == [4]
    scope: dict[str, Any] = {}
    for model, sentences in (("ja-en", 2), ("zh-en", 3), ("ja-en", 1)):
        add_translated(scope, model, sentences)
    assert scope["covnmt"] == {"model": "ja-en, zh-en", "sentences": 6}


REFUSED = [("/v1/translate", 401), ("/metrics", 401), ("/nothing", 404), ("/v1/secret-text", 401)]


def test_refused_requests_are_logged_by_known_paths_only(
    tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Unknown paths are not logged: anybody may write anything there."""
    caplog.set_level(logging.INFO, "covnmt.serve")
    settings = ServeSettings(rate=0, workers=1, api_keys=(ApiKey(key="a-secret-key"),))
    with serving({"tiny": tiny_model}, settings) as running, running.client() as client:
        for path, status in REFUSED:
            assert client.get(path).status_code == status
    lines = [json.loads(text) for text in caplog.messages if text.startswith("{")]
    told = [(line["path"], line["status"]) for line in lines if line["status"] != 200]
    assert told == [*REFUSED[:2], ("other", 404), ("other", 401)]


def test_every_request_has_an_id_in_its_answer_and_in_the_log(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "covnmt.serve")
    with running.client() as client:
        own = client.get("/healthz", headers={"X-Request-ID": "of-a-proxy.1"}).headers
        bad = client.get("/healthz", headers={"X-Request-ID": 'two words"'}).headers
    assert own["X-Request-ID"] == "of-a-proxy.1"
    assert len(bad["X-Request-ID"]) == 16
    wait_until(lambda: len(caplog.messages) >= 2)
    lines = [json.loads(text) for text in caplog.messages]
    ids = [own["X-Request-ID"], bad["X-Request-ID"]]
    assert [line["request_id"] for line in lines if line["path"] == "/healthz"] == ids
    assert {line["client"] for line in lines} == {"127.0.0.1"}


def test_logging_does_not_wait_for_a_reader() -> None:
    reading, writing = os.pipe()
    handler = BackgroundHandler(writing, capacity=10)
    drops: list[None] = []
    handler.on_drop = lambda: drops.append(None)
    for number in range(5000):
        handler.handle(record("x" * 1000 + f" {number}"))
    assert len(drops) > 4000  # a pipe holds 64 KiB
    received = b""
    while b"dropped" not in received:
        received += os.read(reading, 65536)
    handler.close()
    os.close(writing)
    os.close(reading)


def test_the_last_lines_are_written_before_the_log_is_closed() -> None:
    reading, writing = os.pipe()
    handler = BackgroundHandler(writing)
    handler.handle(record("the last line"))
    handler.close()
    assert os.read(reading, 99) == b"the last line\n"
    os.close(writing)
    os.close(reading)


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("covnmt.serve", logging.INFO, "", 0, text, None, None)


def metrics(client: httpx.Client) -> str:
    return client.get("/metrics").text


@pytest.mark.parametrize("path", ["/translate", "/v1/translate"])
def test_a_client_that_disconnects_while_sending_is_logged_as_499(
    running: Running, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    host, _, port = running.url.removeprefix("http://").partition(":")
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    with running.client() as client:
        before = gone(client, path)
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f'{head}Content-Length: 99\r\n\r\n{{"q": '.encode())
        wait_until(lambda: gone(client, path) == before + 1)
    assert "Traceback" not in caplog.text
    assert "ClientDisconnect" not in caplog.text


def gone(client: httpx.Client, path: str) -> int:
    found = [line for line in metrics(client).splitlines() if f'"{path}",status="499"' in line]
    return int(float(found[0].rpartition(" ")[2])) if found else 0
