"""Which GPUs the Triton kernels are for, and how much of their work those can have at hand.

Tilings were chosen on an H200. Other GPUs have less shared memory, so that a kernel there has fewer
tiles on their way at a time where it would not have started at all.
"""

from functools import cache

import torch

from covnmt.progress import tell

OLDEST = (8, 0)  # compute capability; Triton supports no older one, nor do tensor cores know bf16
H200 = 227 * 1024  # bytes of shared memory for one program
BESIDE = 24 * 1024  # bytes of it that the kernels want besides the tiles on their way


@cache
def runs_kernels(device: torch.device) -> bool:
    """Whether the kernels are for this GPU; a person is told, once, where they are not."""
    capability = torch.cuda.get_device_capability(device)
    if torch.version.hip is None and capability >= OLDEST:
        return True
    of = "an AMD GPU" if torch.version.hip else "compute capability {}.{}".format(*capability)
    tell(
        f"{torch.cuda.get_device_name(device)} ({of}): the Triton kernels need an NVIDIA GPU of "
        "compute capability {}.{} or later; ".format(*OLDEST)
        + "going on with plain PyTorch, which is slower. COVNMT_OPS=triton tries them all the same",
        style="yellow",
    )
    return False


def has_bf16(device: torch.device) -> bool:
    """Whether this is a GPU that computes in bf16 itself; PyTorch emulates it on older ones."""
    if device.type != "cuda":
        return False
    return torch.version.hip is not None or torch.cuda.get_device_capability(device) >= OLDEST


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes that one program may have; where there is no GPU, as on the H200."""
    if device.type != "cuda":
        return H200
    properties = torch.cuda.get_device_properties(device)
    found = getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block)
    return int(found)


@cache
def has_tensor_memory(device: torch.device) -> bool:
    """Whether products have a memory of their own (B200); shared memory must feed it."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] in (10, 11)


def fitting_stages(most: int, tile: int, device: torch.device) -> int:
    """How many tiles of so many bytes can be in progress: one is worked on, the others arrive."""
    arriving = (shared_memory(device) - BESIDE) // tile
    return max(1, min(most, arriving + 1))
