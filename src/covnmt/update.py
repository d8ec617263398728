"""One update: forward, backward, clipping, optimiser and average; on a GPU as a replayed graph.

A GPU waits for its launches: an update of the paper's model is over a thousand small kernels. So
each shape of batch is captured as a CUDA graph when it first comes, and replayed from then on.
Shapes are rounded up, so there are few; all graphs share one pool of memory.
"""

import time
from collections.abc import Callable, Sequence

import torch

from covnmt import ops
from covnmt.config import TrainConfig
from covnmt.data import Batch
from covnmt.loss import batch_loss
from covnmt.model.seq2seq import Seq2Seq
from covnmt.optimise import Step

MOST_GRAPHS = 256


class Updater:
    """Makes updates and sums up their losses, without waiting for the device."""

    def __init__(self, model: Seq2Seq, step: Step, config: TrainConfig) -> None:
        self.model, self.step, self.config = model, step, config
        self.device = next(model.parameters()).device
        self.nll = torch.zeros((), device=self.device, dtype=torch.float64)
        self.scale = torch.ones((), device=self.device)
        self.graphs = Graphs(lambda batch: self._update([batch]), MOST_GRAPHS)

    def __call__(self, batches: Sequence[Batch], words: int, update: int) -> None:
        """Update number `update` (from 0) on batches that hold `words` target words."""
        self.scale.fill_(1.0 / words if self.config.loss == "token_mean" else 1.0)
        self.step.prepare(update)
        self.model.train()
        if len(batches) == 1 and ops.fuses(self.device):
            self.graphs.run(batches[0])
        else:
            self._update(batches)

    def take_loss(self) -> float:
        """The negative log-likelihood summed since the last call; waits for the device."""
        total = self.nll.item()
        self.nll.zero_()
        return total

    def _update(self, batches: Sequence[Batch]) -> None:
        self.model.zero_grad(set_to_none=True)
        for batch in batches:
            with autocast(self.config.precision, self.device):
                loss, nll = batch_loss(self.model, batch, self.config)
            (loss * self.scale).backward()
            self.nll += nll
        self.step()


class Graphs:
    """A function of a batch, captured for each shape of batch."""

    def __init__(self, function: Callable[[Batch], None], most: int) -> None:
        self.function, self.most = function, most
        self.plain: set[tuple[int, ...]] = set()  # shapes that were run without a graph
        self.captured: dict[tuple[int, ...], tuple[torch.cuda.CUDAGraph, Batch]] = {}
        self.seconds = 0.0  # spent on shapes that were not captured yet

    def run(self, batch: Batch) -> None:
        """Call the function, by replay where there is one."""
        shape = (*batch.source.shape, batch.target.shape[1])
        if shape not in self.captured:
            began = time.monotonic()
            # the first batch of all is run as it is: there is more to set up than can be captured
            if not self.plain or len(self.captured) >= self.most or not self._capture(shape, batch):
                self.plain.add(shape)
                self.function(batch)
            self.seconds += time.monotonic() - began
        if shape in self.captured:
            graph, held = self.captured[shape]
            held.copy_(batch)
            graph.replay()

    def warm_up(self) -> dict[str, float]:
        """How many graphs there are and what getting there took; nothing where there are none."""
        if not self.captured:
            return {}
        return {"graphs": len(self.captured), "warm_up_seconds": round(self.seconds, 1)}

    def _capture(self, shape: tuple[int, ...], batch: Batch) -> bool:
        """Record the launches without running them.

        Where that fails the shape is run as it is, which loads what it needs; where it fails for
        such a shape too, there are no more graphs.
        """
        held = batch.clone()
        pool = next((graph.pool() for graph, _ in self.captured.values()), None)
        graph = torch.cuda.CUDAGraph()
        try:
            # relaxed: a kernel may be loaded on the way
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="relaxed"):
                self.function(held)
        except RuntimeError:
            if shape in self.plain:
                self.most = 0
            return False
        self.captured[shape] = (graph, held)
        return True


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Mixed precision where the recipe asks for it and, with auto, the hardware has it."""
    on_gpu = device.type == "cuda" and torch.cuda.is_bf16_supported()
    wanted = precision == "bf16" or (precision == "auto" and on_gpu)
    return torch.autocast(device.type, torch.bfloat16, enabled=wanted)
