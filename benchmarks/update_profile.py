"""The kernels of an update by group, for `update.py`."""

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import triton
import triton.language as tl
import update_candidates as candidates
from harness import summary
from torch import Tensor
from train import Setup, free_memory, random_batch, synchronize
from update_steps import WARM_UP, build, interleaved

from covnmt.kernels.triton import decoder, encoder, loss
from covnmt.training.optimizer import TritonOptimizerStep
from covnmt.training.step import TrainStep

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
# What runs between two marks; the kernels of the last two are grouped by their names.
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

    They are captured with the update, so that replayed kernels have them as well.
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
