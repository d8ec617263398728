"""Choose what the hot path computes with: plain PyTorch or Triton kernels.

`reference` has the paper's equations in PyTorch; it runs everywhere and is the oracle. The Triton
kernels replace it on a GPU that is new enough, where Triton is installed and knows the model. The
environment variable COVNMT_OPS forces a choice: `reference`, or `triton` (on a CPU with
TRITON_INTERPRET=1). It is read when a model is first used after it was built or moved.
"""

import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from covnmt.base.errors import UserError, install_command
from covnmt.kernels import gpu, reference
from covnmt.kernels.tensors import (
    DecoderSteps,
    DecoderWeights,
    DecodingWeights,
    EncodedSource,
    GruWeights,
)

if TYPE_CHECKING:
    from covnmt.kernels.triton.step import TritonDecoderStep


class Kernels:
    """Plain PyTorch, without fused kernels; `TritonKernels` overrides these methods.

    A method that returns None has no kernel for the whole loop: the caller loops over the steps.
    """

    def encode(self, ahead: GruWeights, back: GruWeights, x: Tensor, mask: Tensor) -> Tensor | None:
        """Encode embedded source tokens x [S, J, m]: annotations [S, J, 2n]."""
        return None

    def decode_teacher_forced(
        self, weights: DecoderWeights, source: EncodedSource, y: Tensor
    ) -> DecoderSteps | None:
        """Decode on embedded previous tokens y [B, I, m], of which the first is zero."""
        return None

    def decoding_step(
        self, weights: DecodingWeights, dtype: torch.dtype
    ) -> "TritonDecoderStep | None":
        """Make the step of a beam search in this precision, with the weights as they are now."""
        return None

    def linear(self, x: Tensor, W: Tensor, b: Tensor | None = None) -> Tensor:
        """Return x W^T + b."""
        return nn.functional.linear(x, W, b)

    cross_entropy = staticmethod(reference.cross_entropy)


class KernelModule(nn.Module):
    """A module that keeps its choice of kernels until it is moved to another device."""

    _kernels: Kernels | None = None

    @property
    def kernels(self) -> Kernels:
        """The kernels for the device of the parameters."""
        if self._kernels is None:
            self._kernels = select_kernels(next(self.parameters()).device)
        return self._kernels

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # PyTorch calls this for .to(), .cuda() and the like
        self._kernels = None
        moved: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return moved


def select_kernels(device: torch.device) -> Kernels:
    """Choose the kernels for tensors on this device, as COVNMT_OPS says."""
    if not _wants_triton(device):
        return Kernels()
    from covnmt.kernels.triton.backend import TritonKernels

    return TritonKernels()


def uses_triton(device: torch.device) -> bool:
    """Whether updates on this device run on Triton kernels, and can be captured as CUDA graphs."""
    return device.type == "cuda" and _wants_triton(device)


def _wants_triton(device: torch.device) -> bool:
    choice = os.environ.get("COVNMT_OPS", "auto")
    if choice not in ("auto", "reference", "triton"):
        raise UserError(f"COVNMT_OPS is {choice!r}; set it to reference, triton or auto")
    on_gpu = device.type == "cuda"
    if choice != "triton":
        wanted = choice == "auto" and on_gpu
        return wanted and _triton_installed() and gpu.supports_kernels(device)
    # Triton itself would end in a traceback
    if not _triton_installed():
        raise UserError(f"COVNMT_OPS is triton, which is not installed: {install_command('gpu')}")
    if not on_gpu and os.environ.get("TRITON_INTERPRET") != "1":
        raise UserError(
            "COVNMT_OPS is triton, but this runs on a CPU; unset it, or try the kernels there, "
            "slowly, with TRITON_INTERPRET=1"
        )
    return True


@cache
def _triton_installed() -> bool:
    return find_spec("triton") is not None
