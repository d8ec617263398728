"""benchmarks/update.py works without a GPU, so that it does on the day when there is one."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="the candidates are Triton kernels")

from tests.kernels.compare import DEVICE, poison

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = {
    "size": "tiny", "batch": 2, "source": 3, "target": 3, "repeats": 1, "calls": 1, "seconds": 500
}  # fmt: skip


@pytest.fixture(autouse=True)
def _import_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)


@pytest.mark.slow
def test_all_parts_run_and_all_versions_are_right(tmp_path: Path) -> None:
    """Versions that change no rounding leave the same weights, to the bit."""
    script = [sys.executable, str(BENCHMARKS / "update.py"), "--out", str(tmp_path)]
    script += [f"--{name}={value}" for name, value in TINY.items()]
    candidates = ["before", "one launch", "compact embedding gradient", "all"]
    subprocess.run(
        [*script, "--optimizer", "adamw", "--candidates", *candidates], check=True, timeout=500
    )
    adadelta = [
        "--optimizer",
        "adadelta",
        "--parts",
        "updates",
        "kernels",
        "--resume",
        "--candidates",
    ]
    subprocess.run([*script, *adadelta, candidates[2]], check=True, timeout=500)
    rows = json.loads((tmp_path / "update.json").read_text("utf-8"))["rows"]
    assert not [row for row in rows if {"error", "skipped"} & row.keys()]
    versions = [version for row in rows for version in row.get("rows", [])]
    assert len(versions) > 30
    assert not [version for version in versions if "error" in version]
    assert all(version.get("right", True) for version in versions)
    exact = {"before", "one launch", "compact embedding gradient"}
    updates = [version for version in versions if "distance" in version]
    assert exact <= {version["version"] for version in updates}
    assert all(version["distance"] < 1e-3 for version in updates)
    if DEVICE.type == "cpu":
        assert not any(v["distance"] for v in updates if v["version"] in exact)


def test_what_breaks_the_gpu_is_left_out_by_a_new_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ordinary error loses only its own row."""
    import update
    from update_steps import BrokenDeviceError

    def give(result: dict[str, Any] | Exception) -> dict[str, Any]:
        if isinstance(result, Exception):
            raise result
        return result

    results: list[dict[str, Any] | Exception]
    results = [ValueError("ordinary"), {"rows": []}, BrokenDeviceError("one launch"), {}]
    units = [
        update.Unit({"part": "kernels", "comparison": str(number)}, partial(give, result))
        for number, result in enumerate(results)
    ]

    restarts: list[list[str]] = []

    def stop(program: str, arguments: list[str]) -> None:
        restarts.append(arguments)
        raise SystemExit

    monkeypatch.setattr(update, "units", lambda *_: units)
    monkeypatch.setattr("os.execv", stop)
    monkeypatch.setenv("COVNMT_OPS", "")  # main() sets it
    options = ["--out", str(tmp_path), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["update.py", *options])
    with pytest.raises(SystemExit):
        update.main()
    (arguments,) = restarts
    assert arguments[-2:] == ["--leave-out", "one launch"]
    units[2] = update.Unit(units[2].setting, dict)
    monkeypatch.setattr(sys, "argv", arguments[1:])
    update.main()
    rows = json.loads((tmp_path / "update.json").read_text("utf-8"))["rows"]
    assert [row["comparison"] for row in rows] == ["0", "1", "2", "3"]
    assert [("ordinary" in row.get("error", "")) for row in rows] == [True, False, False, False]


def gpu_event(name: str, start: float, duration: float, grid: int = 1) -> dict[str, Any]:
    arguments = {"grid": [grid, 1, 1]}
    return {"cat": "kernel", "name": name, "ts": start, "dur": duration, "args": arguments}


def test_kernels_are_grouped_by_the_marks_before_them(tmp_path: Path) -> None:
    """Two updates, whose events are not in order; an event of the host does not count."""
    import update_profile

    def marker(phase: str, start: float) -> dict[str, Any]:
        return gpu_event("phase_marker", start, 1, update_profile.PHASES.index(phase) + 1)

    events = [{"cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 0, "dur": 500}]
    for begin in (1000, 2000):
        events += [
            marker("begin", begin),
            marker("other", begin + 1),
            gpu_event("nvjet_tst_128x8", begin + 2, 10),
            marker("loops", begin + 12),
            gpu_event("gates_forward", begin + 13, 20),
            gpu_event("cublasLt::splitKreduce_kernel", begin + 40, 5),
            marker("output layer", begin + 45),
            gpu_event("loss_and_gradient_kernel", begin + 46, 100),
            gpu_event("sm90_xmma_gemm_bf16", begin + 146, 50),
            gpu_event("elementwise_kernel", begin + 196, 4),
            marker("inputs", begin + 200),
            gpu_event("Memcpy DtoD", begin + 201, 2),
        ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events[::-1]}))
    groups, kernels = update_profile.group_events(update_profile.read_trace(path))
    assert set(groups) == set(update_profile.GROUPS)
    found = {name: 1000 * one["milliseconds"] for name, one in groups.items() if one["launches"]}
    assert found == pytest.approx({
        "loops": 25,
        "output layer products": 50,
        "softmax and loss": 100,
        "other products": 10,
        "casts, copies and sums": 4,
        "inputs": 2,
    })  # fmt: skip
    assert groups["loops"]["launches"] == 2
    assert 1000 * groups["loops"]["milliseconds_before"] == pytest.approx(7)
    assert kernels[0]["kernel"] == "loss_and_gradient_kernel"


@pytest.mark.parametrize("tokens", [2, 40])
def test_embedding_gradients_sum_tokens_that_occur_often(
    tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that occur more often than a program reads rows at a time."""
    import update_candidates

    torch.manual_seed(tokens)
    ids = torch.randint(3, 3 + tokens, (101,), device=DEVICE)
    d_y = torch.randn(101, 70, device=DEVICE)
    expected = torch.zeros(50, 70, device=DEVICE).index_add_(0, ids, d_y)
    with monkeypatch.context() as patch:
        poison(patch)
        dense = update_candidates.dense_gradient(ids, d_y, 50)
        rows, table = update_candidates.compact_gradient(ids, d_y, 50)
    torch.testing.assert_close(dense, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(rows[table[ids].long()], expected[ids], rtol=1e-5, atol=1e-5)
    assert (table >= 0).nonzero().flatten().tolist() == sorted(set(ids.tolist()))
    # nothing else is in the rows, of which the norm is taken
    torch.testing.assert_close(rows.norm(), expected.norm())
