"""Run `covnmt serve` in a process of its own, for scripts that load or attack it."""

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from harness import process_tree

START = "from covnmt.cli.serve import app; app()"
LISTENING = re.compile(r"listening on http://\S+:(\d+)")
SECONDS_TO_START = 120
PAGE = 4096
Limits = Sequence[tuple[int, int]]


class ServerProcess:
    """A server on a free port of this machine; its log is in a file, which never blocks it.

    `limits` are resource limits (`resource.RLIMIT_*` and a value) of the server and its workers.
    With `log_unread`, its log goes to a pipe that nobody reads once the server listens.
    """

    def __init__(
        self,
        models: Sequence[str],
        *options: str,
        limits: Limits = (),
        log_unread: bool = False,
        wait: bool = True,
    ) -> None:
        names = [word for model in models for word in ("--model", model)]
        command = [sys.executable, "-c", START, *names, "--port", "0", *options]
        self.log_file = tempfile.NamedTemporaryFile(prefix="covnmt-server-", suffix=".log")  # noqa: SIM115
        self.last_log = ""  # when it has ended
        self.log_unread = log_unread
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE if log_unread else self.log_file,
            start_new_session=True,
            preexec_fn=lambda: _prepare(limits),
        )
        self.port = 0
        if wait:
            self.wait_until_listening()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_until_listening(self) -> None:
        """Read the port from the log; end this script with the log if the server does not start."""
        log = ""
        while time.monotonic() < self.started + SECONDS_TO_START and self.process.poll() is None:
            if self.log_unread:
                assert self.process.stderr is not None
                log += self.process.stderr.readline().decode()
            else:
                log = self.log()
            if found := LISTENING.search(log):
                self.port = int(found[1])
                return
            time.sleep(0.02)
        self.stop()
        raise SystemExit(f"the server did not start:\n{log}")

    def log(self) -> str:
        """Return what the server has written to standard error."""
        if self.log_file.closed:
            return self.last_log
        return Path(self.log_file.name).read_text("utf-8", errors="replace")

    def log_bytes(self) -> int:
        return Path(self.log_file.name).stat().st_size

    def workers(self) -> set[int]:
        """Return the ids of the worker processes: descendants without children of their own."""
        tree = process_tree(self.pid) - {self.pid}
        leaves = {pid for pid in tree if len(process_tree(pid)) == 1}
        return {pid for pid in leaves if "resource_tracker" not in _arguments(pid)}

    def resident(self) -> dict[int, int]:
        """Return the resident bytes of the server and each of its descendants."""
        return {pid: bytes_ for pid in process_tree(self.pid) if (bytes_ := resident_bytes(pid))}

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def exit_status(self, seconds: float) -> int | None:
        """Wait for the server to end; None if it does not in that time."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, seconds: float = 40) -> None:
        """Stop the server; kill it if it has not ended by then, and what is left of its workers."""
        if self.process.poll() is None:
            self.process.terminate()
            if self.exit_status(seconds) is None:
                self.process.kill()
                self.process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if self.process.stderr is not None:
            self.process.stderr.close()
        if not self.log_file.closed:
            self.last_log = self.log()
            self.log_file.close()


def _prepare(limits: Limits) -> None:
    """Set limits, and take Ctrl-C as a command started from a terminal does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for kind, value in limits:
        resource.setrlimit(kind, (value, value))


def _arguments(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def resident_bytes(pid: int) -> int:
    """Return the resident bytes of a process, 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except OSError:
        return 0


def cpu_ticks(pid: int) -> int:
    """Return the CPU time of a process, in ticks of the clock; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def is_running(pid: int) -> bool:
    """Tell whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def open_files(pid: int) -> int:
    """Return how many file descriptors a process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
