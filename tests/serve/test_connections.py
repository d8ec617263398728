"""Limits on connections: time for header and body, and how many there may be."""

import asyncio
import errno
import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from covnmt.serve import connections
from covnmt.serve.connections import LimitedProtocol, affordable_connections, limited_protocol
from covnmt.serve.monitoring import ServerMetrics
from covnmt.serve.server import AcceptErrorFilter
from covnmt.serve.settings import ServeSettings

from .server import PATIENCE, Running, serving

LIMITS = ServeSettings(
    rate=0,
    workers=1,
    header_timeout=0.3,
    body_timeout=0.3,
    max_connections=6,
    max_connections_per_address=4,
)
POST = b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def limited(tiny_model: Path) -> Iterator[Running]:
    with serving({"tiny": tiny_model}, LIMITS) as running:
        yield running


@pytest.fixture(scope="module")
def patient(tiny_model: Path) -> Iterator[Running]:
    """The same with time enough for a header, on a busy machine too."""
    settings = LIMITS.model_copy(update={"header_timeout": 10.0 * PATIENCE})
    with serving({"tiny": tiny_model}, settings) as running:
        yield running


def connect(running: Running, data: bytes = b"", address: str = "127.0.0.1") -> socket.socket:
    port = int(running.url.rpartition(":")[2])
    made = socket.create_connection(("127.0.0.1", port), PATIENCE, (address, 0))
    made.sendall(data)
    return made


def everything(connection: socket.socket) -> bytes:
    """Return what comes until the server closes the connection."""
    received = b""
    try:
        while block := connection.recv(65536):
            received += block
    except ConnectionResetError:
        pass
    return received


@pytest.mark.parametrize("data", [b"", b"GET /", b"GET / HTTP/1.1\r\nX: y\r\n"])
def test_a_connection_without_a_whole_header_is_closed(limited: Running, data: bytes) -> None:
    with connect(limited, data) as connection:
        assert everything(connection) == b""


@pytest.mark.slow
def test_a_second_header_must_come_in_time_too(limited: Running) -> None:
    probe = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connect(limited, probe + b"GET /he") as connection:
        assert everything(connection).count(b"200 OK") == 1


@pytest.mark.slow
def test_a_body_that_does_not_come_is_answered_with_408(limited: Running) -> None:
    with connect(limited, POST + b"Content-Length: 99\r\n\r\n{") as connection:
        head, _, body = everything(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408")
    assert json.loads(body) == {"error": "the body did not come within 0.3 s"}


def test_new_connections_crowd_out_those_without_a_request(patient: Running) -> None:
    crowd = [connect(patient) for _ in range(9)]
    with patient.client() as client:
        assert client.get("/healthz").status_code == 200
    value = patient.metrics.registry.get_sample_value
    assert value("covnmt_closed_connections_total", {"reason": "crowded out"}) >= 5  # type: ignore[operator]
    for connection in crowd[:5]:
        assert everything(connection) == b""
    for connection in crowd:
        connection.close()


def test_a_crowd_from_one_address_does_not_close_connections_of_another(
    patient: Running,
) -> None:
    other = connect(patient, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", "127.0.0.2")
    crowd = [connect(patient) for _ in range(9)]
    other.sendall(b"\r\n")
    assert other.recv(99).startswith(b"HTTP/1.1 200 OK")
    for connection in (other, *crowd):
        connection.close()


class Transport:
    """Stands in for a connection whose client reads nothing."""

    def __init__(self, unread: int = 0) -> None:
        self.aborted, self.unread = False, unread

    def get_write_buffer_size(self) -> int:
        return self.unread

    def get_extra_info(self, name: str) -> Any:
        return ("192.0.2.1", 1234) if name == "peername" else None

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted


@pytest.mark.parametrize(("unread", "pause"), [(0, True), (100, False)])
def test_a_client_that_does_not_read_its_answer_is_given_up(unread: int, pause: bool) -> None:
    """Neither a large one, which pauses writing, nor several small ones."""
    settings, metrics = LIMITS.model_copy(update={"write_timeout": 0.01}), ServerMetrics()

    async def scenario() -> Transport:
        from uvicorn import Config
        from uvicorn.server import ServerState

        kind = cast(type[LimitedProtocol], limited_protocol(settings, metrics))
        protocol = kind(Config(lambda: None, log_config=None), ServerState(), {})
        transport = Transport(unread)
        protocol.connection_made(cast(asyncio.Transport, transport))
        if pause:
            protocol.pause_writing()
        async with asyncio.timeout(PATIENCE):
            while not transport.aborted:
                await asyncio.sleep(0.01)
        return transport

    assert asyncio.run(scenario()).aborted
    count = metrics.registry.get_sample_value(
        "covnmt_closed_connections_total", {"reason": "answer not read"}
    )
    assert count == 1


def test_connections_leave_descriptors_for_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    in_use = len(list(Path("/proc/self/fd").iterdir()))  # of the test worker: any number
    limit = in_use + connections.RESERVED_DESCRIPTORS + 50
    monkeypatch.setattr(connections, "raise_descriptor_limit", lambda: limit)
    assert 8 <= affordable_connections(1000) <= 60
    assert affordable_connections(10) == 10


def test_the_soft_limit_of_descriptors_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(256, 4096)]
    stub = SimpleNamespace(
        RLIMIT_NOFILE=7,
        RLIM_INFINITY=-1,
        getrlimit=lambda kind: limits[-1],
        setrlimit=lambda kind, new: limits.append(new),
    )
    monkeypatch.setattr(connections, "resource", stub)
    assert connections.raise_descriptor_limit() == 4096
    assert limits[-1] == (4096, 4096)
    limits.append((256, stub.RLIM_INFINITY))
    assert connections.raise_descriptor_limit() == connections.MAX_DESCRIPTORS


def test_failing_to_accept_connections_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "covnmt.serve")
    handle, loop = AcceptErrorFilter(), asyncio.new_event_loop()
    try:
        for _ in range(100):
            error = OSError(errno.EMFILE, "Too many open files")
            handle(loop, {"message": "socket.accept() out of system resource", "exception": error})
        assert len(caplog.messages) == 1
        assert "Too many open files" in caplog.messages[0]
        handle(loop, {"message": "something else", "exception": ValueError("else")})
        assert len(caplog.messages) == 2
    finally:
        loop.close()
