"""Matrix products of sizes that the tensor cores are fast at."""

import torch
from torch import Tensor
from torch.nn.functional import linear as plain_linear
from torch.nn.functional import pad

ROW_MULTIPLE = 8  # numbers: rows of 16 bytes in bf16


def linear(x: Tensor, W: Tensor, b: Tensor | None, precision: torch.dtype) -> Tensor:
    """Return x W^T + b; when training in bf16, padded to whole rows of 16 bytes.

    A single step of decoding is too small for that: padding the weights would take longer.
    """
    inner, outer = -W.shape[1] % ROW_MULTIPLE, -W.shape[0] % ROW_MULTIPLE
    is_training = torch.is_grad_enabled() and precision == torch.bfloat16
    if not (inner or outer) or not is_training:
        return plain_linear(x, W, b)
    x = pad(x.to(precision), (0, inner))
    W = pad(W.to(precision), (0, inner, 0, outer))
    bias = None if b is None else pad(b, (0, outer))
    return plain_linear(x, W, bias)[..., : W.shape[0] - outer]
