"""The server as a whole: bad requests, probes, a dead worker, a graceful stop."""

import json
import os
import signal
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from covnmt.inference.translate import Translation
from covnmt.serve.settings import ServeSettings

from .bad_requests import BAD_REQUESTS, JSON
from .server import PATIENCE, Running, post, serving, wait_until


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_bad_requests_get_a_status_and_a_message(client: httpx.Client, case: str) -> None:
    path, body, status, message = BAD_REQUESTS[case]
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post(path, content=content, headers=JSON)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]


def test_a_chunked_body_over_the_limit_is_refused(client: httpx.Client) -> None:
    def chunks() -> Any:
        yield b'{"text": "'
        for _ in range(30):
            yield b"a" * 100_000

    answer = client.post("/v1/translate", content=chunks(), headers=JSON)
    assert answer.status_code == 413


def test_a_body_with_another_content_type_is_refused(client: httpx.Client) -> None:
    """A form of another site can send text/plain without permission; it must be refused."""
    answer = client.post(
        "/v1/translate", content=b'{"text": "a"}', headers={"content-type": "text/plain"}
    )
    assert answer.status_code == 422
    assert "Content-Type: application/json" in answer.json()["error"]


def test_a_get_request_for_a_post_route_points_to_the_document(client: httpx.Client) -> None:
    answer = client.get("/v1/translate")
    assert answer.status_code == 405
    assert "see /openapi.json" in answer.json()["error"]


def test_probes_answer(client: httpx.Client) -> None:
    assert client.get("/healthz").json() == {"status": "alive"}
    wait_until(lambda: client.get("/readyz").status_code == 200)
    assert 'covnmt_requests_total{path="/readyz",status="200"}' in client.get("/metrics").text


def test_sockets_send_without_delay(running: Running, client: httpx.Client) -> None:
    """Nagle's algorithm would hold the body back until the client has confirmed the head."""
    client.get("/healthz")  # and the connection stays open
    transports = [each.transport for each in running.server.server_state.connections]
    sockets = [each.get_extra_info("socket") for each in transports if each]
    assert sockets
    assert all(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in sockets)


def test_readyz_fails_until_a_dead_worker_is_restarted_and_the_death_is_recorded(
    tiny_model: Path, lines: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    settings = ServeSettings(rate=0, workers=1)
    with serving({"tiny": tiny_model}, settings) as running, running.client() as client:
        [worker] = running.models["tiny"].workers
        with worker.pipe_lock:  # nobody may replace it yet
            killed = worker.process.pid
            worker.process.kill()
            worker.process.join()
            assert client.get("/readyz").status_code == 503
        wait_until(lambda: client.get("/readyz").status_code == 200)
        post(client, text=lines[0])
        labels = {"model": "tiny", "reason": "died"}
        value = running.metrics.registry.get_sample_value
        assert value("covnmt_worker_restarts_total", labels) == 1
    logged = [json.loads(line) for line in caplog.messages if "worker process replaced" in line]
    assert [(line["model"], line["reason"], line["pid"]) for line in logged] == [
        ("tiny", "died", killed)
    ]


def test_a_stop_answers_accepted_requests_first(
    tiny_model: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only worker is suspended until the server is stopping."""
    settings = ServeSettings(rate=0, workers=1, timeout=10.0 * PATIENCE)
    with (
        serving({"tiny": tiny_model}, settings) as running,
        running.client() as client,
        ThreadPoolExecutor() as thread,
    ):
        [model] = running.models.values()
        submit, accepted = model.submit, threading.Event()

        def noted(*arguments: Any) -> list[Future[Translation]]:
            futures = submit(*arguments)
            accepted.set()
            return futures

        monkeypatch.setattr(model, "submit", noted)
        stood_still = model.workers[0].process.pid
        assert stood_still is not None
        os.kill(stood_still, signal.SIGSTOP)
        asked = thread.submit(post, client, text=lines)
        assert accepted.wait(PATIENCE)
        running.server.should_exit = True
        wait_until(lambda: not running.server.servers[0].is_serving())
        assert not asked.done()
        os.kill(stood_still, signal.SIGCONT)
        assert len(asked.result(PATIENCE)["translations"]) == len(lines)
