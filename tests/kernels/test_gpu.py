"""Which GPUs get the kernels, and that what is chosen for small ones fits there.

Most machines that run this have no GPU: `gpu.describe_gpu` is replaced, and tensors are fake.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from covnmt.base.config import PAPER_SYSTEMS, TrainConfig
from covnmt.kernels import dispatch, gpu
from covnmt.model.seq2seq import Seq2Seq
from covnmt.training.optimizer import TorchOptimizerStep, build_optimizer
from covnmt.training.step import TrainStep, uses_bf16
from tests.model.small import VOCABULARY_SIZE, small_config

CUDA = torch.device("cuda", 0)
KIB = 1024

# compute capability, whether it is AMD's, and whether the kernels and bf16 are for it
GPUS = {
    "V100": ((7, 0), False, False, False),
    "T4": ((7, 5), False, False, False),
    "A100": ((8, 0), False, True, True),
    "RTX 3090": ((8, 6), False, True, True),
    "H200": ((9, 0), False, True, True),
    "B200": ((10, 0), False, True, True),
    "RTX 5090": ((12, 0), False, True, True),
    "MI300X": ((9, 4), True, False, True),
}


@pytest.fixture(autouse=True)
def clear_gpu_cache() -> Iterator[None]:
    """Forget the answers about the GPU of another test."""
    gpu.supports_kernels.cache_clear()
    yield
    gpu.supports_kernels.cache_clear()


@pytest.fixture(params=GPUS)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a pretended GPU."""
    pretend(request.param, monkeypatch)
    return str(request.param)


def pretend(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace what the package knows of the GPU; PyTorch checks the real one."""
    capability, amd, *_ = GPUS[name]
    properties = gpu.Gpu(name, amd, capability, 99 * KIB)
    monkeypatch.setattr(gpu, "describe_gpu", lambda _: properties)
    monkeypatch.setattr(dispatch, "_triton_installed", lambda: True)
    monkeypatch.delenv("COVNMT_OPS", raising=False)


def uses_triton() -> bool:
    with FakeTensorMode():
        return dispatch.uses_triton(CUDA)


def test_kernels_run_on_supported_gpus_and_warn_once_on_others(
    device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (major, minor), amd, kernels, _ = GPUS[device]
    assert [uses_triton() for _ in range(3)] == [kernels] * 3
    kind = "an AMD GPU" if amd else f"compute capability {major}.{minor}"
    warnings = capsys.readouterr().err.splitlines()
    subjects = [line.partition(": ")[0] for line in warnings]
    assert subjects == ([] if kernels else [f"{device} ({kind})"])
    assert kernels or "compute capability 8.0 or later" in warnings[0]


@pytest.mark.parametrize(("choice", "used"), [("triton", True), ("reference", False)])
def test_forced_choice_prints_no_warning(
    choice: str, used: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend("T4", monkeypatch)
    monkeypatch.setenv("COVNMT_OPS", choice)
    assert uses_triton() == used
    assert capsys.readouterr().err == ""


def test_auto_precision_is_bf16_if_the_gpu_supports_it(device: str) -> None:
    *_, bf16 = GPUS[device]
    chosen = {precision: uses_bf16(precision, CUDA) for precision in ("fp32", "bf16", "auto")}
    assert chosen == {"fp32": False, "bf16": True, "auto": bf16}
    assert not uses_bf16("auto", torch.device("cpu"))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "auto"])
def test_bf16_without_hardware_support_prints_a_warning(
    precision: str, device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, bf16 = GPUS[device]
    config = TrainConfig.model_validate({"precision": precision})
    with torch.device("meta"):
        model = Seq2Seq(small_config(PAPER_SYSTEMS["gru1"]), VOCABULARY_SIZE, VOCABULARY_SIZE)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device=CUDA)
        TrainStep(
            model, TorchOptimizerStep(model, build_optimizer(model, config), {}, config), config
        )
    warned = "train.precision=auto takes fp32 here" in capsys.readouterr().err
    assert warned == (precision == "bf16" and not bf16)


@pytest.mark.parametrize(
    ("memory", "tile", "stages"),
    [
        (227, 64, 3),  # H200: fp32, few rows
        (163, 64, 3),  # A100
        (99, 64, 2),  # RTX 3090
        (64, 64, 1),  # T4
        (227, 32, 3),  # bf16, or many rows
        (163, 32, 3),
        (99, 32, 3),
        (64, 32, 2),
        (48, 64, 1),  # never none
    ],
)
def test_stages_fit_in_shared_memory(
    memory: int, tile: int, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "shared_memory", lambda _: memory * KIB)
    assert gpu.fitting_stages(3, tile * KIB, CUDA) == stages


def test_gpu_is_described_by_its_opt_in_shared_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Properties:
        name = "RTX 3090"
        major, minor = 8, 6
        shared_memory_per_block = 48 * KIB
        shared_memory_per_block_optin = 99 * KIB

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    monkeypatch.setattr(torch.version, "hip", None)
    properties = gpu.describe_gpu.__wrapped__(CUDA)
    assert properties == gpu.Gpu("RTX 3090", False, (8, 6), 99 * KIB)
    monkeypatch.setattr(gpu, "describe_gpu", lambda _: properties)
    assert gpu.shared_memory(CUDA) == 99 * KIB
    assert gpu.shared_memory(torch.device("cpu")) == 227 * KIB


@pytest.mark.parametrize(("name", "has"), [("H200", False), ("B200", True), ("RTX 5090", False)])
def test_only_b200_has_tensor_memory(name: str, has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(name, monkeypatch)
    assert gpu.has_tensor_memory(CUDA) == has
    assert not gpu.has_tensor_memory(torch.device("cpu"))


def test_tuned_tilings_are_kept_if_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = pytest.importorskip("covnmt.kernels.triton.attention", reason="Triton is needed")
    tilings = (
        attention.FEW_ROWS, attention.MEDIUM_BACK, attention.MANY_ROWS, attention.MANY_UNITS
    )  # fmt: skip
    for memory in (227, 163):
        monkeypatch.setattr(gpu, "shared_memory", lambda _, memory=memory: memory * KIB)
        for dtype in (torch.float32, torch.bfloat16):
            keys = torch.empty(1, 1, 1, dtype=dtype)
            for tiling in tilings:
                blocks = attention._attention_blocks(16, keys, tiling)
                assert blocks["STAGES"] == tiling.stages


@pytest.mark.slow
def test_heaviest_kernels_compile_for_99_kib_of_shared_memory(tmp_path: Path) -> None:
    """In 99 KiB of shared memory; tilings for the H200 would take up to 160.

    Before 3.9 Triton takes 130 for attention backward over more than 256 tokens (docs/kernels.md).
    """
    pytest.importorskip("triton.backends.nvidia", reason="Triton cannot compile for NVIDIA's GPUs")
    old = tuple(map(int, version("triton").split(".")[:2])) < (3, 9)
    script = Path(__file__).parents[2] / "benchmarks" / "other_gpus.py"
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, script, "--arch", "86", "--heaviest", "--out", tmp_path],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    kernels = json.loads((tmp_path / "other-gpus.json").read_text("utf-8"))["kernels"]
    assert {
        "attention_forward_kernel",
        "attention_backward_kernel",
        "keys_backward_kernel",
        "network_backward_kernel",
    } <= {row["kernel"] for row in kernels}
    for row in kernels:
        assert not row["errors"]
        too_large = {(row["kernel"], one["words"]) for one in row["over"]}
        assert too_large <= ({("attention_backward_kernel", 400)} if old else set())
