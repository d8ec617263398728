"""Optimizers, learning-rate schedules, gradient clipping and EMA of the weights.

docs/paper-to-code.md, section 1.4.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from covnmt.base.config import TrainConfig
from covnmt.kernels import dispatch
from covnmt.model.seq2seq import Seq2Seq

# The names of the two moments in the state of PyTorch's optimizers.
MOMENTS = {"adadelta": ("square_avg", "acc_delta"), "adamw": ("exp_avg", "exp_avg_sq")}


def build_optimizer(model: Seq2Seq, config: TrainConfig) -> torch.optim.Optimizer:
    """Build Adadelta as in the paper, or AdamW."""
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


def learning_rate_factor(update: int, config: TrainConfig, elapsed_share: float = 0.0) -> float:
    """Return what the learning rate is multiplied by at this update (counted from 0).

    `elapsed_share` is the share of the run's time limit that has passed, for `cosine_in_time`.
    """
    if update < config.warmup:
        return (update + 1) / config.warmup
    if config.schedule == "inverse_sqrt":
        return float((max(config.warmup, 1) / (update + 1)) ** 0.5)
    if config.schedule in ("cosine", "cosine_in_time"):
        length = max(config.updates - config.warmup, 1)
        progress = (update - config.warmup) / length
        if config.schedule == "cosine_in_time":
            progress = max(progress, elapsed_share)
        progress = min(progress, 1.0)
        return 0.5 * (1 + math.cos(progress * math.pi))
    return 1.0


def clip_gradients(model: Seq2Seq, limit: float) -> Tensor:
    """Scale the gradients to a global norm of at most `limit` (0: any); return the norm before.

    If the norm is infinite or NaN, every gradient becomes a tenth of its weight, as in the paper's
    code: the step shrinks the weights a little instead of destroying them. The GPU decides, so the
    host does not wait for it.
    """
    parameters = [p for p in model.parameters() if p.grad is not None]
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    finite = torch.isfinite(norm)
    scale = torch.clamp(limit / (norm + 1e-6), max=1.0) if limit else torch.ones_like(norm)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        gradient.copy_(torch.where(finite, gradient * scale, 0.1 * parameter.detach()))
    return norm


def update_ema(ema: dict[str, Tensor], weights: dict[str, Tensor], decay: float, n: int) -> None:
    """Move the averaged weights towards the current ones, after update n (counted from 1)."""
    names = list(ema)
    new_share = 1 - ema_decay(decay, n)
    torch._foreach_lerp_([ema[k] for k in names], [weights[k] for k in names], new_share)


def ema_decay(decay: float, n: int) -> float:
    """Return the decay after update n: less at first, so that the average forgets the start."""
    return min(decay, (1 + n) / (10 + n))


@dataclass
class TorchOptimizerStep:
    """What follows the backward pass: clip the gradients, step, update the EMA."""

    model: Seq2Seq
    optimizer: torch.optim.Optimizer
    ema: dict[str, Tensor]
    config: TrainConfig
    update: int = 0

    def prepare(self, update: int, elapsed_share: float = 0.0) -> None:
        """Set what changes with the update (counted from 0); called before a captured replay."""
        self.update = update
        factor = learning_rate_factor(update, self.config, elapsed_share)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * factor

    def __call__(self) -> None:
        """Change the weights by the gradients that they have."""
        clip_gradients(self.model, self.config.clip)
        self.optimizer.step()
        if self.ema:
            weights = {name: weight.detach() for name, weight in self.model.named_parameters()}
            update_ema(self.ema, weights, self.config.ema, self.update + 1)


class TritonOptimizerStep:
    """The same in one pass over memory; its state has the form of PyTorch's.

    All weights share one count of updates, on the GPU, so that a captured step counts as well.
    """

    def __init__(
        self,
        model: Seq2Seq,
        optimizer: torch.optim.Optimizer,
        ema: dict[str, Tensor],
        config: TrainConfig,
    ) -> None:
        self.config = config
        device = next(model.parameters()).device
        self.learning_rate, self.ema_new_share = torch.zeros(2, device=device)
        self.updates = torch.zeros((), device=device)
        # weight, first and second moment, averaged weight
        self.parameter_states: list[tuple[Tensor, Tensor, Tensor, Tensor | None]] = []
        for name, parameter in model.named_parameters():
            state = optimizer.state[parameter]
            self.updates.copy_(state.get("step", self.updates))
            state["step"] = self.updates
            first, second = (
                state.setdefault(moment, torch.zeros_like(parameter))
                for moment in MOMENTS[config.optimizer]
            )
            self.parameter_states.append((parameter, first, second, ema.get(name)))

    def prepare(self, update: int, elapsed_share: float = 0.0) -> None:
        factor = learning_rate_factor(update, self.config, elapsed_share)
        self.learning_rate.fill_(self.config.learning_rate * factor)
        self.ema_new_share.fill_(1 - ema_decay(self.config.ema, update + 1))

    @torch.no_grad()
    def __call__(self) -> None:
        from covnmt.kernels.triton import optimizer as fused

        self.updates += 1
        states = [state for state in self.parameter_states if state[0].grad is not None]
        weights, first, second, ema = zip(*states, strict=True)
        gradients = [weight.grad for weight in weights]
        norm = torch.nn.utils.get_total_norm(gradients)
        scalars = fused.UpdateScalars(norm, self.learning_rate, self.updates, self.ema_new_share)
        config = self.config
        kernel, constants = fused.adadelta, [config.rho, config.epsilon]
        if config.optimizer == "adamw":
            kernel, constants = fused.adamw, [*config.betas, config.epsilon, config.weight_decay]
        fused.update_weights(
            weights, gradients, first, second, ema, scalars, config.clip, kernel, constants
        )


OptimizerStep = TorchOptimizerStep | TritonOptimizerStep


def build_optimizer_step(
    model: Seq2Seq,
    optimizer: torch.optim.Optimizer,
    ema: dict[str, Tensor],
    config: TrainConfig,
) -> OptimizerStep:
    """Choose the implementation for the model's device.

    Build it after restoring a checkpoint: the step holds on to the optimizer's state and the EMA.
    """
    device = next(model.parameters()).device
    kind = TritonOptimizerStep if dispatch.uses_triton(device) else TorchOptimizerStep
    return kind(model, optimizer, ema, config)
