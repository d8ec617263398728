"""How many CPUs this process may use, and how its threads wait."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import covnmt
from covnmt.base.cpus import available_cpus


@pytest.mark.parametrize(
    ("groups", "files", "cpus"),
    [
        ("0::/", {"cpu.max": "max 100000"}, 8),
        ("0::/", {"cpu.max": "150000 100000"}, 2),  # one and a half
        ("0::/", {"cpu.max": "20000 100000"}, 1),
        ("0::/", {"cpu.max": "1600000 100000"}, 8),  # more than the affinity
        (
            "0::/a/b",
            {"cpu.max": "max 100000", "a/cpu.max": "300000 100000", "a/b/cpu.max": "max"},
            3,
        ),
        ("0::/seen/from/the/host", {"cpu.max": "200000 100000"}, 2),
        (
            "5:cpu,cpuacct:/job\n0::/",
            {"cpu/job/cpu.cfs_quota_us": "400000\n", "cpu/job/cpu.cfs_period_us": "100000\n"},
            4,
        ),
        ("5:cpu:/", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ("3:memory:/", {"memory/cpu.max": "100000 100000"}, 8),
        ("", {}, 8),
    ],
)
def test_cpus_are_those_of_the_affinity_within_the_quota_of_every_control_group(
    groups: str,
    files: dict[str, str],
    cpus: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    for name, content in {f"sys/fs/cgroup/{k}": v for k, v in files.items()}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups + "\n" * bool(groups))
    assert available_cpus(tmp_path) == cpus


@pytest.mark.parametrize(
    ("given", "spin_count"),
    [({}, "0 1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_threads_of_torch_sleep_soon_unless_the_user_says_otherwise(
    given: dict[str, str], spin_count: str
) -> None:
    code = "import os, sys, covnmt; print('torch' in sys.modules, os.getenv('GOMP_SPINCOUNT'))"
    clean = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, env=clean | given, capture_output=True, check=True)
    imported, found = out.stdout.decode().split()
    assert imported == "False"
    assert found in spin_count.split()


@pytest.mark.parametrize(
    ("load", "spin_count"),
    [
        ("0.10 0.30 0.20 1/262 17968", 1000),
        ("1.00 0.30 0.20 2/262 17968", 0),
        ("8.50 9.30 9.20 9/262 17968", 0),
        ("8.50 9.30 9.20 1/262 17968", 1000),  # other work has just ended
        ("0.50 0.30 0.20 9/262 17968", 1000),  # it has just begun, and may end soon
    ],
)
def test_threads_sleep_at_once_where_half_of_the_cpus_are_busy(load: str, spin_count: int) -> None:
    assert covnmt._spin_count(load, cpus=2) == spin_count
