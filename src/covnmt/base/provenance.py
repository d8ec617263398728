"""Where a result came from: the commit, the machine and the versions. Every result file says it."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("covnmt", "torch", "triton", "onnxruntime", "numpy", "sacrebleu", "sacremoses")


def collect_provenance() -> dict[str, Any]:
    """The commit, the machine and the versions that a result came from."""
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
            **{name: _version(name) for name in PACKAGES},
        },
    }


def code_commit() -> str:
    """The commit of the code, a plus if files were changed; COVNMT_COMMIT overrules git."""
    if told := os.environ.get("COVNMT_COMMIT"):
        return told
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
    """The processor's own name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
