"""Translation speed on a CPU: covnmt's engines and other toolkits with models of the same size.

    python benchmarks/cpu.py --size small --peer eole opennmt-py joeynmt fairseq --marian PYTHON
    python benchmarks/cpu.py --size paper --batch 32 --threads 2

Every engine runs in a separate process with a model of random weights. The engines take turns of
half a second, or of one batch if that takes longer, so that other load on the machine affects all
of them alike. Every sentence has 29 source and 25 target words. Compare the words per second of
CPU time; wall time is given as well. covnmt's model is GRU d=10, the most expensive of the six.

Marian needs a PYTHON that can import `_pymarian` (pip install pymarian). benchmarks/peers.py and
benchmarks/peers_search.py say what the other toolkits need.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import peers_search
import torch
from cpu_worker import OURS
from harness import argument_parser, argument_values, save, summary

from covnmt.base.config import PAPER_SYSTEMS, Config, ModelConfig
from covnmt.decoding.onnx.export import write_graphs
from covnmt.model.checkpoint import BEST_WEIGHTS, named_weights, save_tensors
from covnmt.model.directory import ModelDescription, save_config
from covnmt.model.initialize import initialize_weights
from covnmt.model.seq2seq import Seq2Seq

SIZES = {
    "small": {"words": 10_001, "embedding": 256, "hidden": 512},
    "paper": {"words": 30_001, "embedding": 620, "hidden": 1000},
}


def write_models(size: dict[str, int], directory: Path) -> None:
    """Write one network with random weights in every format that covnmt runs."""
    m, n = size["embedding"], size["hidden"]
    config = ModelConfig(embedding=m, hidden=n, rank=m, coverage=PAPER_SYSTEMS["gru10"])
    torch.manual_seed(1)
    model = Seq2Seq(config, size["words"], size["words"]).eval()
    initialize_weights(model, "modern")
    model.readout.b.data[-1] = -1e4  # sentences end when their steps are used up
    rows = {"source": size["words"], "target": size["words"]}
    for engine in OURS:
        target = directory / engine
        target.mkdir()
        save_config(target, ModelDescription(Config(model=config), rows, fingerprint=""))  # type: ignore[arg-type]
    save_tensors(directory / "pytorch" / BEST_WEIGHTS, named_weights(model), {})
    write_graphs(model, directory / "onnx-fp32", "fp32")
    write_graphs(model, directory / "onnx-int8", "int8")


class Worker:
    """An engine in a separate process."""

    def __init__(
        self, engine: str, python: str, size: dict[str, int], directory: Path, threads: int
    ) -> None:
        self.engine, self.directory = engine, directory
        directory.mkdir(exist_ok=True)
        script = Path(__file__).with_name("cpu_worker.py")
        command = [python, str(script), engine, json.dumps(size), str(directory), str(threads)]
        began = time.perf_counter()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.version = self._answer()["version"]
        self.ready_seconds = time.perf_counter() - began

    def ask(self, request: dict[str, Any]) -> dict[str, float]:
        """Translate a batch; return words, seconds and peak memory so far."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.engine} ended with code {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        self.process.communicate()

    def disk_mib(self) -> float:
        """Return the size of the model files."""
        endings = (".onnx", "weights.bin", ".safetensors", "marian.npz")
        files = [path for path in self.directory.iterdir() if path.name.endswith(endings)]
        return sum(path.stat().st_size for path in files) / 2**20


def measure(workers: Sequence[Worker], beam: int, batch: int, repeats: int) -> list[dict[str, Any]]:
    """Return one row for every engine. They take turns."""
    answers_of: dict[str, list[dict[str, float]]] = {worker.engine: [] for worker in workers}
    for number in range(repeats):
        for worker in workers:
            request = {"beam": beam, "batch": batch, "seed": number, "warm": number == 0}
            answers_of[worker.engine].append(worker.ask(request))
    return [row(engine, beam, batch, answers) for engine, answers in answers_of.items()]


def row(engine: str, beam: int, batch: int, answers: list[dict[str, float]]) -> dict[str, Any]:
    """Return and print the rates of an engine over all rounds."""
    result: dict[str, Any] = {
        "engine": engine,
        "beam": beam,
        "batch": batch,
        "words_per_sentence": answers[0]["words"] / answers[0]["sentences"],
        "words_per_cpu_second": summary([answer["words"] / answer["cpu"] for answer in answers]),
        "words_per_second": summary([answer["words"] / answer["wall"] for answer in answers]),
        "sentences_per_second": summary(
            [answer["sentences"] / answer["wall"] for answer in answers]
        ),
    }
    rates = result["words_per_cpu_second"], result["words_per_second"]
    shown = "".join(f"{rate['median']:14,.1f}" for rate in rates)
    print(f"{engine:12} {beam:4} {batch:5} {result['words_per_sentence']:6.1f}{shown}", flush=True)
    return result


def main() -> None:
    """Measure and write the result file."""
    parser = argument_parser(__doc__)
    parser.add_argument("--size", choices=SIZES, default="small", help="of the model")
    parser.add_argument("--beam", type=int, nargs="+", default=[1, 5, 10], help="beam sizes")
    parser.add_argument("--batch", type=int, default=1, help="sentences per batch")
    parser.add_argument("--engine", nargs="*", default=list(OURS), choices=OURS, help="of covnmt")
    parser.add_argument(
        "--peer", nargs="+", default=[], type=peers_search.importable, help=peers_search.HELP
    )
    parser.add_argument("--marian", metavar="PYTHON", help="that can import _pymarian")
    parser.add_argument("--threads", type=int, default=1, help="of each engine")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each engine")
    arguments = parser.parse_args()
    # the recorded command does not show where that Python is
    sys.argv = ["PYTHON" if word == arguments.marian else word for word in sys.argv]
    size = SIZES[arguments.size]
    pythons = dict.fromkeys((*arguments.engine, *arguments.peer), sys.executable)
    if arguments.marian:
        pythons["marian"] = arguments.marian
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_models(size, directory)
        if arguments.marian:  # its model is made when first asked for, which is not start-up
            Worker("marian", arguments.marian, size, directory / "marian", 1).close()
        workers = [
            Worker(engine, python, size, directory / engine, arguments.threads)
            for engine, python in pythons.items()
        ]
        print(f"{'engine':12} beam batch  words   words/CPU s       words/s")
        for beam in arguments.beam:
            rows += measure(workers, beam, arguments.batch, arguments.repeats)
        engines = [about(worker) for worker in workers]
    content = {
        "settings": argument_values(arguments, leave_out=["marian"]),
        "engines": engines,
        "rows": rows,
    }
    threads = f"-threads{arguments.threads}" if arguments.threads > 1 else ""
    save(f"cpu-{arguments.size}-batch{arguments.batch}{threads}", content, arguments)


def about(worker: Worker) -> dict[str, Any]:
    """Return what does not depend on beam and batch: start-up time, memory, disk."""
    last = worker.ask({"beam": 1, "batch": 1, "seed": 0, "warm": False})
    result = {
        "engine": worker.engine,
        "version": worker.version,
        "ready_seconds": worker.ready_seconds,
        "peak_mib": last["peak_mib"],
        "disk_mib": worker.disk_mib(),
    }
    worker.close()
    print({key: round(v, 2) if isinstance(v, float) else v for key, v in result.items()})
    return result


if __name__ == "__main__":
    main()
