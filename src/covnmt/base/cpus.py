"""Count the CPUs that this process may use."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def available_cpus(root: Path = Path("/")) -> int:
    """Count the CPUs that this process may use: its affinity, within the quota of its container."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([cpus, *(max(1, math.ceil(quota)) for quota in _cpu_quotas(root))])


def _cpu_quotas(root: Path) -> Iterator[float]:
    """Yield the CPUs that each control group above this process (version 1 or 2) may use."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        directory = mount / group.lstrip("/")
        # a container may see the path of the host here, and its own group as the mounted one
        for path in (directory, *directory.parents):
            limit = _read(path / "cpu.max").split()  # such as "150000 100000"
            if not limit:
                names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
                limit = [_read(path / name) for name in names]
            with suppress(ValueError, ZeroDivisionError):  # "max": no limit
                quota, period = map(int, limit)
                if quota > 0:
                    yield quota / period
            if path == mount:
                break


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError:
        return ""
