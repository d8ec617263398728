"""Training speed on a real corpus, compared with batches of one length with as many target tokens.

    python benchmarks/train_corpus.py --data DATA    # a directory made by `covnmt prepare`

`covnmt train` with mixed lengths and the real data loader, without validation and checkpoints, on a
GPU. GRU d=10 at the paper's size, bf16, the paper's batches and batches by tokens. The speed of a
run is the median of its reports once nearly all shapes are captured; batches of one length (source
25, target 28) are measured right after.
"""

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any

from harness import argument_parser, save, summary
from train import Setup, measure

from covnmt.base.config import PAPER_SYSTEMS, Config, DataConfig, ModelConfig, TrainConfig
from covnmt.base.files import read_lines
from covnmt.decoding.torch import pick_device
from covnmt.training.loop import train

SOURCE, TARGET = 25, 28


def reports(data: DataConfig, model: ModelConfig, minutes: float, updates: int) -> list[Any]:
    """Train without validation; return the reports in its log."""
    settings = {
        "optimizer": "adamw",
        "learning_rate": 1e-4,
        "epsilon": 1e-8,
        "loss": "token_mean",
        "precision": "bf16",
        "minutes": minutes,
        "report_every": updates,
        "validate_every": 10**9,
        "validate_bleu": False,
        "select": "loss",
        "checkpoint_every": 10**9,
    }
    config = Config(data=data, model=model, train=TrainConfig.model_validate(settings))
    with tempfile.TemporaryDirectory() as directory:
        train(config, Path(directory) / "run", pick_device("cuda"))
        log = [json.loads(line) for line in read_lines(Path(directory) / "run" / "log.jsonl")]
    return [entry for entry in log if "words_per_second" in entry]


def compare(data: DataConfig, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure one batching scheme: the corpus, then one length, in tokens/s."""
    model = ModelConfig(coverage=PAPER_SYSTEMS["gru10"])
    log = reports(data, model, arguments.minutes, arguments.report)
    steady = log[len(log) // 2 :]
    words = log[-1]["words"] / log[-1]["update"]
    size = math.ceil(words / TARGET)
    setup = Setup(pick_device("cuda"))
    one_length = measure(PAPER_SYSTEMS["gru10"], (size, SOURCE, TARGET), setup)
    rate = summary([entry["words_per_second"] for entry in steady])
    fixed = one_length["words_per_second"]
    ratio = rate["median"] / fixed["median"]
    how = "paper" if data.batching == "paper" else f"tokens {data.batch_tokens}"
    print(
        f"{how:14} {words:7,.0f} tokens per batch: {rate['median']:9,.0f} tokens/s, "
        f"one length {fixed['median']:9,.0f}, ratio {ratio:.3f}",
        flush=True,
    )
    return {
        "batching": data.model_dump(mode="json", exclude={"directory"}),
        "words_per_batch": words,
        "words_per_second": rate,
        "one_length": {"batch": size, "words_per_second": fixed},
        "ratio": ratio,
        "log": log,
    }


def main() -> None:
    """Measure and write the result file."""
    parser = argument_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="prepared corpus")
    parser.add_argument(
        "--tokens", type=int, nargs="*", default=[4096, 16384], help="batch sizes in tokens"
    )
    parser.add_argument("--minutes", type=float, default=0.5, help="of each training")
    parser.add_argument("--report", type=int, default=100, help="updates between reports")
    arguments = parser.parse_args()
    ways = [DataConfig(directory=arguments.data)]
    ways += [
        DataConfig(directory=arguments.data, batching="tokens", batch_tokens=tokens)
        for tokens in arguments.tokens
    ]
    save("train-corpus", {"rows": [compare(way, arguments) for way in ways]}, arguments)


if __name__ == "__main__":
    main()
