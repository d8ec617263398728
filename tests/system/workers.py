"""Runs of several workers: start them, wait for a moment, find the workers."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from covnmt.base.config import Config


def recipe(config: Config, directory: Path) -> Path:
    """The settings as a file."""
    lines = []
    for name, group in config.model_dump(mode="json").items():
        coverage = group.pop("coverage", {})
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in group.items())]
        if coverage:
            lines += ["[model.coverage]", *(f"{k} = {json.dumps(v)}" for k, v in coverage.items())]
    path = directory.with_suffix(".toml")
    path.write_text("\n".join(lines))
    return path


def torchrun(workers: int, *words: object) -> subprocess.Popen[bytes]:
    """Start so many workers; torchrun's own options come before what they run."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(workers), *map(str, words)]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})


def training(config: Config, run: Path, device: str = "cpu") -> list[object]:
    """What they run to train by these settings."""
    words = ["-m", "--", "covnmt", "train", recipe(config, run), "--run", run]
    return [*words, "--device", device, "--threads", 1]


def until(condition: Callable[[], bool], process: subprocess.Popen[Any]) -> None:
    """Wait for it, or for the end of the process."""
    while process.poll() is None and not condition():
        time.sleep(0.005)


def children_of(process: subprocess.Popen[bytes]) -> list[int]:
    """Its workers, by their ids."""
    threads = Path(f"/proc/{process.pid}/task").glob("*/children")
    return [int(number) for listed in threads for number in listed.read_text().split()]


def alive(process: int) -> bool:
    """A process that has ended may still be on the list, as a zombie."""
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
