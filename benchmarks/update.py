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
import re
import statistics
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from unittest.mock import patch

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it on import

import triton
import triton.language as tl
import update_candidates as candidates
from harness import argument_parser, argument_values, result_path, save, summary
from torch import Tensor
from train import SIZES, Setup, free_memory, random_batch, random_model, synchronize
from update_candidates import CANDIDATES, Candidate

from covnmt.base.config import PAPER_SYSTEMS, TrainConfig
from covnmt.decoding.torch import pick_device
from covnmt.kernels.triton import decoder, encoder, loss, optimizer, products
from covnmt.training.optimizer import TritonOptimizerStep, build_optimizer
from covnmt.training.step import TrainStep

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {
        "optimizer": "adamw",
        "learning_rate": 1e-4,
        "epsilon": 1e-8,
        "loss": "token_mean",
    },
    "adadelta": {"optimizer": "adadelta"},
}
WITH_ADADELTA = (
    "before",
    "package",
    "package again",
    "one launch",
    "compact embedding gradient",
    "all",
)
WARM_UP = 3 if torch.cuda.is_available() else 1  # updates: compile, capture, replay
RUNS = 4 if torch.cuda.is_available() else 1  # of a candidate in a graph
WORTHWHILE = 0.03  # of an update


def build(setup: Setup, kind: str) -> TrainStep:
    """Return the train step of a random model with this optimizer."""
    model = random_model(setup.model_config(PAPER_SYSTEMS["gru10"]), setup.device, setup.size.words)
    config = TrainConfig.model_validate({**OPTIMIZERS[kind], "precision": setup.precision})
    optimizer_step = TritonOptimizerStep(model, build_optimizer(model, config), {}, config)
    return TrainStep(model, optimizer_step, config)


def interleaved(versions: dict[str, Callable[[], object]], setup: Setup) -> dict[str, list[float]]:
    """Return milliseconds of a call, one for each round; in each round the versions take turns."""
    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(setup.repeats):
        for name, call in versions.items():
            times[name].append(milliseconds(call, setup.updates, setup.device))
    return times


def milliseconds(call: Callable[[], object], calls: int, device: torch.device) -> float:
    """Measure a call, as the mean of some, on the GPU's own clock."""
    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(calls):
            call()
        return 1000 * (time.perf_counter() - began) / calls
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / calls


# ---- profile: the kernels of an update


GROUPS = [
    "loops",
    "sums after the loops",
    "output layer products",
    "softmax and loss",
    "other products",
    "optimizer",
    "gradient norm",
    "embedding gradients",
    "casts, copies and sums",
    "inputs",
]
# What runs between two marks; the kernels of the last two are told apart by their names.
PHASES = [
    "begin", "inputs", "loops", "sums after the loops", "optimizer", "gradient norm",
    "embedding gradients", "casts, copies and sums", "output layer", "other",
]  # fmt: skip
PRODUCT = re.compile(r"gemm|nvjet|cutlass|xmma|cublas|splitk|gemv|::(add|b|badd)?mm|linear", re.I)


@triton.jit
def phase_marker(scratch):  # type: ignore[no-untyped-def]
    tl.store(scratch + tl.program_id(0), 0)


class Marks:
    """Marks in a stream of kernels where a phase begins: tiny kernels with one program more each.

    They are captured with the update, so that replayed kernels can be told apart as well.
    """

    def __init__(self, device: torch.device) -> None:
        self.scratch = torch.zeros(len(PHASES), device=device)
        self.stack = ["inputs"]

    def mark(self, phase: str) -> None:
        number = PHASES.index(phase) + 1
        if self.scratch.is_cuda:
            phase_marker[(number,)](self.scratch)
        else:
            with torch.profiler.record_function(f"phase_marker {number}"):
                pass

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.stack.append(name)
        self.mark(name)
        yield
        self.stack.pop()
        self.mark(self.stack[-1])

    def around(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        def marked(*args: Any, **options: Any) -> Any:
            with self.phase(phase):
                return function(*args, **options)

        return marked

    @contextmanager
    def everywhere(self) -> Iterator[None]:
        """Mark the phases of all updates that are built meanwhile."""
        places = [
            (encoder._Encoding, "forward", "loops"),
            (encoder._Encoding, "backward", "loops"),
            (encoder, "_recurrent_gradient", "sums after the loops"),
            (decoder, "_forward_steps", "loops"),
            (decoder, "_backward_steps", "loops"),
            (decoder._TeacherForcedDecoding, "backward", "sums after the loops"),
            (loss.CrossEntropy, "forward", "output layer"),
            (loss.CrossEntropy, "backward", "output layer"),
            (loss, "_padded", "casts, copies and sums"),
            (torch.nn.utils, "get_total_norm", "gradient norm"),
            (candidates, "dense_gradient", "embedding gradients"),
        ]
        with ExitStack() as stack:
            for owner, name, phase in places:
                marked = self.around(getattr(owner, name), phase)
                replacement = staticmethod(marked) if isinstance(owner, type) else marked
                stack.enter_context(patch.object(owner, name, replacement))
            step = self.around(TritonOptimizerStep.__call__, "optimizer")
            stack.enter_context(patch.object(TritonOptimizerStep, "__call__", step))
            update = self.update(TrainStep.run_update)
            stack.enter_context(patch.object(TrainStep, "run_update", update))
            yield

    def update(self, run_update: Callable[..., None]) -> Callable[..., None]:
        def marked(*args: Any) -> None:
            self.mark("begin")
            with self.phase("other"):
                run_update(*args)

        return marked


@contextmanager
def marked_embedding_gradient() -> Iterator[None]:
    """Send gradients of embeddings through a Python function, which can be marked."""

    def pytorch(ids: Tensor, d_y: Tensor, V: int) -> Tensor:
        return torch.ops.aten.embedding_dense_backward(d_y, ids, V, -1, False)  # type: ignore[no-any-return]

    with candidates.own_embedding_gradient(), patch.object(candidates, "dense_gradient", pytorch):
        yield


class Event(NamedTuple):
    """A kernel, copy or mark, in microseconds."""

    name: str
    start: float
    duration: float
    phase: str | None = None  # that begins here


def read_trace(path: Path) -> list[Event]:
    """Read what ran on the GPU; without one, the operators that called no other."""
    events = json.loads(path.read_text("utf-8"))["traceEvents"]
    events = [event for event in events if "dur" in event and "ts" in event]
    device = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    if device:
        found = [(e, e["args"]["grid"][0] if "phase_marker" in e["name"] else 0) for e in device]
    else:
        found = []
        for event in events:
            marker = re.fullmatch(r"phase_marker (\d+)", event["name"])
            if marker or event.get("cat") == "cpu_op":
                found.append((event, int(marker[1]) if marker else 0))
    found.sort(key=lambda one: (one[0]["ts"], -one[0]["dur"]))
    result = [
        Event(event["name"], event["ts"], event["dur"], PHASES[number - 1] if number else None)
        for event, number in found
    ]
    if device:
        return result
    # an operator that called others is none of its own
    return [
        event
        for event, after in zip(result, [*result[1:], None], strict=True)
        if after is None or after.start >= event.start + event.duration
    ]


def group_of(name: str, phase: str) -> str:
    """Return the group of a kernel that ran in a phase."""
    if "loss_and_gradient" in name:
        return "softmax and loss"
    if phase == "output layer":
        return "output layer products" if PRODUCT.search(name) else "casts, copies and sums"
    if phase in ("other", "begin"):
        return "other products" if PRODUCT.search(name) else "casts, copies and sums"
    return phase


def group_events(events: list[Event]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return kernels of one update by group, and by group and name."""
    updates = max(1, sum(event.phase == "begin" for event in events))
    groups: dict[str, list[float]] = {group: [0.0, 0.0, 0.0] for group in GROUPS}
    kernels: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    phase, end = "inputs", events[0].start if events else 0.0
    for event in events:
        gap = max(0.0, event.start - end)
        end = max(end, event.start + event.duration)
        if event.phase:
            phase = event.phase
            continue
        group = group_of(event.name, phase)
        for total, value in enumerate((event.duration / 1000, 1, gap / 1000)):
            groups[group][total] += value / updates
        kernels[group, event.name][0] += event.duration / 1000 / updates
        kernels[group, event.name][1] += 1 / updates
    by_group = {
        group: {"milliseconds": ms, "launches": launches, "milliseconds_before": gap}
        for group, (ms, launches, gap) in groups.items()
    }
    by_kernel = [
        {"group": group, "kernel": name[:120], "milliseconds": ms, "launches": launches}
        for (group, name), (ms, launches) in sorted(kernels.items(), key=lambda one: -one[1][0])
    ]
    return by_group, by_kernel


def profile(setup: Setup, kind: str, pairs: int) -> dict[str, Any]:
    """Measure an update, then profile it, with marks in a second train step."""
    free_memory(setup.device)
    batch = random_batch((pairs, setup.source, setup.target), setup.device, setup.size.words)
    tokens = pairs * setup.target
    plain = build(setup, kind)
    for number in range(WARM_UP):
        plain([batch], tokens, number)
    times = interleaved({"update": partial(plain, [batch], tokens, WARM_UP)}, setup)
    whole = summary(times["update"])
    activities = [torch.profiler.ProfilerActivity.CPU]
    if setup.device.type == "cuda":
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities):  # the profiler before graphs
            torch.zeros(1, device=setup.device)
    marks = Marks(setup.device)
    with marked_embedding_gradient(), marks.everywhere(), tempfile.TemporaryDirectory() as folder:
        step = build(setup, kind)
        for number in range(WARM_UP):
            step([batch], tokens, number)
        synchronize(setup.device)
        with torch.profiler.profile(activities=activities) as profiler:
            for number in range(setup.repeats):
                step([batch], tokens, number)
            synchronize(setup.device)
        profiler.export_chrome_trace(f"{folder}/trace.json")
        by_group, by_kernel = group_events(read_trace(Path(folder) / "trace.json"))
    busy = sum(group["milliseconds"] for group in by_group.values())
    by_group["between kernels"] = {"milliseconds": whole["median"] - busy}
    for group in by_group.values():
        group["share"] = group["milliseconds"] / whole["median"]
    print(f"\n{kind}, batch {pairs}: {whole['median']:.3f} ms an update")
    for name, group in by_group.items():
        launches = f"{group['launches']:6.0f} launches" if "launches" in group else ""
        print(f"  {name:24} {group['milliseconds']:7.3f} ms {group['share']:6.1%} {launches}")
    return {"milliseconds": whole, "groups": by_group, "kernels": by_kernel[:80]}


# ---- whole updates


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


class BrokenDeviceError(Exception):
    """A version has left the GPU unusable for this process."""


def check_device(device: torch.device, version: str) -> None:
    """Raise an error with the version's name if nothing runs on the device any more."""
    try:
        torch.zeros(1, device=device).item()
    except Exception as error:
        raise BrokenDeviceError(version) from error


def describe(error: Exception) -> str:
    return "".join(traceback.format_exception(error))[-2000:]


# ---- candidates alone


class Version(NamedTuple):
    """A version of some kernels."""

    run: Callable[[], dict[str, Tensor]]
    candidate: Candidate = CANDIDATES["package"]


class Comparison(NamedTuple):
    """Versions that compute the same, and how far each may be from the truth."""

    versions: dict[str, Version]
    truth: dict[str, Tensor]  # float64
    allowed: float
    view: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict  # what is compared of the results
    reset: Callable[[], None] = lambda: None  # restores inputs that were overwritten
    start: dict[str, Tensor] | None = None  # what results are measured from, if not from zero


def measure(comparison: Comparison, setup: Setup, leave_out: list[str]) -> list[dict[str, Any]]:
    """Check each version, then measure all that ran, in turns."""
    rows: list[dict[str, Any]] = []
    calls: dict[str, Callable[[], object]] = {}
    start = comparison.start or {}
    for name, version in comparison.versions.items():
        if name in leave_out:
            continue
        try:
            comparison.reset()
            with version.candidate():
                results = comparison.view(version.run())
                errors = {
                    key: relative_error(value, comparison.truth[key], start.get(key))
                    for key, value in results.items()
                }
                calls[name] = captured(version, setup.device)
            right = all(error <= comparison.allowed for error in errors.values())
            rows.append({"version": name, "errors": errors, "right": right})
        except Exception as error:
            check_device(setup.device, name)
            rows.append({"version": name, "error": describe(error)})
    comparison.reset()
    times = interleaved(calls, setup)
    for row in rows:
        name = row["version"]
        if name in times:
            row["microseconds"] = summary([1000 * ms / RUNS for ms in times[name]])
            state = "" if row["right"] else f"  WRONG (allowed {comparison.allowed})"
            worst = max(row["errors"].values(), default=0.0)
            print(
                f"  {name:28} {row['microseconds']['median']:8.1f} us"
                f" ({row['microseconds']['low']:.1f} to {row['microseconds']['high']:.1f})"
                f"  error {worst:.1e}{state}"
            )
        else:
            print(f"  {name:28} FAILED: {row['error'].splitlines()[-1][:90]}")
    return rows


def relative_error(actual: Tensor, truth: Tensor, start: Tensor | None) -> float:
    """Return |actual - truth| / |truth - start|; infinite where something is not finite."""
    size = truth if start is None else truth - start.double()
    error = float((actual.detach().double() - truth).norm() / size.norm())
    return error if error == error else float("inf")


def captured(version: Version, device: torch.device) -> Callable[[], object]:
    """Return a call that replays a version; the interpreter has nothing to replay."""
    if device.type != "cuda":

        def call() -> None:
            with version.candidate():
                version.run()

        return call
    version.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        for _ in range(RUNS):
            version.run()
    return graph.replay


def compare_optimizer(setup: Setup, kind: str) -> Comparison:
    """Update all weights of the model."""
    shapes = [weight.shape for weight in build(setup, kind).model.parameters()]
    config = TrainConfig.model_validate(OPTIMIZERS[kind])

    def random_state() -> list[Tensor]:
        return [torch.randn(shape, device=setup.device) * 0.05 for shape in shapes]

    weights, gradients, first, second = (random_state() for _ in range(4))
    second = [x.square() for x in second]
    kernel, constants = optimizer.adamw, [*config.betas, config.epsilon, config.weight_decay]
    if kind == "adadelta":
        first = [x.square() for x in first]
        kernel, constants = optimizer.adadelta, [config.rho, config.epsilon]
    norm, rate, updates, share = (
        torch.tensor(value, device=setup.device) for value in (2.0, 0.01, 7.0, 0.0)
    )
    scalars = optimizer.UpdateScalars(norm, rate, updates, share)
    state = [*weights, *first, *second]
    kept = [x.clone() for x in state]

    def reset() -> None:
        torch._foreach_copy_(state, kept)

    def run() -> dict[str, Tensor]:
        optimizer.update_weights(
            weights, gradients, first, second, [None] * len(weights), scalars, 1.0,
            kernel, constants,
        )  # fmt: skip
        return outputs()

    def outputs() -> dict[str, Tensor]:
        return {f"{part} {i}": xs[i] for part, xs in parts.items() for i in checked}

    parts = {"weight": weights, "first": first, "second": second}
    checked = range(len(weights))
    truth: dict[str, Tensor] = {}
    for i in checked:
        w, g, m, v = (x[i].double() for x in (weights, gradients, first, second))
        new = float64_step(kind, config, w, g / 2 / (1 + 5e-7), m, v, lr=0.01, t=7)
        truth |= dict(zip((f"{part} {i}" for part in parts), new, strict=True))
    versions = {
        "before": Version(run, candidates.narrow_optimizer),
        "package": Version(run),
        "package again": Version(run),
        "one launch": Version(run, candidates.one_launch),
        "one launch, blocks of 2048": Version(run, lambda: candidates.one_launch_block(2048)),
    }
    start = {
        f"{part} {i}": kept[k * len(weights) + i] for k, part in enumerate(parts) for i in checked
    }
    return Comparison(versions, truth, 1e-3, reset=reset, start=start)


def float64_step(
    kind: str, config: TrainConfig, w: Tensor, g: Tensor, m: Tensor, v: Tensor, lr: float, t: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return weight and state after the rules of docs/paper-to-code.md, section 1.4."""
    if kind == "adadelta":
        square = config.rho * m + (1 - config.rho) * g * g
        step = (v + config.epsilon).sqrt() / (square + config.epsilon).sqrt() * g
        return w - lr * step, square, config.rho * v + (1 - config.rho) * step * step
    beta1, beta2 = config.betas
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    step = (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + config.epsilon)
    return w * (1 - lr * config.weight_decay) - lr * step, m, v


def compare_loss(setup: Setup, pairs: int) -> Comparison:
    """Turn logits into losses and gradients; each version first copies the logits."""
    V = setup.size.words
    width = V + -V % loss.VOCABULARY_MULTIPLE
    rows = min(pairs * setup.target, max(1, loss.CHUNK // width))
    dtype = torch.bfloat16 if setup.precision == "bf16" else torch.float32
    original = (2 * torch.randn(rows, width, device=setup.device)).to(dtype)
    logits = original.clone()
    target = torch.randint(0, V, (rows,), device=setup.device)
    weight = (torch.rand(rows, device=setup.device) < 0.8).float()
    losses, nll = torch.empty(2, rows, device=setup.device)
    some = torch.randperm(rows, device=setup.device)[:64]

    def copy_only() -> dict[str, Tensor]:
        logits.copy_(original)
        return {}

    def run() -> dict[str, Tensor]:
        logits.copy_(original)
        loss.loss_and_gradient_kernel[(rows,)](
            logits, target, weight, losses, nll, 0.1, V,
            width, loss.BLOCK, loss.STAGES, True, num_warps=loss.WARPS,
        )  # fmt: skip
        return {"loss": losses, "nll": nll, "gradient": logits}

    def view(results: dict[str, Tensor]) -> dict[str, Tensor]:
        return {key: value[some] for key, value in results.items()}

    def poison() -> None:
        losses.fill_(float("nan"))
        nll.fill_(float("nan"))

    x = original[some, :V].double().requires_grad_()
    log_probs, w, y = torch.log_softmax(x, 1), weight[some].double(), target[some]
    true_nll = -log_probs.gather(1, y[:, None])[:, 0] * w
    true_loss = 0.9 * true_nll - 0.1 * log_probs.mean(1) * w
    (gradient,) = torch.autograd.grad(true_loss.sum(), x)
    gradient = torch.nn.functional.pad(gradient, (0, width - V))
    truth = {"loss": true_loss.detach(), "nll": true_nll.detach(), "gradient": gradient}
    tilings = [(4096, 8, 1), (4096, 8, 3), (2048, 8, 3), (8192, 16, 3)]
    versions = {
        "copy of the logits only": Version(copy_only),
        "before": Version(run, candidates.narrow_loss),
        "package": Version(run),
        "package again": Version(run),
    }
    for tiling in tilings:
        name = "{} logits, {} warps, {} stages".format(*tiling)
        versions[name] = Version(run, lambda tiling=tiling: candidates.loss_tiling(*tiling))  # type: ignore[misc]
    return Comparison(versions, truth, 1e-2, view, poison)


def compare_output_gradient(setup: Setup, pairs: int) -> Comparison:
    """Sum the gradient of the output layer's weights over chunks of rows, and scale it."""
    V, q = setup.size.words, setup.size.embedding
    width, features = V + -V % loss.VOCABULARY_MULTIPLE, q + 1 + -(q + 1) % 8
    dtype = torch.bfloat16 if setup.precision == "bf16" else torch.float32
    rows, size = pairs * setup.target, max(1, loss.CHUNK // width)
    d_logits = (torch.randn(rows, width, device=setup.device) * 0.01).to(dtype)
    x = torch.randn(rows, features, device=setup.device).to(dtype)
    scale = torch.tensor(0.3, device=setup.device)
    some = torch.randperm(V, device=setup.device)[:64]

    def package() -> dict[str, Tensor]:
        total = torch.zeros(width, features, device=setup.device)
        for start in range(0, rows, size):
            total += d_logits[start : start + size].T @ x[start : start + size]
        return {"gradient": total[:V, :q] * scale}

    def float32() -> dict[str, Tensor]:
        total = None
        for start in range(0, rows, size):
            part = slice(start, start + size)
            total = candidates.add_product(total, d_logits[part].T, x[part])
        assert total is not None
        return {"gradient": total[:V, :q] * scale}

    truth = {"gradient": d_logits[:, some].double().T @ x[:, :q].double() * scale.double()}
    versions = {"package": Version(package), "package again": Version(package)}
    versions["float32 product"] = Version(float32)

    def view(results: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"gradient": results["gradient"][some]}

    return Comparison(versions, truth, 1e-2, view)


def compare_embedding(setup: Setup, pairs: int, zipf: bool) -> Comparison:
    """Sum the gradients of embedded tokens, whose frequencies are equal or as in text."""
    V, M, N = setup.size.words, setup.size.embedding, pairs * setup.source
    frequency = 1 / torch.arange(1, V + 1, device=setup.device) if zipf else torch.ones(V)
    ids = torch.multinomial(frequency.to(setup.device), N, replacement=True)
    d_y = torch.randn(N, M, device=setup.device)

    def pytorch() -> dict[str, Tensor]:
        return {"gradient": torch.ops.aten.embedding_dense_backward(d_y, ids, V, -1, False)}

    def own() -> dict[str, Tensor]:
        return {"gradient": candidates.dense_gradient(ids, d_y, V)}

    def compact() -> dict[str, Tensor]:
        rows, table = candidates.compact_gradient(ids, d_y, V)
        return {"rows": rows, "table": table}

    def view(results: dict[str, Tensor]) -> dict[str, Tensor]:
        if "rows" not in results:
            return results
        rows, table = results["rows"], results["table"].long()
        gradient = torch.where(table[:, None] >= 0, rows[table.clamp(min=0)], 0)
        return {"gradient": gradient, "norm": rows.norm()}

    dense = torch.zeros(V, M, device=setup.device, dtype=torch.float64)
    dense.index_add_(0, ids, d_y.double())
    truth = {"gradient": dense, "norm": dense.norm()}
    versions = {"package": Version(pytorch), "package again": Version(pytorch)}
    versions["own kernels"] = Version(own)
    versions["compact"] = Version(compact)
    return Comparison(versions, truth, 1e-4, view)


def compare_linear(setup: Setup, pairs: int) -> Comparison:
    """Multiply the embedded target by the readout's weights, and go back."""
    m, n = setup.size.embedding, setup.size.hidden
    x = torch.randn(pairs, setup.target, m, device=setup.device, requires_grad=True)
    W = torch.randn(n, m, device=setup.device, requires_grad=True)
    d_y = torch.randn(pairs, setup.target, n, device=setup.device)

    def run() -> dict[str, Tensor]:
        with torch.autocast(setup.device.type, torch.bfloat16):
            y = products.linear(x, W, None, torch.bfloat16)
        d_x, d_W = torch.autograd.grad(y, (x, W), d_y.to(y.dtype))
        return {"y": y, "d_x": d_x, "d_W": d_W}

    a, b, d = x.detach().double(), W.detach().double(), d_y.double()
    truth = {"y": a @ b.T, "d_x": d @ b, "d_W": d.flatten(0, 1).T @ a.flatten(0, 1)}
    versions = {"package": Version(run), "package again": Version(run)}
    versions["padded copies"] = Version(run, candidates.padded_copies)
    return Comparison(versions, truth, 1e-2)


def comparisons(setup: Setup, arguments: argparse.Namespace) -> dict[str, Callable[[], Comparison]]:
    """Return the comparisons by name, the most promising first."""
    result: dict[str, Callable[[], Comparison]] = {}
    for pairs in arguments.batch:
        result[f"softmax and loss, batch {pairs}"] = partial(compare_loss, setup, pairs)
        for text in (True, False):
            name = f"embedding gradient, batch {pairs}, {'Zipf' if text else 'uniform'}"
            result[name] = partial(compare_embedding, setup, pairs, text)
    for kind in arguments.optimizer:
        result[kind] = partial(compare_optimizer, setup, kind)
    for pairs in arguments.batch:
        name = f"output layer's gradient, batch {pairs}"
        result[name] = partial(compare_output_gradient, setup, pairs)
        result[f"padded product, batch {pairs}"] = partial(compare_linear, setup, pairs)
    return result


# ---- all of it


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

    pairs = [(kind, size) for kind in arguments.optimizer for size in arguments.batch]
    # the paper trains with Adadelta and the smaller batches
    last = [pair for pair in pairs if pair == ("adadelta", arguments.batch[-1])][: len(pairs) - 1]
    found = [
        *(updates(*pair) for pair in pairs if pair not in last),
        *(profiled(*pair) for pair in pairs),
        *(compared(*one) for one in comparisons(setup, arguments).items()),
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
    """Go on in a new process without the versions that broke the GPU."""
    print(f"{arguments.leave_out[-1]} broke the GPU; going on without it", flush=True)
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
