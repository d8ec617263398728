"""What every engine does, in arrays on the host: search, and decode a given target.

Letters: S sentences, J source and I target positions, both with the end symbol.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from covnmt.base.arrays import AnyArray, FloatArray
from covnmt.base.config import DecodeConfig
from covnmt.data.padding import PaddedIds
from covnmt.decoding.backtrace import Hypothesis

# Called after every step of a search: a sentence, and the token ids of its best hypothesis so far.
StepCallback = Callable[[int, tuple[int, ...]], None]


class SearchResult(NamedTuple):
    """The translations of S sentences."""

    hypotheses: list[list[Hypothesis]]  # the n best of each, best first
    fertility: AnyArray | None  # [S, J], where the models predict it


class ForcedDecoding(NamedTuple):
    """What the model says about S given targets."""

    alpha: FloatArray  # [S, I, J]
    log_probs: FloatArray  # [S] of the whole target, end symbol included
    fertility: FloatArray | None  # [S, J]


class Engine(Protocol):
    """One model, or an ensemble, opened for translation."""

    device: str  # cpu or cuda

    def search(
        self, source: PaddedIds, decode: DecodeConfig, on_step: StepCallback | None
    ) -> SearchResult:
        """Translate. A GPU's own search calls `on_step` only at its end."""

    def force_decode(self, source: PaddedIds, target: PaddedIds) -> ForcedDecoding:
        """Decode these targets with the first model."""
