"""The training objective: negative log-likelihood of the target tokens, plus the fertility term.

All terms are sums over the batch (docs/paper-to-code.md, section 1.4); the train step divides by
the number of target tokens if the recipe asks for a mean.
"""

import torch
from torch import Tensor

from covnmt.base.config import TrainConfig
from covnmt.data.batching import Batch
from covnmt.model.seq2seq import Readout, Seq2Seq, TeacherForcedOutput


def token_loss(
    readout: Readout, features: Tensor, target: Tensor, mask: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Return the summed loss to differentiate and the plain negative log-likelihood to report."""
    kernels = readout.kernels
    return kernels.cross_entropy(features, readout.W_2, readout.b, target, mask, smoothing)


def fertility_loss(forced: TeacherForcedOutput, batch: Batch, detach: bool) -> Tensor:
    """Compute sum_j (Phi_j - sum_i alpha_ij)^2 over source tokens (section 4), without padding.

    Phi is 1 for models that do not predict it. With `detach` no gradient flows into the attention:
    only Phi, and the encoder below it, learn from this term.
    """
    alpha = forced.alpha.detach() if detach else forced.alpha
    received = (alpha * batch.target_mask.unsqueeze(-1)).sum(dim=1)  # [B, J]
    Phi = torch.ones_like(received) if forced.fertility is None else forced.fertility
    # rows without target tokens are padding
    real = batch.source_mask & batch.target_mask.any(dim=1, keepdim=True)
    return ((Phi - received) ** 2 * real).sum()


def batch_loss(model: Seq2Seq, batch: Batch, config: TrainConfig) -> tuple[Tensor, Tensor]:
    """Return the summed objective of a batch and its plain negative log-likelihood."""
    forced: TeacherForcedOutput = model(batch)
    loss, nll = token_loss(
        model.readout, forced.features, batch.target, batch.target_mask, config.label_smoothing
    )
    if config.fertility_weight:
        auxiliary = fertility_loss(forced, batch, config.fertility_detach)
        loss = loss + config.fertility_weight * auxiliary
    return loss, nll
