"""The access log, and the counts of requests."""

import json
import logging
import socket
from pathlib import Path

import httpx
import pytest

from covnmt.serve.settings import ServeSettings

from .server import Running, serving, wait_until


def test_an_unexpected_error_is_answered_without_details_and_counted_once(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("private matters")

    caplog.set_level(logging.INFO, "covnmt.serve")
    with serving({"tiny": tiny_model}, ServeSettings(rate=0, workers=1)) as running:
        monkeypatch.setattr(running.models["tiny"], "submit", fail)
        with running.client() as client:
            answer = client.post("/v1/translate", json={"text": "a"})
        assert answer.status_code == 500
        assert answer.json() == {"error": "something failed here; see the server's log"}
        with running.client() as client:  # the connection ends with a fault
            wait_until(lambda: 'path="/v1/translate",status="500"} 1' in metrics(client))
            assert 'status="499"' not in metrics(client)
    lines = [json.loads(text) for text in caplog.messages if text.startswith("{")]
    assert [each["status"] for each in lines if each["path"] == "/v1/translate"] == [500]


REFUSED = [("/v1/translate", 401), ("/metrics", 401), ("/nothing", 404), ("/v1/secret-text", 401)]


def test_refused_requests_are_logged_by_known_paths_only(
    tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Unknown paths are not logged: anybody may write anything there."""
    caplog.set_level(logging.INFO, "covnmt.serve")
    settings = ServeSettings(rate=0, workers=1, api_key="a-secret-key")
    with serving({"tiny": tiny_model}, settings) as running, running.client() as client:
        for path, status in REFUSED:
            assert client.get(path).status_code == status
    lines = [json.loads(text) for text in caplog.messages if text.startswith("{")]
    told = [(line["path"], line["status"]) for line in lines if line["status"] != 200]
    assert told == [*REFUSED[:2], ("other", 404), ("other", 401)]


def metrics(client: httpx.Client) -> str:
    return client.get("/metrics").text


def test_a_client_that_disconnects_while_sending_is_logged_as_499(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    host, _, port = running.url.removeprefix("http://").partition(":")
    head = f"POST /translate HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    with running.client() as client:
        before = gone(client)
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f'{head}Content-Length: 99\r\n\r\n{{"q": '.encode())
        wait_until(lambda: gone(client) == before + 1)
    assert "Traceback" not in caplog.text
    assert "ClientDisconnect" not in caplog.text


def gone(client: httpx.Client) -> int:
    found = [line for line in metrics(client).splitlines() if '"/translate",status="499"' in line]
    return int(float(found[0].rpartition(" ")[2])) if found else 0
