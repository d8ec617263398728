"""Open models and choose what computes with them: PyTorch, or ONNX Runtime for exported models.

Both kinds of model directory open here, and nothing above this module knows which one it has.
PyTorch is imported only for models that need it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Union, cast

from covnmt.base.errors import UserError, install_command
from covnmt.base.processes import available_cpus
from covnmt.decoding.onnx.format import is_exported
from covnmt.decoding.onnx.runtime import OnnxEngine, OnnxModel
from covnmt.decoding.protocol import Engine
from covnmt.model.directory import ModelDescription

if TYPE_CHECKING:
    from covnmt.model.seq2seq import Seq2Seq

__all__ = [
    "Engine",
    "Network",
    "build_engine",
    "default_processes",
    "is_exported",
    "load_networks",
]

Network = Union["Seq2Seq", OnnxModel]


def load_networks(
    directories: Sequence[Path],
    descriptions: Sequence[ModelDescription],
    device: str,
    threads: int,
) -> list[Network]:
    """Open the networks of model directories, all of one kind, whose config.json has been read.

    The vocabularies are not looked at: see `check_vocabularies`. 0 threads means as many as suit
    the engine: one per core for PyTorch, one for an exported model.
    """
    exported = [is_exported(directory) for directory in directories]
    if any(exported) and not all(exported):
        raise UserError("an ensemble cannot mix exported and trained models")
    models = list(zip(directories, descriptions, strict=True))
    if not any(exported):
        return _load_trained(models, device, threads)
    if device not in ("auto", "cpu"):
        raise UserError(f"{directories[0]}: an exported model runs on the CPU; leave --device out")
    # its operations are so small that two threads mostly wait for each other, and they wait
    # busily: more of them than cores would stand in their own way for minutes
    threads = min(threads or 1, available_cpus())
    return [OnnxModel(directory, description, threads) for directory, description in models]


def default_processes(directory: Path, threads: int) -> int:
    """Return how many processes suit a long text.

    An exported model gets a process per thread; 0 threads means one per core.
    """
    return (threads or available_cpus()) if is_exported(directory) else 1


def _load_trained(
    models: Sequence[tuple[Path, ModelDescription]], device: str, threads: int
) -> list[Network]:
    try:
        import torch
    except ImportError:
        raise UserError(
            f"{models[0][0]}: needs PyTorch, which is not installed: "
            f"{install_command('train')}, or use an exported model (covnmt export)"
        ) from None
    from covnmt.decoding.torch import pick_device
    from covnmt.model.checkpoint import load_network

    if threads:
        torch.set_num_threads(threads)
    return [
        load_network(directory, description, pick_device(device))
        for directory, description in models
    ]


def build_engine(models: Sequence[Network], end_id: int) -> Engine:
    """Return the engine that runs these models, all of one kind; `end_id` is that of the target."""
    if isinstance(models[0], OnnxModel):
        return OnnxEngine(cast(Sequence[OnnxModel], models), end_id)
    from covnmt.decoding.torch import TorchEngine

    return TorchEngine(cast("Sequence[Seq2Seq]", models), end_id)
