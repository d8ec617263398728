"""What computes: PyTorch, or ONNX Runtime for exported models. The one place that chooses.

Both kinds of model directory open here, and nothing above this module knows which one it has.
PyTorch is imported only for models that need it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Union, cast

from covnmt.base.config import DecodeConfig
from covnmt.base.errors import UserError, install_command
from covnmt.base.processes import available_cpus
from covnmt.decoding.onnx.format import is_exported
from covnmt.decoding.onnx.runtime import OnnxEngine, OnnxModel, load_exported
from covnmt.decoding.protocol import Engine
from covnmt.model.directory import load_config

if TYPE_CHECKING:
    from covnmt.model.seq2seq import Seq2Seq

__all__ = ["Engine", "Network", "build_engine", "default_processes", "is_exported", "load_models"]

Network = Union["Seq2Seq", OnnxModel]


def load_models(
    directories: Sequence[Path], device: str, threads: int
) -> tuple[list[Network], DecodeConfig]:
    """Open model directories, all of one kind, and how the first one likes to decode.

    0 threads are as many as suit: one per core for PyTorch, one for an exported model.
    """
    exported = [is_exported(directory) for directory in directories]
    if all(exported):
        if device not in ("auto", "cpu"):
            raise UserError(
                f"{directories[0]}: an exported model runs on the CPU; leave --device out"
            )
        # its operations are so small that two threads mostly wait for each other, and they wait
        # busily: more of them than cores would stand in their own way for minutes
        threads = min(threads or 1, available_cpus())
        loaded = [load_exported(directory, threads) for directory in directories]
        return [model for model, _ in loaded], loaded[0][1].decode
    if any(exported):
        raise UserError("an ensemble is of exported models or of trained ones, not of both")
    return _load_trained(directories, device, threads)


def default_processes(directory: Path, threads: int) -> int:
    """How many suit a long text: one per thread of an exported model; 0 threads: one per core."""
    return (threads or available_cpus()) if is_exported(directory) else 1


def _load_trained(
    directories: Sequence[Path], device: str, threads: int
) -> tuple[list[Network], DecodeConfig]:
    try:
        import torch
    except ImportError:
        for directory in directories:
            load_config(directory)  # what is no model is not mended by PyTorch
        raise UserError(
            f"{directories[0]}: needs PyTorch, which is not installed: "
            f"{install_command('train')}, or use an exported model (covnmt export)"
        ) from None
    from covnmt.decoding.torch import pick_device
    from covnmt.model.checkpoint import load_model

    if threads:
        torch.set_num_threads(threads)
    loaded = [load_model(directory, pick_device(device)) for directory in directories]
    return [model for model, _ in loaded], loaded[0][1].decode


def build_engine(models: Sequence[Network], end: int) -> Engine:
    """What runs these models, which are all of one kind; `end` is the target's end symbol."""
    if isinstance(models[0], OnnxModel):
        return OnnxEngine(cast(Sequence[OnnxModel], models), end)
    from covnmt.decoding.torch import TorchEngine

    return TorchEngine(cast("Sequence[Seq2Seq]", models), end)
