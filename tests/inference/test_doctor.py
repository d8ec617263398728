"""`covnmt doctor`: what it finds in a good installation, and in bad ones."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from covnmt.base.provenance import installed_version
from covnmt.inference import doctor
from covnmt.inference.doctor import diagnose
from tests.conftest import Run


def test_good_installation_has_no_errors_and_translates(run: Run) -> None:
    report = json.loads(run("doctor", "--json").out)
    assert report["ok"]
    findings = {finding["check"]: finding for finding in report["findings"]}
    assert "north of Kyoto" in findings["model ja-en"]["result"]
    assert "numpy" in findings["packages"]["result"]
    assert [f for f in findings.values() if f["state"] == "ok" and f["remedy"]] == []


def test_error_is_printed_with_its_remedy_and_exits_with_1(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "bundled_models", lambda: ["gone"])
    lines = run("doctor", code=1).out.splitlines()
    [line] = [line for line in lines if "model gone" in line]
    state, _, problem, remedy = line.split("\t")
    assert (state, remedy) == ("error", "install covnmt again")
    assert "gone" in problem


@pytest.mark.parametrize(
    ("absent", "check", "state"),
    [
        ("numpy", "packages", "error"),
        ("safetensors", "packages (train)", "warning"),
        ("triton", "packages (gpu)", "ok"),  # the whole extra: nobody asked for it
    ],
)
def test_missing_packages_are_named_with_the_command_that_installs_them(
    absent: str, check: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(package: str) -> str | None:
        return None if package == absent else installed_version(package)

    monkeypatch.setattr(doctor, "installed_version", version)
    finding = next(f for f in doctor.check_packages() if f.check == check)
    assert finding.state == state
    assert "pip install" in finding.result + finding.remedy


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [("OMP_NUM_THREADS", "4096", "unset OMP"), ("OMP_WAIT_POLICY", "ACTIVE", "unset OMP_WAIT")],
)
def test_harmful_thread_settings_are_named(
    name: str, value: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv(name, value)
    finding = next(doctor.check_cpus())
    assert finding.state == "warning"
    assert f"{name}={value}" in finding.result
    assert remedy in finding.remedy


def test_full_disk_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=2**20))
    assert {finding.state for finding in doctor.check_disk()} == {"warning"}


def test_gpu_that_torch_cannot_use_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "glob", lambda path, pattern: [Path("/dev/nvidia0")])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.version.cuda", None)
    [finding] = doctor.check_gpu()
    assert finding.state == "warning"
    assert "for CPUs only" in finding.remedy


def test_check_that_fails_is_reported_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> float:
        raise ValueError("no CPU")

    monkeypatch.setattr(doctor, "available_cpus", fail)
    monkeypatch.setattr(doctor, "bundled_models", list)
    findings = {finding.check: finding for finding in diagnose()}
    assert findings["cpus"].result == "ValueError: no CPU"
    assert findings["models"].result == "none are bundled"
