"""The hot path: reading the source and decoding a given target, in one of two implementations.

`reference` is the paper's equations in PyTorch; it runs everywhere and is the oracle. The Triton
one takes its place on a GPU that is new enough, where Triton is installed and knows the model. The
environment variable COVNMT_OPS forces a choice: `reference`, or `triton` (on a CPU with
TRITON_INTERPRET=1).
"""

import os
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from covnmt.base.errors import UserError, install_command
from covnmt.kernels import gpu, reference
from covnmt.kernels.reference import Unrolled

if TYPE_CHECKING:
    from covnmt.kernels.triton.step import TritonDecoderStep
    from covnmt.model.decoder import Decoder, Memory
    from covnmt.model.encoder import Encoder
    from covnmt.model.seq2seq import Seq2Seq

__all__ = [
    "Unrolled",
    "cross_entropy",
    "fused_step",
    "linear",
    "read",
    "reference",
    "unroll",
    "uses_triton",
]

ALIGN = 8  # numbers: rows of 16 bytes in bf16


def read(encoder: "Encoder", x: Tensor, mask: Tensor) -> Tensor:
    """Annotations [S, J, 2n] of embedded words [S, J, m]; mask [S, J] is true on real words."""
    if not _use_triton(x):
        return reference.read(encoder, x, mask)
    from covnmt.kernels.triton import encoder as triton_encoder

    return triton_encoder.read(encoder, x, mask, _precision(x))


def unroll(decoder: "Decoder", memory: "Memory", y: Tensor) -> Unrolled:
    """Teacher-forced decoding on embedded previous words y [B, I, m] (y_0 is zero)."""
    if not _use_triton(y):
        return reference.unroll(decoder, memory, y)
    from covnmt.kernels.triton import decoder as triton_decoder

    if not triton_decoder.supports(decoder, memory):
        return reference.unroll(decoder, memory, y)
    return triton_decoder.unroll(decoder, memory, y, _precision(y))


def fused_step(
    model: "Seq2Seq", memory: "Memory", dtype: torch.dtype
) -> "TritonDecoderStep | None":
    """The step of a search with this model in this precision, where there is a faster one.

    The memory is like those to come.
    """
    if not _use_triton(memory.h.new_empty(0, dtype=dtype)):
        return None
    from covnmt.kernels.triton import decoder as triton_decoder
    from covnmt.kernels.triton import step as triton_step

    known = triton_decoder.supports(model.decoder, memory)
    return triton_step.TritonDecoderStep(model, dtype) if known else None


def linear(x: Tensor, W: Tensor, b: Tensor | None = None) -> Tensor:
    """x W^T + b; in training on a GPU padded to sizes that the tensor cores have fast products for.

    A single step of decoding is too small for that: padding the weights would take longer.
    """
    inner, outer = -W.shape[1] % ALIGN, -W.shape[0] % ALIGN
    precision = _precision(x)
    large = torch.is_grad_enabled() and precision == torch.bfloat16
    if not (inner or outer) or not large or not _use_triton(x):
        return nn.functional.linear(x, W, b)
    x = nn.functional.pad(x.to(precision), (0, inner))
    W = nn.functional.pad(W.to(precision), (0, inner, 0, outer))
    bias = None if b is None else nn.functional.pad(b, (0, outer))
    return nn.functional.linear(x, W, bias)[..., : W.shape[0] - outer]


def cross_entropy(
    features: Tensor, W: Tensor, b: Tensor, target: Tensor, mask: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Output layer and loss: the summed loss to differentiate, and the plain summed one.

    features [B, I, q] times W [V, q], against target words [B, I] where mask is true.
    """
    if not _use_triton(features):
        return reference.cross_entropy(features, W, b, target, mask, smoothing)
    from covnmt.kernels.triton import loss as triton_loss

    return triton_loss.cross_entropy(features, W, b, target, mask, smoothing, _precision(features))


def uses_triton(device: torch.device) -> bool:
    """Whether updates on this device run on Triton kernels, and can be captured as graphs."""
    return device.type == "cuda" and _use_triton(torch.empty(0, device=device))


@cache
def _triton_installed() -> bool:
    return find_spec("triton") is not None


def _precision(x: Tensor) -> torch.dtype:
    """What the products compute in."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def _use_triton(x: Tensor) -> bool:
    choice = os.environ.get("COVNMT_OPS", "auto")
    if choice not in ("auto", "reference", "triton"):
        raise UserError(f"COVNMT_OPS is {choice!r}; set it to reference, triton or auto")
    if choice == "reference" or _precision(x) not in (torch.float32, torch.bfloat16):
        return False
    if choice == "triton":
        _check_forced(x)
        return True
    return x.is_cuda and _triton_installed() and gpu.supports_kernels(x.device)


def _check_forced(x: Tensor) -> None:
    """What Triton itself would say of these comes with a traceback."""
    if not _triton_installed():
        raise UserError(f"COVNMT_OPS is triton, which is not installed: {install_command('gpu')}")
    if not x.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise UserError(
            "COVNMT_OPS is triton, but this runs on a CPU; unset it, or try the kernels there, "
            "slowly, with TRITON_INTERPRET=1"
        )
