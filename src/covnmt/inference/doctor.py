"""Check an installation: what is there, what is wrong and what to do about it.

Every check runs, whatever the others find; nothing is written but a test file that is removed.
"""

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from covnmt import __version__
from covnmt.base.cpus import available_cpus
from covnmt.base.errors import UserError, install_command
from covnmt.base.processes import have_semaphores
from covnmt.base.provenance import installed_version
from covnmt.model.directory import bundled_models

EXTRAS = ("train", "gpu", "serve", "cluster", "smt", "tensorboard")
THREAD_SETTINGS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "COVNMT_OPS")
ENOUGH_DISK, ENOUGH_MEMORY = 2.0, 1.0  # GiB
# A sentence that each bundled model knows the words of.
SAMPLES = {
    "de-en": "Die Regierung hat am Montag neue Maßnahmen angekündigt.",
    "ja-en": "この寺は京都市の北にある。",
    "zh-en": "本法自公布日施行。",
}


@dataclass(frozen=True)
class Diagnosis:
    """What a check found; a warning or an error has a remedy."""

    check: str
    result: str
    state: Literal["ok", "warning", "error"] = "ok"
    remedy: str = ""


def diagnose() -> Iterator[Diagnosis]:
    """Run all checks, the quick ones first."""
    checks: list[Callable[[], Iterator[Diagnosis]]] = [
        check_versions,
        check_packages,
        check_cpus,
        check_memory,
        check_disk,
        check_gpu,
        check_models,
    ]
    for check in checks:
        name = check.__name__.removeprefix("check_")
        try:
            yield from check()
        except UserError as error:
            yield Diagnosis(name, str(error), "error", "see the message")
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
            yield Diagnosis(name, result, "error", "report it, with all of this output")


def diagnoses_json(findings: list[Diagnosis]) -> dict[str, Any]:
    """Return JSON values."""
    return {
        "ok": all(finding.state != "error" for finding in findings),
        "findings": [asdict(finding) for finding in findings],
    }


def check_versions() -> Iterator[Diagnosis]:
    """Name what runs on what."""
    yield Diagnosis("covnmt", __version__)
    yield Diagnosis("Python", f"{platform.python_version()}, {platform.platform()}")


def check_packages() -> Iterator[Diagnosis]:
    """Compare installed packages with those that covnmt and its extras require."""
    from packaging.requirements import Requirement

    try:
        requirements = [Requirement(text) for text in requires("covnmt") or ()]
    except PackageNotFoundError:
        remedy = f"install it: {install_command('train')}"
        yield Diagnosis("packages", "covnmt itself is not installed", "warning", remedy)
        return
    for extra in ("", *EXTRAS):
        of_extra = [
            requirement
            for requirement in requirements
            if (marker := requirement.marker) is None
            or (extra and not marker.evaluate({"extra": ""}) and marker.evaluate({"extra": extra}))
            if bool(marker) == bool(extra)
        ]
        versions = {requirement: installed_version(requirement.name) for requirement in of_extra}
        wrong = [
            f"{requirement.name} {versions[requirement] or 'missing'}, not {requirement.specifier}"
            for requirement in of_extra
            if not (installed := versions[requirement])
            or not requirement.specifier.contains(installed, prereleases=True)
        ]
        name = f"packages ({extra})" if extra else "packages"
        have = ", ".join(f"{r.name} {v}" for r, v in versions.items() if v)
        if not wrong:
            yield Diagnosis(name, have)
        elif extra and not have:
            yield Diagnosis(name, f"not installed; {install_command(extra)}")
        else:
            remedy = install_command(extra or "train")
            yield Diagnosis(name, "; ".join(wrong), "warning" if extra else "error", remedy)


def check_cpus() -> Iterator[Diagnosis]:
    """Look for too many threads, and for other work on the same cores."""
    cpus, load = available_cpus(), os.getloadavg()[0]
    settings = [f"{name}={os.environ[name]}" for name in THREAD_SETTINGS if name in os.environ]
    result = f"{cpus} of {os.cpu_count()}, load {load:.1f}"
    result = ", ".join([result, *settings])
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal() and int(threads) > cpus:
        remedy = "unset OMP_NUM_THREADS: more threads than CPUs wait for each other"
        yield Diagnosis("CPUs", result, "warning", remedy)
    elif os.environ.get("OMP_WAIT_POLICY", "").lower() == "active":
        remedy = "unset OMP_WAIT_POLICY: threads that wait keep other work from the CPUs"
        yield Diagnosis("CPUs", result, "warning", remedy)
    elif load > 1.5 * (os.cpu_count() or 1):
        remedy = "other programs use the CPUs: times will be longer than in the documentation"
        yield Diagnosis("CPUs", result, "warning", remedy)
    else:
        yield Diagnosis("CPUs", result)
    if have_semaphores():
        yield Diagnosis("worker processes", "possible")
    else:
        remedy = "mount /dev/shm (docker: --shm-size 1g); until then one process works"
        yield Diagnosis("worker processes", "not possible: no semaphores", "warning", remedy)


def check_memory() -> Iterator[Diagnosis]:
    """Read how much memory programs may still take."""
    try:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    except OSError:
        return
    sizes = {line.split(":")[0]: int(line.split()[1]) / 2**20 for line in lines}
    result = f"{sizes['MemAvailable']:.1f} of {sizes['MemTotal']:.1f} GiB free"
    enough = sizes["MemAvailable"] >= ENOUGH_MEMORY
    remedy = "" if enough else "end other programs: training needs a GiB and more"
    yield Diagnosis("memory", result, "ok" if enough else "warning", remedy)


def check_disk() -> Iterator[Diagnosis]:
    """See whether there is room, and permission to write, where covnmt and its packages write."""
    cache = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton")
    places = {
        "this directory": (Path.cwd(), "change to a directory of yours"),
        "temporary files": (Path(tempfile.gettempdir()), "set TMPDIR to another directory"),
        "kernel cache": (cache, "set TRITON_CACHE_DIR to a directory that lasts"),
    }
    for name, (path, remedy) in places.items():
        existing = next(parent for parent in (path, *path.parents) if parent.is_dir())
        free = shutil.disk_usage(existing).free / 2**30
        result = f"{free:,.1f} GiB free"
        try:
            tempfile.TemporaryFile(dir=existing).close()
        except OSError as error:
            yield Diagnosis(name, f"cannot be written ({error.strerror})", "warning", remedy)
            continue
        state: Literal["ok", "warning"] = "ok" if free >= ENOUGH_DISK else "warning"
        yield Diagnosis(
            name, result, state, "" if state == "ok" else f"free some space, or {remedy}"
        )


def check_gpu() -> Iterator[Diagnosis]:
    """Say what PyTorch would compute on, and with which kernels."""
    devices = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    if find_spec("torch") is None:
        yield Diagnosis(
            "GPU", "PyTorch is not installed: bundled and exported models run on the CPU"
        )
        return
    import torch

    if not torch.cuda.is_available():
        result = f"none that PyTorch {torch.__version__} can use"
        if not devices:
            yield Diagnosis("GPU", result)
        elif torch.version.cuda is None:
            remedy = "this PyTorch is for CPUs only: install one for CUDA from pytorch.org"
            yield Diagnosis("GPU", f"{result}, but /dev/{devices[0]} is there", "warning", remedy)
        else:
            remedy = f"update the driver for CUDA {torch.version.cuda}; see nvidia-smi"
            yield Diagnosis("GPU", f"{result}, but /dev/{devices[0]} is there", "warning", remedy)
        return
    from covnmt.kernels.dispatch import uses_triton

    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        free, total = (size / 2**30 for size in torch.cuda.mem_get_info(device))
        kernels = "Triton" if uses_triton(device) else "PyTorch, slower"
        yield Diagnosis(
            f"GPU {index}",
            f"{torch.cuda.get_device_name(device)}, {free:.1f} of {total:.1f} GiB free, CUDA "
            f"{torch.version.cuda}, kernels: {kernels}",
        )
        if not uses_triton(device) and find_spec("triton") is None:
            remedy = install_command("gpu")
            yield Diagnosis(f"kernels {index}", "Triton is not installed", "warning", remedy)


def check_models() -> Iterator[Diagnosis]:
    """Translate a sentence with every bundled model, which verifies its files."""
    from covnmt.inference.model import load

    if not bundled_models():
        yield Diagnosis("models", "none are bundled", "warning", "install covnmt again")
    for name in bundled_models():
        sample, began = SAMPLES.get(name, "1"), time.monotonic()
        try:
            [translation] = load(name).translate([sample])
        except UserError as error:
            yield Diagnosis(f"model {name}", str(error), "error", "install covnmt again")
            continue
        seconds = time.monotonic() - began
        result = f"{sample} -> {translation.text} ({seconds:.1f} s with loading)"
        if translation.text.strip():
            yield Diagnosis(f"model {name}", result)
        else:
            yield Diagnosis(f"model {name}", result, "error", "install covnmt again")
