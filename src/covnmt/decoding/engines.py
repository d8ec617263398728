"""Open models with what computes for them: PyTorch, or ONNX Runtime for exported models.

Nothing above this module knows which engine it has. What an engine takes and returns are arrays on
the host. PyTorch is imported only for models that need it.

Notation: S sentences, J source and I target positions, both with the end symbol.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, Union, cast

from covnmt.base.arrays import AnyArray, FloatArray
from covnmt.base.config import DecodeConfig
from covnmt.base.cpus import available_cpus
from covnmt.base.errors import UserError, install_command
from covnmt.data.padding import PaddedIds
from covnmt.decoding.backtrace import Hypothesis
from covnmt.decoding.onnx.format import is_exported
from covnmt.model.directory import ModelDescription

if TYPE_CHECKING:
    from covnmt.decoding.onnx.runtime import OnnxModel
    from covnmt.model.seq2seq import Seq2Seq

Network = Union["Seq2Seq", "OnnxModel"]

# Called after every step of a search: a sentence, and the token ids of its best hypothesis so far.
StepCallback = Callable[[int, tuple[int, ...]], None]


def do_nothing() -> None:
    """Let the search continue."""


class SearchResult(NamedTuple):
    """The translations of S sentences."""

    hypotheses: list[list[Hypothesis]]  # the n best of each, best first
    fertility: AnyArray | None  # [S, J], where the models predict it


class ForcedDecoding(NamedTuple):
    """What the model says about S given targets."""

    alpha: FloatArray  # [S, I, J]
    log_probs: FloatArray  # [S] of the whole target, end symbol included
    fertility: FloatArray | None  # [S, J]
    token_log_probs: FloatArray  # [S, I]; 0 on padding


class CoverageAblation(NamedTuple):
    """Attention of S sentences with the coverage and, in the same states, with others instead."""

    alpha: FloatArray  # [S, I, J]
    without_coverage: FloatArray  # [S, I, J] with C_0
    unattended: FloatArray | None  # [S, I, J] with that of words never attended to; not by ONNX
    fertility: FloatArray | None  # [S, J]


class Engine(Protocol):
    """One model, or an ensemble, opened for translation."""

    device: str  # cpu or cuda
    # Called before every step on the host, or once where all steps are one operation. It may raise
    # to end a search, forced decoding or ablation.
    before_step: Callable[[], None]

    def search(
        self, source: PaddedIds, decode: DecodeConfig, on_step: StepCallback | None
    ) -> SearchResult:
        """Translate. A GPU's own search calls `on_step` only at its end."""

    def force_decode(self, source: PaddedIds, target: PaddedIds) -> ForcedDecoding:
        """Decode these targets with the first model."""

    def ablate_coverage(self, source: PaddedIds, target: PaddedIds) -> CoverageAblation:
        """Force-decode with the first model, and attend at every step without coverage too.

        The decoder's states stay those of the model as it is.
        """


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
    from covnmt.decoding.onnx.runtime import OnnxModel

    if device not in ("auto", "cpu"):
        raise UserError(f"{directories[0]}: an exported model runs on the CPU; leave --device out")
    # its operations are so small that two threads mostly wait for each other, and they wait
    # busily: more of them than cores would stand in their own way for minutes
    threads = min(threads or 1, available_cpus())
    return [OnnxModel(directory, description, threads) for directory, description in models]


def _load_trained(
    models: Sequence[tuple[Path, ModelDescription]], device: str, threads: int
) -> list[Network]:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise UserError(
            f"{models[0][0]}: needs PyTorch, which is not installed: "
            f"{install_command('train')}, or use an exported model (covnmt export)"
        ) from None
    from covnmt.decoding.torch import limit_threads, pick_device
    from covnmt.model.checkpoint import load_network

    limit_threads(threads)
    return [
        load_network(directory, description, pick_device(device))
        for directory, description in models
    ]


def build_engine(models: Sequence[Network], end_id: int) -> Engine:
    """Return the engine that runs these models, all of one kind; `end_id` is that of the target."""
    from covnmt.decoding.onnx.runtime import OnnxEngine, OnnxModel

    if isinstance(models[0], OnnxModel):
        return OnnxEngine(cast("Sequence[OnnxModel]", models), end_id)
    from covnmt.decoding.torch import TorchEngine

    return TorchEngine(cast("Sequence[Seq2Seq]", models), end_id)
