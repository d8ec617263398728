"""Optimisers, learning-rate schedules, clipping and weight averages (SPEC 1.4)."""

import math

import torch
from torch import Tensor

from covnmt.config import TrainConfig
from covnmt.model.seq2seq import Seq2Seq


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


def rate_factor(update: int, config: TrainConfig) -> float:
    """What the learning rate is multiplied by at this update (counted from 0)."""
    if update < config.warmup:
        return (update + 1) / config.warmup
    if config.schedule == "inverse_sqrt":
        return float((max(config.warmup, 1) / (update + 1)) ** 0.5)
    if config.schedule == "cosine":
        length = max(config.updates - config.warmup, 1)
        done = min((update - config.warmup) / length, 1.0)
        return 0.5 * (1 + math.cos(done * math.pi))
    return 1.0


def apply_rate(optimizer: torch.optim.Optimizer, config: TrainConfig, update: int) -> None:
    """Set the learning rate of this update."""
    for group in optimizer.param_groups:
        group["lr"] = config.learning_rate * rate_factor(update, config)


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


def follow(average: dict[str, Tensor], weights: dict[str, Tensor], decay: float, n: int) -> None:
    """Move the averaged weights towards the current ones; faster while young."""
    young = min(decay, (1 + n) / (10 + n))
    names = list(average)
    torch._foreach_lerp_([average[k] for k in names], [weights[k] for k in names], 1 - young)
