"""Which GPUs the Triton kernels are for, and how much of their work those can have at hand.

Tilings were chosen on an H200. Other GPUs have less shared memory, so that a kernel there has fewer
tiles on their way at a time where it would not have started at all.
"""

from functools import cache
from typing import NamedTuple

import torch

from covnmt.base.console import warn

OLDEST = (8, 0)  # compute capability; Triton supports no older one, nor do tensor cores know bf16
H200 = 227 * 1024  # bytes of shared memory for one program
BESIDE = 24 * 1024  # bytes of it that the kernels want besides the tiles on their way


class Gpu(NamedTuple):
    """What the choices here go by."""

    name: str
    amd: bool
    capability: tuple[int, int]
    shared_memory: int  # bytes that one program may have


@cache
def describe_gpu(device: torch.device) -> Gpu:
    """The GPU that this is."""
    found = torch.cuda.get_device_properties(device)
    memory = getattr(found, "shared_memory_per_block_optin", found.shared_memory_per_block)
    return Gpu(found.name, torch.version.hip is not None, (found.major, found.minor), memory)


@cache
def supports_kernels(device: torch.device) -> bool:
    """Whether the kernels are for this GPU; a person is told, once, where they are not."""
    found = describe_gpu(device)
    if not found.amd and found.capability >= OLDEST:
        return True
    of = "an AMD GPU" if found.amd else "compute capability {}.{}".format(*found.capability)
    warn(
        f"{found.name} ({of}): the Triton kernels need an NVIDIA GPU of "
        "compute capability {}.{} or later; ".format(*OLDEST)
        + "going on with plain PyTorch, which is slower. COVNMT_OPS=triton tries them all the same",
    )
    return False


def has_bf16(device: torch.device) -> bool:
    """Whether this is a GPU that computes in bf16 itself; PyTorch emulates it on older ones."""
    if device.type != "cuda":
        return False
    found = describe_gpu(device)
    return found.amd or found.capability >= OLDEST


def shared_memory(device: torch.device) -> int:
    """Bytes that one program may have; where there is no GPU, as on the H200."""
    return describe_gpu(device).shared_memory if device.type == "cuda" else H200


def has_tensor_memory(device: torch.device) -> bool:
    """Whether products have a memory of their own (B200); shared memory must feed it."""
    return device.type == "cuda" and describe_gpu(device).capability[0] in (10, 11)


def fitting_stages(most: int, tile: int, device: torch.device) -> int:
    """How many tiles of so many bytes can be in progress: one is worked on, the others arrive."""
    arriving = (shared_memory(device) - BESIDE) // tile
    return max(1, min(most, arriving + 1))
