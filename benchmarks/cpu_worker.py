"""One engine in a separate process, for cpu.py; runs also where only Marian is installed.

    python cpu_worker.py ENGINE '{"words": 10001, ...}' DIRECTORY THREADS

It loads a model with random weights, prints its version, and answers requests, one JSON object a
line: translate a number of random sentences with some beam. It imports only what its engine needs,
since peak memory and start-up time are measured.
"""

import json
import os
import random
import resource
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

OURS = ("pytorch", "onnx-fp32", "onnx-int8")
STEPS = 25  # target words of every sentence
TURN = 0.5  # seconds; the batch is translated repeatedly until then, so that caches are warm
WARM = 4  # sentences that are translated before the first measurement
SOURCE = 29  # source words of every sentence, without the end symbol


class Decoder(Protocol):
    """An engine that translates token ids."""

    def __call__(self, sentences: list[list[int]], beam: int) -> int:
        """Translate; return the number of target tokens."""


class Ours:
    """covnmt's PyTorch engine or an exported model."""

    def __init__(self, engine: str, size: dict[str, int], directory: Path, threads: int) -> None:
        from covnmt.model.directory import load_config

        self.end = size["words"] - 1
        description = load_config(directory)
        if engine == "pytorch":
            import torch

            from covnmt.decoding.torch import TorchEngine
            from covnmt.model.checkpoint import BEST_WEIGHTS, load_tensors, load_weights
            from covnmt.model.seq2seq import Seq2Seq

            torch.set_num_threads(threads)
            model = Seq2Seq(description.config.model, size["words"], size["words"])
            load_weights(model, load_tensors(directory / BEST_WEIGHTS)[0], directory)
            self.engine: Any = TorchEngine([model.eval()], self.end)
        else:
            from covnmt.decoding.onnx.runtime import OnnxEngine, OnnxModel

            self.engine = OnnxEngine([OnnxModel(directory, description, threads)], self.end)

    def __call__(self, sentences: list[list[int]], beam: int) -> int:
        from covnmt.base.config import DecodeConfig
        from covnmt.data.padding import pad_ids

        decode = DecodeConfig(beam=beam, length_rules=False, max_length=STEPS, retry=False)
        results = self.engine.search(pad_ids(sentences, self.end), decode, None)
        return sum(len(best.token_ids) for best, *_ in results.hypotheses)


class OtherToolkit:
    """A toolkit of benchmarks/peers_search.py."""

    def __init__(self, engine: str, size: dict[str, int], threads: int) -> None:
        import peers
        import peers_search
        import torch

        torch.set_num_threads(threads)
        self.torch = torch
        wanted = peers.Size(size["words"], size["embedding"], size["hidden"])
        self.peer = peers_search.build(engine, wanted)
        self.peer.model.eval()

    def __call__(self, sentences: list[list[int]], beam: int) -> int:
        with self.torch.inference_mode():
            results = self.peer.search(self.torch.tensor(sentences), beam, STEPS)
        return sum(len(words) for words in results)


class Marian:
    """Marian's `s2s`, its recurrent network of the same kind, in float32.

    The model is one update old. It hardly ever ends a sentence, so the limit sets the length.
    """

    def __init__(self, size: dict[str, int], directory: Path, threads: int) -> None:
        self.directory, self.threads = directory, threads
        self.model, self.words = directory / "marian.npz", directory / "marian.yml"
        if not self.model.exists():
            self._create(size)
        self.opened: dict[tuple[int, int], Any] = {}

    def _create(self, size: dict[str, int]) -> None:
        from _pymarian import Trainer

        names = ["</s>", "<unk>", *(f"w{number}" for number in range(2, size["words"]))]
        rows = (f'"{name}": {number}\n' for number, name in enumerate(names))
        self.words.write_text("".join(rows), "utf-8")
        text = self.directory / "marian.txt"
        text.write_text("\n".join("w2 w3 w4 w5" for _ in range(8)) + "\n", "utf-8")
        options = f"--type s2s --dim-emb {size['embedding']} --dim-rnn {size['hidden']} --seed 1"
        files = f"--vocabs {self.words} {self.words} --train-sets {text} {text} -m {self.model}"
        Trainer(
            f"{options} {files} --after-batches 1 --mini-batch 2 --cpu-threads 1 --quiet"
        ).train()

    def __call__(self, sentences: list[list[int]], beam: int) -> int:
        from _pymarian import Translator

        key = (beam, len(sentences))
        if key not in self.opened:
            self.opened = {}  # one at a time, or memory would be counted several times
            self.opened[key] = Translator(
                f"-m {self.model} -v {self.words} {self.words} --beam-size {beam} --quiet "
                f"--mini-batch {len(sentences)} --maxi-batch 1 --cpu-threads {self.threads} "
                f"--max-length-factor {(STEPS - 0.5) / (SOURCE + 1)} --workspace 512"
            )
        text = "\n".join(" ".join(f"w{word}" for word in words) for words in sentences)
        results = self.opened[key].translate(text)
        lines = results.split("\n") if isinstance(results, str) else results
        return sum(len(line.split()) for line in lines)


def build(engine: str, size: dict[str, int], directory: Path, threads: int) -> Decoder:
    """The engine of this name."""
    if engine == "marian":
        return Marian(size, directory, threads)
    if engine in OURS:
        return Ours(engine, size, directory, threads)
    return OtherToolkit(engine, size, threads)


def cpu_seconds() -> float:
    """User and system time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak_mib() -> float:
    """The most memory this process ever had (getrusage would count its parent's too)."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    [peak] = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(peak) / 1024


def main() -> None:
    """Load the engine, then answer requests."""
    engine, size, directory, threads = sys.argv[1:]
    sizes = json.loads(size)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what engines print goes to stderr
    decode = build(engine, sizes, Path(directory), int(threads))
    package = {"marian": "pymarian"}.get(engine, "covnmt" if engine in OURS else engine)
    print(json.dumps({"version": version(package)}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        draw = random.Random(request["seed"])
        batch = range(request["batch"])
        sentences = [[draw.randrange(4, sizes["words"] - 1) for _ in range(SOURCE)] for _ in batch]
        if request["warm"]:
            decode(sentences[:WARM], request["beam"])
        began, used, words, rounds = time.perf_counter(), cpu_seconds(), 0, 0
        while not rounds or time.perf_counter() - began < TURN:
            words += decode(sentences, request["beam"])
            rounds += 1
        answer = {
            "words": words,
            "sentences": rounds * len(sentences),
            "wall": time.perf_counter() - began,
            "cpu": cpu_seconds() - used,
            "peak_mib": peak_mib(),
        }
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
