r"""Where the time of a GPU update goes, and which candidates make it faster.

    python benchmarks/update.py                     # all parts, in at most two minutes on an H200
    python benchmarks/update.py --parts profile     # kernels of one update, by group
    python benchmarks/update.py --parts updates     # whole updates with each candidate
    python benchmarks/update.py --parts kernels     # candidates alone, held to float64
    python benchmarks/update.py --device cpu --size tiny --batch 2 --source 3 --target 3 \
        --repeats 1 --calls 1

GRU d=10 at the paper's size, source 25 and target 28 tokens, AdamW and the paper's Adadelta (loss
summed, clipped at 1), bf16. Candidates are in `update_candidates.py`; "package" is what is
installed, "package again" shows what differences mean nothing, "before" has the narrow accesses of
earlier versions. Versions take turns. On a CPU kernels run in Triton's interpreter: that only
shows that the benchmark works.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it on import

from harness import argument_parser, argument_values, result_path, save, summary
from torch import Tensor
from train import SIZES, Setup, free_memory, random_batch
from update_candidates import CANDIDATES, Candidate
from update_comparisons import Comparison, comparisons, measure
from update_profile import profile
from update_steps import (
    OPTIMIZERS,
    WARM_UP,
    BrokenDeviceError,
    build,
    check_device,
    describe,
    interleaved,
)

from covnmt.decoding.torch import pick_device
from covnmt.training.step import TrainStep

WITH_ADADELTA = (
    "before",
    "package",
    "package again",
    "one launch",
    "compact embedding gradient",
    "all",
)
WORTHWHILE = 0.03  # of an update


def whole_updates(setup: Setup, kind: str, pairs: int, names: list[str]) -> dict[str, Any]:
    """Measure updates with each candidate, in turns; compare how far the weights moved."""
    free_memory(setup.device)
    batch = random_batch((pairs, setup.source, setup.target), setup.device, setup.size.words)
    tokens = pairs * setup.target
    initial = weights_of(build(setup, kind))
    steps: dict[str, Callable[[], object]] = {}
    moved: dict[str, Tensor] = {}
    failed: dict[str, str] = {}
    for name in names:
        try:
            with CANDIDATES[name]():
                step = build(setup, kind)
                for number in range(WARM_UP):
                    step([batch], tokens, number)
            if step.uses_graphs and not step.graphs.captured:
                raise RuntimeError("the update could not be captured as a CUDA graph")
            moved[name] = weights_of(step) - initial
            if not moved[name].isfinite().all():
                raise ArithmeticError("weights that are not finite")
            steps[name] = update_call(step, CANDIDATES[name], batch, tokens)
        except Exception as error:
            check_device(setup.device, name)
            failed[name] = describe(error)
    times = interleaved(steps, setup)
    rows: list[dict[str, Any]] = []
    print(f"\n{kind}, batch {pairs}: whole updates")
    for name in names:
        if name in failed:
            rows.append({"version": name, "error": failed[name]})
            print(f"  {name:28} FAILED: {failed[name].splitlines()[-1][:90]}")
            continue
        gains = [1 - a / b for a, b in zip(times[name], times["package"], strict=True)]
        apart = (moved[name] - moved["package"]).norm() / moved["package"].norm()
        row: dict[str, Any] = {
            "version": name,
            "milliseconds": summary(times[name]),
            "words_per_second": 1000 * tokens / statistics.median(times[name]),
            "gain": summary(gains),
            "distance": float(apart),
        }
        rows.append(row)
        verdict = "worthwhile" if statistics.median(gains) >= WORTHWHILE else ""
        print(
            f"  {name:28} {row['milliseconds']['median']:8.3f} ms {row['words_per_second']:9,.0f}"
            f" words/s  gain {row['gain']['median']:6.1%} ({row['gain']['low']:.1%} to"
            f" {row['gain']['high']:.1%})  distance {row['distance']:.1e}  {verdict}"
        )
    return {"rows": rows}


def update_call(
    step: TrainStep, candidate: Candidate, batch: Any, tokens: int
) -> Callable[[], object]:
    """Return a call of an update; only a captured one needs no patches any more."""
    if step.uses_graphs:
        return lambda: step([batch], tokens, WARM_UP)

    def call() -> None:
        with candidate():
            step([batch], tokens, WARM_UP)

    return call


def weights_of(step: TrainStep) -> Tensor:
    return torch.cat([p.detach().flatten() for p in step.model.parameters()])


class Unit(NamedTuple):
    """Something to measure, and what describes it in the result file."""

    setting: dict[str, Any]
    run: Callable[[], dict[str, Any]]


def units(arguments: argparse.Namespace, setup: Setup) -> list[Unit]:
    """Return all that was asked for, the most important first."""

    def updates(kind: str, pairs: int) -> Unit:
        known = CANDIDATES if kind == "adamw" else WITH_ADADELTA
        asked = ["package", *(arguments.candidates or known)]
        names = [name for name in known if name in asked and name not in arguments.leave_out]
        setting = {"part": "updates", "optimizer": kind, "batch": pairs}
        return Unit(setting, lambda: whole_updates(setup, kind, pairs, names))

    def profiled(kind: str, pairs: int) -> Unit:
        setting = {"part": "profile", "optimizer": kind, "batch": pairs}
        return Unit(setting, lambda: profile(setup, kind, pairs))

    def compared(name: str, prepare: Callable[[], Comparison]) -> Unit:
        def run() -> dict[str, Any]:
            free_memory(setup.device)
            print(f"\n{name}")
            return {"rows": measure(prepare(), setup, arguments.leave_out)}

        return Unit({"part": "kernels", "comparison": name}, run)

    alone = comparisons(setup, arguments.batch, arguments.optimizer)
    pairs = [(kind, size) for kind in arguments.optimizer for size in arguments.batch]
    # the paper trains with Adadelta and the smaller batches
    last = [pair for pair in pairs if pair == ("adadelta", arguments.batch[-1])][: len(pairs) - 1]
    found = [
        *(updates(*pair) for pair in pairs if pair not in last),
        *(profiled(*pair) for pair in pairs),
        *(compared(*one) for one in alone.items()),
        *(updates(*pair) for pair in last),
    ]
    return [unit for unit in found if unit.setting["part"] in arguments.parts]


def measure_units(arguments: argparse.Namespace, setup: Setup, rows: list[dict[str, Any]]) -> None:
    """Add a row for each unit that has none yet; write the result file after each."""
    began = time.monotonic()
    done = [
        {key: row.get(key) for key in ("part", "optimizer", "batch", "comparison")} for row in rows
    ]
    for unit in units(arguments, setup):
        if {**dict.fromkeys(("optimizer", "batch", "comparison")), **unit.setting} in done:
            continue
        seconds = time.monotonic() - began
        if seconds > arguments.seconds:
            result: dict[str, Any] = {"skipped": f"after {seconds:.0f} s"}
        else:
            try:
                result = unit.run()
            except BrokenDeviceError as error:
                arguments.leave_out.append(str(error))
                restart(arguments, seconds)
            except Exception as error:  # the rest is worth having
                result = {"error": describe(error)}
                print(f"{unit.setting} FAILED\n{result['error']}")
        result["seconds"] = time.monotonic() - began - seconds
        rows.append({**unit.setting, **result})
        settings = argument_values(arguments, ["resume"])
        save("update", {"settings": settings, "rows": rows}, arguments, quiet=True)


def restart(arguments: argparse.Namespace, seconds: float) -> NoReturn:
    """Continue in a new process, without the versions that broke the GPU."""
    print(f"{arguments.leave_out[-1]} broke the GPU; continuing without it", flush=True)
    given = sys.argv[: sys.argv.index("--resume")] if "--resume" in sys.argv else sys.argv
    remaining = str(max(0.0, arguments.seconds - seconds))
    more = ["--resume", "--seconds", remaining, "--leave-out", *arguments.leave_out]
    os.execv(sys.executable, [sys.executable, *given, *more])


def main() -> None:
    """Measure and write the result file after every unit that is done."""
    parser = argument_parser(__doc__)
    add = parser.add_argument
    parts = ["updates", "profile", "kernels"]
    add("--parts", nargs="+", default=parts, choices=parts)
    add("--candidates", nargs="+", choices=list(CANDIDATES), help="in whole updates; default: all")
    add("--leave-out", nargs="+", default=[], help="versions that break the GPU")
    add("--batch", type=int, nargs="+", default=[80, 512], help="pairs per batch")
    add("--optimizer", nargs="+", default=list(OPTIMIZERS), choices=list(OPTIMIZERS))
    add("--size", default="paper", choices=SIZES, help="of the model")
    add("--source", type=int, default=25, help="source tokens")
    add("--target", type=int, default=28, help="target tokens")
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--precision", default="bf16", choices=["bf16", "fp32"])
    add("--repeats", type=int, default=7, help="rounds")
    add("--calls", type=int, default=5, help="updates or calls in each round")
    add("--seconds", type=float, default=105, help="nothing begins after this time")
    add("--resume", action="store_true", help="keep the rows that the result file has")
    arguments = parser.parse_args()
    os.environ["COVNMT_OPS"] = "triton"
    setup = Setup(
        device=pick_device(arguments.device),
        precision=arguments.precision,
        size=SIZES[arguments.size],
        updates=arguments.calls,
        repeats=arguments.repeats,
        source=arguments.source,
        target=arguments.target,
    )
    path = result_path("update", arguments)
    rows = json.loads(path.read_text("utf-8"))["rows"] if arguments.resume and path.exists() else []
    measure_units(arguments, setup, rows)
    print(f"\nwrote {path}; {sum(row['seconds'] for row in rows):.0f} s")


if __name__ == "__main__":
    main()
