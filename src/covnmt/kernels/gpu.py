"""Which GPUs the Triton kernels support, and how many tiles fit into their shared memory.

Tilings were tuned on an H200. On a GPU with less shared memory fewer tiles are in flight at a time;
as tuned, a kernel would not start there.
"""

from functools import cache
from typing import NamedTuple

import torch

from covnmt.base.console import warn

MIN_CAPABILITY = (8, 0)  # Triton supports no older one, nor do tensor cores know bf16
H200_SHARED_MEMORY = 227 * 1024  # bytes for one program
RESERVED_MEMORY = 24 * 1024  # bytes of shared memory for other things than tiles in flight


class Gpu(NamedTuple):
    """The properties that decide which kernels run, and how."""

    name: str
    amd: bool
    capability: tuple[int, int]
    shared_memory: int  # bytes that one program may have


@cache
def describe_gpu(device: torch.device) -> Gpu:
    """Ask PyTorch for the properties of a GPU."""
    gpu = torch.cuda.get_device_properties(device)
    memory = getattr(gpu, "shared_memory_per_block_optin", gpu.shared_memory_per_block)
    return Gpu(gpu.name, torch.version.hip is not None, (gpu.major, gpu.minor), memory)


@cache
def supports_kernels(device: torch.device) -> bool:
    """Return whether the kernels run on this GPU; warn once if they do not."""
    gpu = describe_gpu(device)
    if not gpu.amd and gpu.capability >= MIN_CAPABILITY:
        return True
    kind = "an AMD GPU" if gpu.amd else "compute capability {}.{}".format(*gpu.capability)
    warn(
        f"{gpu.name} ({kind}): the Triton kernels need an NVIDIA GPU of "
        "compute capability {}.{} or later; ".format(*MIN_CAPABILITY)
        + "using plain PyTorch, which is slower. COVNMT_OPS=triton tries the kernels anyway",
    )
    return False


def has_bf16(device: torch.device) -> bool:
    """Return whether this GPU computes in bf16 itself; PyTorch emulates it on older ones."""
    if device.type != "cuda":
        return False
    gpu = describe_gpu(device)
    return gpu.amd or gpu.capability >= MIN_CAPABILITY


def shared_memory(device: torch.device) -> int:
    """Return the bytes that one program may have; on a CPU those of the H200."""
    return describe_gpu(device).shared_memory if device.type == "cuda" else H200_SHARED_MEMORY


def has_tensor_memory(device: torch.device) -> bool:
    """Return whether products have their own memory (B200), which shared memory must feed."""
    return device.type == "cuda" and describe_gpu(device).capability[0] in (10, 11)


def fitting_stages(most: int, tile_bytes: int, device: torch.device) -> int:
    """Return how many tiles fit, at most `most`: one is worked on, the others are in flight."""
    in_flight = (shared_memory(device) - RESERVED_MEMORY) // tile_bytes
    return max(1, min(most, in_flight + 1))
