"""Training speed at the paper's size: forward, backward, clipping, optimiser, in target words/s.

    python benchmarks/train.py                       # the table: three systems, reference and fast
    python benchmarks/train.py --growth              # how cost grows: lengths, batch sizes, d
    python benchmarks/train.py --peer joeynmt        # another toolkit in the same table

Source 25 and target 28 tokens (end symbols included) unless a sweep says otherwise; 30,001 words,
620, 1000, exact cell. `reference` is plain PyTorch, one launch after another; `fast` the Triton
kernels in captured graphs. All rows of a table are measured in one run, one after the other, each
as the median of several repetitions.
"""

import argparse
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peers
import torch
from machine import save, summary

from covnmt.base.config import PAPER_SYSTEMS, CoverageConfig, ModelConfig, TrainConfig
from covnmt.data.batching import Batch
from covnmt.model.seq2seq import Seq2Seq
from covnmt.training.optimizer import build_optimizer, build_optimizer_step
from covnmt.training.step import TrainStep

WORDS = 30_001
COMPARED = ("baseline", "fertility", "gru10")


def random_batch(size: int, source: int, target: int, device: torch.device) -> Batch:
    """Full rows of random words."""
    generator = torch.Generator().manual_seed(1)

    def words(length: int) -> torch.Tensor:
        return torch.randint(2, WORDS, (size, length), generator=generator)

    full = (torch.ones(size, source, dtype=torch.bool), torch.ones(size, target, dtype=torch.bool))
    return Batch(words(source), full[0], words(target), full[1]).to(device)


def random_model(config: ModelConfig, device: torch.device) -> Seq2Seq:
    """The paper's size with random weights: speed does not depend on what they are."""
    torch.manual_seed(1)
    with device:
        model = Seq2Seq(config, WORDS, WORDS)
        for parameter in model.parameters():
            torch.nn.init.uniform_(parameter, -0.05, 0.05)
    return model


def build(model: ModelConfig, precision: str, device: torch.device) -> tuple[TrainStep, Seq2Seq]:
    """A model of the paper's size and what trains it."""
    network = random_model(model, device)
    settings = {"optimizer": "adamw", "learning_rate": 1e-4, "epsilon": 1e-8}
    config = TrainConfig.model_validate({**settings, "precision": precision, "loss": "token_mean"})
    optimizer = build_optimizer(network, config)
    return TrainStep(network, build_optimizer_step(network, optimizer, {}, config), config), network


def clean_device() -> torch.device:
    """The GPU, rid of what the last setting left there."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.device("cuda")


def timed(
    update: Callable[[int], object], words: int, updates: int, repeats: int
) -> dict[str, Any]:
    """Target words per second, and memory, of updates that train on `words` words each."""
    began = time.perf_counter()
    for number in range(4):  # compile, capture, replay
        update(number)
    torch.cuda.synchronize()
    warm_up = time.perf_counter() - began
    rates = []
    for _ in range(repeats):
        began = time.perf_counter()
        for number in range(updates):
            update(number)
        torch.cuda.synchronize()
        rates.append(words * updates / (time.perf_counter() - began))
    return {
        "words_per_second": summary(rates),
        "milliseconds": 1000 * words / summary(rates)["median"],
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
        "warm_up_seconds": warm_up,
    }


def measure(
    model: ModelConfig, shape: tuple[int, int, int], precision: str, updates: int, repeats: int
) -> dict[str, Any]:
    """One setting of ours."""
    device = clean_device()
    updater, _ = build(model, precision, device)
    batch = random_batch(*shape, device)
    words = shape[0] * shape[2]
    result = timed(lambda number: updater([batch], words, number), words, updates, repeats)
    return {**result, "loss": updater.take_nll() / (words * (updates * repeats + 4))}


def measure_peer(
    name: str, shape: tuple[int, int, int], precision: str, updates: int, repeats: int
) -> dict[str, Any]:
    """Another toolkit, on the same words."""
    device = clean_device()
    peer = peers.build(name, device, precision)
    ours = random_batch(*shape, device)
    batch = peer.batch(ours.source, ours.target)
    words = shape[0] * shape[2]
    result = timed(lambda _: peer.train_step(batch), words, updates, repeats)
    return {**result, "loss": float(peer.train_step(batch)), **peers.describe(name, peer)}


def table(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The systems of the paper's speed paragraph, reference and fast, small and large batch."""
    rows: list[dict[str, Any]] = []
    print(
        f"{'system':12} {'path':10} {'batch':>5} {'words/s':>10} {'ms':>7} {'GiB':>6} {'ratio':>6}"
    )
    for size in arguments.batch:
        shape = (size, arguments.source, arguments.target)
        how = (shape, arguments.precision, arguments.updates, arguments.repeats)
        for path in arguments.path:
            os.environ["COVNMT_OPS"] = "reference" if path == "reference" else "auto"
            for system in arguments.system:
                model = ModelConfig(coverage=PAPER_SYSTEMS[system], cell=arguments.cell)
                add_row(rows, {"system": system, "path": path, "batch": size}, measure(model, *how))
        for name in arguments.peer:
            add_row(rows, {"system": name, "path": "peer", "batch": size}, measure_peer(name, *how))
    return rows


def add_row(rows: list[dict[str, Any]], setting: dict[str, Any], found: dict[str, Any]) -> None:
    """Keep and print a row, with its speed relative to the first of the same path and batch."""
    rows.append({**setting, **found})
    system, path, size = setting.values()
    first = next(r for r in rows if r["path"] == path and r["batch"] == size)
    rate = found["words_per_second"]["median"]
    ratio = rows[-1]["ratio_to_first"] = rate / first["words_per_second"]["median"]
    print(
        f"{system:12} {path:10} {size:5} {rate:10,.0f} {found['milliseconds']:7.2f} "
        f"{found['peak_gib']:6.2f} {ratio:6.3f}",
        flush=True,
    )


def growth(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One setting changed at a time, GRU d=10, fast."""
    gru = PAPER_SYSTEMS["gru10"]
    settings = [("source", j, (80, j, 28), gru) for j in (10, 25, 50, 100, 150, 200)]
    settings += [("batch", b, (b, 25, 28), gru) for b in (8, 32, 80, 256, 512, 1024, 2048)]
    settings += [
        ("d", d, (80, 25, 28), CoverageConfig(kind="gru", size=d)) for d in (1, 2, 4, 8, 10, 16)
    ]
    rows = []
    for what, value, shape, coverage in settings:
        model = ModelConfig(coverage=coverage, cell=arguments.cell)
        found = measure(model, shape, arguments.precision, arguments.updates, arguments.repeats)
        rows.append({"sweep": what, "value": value, **found})
        rate = found["words_per_second"]["median"]
        print(f"{what:8} {value:5} {rate:10,.0f} words/s {found['peak_gib']:6.2f} GiB", flush=True)
    return rows


def main() -> None:
    """Measure and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--growth", action="store_true", help="the sweeps instead of the table")
    parser.add_argument("--batch", type=int, nargs="+", default=[80, 512])
    parser.add_argument("--system", nargs="+", default=list(COMPARED), choices=list(PAPER_SYSTEMS))
    parser.add_argument("--path", nargs="+", default=["reference", "fast"])
    parser.add_argument("--peer", nargs="+", default=[], type=peers.importable, help=peers.HELP)
    parser.add_argument("--source", type=int, default=25)
    parser.add_argument("--target", type=int, default=28)
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--cell", default="exact", choices=["exact", "reset_after"])
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="directory of the result file")
    arguments = parser.parse_args()
    name = "train-growth" if arguments.growth else "train"
    rows = growth(arguments) if arguments.growth else table(arguments)
    save(
        name,
        {"settings": {k: str(v) for k, v in vars(arguments).items()}, "rows": rows},
        arguments.out,
    )


if __name__ == "__main__":
    main()
