"""What every engine does, in arrays on the host: search, and decode a given target.

Letters: S sentences, J source and I target positions, both with the end symbol.
"""

from typing import NamedTuple, Protocol

from covnmt.base.arrays import FloatArray
from covnmt.base.config import DecodeConfig
from covnmt.data.padding import PaddedIds
from covnmt.decoding.beam_search import SearchResult, StepCallback


class ForcedDecoding(NamedTuple):
    """What S given targets met with."""

    alpha: FloatArray  # [S, I, J]
    log_probs: FloatArray  # [S] of the whole target, end symbol included
    fertility: FloatArray | None  # [S, J]


class Engine(Protocol):
    """One model, or several that vote, ready to work."""

    device: str  # cpu or cuda

    def search(
        self, source: PaddedIds, decode: DecodeConfig, watch: StepCallback | None
    ) -> SearchResult:
        """Translate; `watch` is told after every step, by a GPU's own search in the end."""

    def force_decode(self, source: PaddedIds, target: PaddedIds) -> ForcedDecoding:
        """Decode these targets with the first model."""
