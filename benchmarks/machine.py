"""What every result file says about where it came from, and how figures are summed up."""

import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from covnmt import __version__

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Hardware, versions, commit and command."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    versions: dict[str, str | None] = {"covnmt": __version__}
    versions |= {"python": platform.python_version()}
    versions |= {"torch": torch.__version__, "cuda": torch.version.cuda}
    try:
        import triton

        versions["triton"] = triton.__version__
    except ImportError:
        versions["triton"] = None
    return {
        "gpu": gpu,
        "cpu": cpu_name(),
        "versions": versions,
        "commit": commit(),
        "command": command(),
    }


def command() -> str:
    """What was run, without where its result went."""
    words = ["python", *sys.argv]
    if "--out" in words:
        at = words.index("--out")
        del words[at : at + 2]
    return " ".join(words)


def cpu_name() -> str:
    """The processor's own name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")


def commit() -> str:
    """The commit that was measured; a plus says that files were changed since.

    Where the sources travel without their history, COVNMT_COMMIT tells it.
    """
    if told := os.environ.get("COVNMT_COMMIT"):
        return told
    try:
        head = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=True
        )
        return head.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def summary(values: list[float]) -> dict[str, float]:
    """Median, and the extremes as the spread."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def save(name: str, content: dict[str, Any], directory: Path | None) -> None:
    """Write a result file."""
    path = (directory or RESULTS) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content.get("settings", {}).pop("out", None)
    path.write_text(json.dumps({"machine": machine(), **content}, indent=2) + "\n", "utf-8")
    print(f"wrote {path}")
