"""One update: forward, backward, clipping, optimiser and average; on a GPU as a replayed graph.

A GPU waits for its launches: an update of the paper's model is over a thousand small kernels. So
each shape of batch is captured as a CUDA graph when it first comes, and replayed from then on.
Shapes are rounded up, so there are few; all graphs share one pool of memory.

Several workers add up their gradients, then each makes the same step. DistributedDataParallel
does that while the backward pass goes on. A captured backward pass leaves the gradient in one
long row instead, and the row is added up outside the graph: shapes differ between workers, so one
may capture while another replays, and a sum inside would leave them waiting for each other.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from covnmt.base.config import TrainConfig
from covnmt.base.console import warn
from covnmt.data.batching import Batch
from covnmt.kernels import dispatch, gpu
from covnmt.model.seq2seq import Seq2Seq
from covnmt.training.distributed import SINGLE_PROCESS, World
from covnmt.training.loss import batch_loss
from covnmt.training.optimizer import OptimizerStep

MAX_GRAPHS = 256
EMULATED = (
    "train.precision=bf16, but this GPU has no bf16 arithmetic: PyTorch emulates it at best. "
    "train.precision=auto takes fp32 here"
)


class TrainStep:
    """Makes updates and sums up their losses, without waiting for the device."""

    def __init__(
        self,
        model: Seq2Seq,
        step: OptimizerStep,
        config: TrainConfig,
        world: World = SINGLE_PROCESS,
    ) -> None:
        self.model, self.step, self.config = model, step, config
        self.world = world
        self.device = next(model.parameters()).device
        on_gpu = self.device.type == "cuda"
        if on_gpu and config.precision == "bf16" and not gpu.has_bf16(self.device):
            warn(EMULATED)
        self.nll = torch.zeros((), device=self.device, dtype=torch.float64)
        self.scale = torch.ones((), device=self.device)
        self.graphs = CudaGraphCache(lambda batch: self._compute([batch]), MAX_GRAPHS)
        self.objective: nn.Module = BatchLoss(model, config)
        self.row: GradientBucket | None = None
        if world.connected and dispatch.uses_triton(self.device):
            wire = torch.bfloat16 if uses_bf16(config.precision, self.device) else torch.float32
            self.row = GradientBucket(model.parameters(), wire)
        elif world.connected:
            self.objective = DistributedDataParallel(self.objective)

    def __call__(
        self, batches: Sequence[Batch], words: int, update: int, spent: float = 0.0
    ) -> None:
        """Update number `update` (from 0), with this share of the run's time spent.

        The batches are this worker's share of some that hold `words` target words in all.
        """
        scale = 1.0 / words if self.config.loss == "token_mean" else 1.0
        if isinstance(self.objective, DistributedDataParallel):
            scale *= self.world.size  # it takes the mean over the workers
        self.scale.fill_(scale)
        self.world.reseed(self.config.seed, update)
        self.step.prepare(update, spent)
        self.model.train()
        if len(batches) == 1 and dispatch.uses_triton(self.device):
            self.graphs.run(batches[0])
        else:
            self._compute(batches)
        if self.row is not None:
            self.row.add_up()
            self.step()

    def take_loss(self) -> float:
        """The negative log-likelihood of all workers since the last call; waits for the device."""
        total = self.nll.item()
        self.nll.zero_()
        return sum(self.world.all_gather(total))

    def _compute(self, batches: Sequence[Batch]) -> None:
        """What a graph holds: the whole update, or all before the workers' sum."""
        self._gradients(batches)
        if self.row is None:
            self.step()
        else:
            self.row.fill()

    def _gradients(self, batches: Sequence[Batch]) -> None:
        self.model.zero_grad(set_to_none=True)
        for number, batch in enumerate(batches, 1):
            with self._silence(unless=number == len(batches)):
                with autocast(self.config.precision, self.device):
                    loss, nll = self.objective(batch)
                (loss * self.scale).backward()
            self.nll += nll

    def _silence(self, unless: bool) -> AbstractContextManager[None]:
        """Gradients stay with the worker but for the last batch of an update."""
        if unless or not isinstance(self.objective, DistributedDataParallel):
            return nullcontext()
        return self.objective.no_sync()


class BatchLoss(nn.Module):
    """The loss of a batch, as a module: what DistributedDataParallel can wrap."""

    def __init__(self, model: Seq2Seq, config: TrainConfig) -> None:
        super().__init__()
        self.model, self.config = model, config

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The summed objective, and the plain negative log-likelihood."""
        return batch_loss(self.model, batch, self.config)


class GradientBucket:
    """The gradients of all weights in one row of memory, as they travel between workers."""

    def __init__(self, parameters: Iterable[nn.Parameter], wire: torch.dtype) -> None:
        self.parameters = list(parameters)
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.row = torch.zeros(sum(self.sizes), dtype=wire, device=self.parameters[0].device)

    def fill(self) -> None:
        """Take over the gradients of a backward pass."""
        gradients = [p.grad.flatten() for p in self.parameters if p.grad is not None]
        torch._foreach_copy_(self.row.split(self.sizes), gradients)

    def add_up(self) -> None:
        """Leave the sum over all workers as the gradients."""
        dist.all_reduce(self.row)
        total = self.row.float()
        for parameter, part in zip(self.parameters, total.split(self.sizes), strict=True):
            parameter.grad = part.view_as(parameter)


class CudaGraphCache:
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
    """Mixed precision, where it is wanted."""
    return torch.autocast(device.type, torch.bfloat16, enabled=uses_bf16(precision, device))


def uses_bf16(precision: str, device: torch.device) -> bool:
    """Whether to compute in bf16: the recipe asks for it and, with auto, the hardware has it."""
    return precision == "bf16" or (precision == "auto" and gpu.has_bf16(device))
