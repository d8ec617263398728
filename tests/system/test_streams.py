"""Standard input and output that are full, closed or cut off."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import RunCli

# Redirections that leave no room for output, or no input, and the message.
NO_STREAMS = {
    "recipe list >/dev/full": "standard output: No space left on device",
    "recipe keys >/dev/full": "standard output: No space left on device",
    "info paper/gru10 --json >/dev/full": "standard output: No space left on device",
    "translate s --model model >/dev/full": "standard output: No space left on device",
    "translate --model model <&-": "standard input is closed: name a file",
    "translate s --model model >&-": "standard output is closed: send it to",
}


@pytest.mark.parametrize("command", NO_STREAMS)
def test_full_or_closed_streams_are_errors(command: str, desk: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"'{sys.executable}' -m covnmt {command}"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        cwd=desk,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {NO_STREAMS[command]}")
    assert len(done.stderr.splitlines()) == 1


NO_PLACE = """
import tempfile
from covnmt.cli import main
tempfile._candidate_tempdir_list = lambda: ["/proc/nowhere"]
main()
"""


def test_a_missing_temporary_directory_is_not_reported_as_standard_output(desk: Path) -> None:
    """A container may have no writable directory."""
    pytest.importorskip("uvicorn")
    done = subprocess.run(
        [sys.executable, "-c", NO_PLACE, "serve", "--model", "model", "--port", "0"],
        capture_output=True,
        text=True,
        cwd=desk,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: the system: No usable temporary directory")


def test_a_closed_pipe_ends_the_command_silently() -> None:
    """There is neither a message nor a traceback."""
    command = f"'{sys.executable}' -m covnmt recipe keys | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_long_paths_in_messages_are_not_wrapped(run_cli: RunCli, tmp_path: Path) -> None:
    """Paths can be copied from messages, however long they are."""
    directory = tmp_path / "/".join(["[a-long-name]"] * 12)
    done = run_cli("recipe", "show", directory)
    assert str(directory) in done.stderr
