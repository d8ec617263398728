"""A real server on a free port, in a thread of the test."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from covnmt.serve.monitoring import ServerMetrics
from covnmt.serve.served_model import ServedModel, open_models, parse_spec
from covnmt.serve.server import build_server, open_socket
from covnmt.serve.settings import ServeSettings

# requests of all tests come from one address
UNLIMITED = ServeSettings(rate=0)
# seconds to wait for what should take none, on a machine that may be busy
PATIENCE = 120


@dataclass(frozen=True)
class Running:
    """A running server: its address and its parts."""

    url: str
    models: dict[str, ServedModel]
    metrics: ServerMetrics
    server: uvicorn.Server
    signals: list[int]  # the server stops when there are some

    def client(self) -> httpx.Client:
        """Open a client, which waits long for a response."""
        return httpx.Client(base_url=self.url, timeout=PATIENCE)


@contextmanager
def serving(
    models: dict[str, Path], settings: ServeSettings = UNLIMITED, device: str = "cpu"
) -> Iterator[Running]:
    """Serve these models; stop gracefully at the end."""
    metrics = ServerMetrics()
    specs = [parse_spec(f"{name}={path}") for name, path in models.items()]
    served = open_models(specs, device, settings, metrics)
    signals: list[int] = []
    server = build_server(served, settings, metrics, signals)
    listening = open_socket("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        wait_until(lambda: server.started)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        running = Running(url, served, metrics, server, signals)
        with running.client() as client:
            wait_until(lambda: client.get("/readyz").status_code == 200)
        yield running
    finally:
        signals.append(signal.SIGTERM)
        thread.join(PATIENCE)
        listening.close()
    assert not thread.is_alive()


def post(client: httpx.Client, **body: Any) -> dict[str, Any]:
    """Return the response to a translation request, which must succeed."""
    answer = client.post("/v1/translate", json=body)
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for a condition that another thread or process fulfills."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)
