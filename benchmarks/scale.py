"""How preparing and training scale with corpus size, ranks and worker processes, on a CPU.

    python benchmarks/scale.py growth     prepare 1M, 4M and 16M pairs, and read the first batch
    python benchmarks/scale.py training   updates and all-reduces of 1, 2 and 4 gloo ranks
    python benchmarks/scale.py translate  translate files with one worker process and with two

The text is synthetic. Wall and CPU seconds are measured.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import cycle, islice
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harness import argument_parser, save, summary

# Nothing of covnmt is imported here: a child process inherits the memory of the one that starts it.
if TYPE_CHECKING:
    from covnmt.training.distributed import World
    from covnmt.training.step import GradientReduction, TrainStep
MILLION = 1_000_000
SHARDS = 8
WHITESPACE = ("--source-tokenizer", "whitespace", "--target-tokenizer", "whitespace")


class Case(NamedTuple):
    """The size of a model, and the pairs of each rank."""

    words: int  # of either language
    size: int  # of embeddings and states
    pairs: int  # of each rank


# From all-reduces that hardly matter to some that take about half of an update.
CASES = (Case(4_000, 64, 24), Case(30_000, 64, 4), Case(30_000, 128, 2))
WORKERS = (1, 2, 4)
SUMS = tuple(4**k for k in range(6, 14))  # bytes of a separate all-reduce: 4 KiB to 64 MiB
SOURCE, TARGET = 10, 12  # words of a pair


def covnmt(*words: object) -> dict[str, float]:
    """Run a command with one thread; return its time and the memory of its largest process."""
    command = [sys.executable, "-m", "covnmt", *map(str, words)]
    began = time.monotonic()
    with tempfile.TemporaryFile() as errors:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, stdout=errors, stderr=errors, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if status:
            errors.seek(0)
            sys.exit(errors.read().decode())
    return {
        "wall_seconds": time.monotonic() - began,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_mib": usage.ru_maxrss / 1024,
    }


def write_shards(text: Path, directory: Path, pairs: int) -> tuple[list[Path], list[Path]]:
    """Write this many pairs into SHARDS pairs of files, by repeating those of `text`."""
    sides = []
    for side in ("src", "tgt"):
        lines = cycle((text / f"train.{side}").read_text("utf-8").splitlines(keepends=True))
        paths = [directory / f"{number}.{side}" for number in range(SHARDS)]
        for path in paths:
            with path.open("w", encoding="utf-8") as stream:
                stream.writelines(islice(lines, pairs // SHARDS))
        sides.append(paths)
    return sides[0], sides[1]


def growth(arguments: argparse.Namespace, text: Path, work: Path) -> dict[str, Any]:
    """Prepare corpora of several sizes, and read the first batch of each."""
    rows = []
    for pairs in arguments.pairs:
        directory = work / "growth"
        directory.mkdir()
        sides = write_shards(text, directory, pairs)
        words = ["prepare", directory / "data", "--train", *(",".join(map(str, s)) for s in sides)]
        words += ["--dev", text / "dev.src", text / "dev.tgt", "--workers", arguments.workers]
        row = {"pairs": pairs, "prepare": covnmt(*words, *WHITESPACE), "start": {}}
        for batching in ("paper", "tokens"):
            row["start"][batching] = [begin(directory / "data", batching) for _ in range(3)]
        rows.append(row)
        print(json.dumps(row), flush=True)
        shutil.rmtree(directory)
    return {"workers": arguments.workers, "rows": rows, "laws": laws(rows)}


def begin(data: Path, batching: str) -> dict[str, float]:
    """Measure the first batch in a fresh process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(first_batch, data, batching).result()


def first_batch(data: Path, batching: str) -> dict[str, float]:
    """Return seconds from opening the corpus to the first batch, and the memory it takes."""
    from covnmt.base.config import DataConfig
    from covnmt.data.batching import read_batch, train_batches
    from covnmt.data.corpus import Corpus

    before, began = anonymous_mib(), time.monotonic()
    split = Corpus.open(data).split("train")
    plan = next(train_batches(split, DataConfig.model_validate({"batching": batching}), seed=1))
    read_batch(split, plan.indices)
    return {"seconds": time.monotonic() - began, "mib": anonymous_mib() - before}


def anonymous_mib() -> float:
    """Return the memory of this process without mapped files."""
    status = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in status if line.startswith("RssAnon"))


def laws(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Fit the exponent b of each cost ~ pairs^b, by least squares over the logarithms."""
    costs = {
        "prepare cpu_seconds": [row["prepare"]["cpu_seconds"] for row in rows],
        "prepare wall_seconds": [row["prepare"]["wall_seconds"] for row in rows],
        "prepare peak_mib": [row["prepare"]["peak_mib"] for row in rows],
    }
    for batching in ("paper", "tokens"):
        measured = [[run["seconds"] for run in row["start"][batching]] for row in rows]
        costs[f"start {batching} seconds"] = [statistics.median(runs) for runs in measured]
    sizes = [math.log(row["pairs"]) for row in rows]
    return {
        name: round(statistics.linear_regression(sizes, [math.log(v) for v in values]).slope, 3)
        for name, values in costs.items()
        if len(rows) > 1
    }


def prepared(text: Path, work: Path) -> Path:
    """Prepare a corpus for the other measurements."""
    sides = [text / "train.src", text / "train.tgt", "--dev", text / "dev.src", text / "dev.tgt"]
    covnmt("prepare", work / "data", "--train", *sides, *WHITESPACE)
    return work / "data"


def training(arguments: argparse.Namespace, text: Path, work: Path) -> dict[str, Any]:
    """Measure updates with several ranks, and separate all-reduces."""
    # processes keep freed memory: fresh pages would cost as much as half an update
    os.environ |= dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), str(4 << 30))
    updates = []
    for case in CASES:
        for count in WORKERS:
            measured = together(
                count, work / f"{case}-{count}", update_times, case, arguments.updates
            )
            updates.append({**case._asdict(), "workers": count, **measured})
            print(json.dumps(updates[-1]), flush=True)
    sums = []
    for count in WORKERS[1:]:
        measured = together(count, work / f"sums-{count}", sum_times, arguments.updates)
        sums.append({"workers": count, **measured})
        print(json.dumps(sums[-1]), flush=True)
    return {"cores": os.cpu_count(), "updates": updates, "sums": sums}


def together(
    count: int, store: Path, function: Callable[..., dict[str, Any]], *arguments: object
) -> dict[str, Any]:
    """Call a function on several ranks; return what rank 0 measures."""
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:
        jobs = [
            pool.submit(member, rank, count, f"file://{store}", function, *arguments)
            for rank in range(count)
        ]
        first, *_ = [job.result() for job in jobs]
    return first


def member(
    rank: int, count: int, address: str, function: Callable[..., dict[str, Any]], *arguments: object
) -> dict[str, Any]:
    """Be one of the ranks, with one thread."""
    import torch
    import torch.distributed as dist

    from covnmt.training.distributed import World

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=count)
    try:
        return function(World(rank, count, has_process_group=True), *arguments)
    finally:
        dist.destroy_process_group()


def update_times(world: "World", case: Case, updates: int) -> dict[str, Any]:
    """Measure updates without all-reduce, with the gradient bucket, and with DDP, in turns.

    In turns, so that other load on the machine affects all three alike.
    """
    import torch

    from covnmt.data.batching import collate
    from covnmt.training.distributed import SINGLE_PROCESS

    apart = train_step(None, case, SINGLE_PROCESS)
    bucket = train_step("bucket", case, SINGLE_PROCESS)
    overlapped = train_step("overlapped", case, world)
    some = torch.randint(2, case.words - 1, (case.pairs, SOURCE + TARGET)).tolist()
    pairs = [(row[:SOURCE], row[SOURCE:]) for row in some]
    batch = collate(pairs, case.words - 1, case.words - 1)
    words = world.size * case.pairs * (TARGET + 1)
    kinds = {"apart": apart, "row": bucket, "overlapped": overlapped}
    times = in_turns({k: partial(u, [batch], words, 0) for k, u in kinds.items()}, updates)
    assert bucket.bucket is not None
    return {"gradient_bytes": 4 * bucket.bucket.flat.numel(), "seconds": times}


def sum_times(world: "World", repeats: int) -> dict[str, Any]:
    """Measure all-reduces, by their bytes."""
    import torch
    import torch.distributed as dist

    rows = {size: torch.zeros(size // 4) for size in SUMS}
    calls = {str(size): partial(dist.all_reduce, row) for size, row in rows.items()}
    return {"seconds": in_turns(calls, 3 * repeats)}


def in_turns(
    calls: Mapping[str, Callable[[], object]], repeats: int
) -> dict[str, dict[str, float]]:
    """Return the seconds of each call, without the first three."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 3):
        for name, call in calls.items():
            times[name].append(timed(call))
    return {name: summary(values[3:]) for name, values in times.items()}


def train_step(reduction: "GradientReduction | None", case: Case, world: "World") -> "TrainStep":
    """Build a model of this size and the step that trains it."""
    from covnmt.base.config import PAPER_SYSTEMS, ModelConfig, TrainConfig
    from covnmt.model.initialize import initialize_weights
    from covnmt.model.seq2seq import Seq2Seq
    from covnmt.training.optimizer import build_optimizer, build_optimizer_step
    from covnmt.training.step import TrainStep

    sizes = dict.fromkeys(("embedding", "hidden", "rank"), case.size)
    config = ModelConfig.model_validate({**sizes, "coverage": PAPER_SYSTEMS["gru10"]})
    model = Seq2Seq(config, case.words, case.words)
    initialize_weights(model, "modern")
    settings = TrainConfig(optimizer="adamw", learning_rate=1e-3, loss="token_mean")
    step = build_optimizer_step(model, build_optimizer(model, settings), {}, settings)
    return TrainStep(model, step, settings, world, reduction)


def timed(function: Callable[[], object]) -> float:
    """Return the seconds from when all ranks begin the call to when all have ended it."""
    import torch.distributed as dist

    dist.barrier()
    began = time.monotonic()
    function()
    dist.barrier()
    return time.monotonic() - began


def translate(arguments: argparse.Namespace, text: Path, work: Path) -> dict[str, Any]:
    """Translate the same files with one worker process and with two, each with one thread."""
    data, run = prepared(text, work), work / "run"
    # one update is enough; the model cannot end sentences, so retrying would take long
    settings = ["train.updates=1", "decode.retry=false", f"data.directory={data}"]
    settings += ["train.validate_bleu=false", "train.select=loss", "model.hidden=256"]
    covnmt("train", "demo/gru10", *settings, "--run", run, "--device", "cpu")
    lines = (text / "train.src").read_text("utf-8").splitlines(keepends=True)
    (work / "in").mkdir()
    for number in range(SHARDS):
        share = lines[number * arguments.lines : (number + 1) * arguments.lines]
        (work / "in" / str(number)).write_text("".join(share), "utf-8")
    runs: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    for repeat in range(arguments.repeats):
        for workers, done in runs.items():
            out = work / f"out-{workers}-{repeat}"
            words = ["translate", "--model", run, "--shards", work / "in", "--output-dir", out]
            words += ["--beam", 5, "--device", "cpu", "--threads", 1, "--workers", workers]
            done.append(covnmt(*words))
            print(workers, json.dumps(done[-1]), flush=True)
    pairs = list(zip(runs[1], runs[2], strict=True))
    return {
        "lines": SHARDS * arguments.lines,
        "runs": {f"workers_{workers}": done for workers, done in runs.items()},
        # two workers over one, as the clock saw it
        "ratio": summary([one["wall_seconds"] / two["wall_seconds"] for one, two in pairs]),
        # the same by CPU time: on two otherwise idle cores, if each worker keeps one busy
        "ratio_by_cpu": summary(
            [2 * one["cpu_seconds"] / two["cpu_seconds"] for one, two in pairs]
        ),
    }


def main() -> None:
    """Measure one of the three and write its result file."""
    parser = argument_parser(__doc__)
    parser.add_argument("what", choices=["growth", "training", "translate"], help="measurement")
    parser.add_argument(
        "--pairs",
        type=int,
        nargs="+",
        default=[n * MILLION for n in (1, 4, 16)],
        help="growth: corpus sizes",
    )
    parser.add_argument("--workers", type=int, default=2, help="growth: processes")
    parser.add_argument("--updates", type=int, default=30, help="training: repetitions")
    parser.add_argument("--lines", type=int, default=150, help="translate: lines per file")
    parser.add_argument("--repeats", type=int, default=3, help="translate: repetitions")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        text = Path(name) / "text"
        covnmt("synthetic", text, "--train", 20_000, "--dev", 50, "--test", 50)
        measure = {"growth": growth, "training": training, "translate": translate}
        measured = measure[arguments.what](arguments, text, Path(name))
    save(f"scale-{arguments.what}", measured, arguments)


if __name__ == "__main__":
    main()
