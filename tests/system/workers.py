"""Helpers to start training with several ranks and to find their processes."""

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
    """Write the settings as a recipe."""
    lines = []
    for name, group in config.model_dump(mode="json").items():
        coverage = group.pop("coverage", {})
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in group.items())]
        if coverage:
            lines += ["[model.coverage]", *(f"{k} = {json.dumps(v)}" for k, v in coverage.items())]
    path = directory.with_suffix(".toml")
    path.write_text("\n".join(lines))
    return path


def torchrun(workers: int, *arguments: object) -> subprocess.Popen[bytes]:
    """Start torchrun; its own options come first, then what the workers run."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(workers), *map(str, arguments)]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})


def training(config: Config, run: Path, device: str = "cpu") -> list[object]:
    """Return the arguments that make torchrun train with these settings."""
    arguments = ["-m", "--", "covnmt", "train", recipe(config, run), "--run", run]
    return [*arguments, "--device", device, "--threads", 1]


def until(condition: Callable[[], bool], process: subprocess.Popen[Any]) -> None:
    """Wait for the condition, or for the end of the process."""
    while process.poll() is None and not condition():
        time.sleep(0.005)


def children_of(process: subprocess.Popen[Any]) -> list[int]:
    """Return the process ids of its workers."""
    threads = Path(f"/proc/{process.pid}/task").glob("*/children")
    return [int(number) for listed in threads for number in listed.read_text().split()]


def alive(process: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
