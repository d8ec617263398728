"""Loss curves of the Triton kernels and of the reference, on the same data.

    python benchmarks/convergence.py --data DATA     # a directory made by `covnmt prepare`

Trains the paper's model (GRU d=10, bf16) three times on the same batches: reference and Triton with
the same initial weights, and Triton with another seed, which shows how much a seed alone changes
the curve. Only pairs of at most 15 words, since the reference is slow. Needs a GPU.
"""

import os
import statistics
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from harness import argument_parser, save

from covnmt.base.config import PAPER_SYSTEMS, Config, DataConfig, ModelConfig, TrainConfig
from covnmt.data.batching import read_batch, train_batches
from covnmt.data.corpus import Corpus
from covnmt.model.checkpoint import new_model
from covnmt.training.optimizer import build_optimizer, build_optimizer_step
from covnmt.training.step import TrainStep


def curve(corpus: Corpus, path: str, seed: int, updates: int, every: int) -> list[float]:
    """Train and return the mean loss per token of every `every` updates."""
    os.environ["COVNMT_OPS"] = "reference" if path == "reference" else "auto"
    device = torch.device("cuda")
    config = Config(
        data=DataConfig(max_length=15),
        model=ModelConfig(coverage=PAPER_SYSTEMS["gru10"], init="modern"),
        train=TrainConfig.model_validate(
            {
                "seed": seed,
                "optimizer": "adamw",
                "learning_rate": 5e-4,
                "epsilon": 1e-8,
                "warmup": 200,
                "loss": "token_mean",
                "precision": "bf16",
            }
        ),
    )
    words = [len(corpus.codec("source").vocabulary), len(corpus.codec("target").vocabulary)]
    model = new_model(config, words[0], words[1]).to(device)
    optimizer = build_optimizer(model, config.train)
    step = TrainStep(model, build_optimizer_step(model, optimizer, {}, config.train), config.train)
    split = corpus.split("train")
    plans = train_batches(split, config.data, 1)  # the same batches for every seed
    losses, seen = [], 0
    for number in range(updates):
        batch = read_batch(split, next(plans).indices, (8, 4))
        seen += batch.target_tokens
        step([batch.to(device)], batch.target_tokens, number)
        if (number + 1) % every == 0:
            losses.append(step.take_nll() / seen)
            seen = 0
    print(f"{path} seed {seed}: {losses[0]:.3f} ... {losses[-1]:.3f}", flush=True)
    return losses


def main() -> None:
    """Train three times and compare."""
    parser = argument_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="prepared corpus")
    parser.add_argument("--updates", type=int, default=1000, help="of each training")
    parser.add_argument("--every", type=int, default=50, help="updates per point of a curve")
    arguments = parser.parse_args()
    corpus = Corpus.open(arguments.data)
    runs = {"fast": ("fast", 1), "other_seed": ("fast", 2), "reference": ("reference", 1)}
    curves: dict[str, Any] = {
        name: curve(corpus, path, seed, arguments.updates, arguments.every)
        for name, (path, seed) in runs.items()
    }
    later = len(curves["fast"]) // 5  # the first points fall too steeply to compare

    def gap(one: str, other: str) -> float:
        pairs = zip(curves[one][later:], curves[other][later:], strict=True)
        return float(statistics.mean(abs(a - b) for a, b in pairs))

    gaps = {f"{one} to {other}": gap(one, other) for one, other in combinations(runs, 2)}
    print("mean gaps:", ", ".join(f"{pair} {value:.4f}" for pair, value in gaps.items()))
    curves["mean_gaps"] = gaps
    save("convergence", {"every": arguments.every, **curves}, arguments)


if __name__ == "__main__":
    main()
