"""Memory under good and bad requests; benchmarks/soak.py sends as many as in an hour."""

import json
from itertools import cycle, islice
from pathlib import Path

import httpx
import pytest

from .bad_requests import BAD_REQUESTS, JSON
from .server import Running

PROC = Path("/proc")
PAGES_PER_MIB = 256

pytestmark = pytest.mark.skipif(not PROC.exists(), reason="memory is read from /proc")


def resident_mib(running: Running) -> float:
    """Return the memory of the server, which is this process, and its workers."""
    workers = [worker for model in running.models.values() for worker in model.workers]
    owners = ["self", *(str(worker.process.pid) for worker in workers)]
    pages = [int((PROC / each / "statm").read_text("ascii").split()[1]) for each in owners]
    return sum(pages) / PAGES_PER_MIB


def test_memory_stays_flat_under_good_and_bad_requests(
    running: Running, client: httpx.Client, lines: list[str]
) -> None:
    wrong = [
        (path, body if isinstance(body, bytes) else json.dumps(body).encode())
        for path, body, _, _ in BAD_REQUESTS.values()
    ]
    parts = {"return": ["tokens", "alignment", "coverage", "remarks"], "beam": 2}
    right = [
        (path, json.dumps({"text": line, **parts}).encode())
        for line in lines[:10]
        for path in ("/v1/translate", "/v1/translate/stream")
    ]
    requests = cycle([*wrong, *right])

    def ask(count: int) -> set[int]:
        answers = [
            client.post(path, content=body, headers=JSON).status_code
            for path, body in islice(requests, count)
        ]
        return set(answers)

    assert ask(200) >= {200, 400, 404, 413, 422}
    before = resident_mib(running)
    ask(600)
    assert resident_mib(running) - before < 8
