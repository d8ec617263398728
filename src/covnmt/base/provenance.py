"""The commit, machine and package versions behind a result; every result file contains them."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("covnmt", "torch", "triton", "onnxruntime", "numpy", "sacrebleu", "sacremoses")


def collect_provenance() -> dict[str, Any]:
    """Collect what is written into result files."""
    import torch

    return {
        "commit": code_commit(),
        "machine": {
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
        },
        "versions": {
            "python": platform.python_version(),
            "cuda": torch.version.cuda,
            **{name: installed_version(name) for name in PACKAGES},
        },
    }


def code_commit() -> str:
    """Return the commit, with a plus if files are changed; COVNMT_COMMIT overrules git."""
    if commit := os.environ.get("COVNMT_COMMIT"):
        return commit
    try:
        head = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
        return head.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def cpu_name() -> str:
    """Return the processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")


def installed_version(package: str) -> str | None:
    """Return the version of a package, None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
