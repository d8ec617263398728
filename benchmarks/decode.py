"""Beam search speed on a GPU at the paper's size, in sentences per second.

    python benchmarks/decode.py                # batch 1, 32, 128; reference and Triton kernels
    python benchmarks/decode.py --peer joeynmt # with another toolkit in the same table

Every sentence has 25 source tokens and 28 decoding steps (a model with random weights hardly ever
ends a sentence, and the output is limited to 28). Beam 10, vocabularies of 30,001, embeddings of
620, 1000 units, exact cell. Timed from token ids on the GPU to hypotheses on the host.
"""

import os
import time
from collections.abc import Callable, Sequence, Sized
from functools import partial
from typing import Any

import peers
import torch
from harness import argument_parser, argument_values, save, summary
from train import VOCABULARY, random_model

from covnmt.base.config import PAPER_SYSTEMS, DecodeConfig, ModelConfig
from covnmt.decoding.backtrace import Hypothesis
from covnmt.decoding.gpu.beam_search import GpuBeamSearch
from covnmt.decoding.torch import TorchEngine
from covnmt.text.vocabulary import UNK_ID

SOURCE, STEPS, END = 25, 28, VOCABULARY - 1


class Decoder:
    """A model with random weights, decoded with the reference or with Triton."""

    def __init__(self, system: str, path: str, precision: str) -> None:
        os.environ["COVNMT_OPS"] = "reference" if path == "reference" else "auto"
        self.model = random_model(ModelConfig(coverage=PAPER_SYSTEMS[system]), torch.device("cuda"))
        self.model.eval()
        self.dtype = torch.bfloat16 if precision == "bf16" else None
        self._by_steps = TorchEngine([self.model], END).search_stepwise
        self.device_search = (
            GpuBeamSearch(self.model, END, UNK_ID, self.dtype) if path == "fast" else None
        )

    @torch.inference_mode()
    def __call__(self, source: torch.Tensor, config: DecodeConfig) -> list[list[Hypothesis]]:
        mask = torch.ones(source.shape, dtype=torch.bool)
        if self.device_search is not None:
            return self.device_search.search(source, mask, self._by_steps, config).hypotheses
        with torch.autocast("cuda", torch.bfloat16, enabled=self.dtype is not None):
            return self._by_steps(source, mask, config).hypotheses


def measure(decode: Decoder, batch: int, beam: int, repeats: int) -> dict[str, Any]:
    """Measure covnmt's search."""
    config = DecodeConfig(beam=beam, length_rules=False, max_length=STEPS, retry=False)
    return timed(
        lambda source: [best[0].attention for best in decode(source, config)], batch, repeats
    )


def timed(
    decode: Callable[[torch.Tensor], Sequence[Sized]], batch: int, repeats: int
) -> dict[str, Any]:
    """Return sentences per second; `decode` returns one item per target token of a sentence."""
    generator = torch.Generator().manual_seed(1)
    rates, steps = [], []
    for number in range(repeats + 3):
        source = torch.randint(2, END, (batch, SOURCE), generator=generator).cuda()
        torch.cuda.synchronize()
        began = time.perf_counter()
        outputs = decode(source)
        taken = time.perf_counter() - began
        if number >= 3:  # compile, capture, replay
            rates.append(batch / taken)
            steps.append(sum(len(words) for words in outputs) / batch)
    return {"sentences_per_second": summary(rates), "steps": sum(steps) / len(steps)}


def add_row(rows: list[dict[str, Any]], row: dict[str, Any]) -> None:
    """Add and print a row."""
    rows.append(row)
    rate = row["sentences_per_second"]["median"]
    print(
        f"{row['system']:12} {row['path']:10} {row['batch']:5} {rate:12,.1f} {row['steps']:6.1f}",
        flush=True,
    )


def main() -> None:
    """Measure and write the result file."""
    parser = argument_parser(__doc__)
    parser.add_argument(
        "--batch", type=int, nargs="+", default=[1, 32, 128], help="sentences per batch"
    )
    parser.add_argument("--system", nargs="+", default=["baseline", "fertility", "gru10"])
    parser.add_argument("--path", nargs="+", default=["reference", "fast"], help="kernels")
    parser.add_argument("--peer", nargs="+", default=[], type=peers.importable, help=peers.HELP)
    parser.add_argument("--beam", type=int, default=10, help="beam size")
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--repeats", type=int, default=10, help="batches of each row")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(f"{'system':12} {'path':10} {'batch':>5} {'sentences/s':>12} {'steps':>6}")
    for path in arguments.path:
        for system in arguments.system:
            decode = Decoder(system, path, arguments.precision)
            for batch in arguments.batch:
                row = measure(decode, batch, arguments.beam, arguments.repeats)
                add_row(rows, {"system": system, "path": path, "batch": batch, **row})
    for name in arguments.peer:
        peer = peers.build(name, torch.device("cuda"), arguments.precision)
        for batch in arguments.batch:
            row = timed(
                partial(peer.decode, beam=arguments.beam, steps=STEPS), batch, arguments.repeats
            )
            row |= peers.describe(name, peer)
            add_row(rows, {"system": name, "path": "peer", "batch": batch, **row})
    save("decode", {"settings": argument_values(arguments), "rows": rows}, arguments)


if __name__ == "__main__":
    main()
