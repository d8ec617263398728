"""Stopping the server: while it starts, while it is busy, and by force."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from covnmt.base.signals import recorded_signals
from covnmt.serve.settings import ServeSettings

from .server import PATIENCE, serving, wait_until
from .test_server import command

MANY = {"text": [" ".join(["ze muye piro sire tuye"] * 12)] * 500, "beam": 20}


def test_what_is_not_done_in_time_is_answered_with_503(tiny_model: Path) -> None:
    settings = ServeSettings(rate=0, workers=1, grace=0.2)
    with ThreadPoolExecutor() as threads:
        with serving({"tiny": tiny_model}, settings) as running, running.client() as client:
            asked = threads.submit(client.post, "/v1/translate", json=MANY)
            wait_until(lambda: running.models["tiny"].queue.running)
            running.signals.append(signal.SIGTERM)
            answer = asked.result(PATIENCE)
        assert answer.status_code == 503
        assert answer.json() == {"error": "the server is stopping"}


def test_a_second_signal_does_not_wait_for_what_was_accepted(tiny_model: Path) -> None:
    settings = ServeSettings(rate=0, workers=1, grace=10 * PATIENCE)
    with (
        ThreadPoolExecutor() as threads,
        serving({"tiny": tiny_model}, settings) as running,
        running.client() as client,
    ):
        asked = threads.submit(client.post, "/v1/translate", json=MANY)
        wait_until(lambda: running.models["tiny"].queue.running)
        running.signals.extend([signal.SIGINT, signal.SIGINT])
        assert asked.result(PATIENCE).status_code == 503


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_while_a_model_is_opened_stops_the_server(
    tiny_model: Path, number: int, status: int
) -> None:
    """The signal comes at once after the first worker process is there."""
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from covnmt.serve.worker_process import WorkerProcess\n"
        "start = WorkerProcess._start\n"
        "def start_and_signal(self):\n"
        "    start(self)\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "WorkerProcess._start = start_and_signal\n"
        "from covnmt.cli.serve import app\n"
        "app()\n"
    )
    words = [sys.executable, "-c", code, "--model", str(tiny_model), "--port", "0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == status
    assert "listening" not in done.stderr
    assert "Traceback" not in done.stderr


def test_busy_workers_end_with_a_server_that_is_killed(tiny_model: Path) -> None:
    with command(tiny_model, "--workers", "1") as (process, url):
        with (
            ThreadPoolExecutor() as threads,
            httpx.Client(base_url=url, timeout=PATIENCE) as client,
        ):
            asked = threads.submit(client.post, "/v1/translate", json=MANY)
            wait_until(lambda: "covnmt_requests_in_flight 2.0" in client.get("/metrics").text)
            group = [pid for pid in processes() if group_of(pid) == process.pid]
            assert len(group) >= 3  # the server, a worker, the process that forked it
            process.kill()
            process.wait(PATIENCE)
            with pytest.raises(httpx.HTTPError):
                asked.result(PATIENCE)
        wait_until(lambda: not [pid for pid in processes() if group_of(pid) == process.pid])


def processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def group_of(pid: int) -> int | None:
    """Return the process group; None for a process that is gone or a zombie."""
    try:
        state, _, group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
    except OSError:
        return None
    return None if state == "Z" else int(group)


def test_recorded_signals_raise_nothing_and_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with recorded_signals() as received:
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: received)
    assert received == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is before
