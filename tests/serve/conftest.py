"""One server with a tiny model under two names, and a client."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from .server import Running, serving


@pytest.fixture(scope="session")
def running(tiny_model: Path) -> Iterator[Running]:
    """Serve until the end of the tests."""
    with serving({"tiny": tiny_model, "twin:aa-bb": tiny_model}) as server:
        yield server


@pytest.fixture
def client(running: Running) -> Iterator[httpx.Client]:
    """Open a client of that server."""
    with running.client() as session:
        yield session
