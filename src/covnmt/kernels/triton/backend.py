"""The Triton kernels with the interface of `dispatch.Kernels`.

They compute in float32 or bfloat16. In other precisions, and for coverage models and sentence
lengths without a kernel, they leave the work to plain PyTorch.
"""

from typing import Any

import torch
from torch import Tensor

from covnmt.kernels import reference
from covnmt.kernels.dispatch import Kernels
from covnmt.kernels.tensors import (
    DecoderSteps,
    DecoderWeights,
    DecodingWeights,
    EncodedSource,
    GruWeights,
)
from covnmt.kernels.triton import decoder, encoder, loss, products
from covnmt.kernels.triton.step import TritonDecoderStep

PRECISIONS = (torch.float32, torch.bfloat16)


class TritonKernels(Kernels):
    """Triton kernels for the loops over steps, the loss and the step of a beam search."""

    def encode(self, ahead: GruWeights, back: GruWeights, x: Tensor, mask: Tensor) -> Tensor | None:
        if (precision := product_precision(x)) not in PRECISIONS:
            return None
        return encoder.encode(ahead, back, x, mask, precision)

    def decode_teacher_forced(
        self, weights: DecoderWeights, source: EncodedSource, y: Tensor
    ) -> DecoderSteps | None:
        precision, J = product_precision(y), source.keys.shape[1]
        if precision not in PRECISIONS or not decoder.supports(weights.coverage, J):
            return None
        return decoder.decode_teacher_forced(weights, source, y, precision)

    def decoding_step(
        self, weights: DecodingWeights, dtype: torch.dtype
    ) -> TritonDecoderStep | None:
        # of any length: `TritonDecoderStep.supports_length` is asked for each batch
        if dtype not in PRECISIONS or not decoder.supports(weights.decoder.coverage, J=1):
            return None
        return TritonDecoderStep(weights, dtype)

    def linear(self, x: Tensor, W: Tensor, b: Tensor | None = None) -> Tensor:
        return products.linear(x, W, b, product_precision(x))

    @staticmethod
    def cross_entropy(features: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        if (precision := product_precision(features)) not in PRECISIONS:
            return reference.cross_entropy(features, *rest)
        return loss.cross_entropy(features, *rest, precision=precision)


def product_precision(x: Tensor) -> torch.dtype:
    """Return what products of x compute in: its own type, or that of autocast."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
