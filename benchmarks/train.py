"""Training speed at the paper's size: full updates, in target tokens per second.

    python benchmarks/train.py                       # three systems, reference and Triton kernels
    python benchmarks/train.py --growth              # how cost grows: lengths, batch sizes, d
    python benchmarks/train.py --peer joeynmt        # with another toolkit in the same table
    python benchmarks/train.py --device cpu --size small --batch 8 --updates 5

Source 25 and target 28 tokens (end symbols included) unless a sweep changes them; the paper's size
has vocabularies of 30,001, embeddings of 620, 1000 units and the exact cell. `reference` is plain
PyTorch; `fast` the Triton kernels in captured CUDA graphs. All rows of a table are measured in one
run, one after the other, each as the median of several repetitions.
"""

import argparse
import gc
import os
import resource
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import peers
import torch
from harness import argument_parser, argument_values, save, summary

from covnmt.base.config import (
    PAPER_SYSTEMS,
    CellKind,
    CoverageConfig,
    ModelConfig,
    TrainConfig,
)
from covnmt.data.batching import Batch
from covnmt.decoding.torch import pick_device
from covnmt.model.seq2seq import Seq2Seq
from covnmt.training.optimizer import build_optimizer, build_optimizer_step
from covnmt.training.step import TrainStep

VOCABULARY = 30_001
SIZES = {
    "paper": peers.Size(VOCABULARY, 620, 1000),
    "small": peers.Size(10_001, 256, 512),
    "tiny": peers.Size(53, 12, 16),  # only shows that a benchmark works
}
COMPARED = ("baseline", "fertility", "gru10")
WARM_UP = 4  # updates: compile, capture, replay


class Setup(NamedTuple):
    """What all rows of a table have in common."""

    device: torch.device
    precision: str = "bf16"
    size: peers.Size = SIZES["paper"]
    cell: CellKind = "exact"
    updates: int = 20
    repeats: int = 5
    source: int = 25  # tokens
    target: int = 28

    def model_config(self, coverage: CoverageConfig) -> ModelConfig:
        """Return the settings of a model of this size."""
        m, n = self.size.embedding, self.size.hidden
        return ModelConfig(embedding=m, hidden=n, rank=m, cell=self.cell, coverage=coverage)


def random_batch(
    shape: tuple[int, int, int], device: torch.device, vocabulary: int = VOCABULARY
) -> Batch:
    """Return a batch of random ids without padding: pairs, source and target tokens."""
    size, source, target = shape
    generator = torch.Generator().manual_seed(1)

    def ids(length: int) -> torch.Tensor:
        return torch.randint(2, vocabulary, (size, length), generator=generator)

    full = (torch.ones(size, source, dtype=torch.bool), torch.ones(size, target, dtype=torch.bool))
    return Batch(ids(source), full[0], ids(target), full[1]).to(device)


def random_model(
    config: ModelConfig, device: torch.device, vocabulary: int = VOCABULARY
) -> Seq2Seq:
    """Return a model with random weights, whose values do not matter for speed."""
    torch.manual_seed(1)
    with device:
        model = Seq2Seq(config, vocabulary, vocabulary)
        for parameter in model.parameters():
            torch.nn.init.uniform_(parameter, -0.05, 0.05)
    return model


def build(coverage: CoverageConfig, setup: Setup) -> TrainStep:
    """Return the train step of a random model, with AdamW."""
    model = random_model(setup.model_config(coverage), setup.device, setup.size.words)
    values = {"optimizer": "adamw", "learning_rate": 1e-4, "epsilon": 1e-8, "loss": "token_mean"}
    config = TrainConfig.model_validate({**values, "precision": setup.precision})
    optimizer_step = build_optimizer_step(model, build_optimizer(model, config), {}, config)
    return TrainStep(model, optimizer_step, config)


def free_memory(device: torch.device) -> None:
    """Release what the last row left on the GPU."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def synchronize(device: torch.device) -> None:
    """Wait for the GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak_memory(device: torch.device) -> dict[str, float]:
    """Return the peak memory of the GPU; on a CPU that of the process, earlier rows included."""
    if device.type == "cuda":
        return {
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
            "reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
        }
    return {"peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


def time_updates(
    update: Callable[[int], object], target_tokens: int, setup: Setup
) -> dict[str, Any]:
    """Return speed and memory of updates with this many target tokens each."""
    began = time.perf_counter()
    for number in range(WARM_UP):
        update(number)
    synchronize(setup.device)
    warm_up = time.perf_counter() - began
    rates = []
    for _ in range(setup.repeats):
        began = time.perf_counter()
        for number in range(setup.updates):
            update(number)
        synchronize(setup.device)
        rates.append(target_tokens * setup.updates / (time.perf_counter() - began))
    return {
        "words_per_second": summary(rates),
        "milliseconds": 1000 * target_tokens / summary(rates)["median"],
        **peak_memory(setup.device),
        "warm_up_seconds": warm_up,
    }


def measure(coverage: CoverageConfig, shape: tuple[int, int, int], setup: Setup) -> dict[str, Any]:
    """Measure covnmt on batches of this shape: pairs, source and target tokens."""
    free_memory(setup.device)
    step = build(coverage, setup)
    batch = random_batch(shape, setup.device, setup.size.words)
    tokens = shape[0] * shape[2]
    result = time_updates(lambda number: step([batch], tokens, number), tokens, setup)
    updates = setup.updates * setup.repeats + WARM_UP
    return {**result, "loss": step.take_nll() / (tokens * updates)}


def measure_peer(name: str, shape: tuple[int, int, int], setup: Setup) -> dict[str, Any]:
    """Measure another toolkit on the same tokens."""
    free_memory(setup.device)
    peer = peers.build(name, setup.device, setup.precision, setup.size)
    ours = random_batch(shape, setup.device, setup.size.words)
    batch = peer.batch(ours.source, ours.target)
    result = time_updates(lambda _: peer.train_step(batch), shape[0] * shape[2], setup)
    return {**result, "loss": float(peer.train_step(batch)), **peers.describe(name, peer)}


def table(arguments: argparse.Namespace, setup: Setup) -> list[dict[str, Any]]:
    """Measure the systems of the paper's speed paragraph with each kind of kernels."""
    rows: list[dict[str, Any]] = []
    header = f"{'system':12} {'path':10} {'batch':>5} {'tokens/s':>10}"
    print(f"{header} {'ms':>7} {'GiB':>6} {'ratio':>6}")
    for size in arguments.batch:
        shape = (size, arguments.source, arguments.target)
        for path in arguments.path:
            os.environ["COVNMT_OPS"] = "reference" if path == "reference" else "auto"
            for system in arguments.system:
                row = measure(PAPER_SYSTEMS[system], shape, setup)
                add_row(rows, {"system": system, "path": path, "batch": size}, row)
        for name in arguments.peer:
            row = measure_peer(name, shape, setup)
            add_row(rows, {"system": name, "path": "peer", "batch": size}, row)
    return rows


def add_row(rows: list[dict[str, Any]], setting: dict[str, Any], row: dict[str, Any]) -> None:
    """Add and print a row, with its speed relative to the first of the same path and batch."""
    rows.append({**setting, **row})
    system, path, size = setting.values()
    first = next(r for r in rows if r["path"] == path and r["batch"] == size)
    rate = row["words_per_second"]["median"]
    ratio = rows[-1]["ratio_to_first"] = rate / first["words_per_second"]["median"]
    print(
        f"{system:12} {path:10} {size:5} {rate:10,.0f} {row['milliseconds']:7.2f} "
        f"{row['peak_gib']:6.2f} {ratio:6.3f}",
        flush=True,
    )


def growth(setup: Setup) -> list[dict[str, Any]]:
    """Change lengths, batch size and d one at a time; GRU d=10, Triton kernels."""
    gru = PAPER_SYSTEMS["gru10"]
    settings = [("source", j, (80, j, 28), gru) for j in (10, 25, 50, 100, 150, 200)]
    settings += [("batch", b, (b, 25, 28), gru) for b in (8, 32, 80, 256, 512, 1024, 2048)]
    settings += [
        ("d", d, (80, 25, 28), CoverageConfig(kind="gru", size=d)) for d in (1, 2, 4, 8, 10, 16)
    ]
    rows = []
    for sweep, value, shape, coverage in settings:
        row = measure(coverage, shape, setup)
        rows.append({"sweep": sweep, "value": value, **row})
        rate = row["words_per_second"]["median"]
        print(f"{sweep:8} {value:5} {rate:10,.0f} tokens/s {row['peak_gib']:6.2f} GiB", flush=True)
    return rows


def main() -> None:
    """Measure and write the result file."""
    parser = argument_parser(__doc__)
    add = parser.add_argument
    add("--growth", action="store_true", help="the sweeps instead of the table")
    add("--batch", type=int, nargs="+", default=[80, 512], help="pairs per batch")
    add("--system", nargs="+", default=list(COMPARED), choices=list(PAPER_SYSTEMS))
    add("--path", nargs="+", help="kernels: reference, fast (default: both; on a CPU reference)")
    add("--peer", nargs="+", default=[], type=peers.importable, help=peers.HELP)
    add("--source", type=int, default=25, help="source tokens")
    add("--target", type=int, default=28, help="target tokens")
    add("--size", default="paper", choices=SIZES, help="of the model")
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--precision", choices=["bf16", "fp32"], help="default: bf16; on a CPU fp32")
    add("--cell", default="exact", choices=["exact", "reset_after"], help="kind of GRU")
    add("--updates", type=int, default=20, help="of each repetition")
    add("--repeats", type=int, default=5, help="repetitions of each row")
    arguments = parser.parse_args()
    device = pick_device(arguments.device)
    on_gpu = device.type == "cuda"
    arguments.precision = arguments.precision or ("bf16" if on_gpu else "fp32")
    arguments.path = arguments.path or (["reference", "fast"] if on_gpu else ["reference"])
    setup = Setup(
        device,
        arguments.precision,
        SIZES[arguments.size],
        arguments.cell,
        arguments.updates,
        arguments.repeats,
    )
    rows = growth(setup) if arguments.growth else table(arguments, setup)
    name = "train-growth" if arguments.growth else "train"
    save(name, {"settings": argument_values(arguments), "rows": rows}, arguments)


if __name__ == "__main__":
    main()
