"""One update of the weights: forward, backward, clipping, optimizer step, EMA.

On a GPU with Triton the whole update is a replayed CUDA graph: an update of the paper's model is
over a thousand small kernels, and launching them one by one takes longer than running them. Each
batch shape is captured when it first occurs; shapes are padded to a few sizes, and all graphs share
one memory pool.

Several ranks sum their gradients in one of two ways:

- `overlapped`, without CUDA graphs: DistributedDataParallel all-reduces gradients while the
  backward pass of the last batch is still running.
- `bucket`, with CUDA graphs: a graph ends with all gradients copied into one flat bucket; the
  all-reduce and the optimizer step follow outside the graph. Ranks have batches of different
  shapes, so one rank may capture while another replays, and an all-reduce inside the graph would
  leave them waiting for each other.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Literal

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

GradientReduction = Literal["overlapped", "bucket"]
MAX_GRAPHS = 256
BF16_IS_EMULATED = (
    "train.precision=bf16, but this GPU has no bf16 arithmetic, so it is emulated and slow; "
    "train.precision=auto takes fp32 here"
)


class TrainStep:
    """Updates the weights and sums up the loss, without waiting for the GPU."""

    def __init__(
        self,
        model: Seq2Seq,
        optimizer_step: OptimizerStep,
        config: TrainConfig,
        world: World = SINGLE_PROCESS,
        reduction: GradientReduction | None = None,
    ) -> None:
        """Without a `reduction`, take the one that suits the device and the ranks."""
        self.model, self.optimizer_step, self.config = model, optimizer_step, config
        self.world = world
        self.device = next(model.parameters()).device
        on_gpu = self.device.type == "cuda"
        if on_gpu and config.precision == "bf16" and not gpu.has_bf16(self.device):
            warn(BF16_IS_EMULATED)
        self.loss: nn.Module = BatchLoss(model, config)
        self.loss_normalizer = torch.ones((), device=self.device)
        self.nll = torch.zeros((), device=self.device, dtype=torch.float64)
        self.uses_graphs = dispatch.uses_triton(self.device)
        if reduction is None and world.has_process_group:
            reduction = "bucket" if self.uses_graphs else "overlapped"
        self.data_parallel: DistributedDataParallel | None = None
        self.bucket: GradientBucket | None = None
        if reduction == "overlapped":
            self.loss = self.data_parallel = DistributedDataParallel(self.loss)
        if reduction == "bucket":
            bf16 = uses_bf16(config.precision, self.device)
            dtype = torch.bfloat16 if bf16 else torch.float32
            self.bucket = GradientBucket(model.parameters(), dtype)
        self.graphs = CudaGraphCache(lambda batch: self.run_update([batch]), MAX_GRAPHS)

    def __call__(
        self, batches: Sequence[Batch], target_tokens: int, update: int, elapsed_share: float = 0.0
    ) -> None:
        """Make update number `update` (from 0) from the sum of the batches' gradients.

        The batches are this rank's pairs; all ranks together have `target_tokens`. The share of the
        run's time limit that has passed is for the learning-rate schedule.
        """
        normalizer = 1.0 / target_tokens if self.config.loss == "token_mean" else 1.0
        if self.data_parallel is not None:
            normalizer *= self.world.size  # DistributedDataParallel takes the mean over the ranks
        self.loss_normalizer.fill_(normalizer)
        self.world.reseed(self.config.seed, update)
        self.optimizer_step.prepare(update, elapsed_share)
        self.model.train()
        if self.uses_graphs and len(batches) == 1:
            self.graphs.run(batches[0])
        else:
            self.run_update(batches)
        if self.bucket is not None:
            self.bucket.all_reduce()
            self.optimizer_step()

    def run_update(self, batches: Sequence[Batch]) -> None:
        """Do what a CUDA graph captures."""
        self.backward(batches)
        if self.bucket is None:
            self.optimizer_step()
        else:
            self.bucket.fill()

    def backward(self, batches: Sequence[Batch]) -> None:
        """Leave the summed gradients of the batches in the `.grad` of the weights."""
        self.model.zero_grad(set_to_none=True)
        with self.data_parallel.no_sync() if self.data_parallel else nullcontext():
            for batch in batches[:-1]:
                self.accumulate(batch)
        self.accumulate(batches[-1])

    def accumulate(self, batch: Batch) -> None:
        """Run forward and backward, adding to the gradients."""
        bf16 = uses_bf16(self.config.precision, self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
            loss, nll = self.loss(batch)
        (loss * self.loss_normalizer).backward()
        self.nll += nll

    def take_nll(self) -> float:
        """Return the negative log-likelihood, over all ranks, of the updates since the last call.

        This waits for the GPU.
        """
        nll = self.nll.item()
        self.nll.zero_()
        return sum(self.world.all_gather(nll))


class BatchLoss(nn.Module):
    """The loss of a batch as a module, which is what DistributedDataParallel can wrap."""

    def __init__(self, model: Seq2Seq, config: TrainConfig) -> None:
        super().__init__()
        self.model, self.config = model, config

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the summed objective and the plain negative log-likelihood."""
        return batch_loss(self.model, batch, self.config)


class GradientBucket:
    """The gradients of all weights in one flat tensor, so that one all-reduce sums them."""

    def __init__(self, parameters: Iterable[nn.Parameter], dtype: torch.dtype) -> None:
        self.parameters = list(parameters)
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.flat = torch.zeros(sum(self.sizes), dtype=dtype, device=self.parameters[0].device)

    def fill(self) -> None:
        """Copy the gradients of a backward pass into the bucket."""
        gradients = [p.grad.flatten() for p in self.parameters if p.grad is not None]
        assert len(gradients) == len(self.parameters), "a weight has no gradient"
        torch._foreach_copy_(self.flat.split(self.sizes), gradients)

    def all_reduce(self) -> None:
        """Sum the bucket over all ranks; its parts become the gradients of the weights."""
        dist.all_reduce(self.flat)
        total = self.flat.float()
        for parameter, gradient in zip(self.parameters, total.split(self.sizes), strict=True):
            parameter.grad = gradient.view_as(parameter)


class CudaGraphCache:
    """A function of a batch, captured as a CUDA graph for each batch shape."""

    def __init__(self, function: Callable[[Batch], None], max_graphs: int) -> None:
        self.function, self.max_graphs = function, max_graphs
        self.eager_shapes: set[tuple[int, ...]] = set()  # that ran without a graph
        self.captured: dict[tuple[int, ...], tuple[torch.cuda.CUDAGraph, Batch]] = {}
        self.capture_seconds = 0.0  # spent on shapes that were not captured yet

    def run(self, batch: Batch) -> None:
        """Call the function, by replaying its graph if there is one for this shape."""
        shape = (*batch.source.shape, batch.target.shape[1])
        if shape not in self.captured:
            began = time.monotonic()
            # The very first batch runs eagerly: its lazy initialization cannot be captured.
            may_capture = self.eager_shapes and len(self.captured) < self.max_graphs
            if not may_capture or not self._capture(shape, batch):
                self.eager_shapes.add(shape)
                self.function(batch)
            self.capture_seconds += time.monotonic() - began
        if shape in self.captured:
            graph, static_batch = self.captured[shape]
            static_batch.copy_(batch)
            graph.replay()

    def statistics(self) -> dict[str, float]:
        """Return the number of graphs and the seconds spent on capturing; empty without graphs."""
        if not self.captured:
            return {}
        return {"graphs": len(self.captured), "warm_up_seconds": round(self.capture_seconds, 1)}

    def _capture(self, shape: tuple[int, ...], batch: Batch) -> bool:
        """Record the launches without running them; return whether that worked.

        After a failure the shape runs eagerly, which loads the kernels it needs, and is captured
        the next time. If that fails too, no more graphs are captured.
        """
        static_batch = batch.clone()
        pool = next((graph.pool() for graph, _ in self.captured.values()), None)
        graph = torch.cuda.CUDAGraph()
        try:
            # relaxed: a kernel may be loaded during the capture
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="relaxed"):
                self.function(static_batch)
        except RuntimeError:
            if shape in self.eager_shapes:
                self.max_graphs = 0
            return False
        self.captured[shape] = (graph, static_batch)
        return True


def uses_bf16(precision: str, device: torch.device) -> bool:
    """Whether to compute in bf16: the recipe asks for it and, with auto, the hardware has it."""
    return precision == "bf16" or (precision == "auto" and gpu.has_bf16(device))
