"""Optimisers, learning-rate schedules, clipping and weight averages (SPEC 1.4)."""

import math
from typing import Protocol

import torch
from torch import Tensor

from covnmt.base.config import TrainConfig
from covnmt.kernels import dispatch
from covnmt.model.seq2seq import Seq2Seq

# Where PyTorch's optimisers keep their two moments.
MOMENTS = {"adadelta": ("square_avg", "acc_delta"), "adamw": ("exp_avg", "exp_avg_sq")}


def build_optimizer(model: Seq2Seq, config: TrainConfig) -> torch.optim.Optimizer:
    """Adadelta as in the paper, or AdamW."""
    if config.optimizer == "adadelta":
        return torch.optim.Adadelta(
            model.parameters(), lr=config.learning_rate, rho=config.rho, eps=config.epsilon
        )
    return torch.optim.AdamW(
        model.parameters(),
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.epsilon,
        weight_decay=config.weight_decay,
    )


def learning_rate_factor(update: int, config: TrainConfig, spent: float = 0.0) -> float:
    """What the learning rate is multiplied by at this update (counted from 0).

    `spent` is the share of its time that the run has used, where that is limited.
    """
    if update < config.warmup:
        return (update + 1) / config.warmup
    if config.schedule == "inverse_sqrt":
        return float((max(config.warmup, 1) / (update + 1)) ** 0.5)
    if config.schedule in ("cosine", "cosine_in_time"):
        length = max(config.updates - config.warmup, 1)
        done = (update - config.warmup) / length
        if config.schedule == "cosine_in_time":
            done = max(done, spent)
        done = min(done, 1.0)
        return 0.5 * (1 + math.cos(done * math.pi))
    return 1.0


def set_learning_rate(
    optimizer: torch.optim.Optimizer, config: TrainConfig, update: int, spent: float = 0.0
) -> None:
    """Set the learning rate of this update."""
    for group in optimizer.param_groups:
        group["lr"] = config.learning_rate * learning_rate_factor(update, config, spent)


def clip_gradients(model: Seq2Seq, limit: float) -> Tensor:
    """Scale the gradients to a global norm of at most `limit`; gives the norm before.

    If the norm is no number, every gradient becomes a tenth of its weight (SPEC 1.4): the step
    shrinks the weights a little instead of destroying them. Decided without waiting for a GPU.
    """
    parameters = [p for p in model.parameters() if p.grad is not None]
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    fine = torch.isfinite(norm)
    scale = torch.clamp(limit / (norm + 1e-6), max=1.0) if limit else torch.ones_like(norm)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        gradient.copy_(torch.where(fine, gradient * scale, 0.1 * parameter.detach()))
    return norm


def update_ema(
    average: dict[str, Tensor], weights: dict[str, Tensor], decay: float, n: int
) -> None:
    """Move the averaged weights towards the current ones; faster while young."""
    names = list(average)
    towards = 1 - ema_decay(decay, n)
    torch._foreach_lerp_([average[k] for k in names], [weights[k] for k in names], towards)


def ema_decay(decay: float, n: int) -> float:
    """The average's decay at update n: less at first, so that it forgets the random start."""
    return min(decay, (1 + n) / (10 + n))


class OptimizerStep(Protocol):
    """What follows the backward pass: clip, move the weights, follow with the average."""

    def prepare(self, update: int, spent: float = 0.0) -> None:
        """Set what changes from update to update (counted from 0); before a captured replay."""

    def __call__(self) -> None:
        """Do it, with the gradients that are there."""


class TorchOptimizerStep:
    """With PyTorch's own optimiser."""

    def __init__(
        self,
        model: Seq2Seq,
        optimizer: torch.optim.Optimizer,
        average: dict[str, Tensor],
        config: TrainConfig,
    ) -> None:
        self.model, self.optimizer, self.average, self.config = model, optimizer, average, config
        self.update = 0

    def prepare(self, update: int, spent: float = 0.0) -> None:
        self.update = update
        set_learning_rate(self.optimizer, self.config, update, spent)

    def __call__(self) -> None:
        clip_gradients(self.model, self.config.clip)
        self.optimizer.step()
        if self.average:
            weights = {name: weight.detach() for name, weight in self.model.named_parameters()}
            update_ema(self.average, weights, self.config.ema, self.update + 1)


class TritonOptimizerStep:
    """The same in one pass over memory, by Triton; it keeps the optimiser's state as PyTorch does.

    All weights share one count of updates, on the device, so that a captured step counts too.
    """

    def __init__(
        self,
        model: Seq2Seq,
        optimizer: torch.optim.Optimizer,
        average: dict[str, Tensor],
        config: TrainConfig,
    ) -> None:
        self.config = config
        device = next(model.parameters()).device
        self.rate, self.towards = torch.zeros(2, device=device)
        self.updates = torch.zeros((), device=device)
        self.rows: list[tuple[Tensor, Tensor, Tensor, Tensor | None]] = []
        for name, parameter in model.named_parameters():
            state = optimizer.state[parameter]
            self.updates.copy_(state.get("step", self.updates))
            state["step"] = self.updates
            first, second = (
                state.setdefault(moment, torch.zeros_like(parameter))
                for moment in MOMENTS[config.optimizer]
            )
            self.rows.append((parameter, first, second, average.get(name)))

    def prepare(self, update: int, spent: float = 0.0) -> None:
        self.rate.fill_(
            self.config.learning_rate * learning_rate_factor(update, self.config, spent)
        )
        self.towards.fill_(1 - ema_decay(self.config.ema, update + 1))

    @torch.no_grad()
    def __call__(self) -> None:
        from covnmt.kernels.triton import optimizer as fused

        self.updates += 1
        rows = [row for row in self.rows if row[0].grad is not None]
        weights, first, second, average = zip(*rows, strict=True)
        gradients = [weight.grad for weight in weights]
        scalars = fused.Scalars(fused.total_norm(gradients), self.rate, self.updates, self.towards)
        config = self.config
        kind = (
            fused.Adadelta(config.rho, config.epsilon)
            if config.optimizer == "adadelta"
            else fused.AdamW(*config.betas, config.epsilon, config.weight_decay)
        )
        fused.step(weights, gradients, first, second, average, scalars, config.clip, kind)


def build_optimizer_step(
    model: Seq2Seq,
    optimizer: torch.optim.Optimizer,
    average: dict[str, Tensor],
    config: TrainConfig,
) -> OptimizerStep:
    """The one place where the implementation is chosen."""
    device = next(model.parameters()).device
    made = TritonOptimizerStep if dispatch.uses_triton(device) else TorchOptimizerStep
    return made(model, optimizer, average, config)
