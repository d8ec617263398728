"""Scores of given pairs by forced decoding.

Pairs are decoded in batches of similar length. Results come in the order of the pairs, without
padding.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from covnmt.base.arrays import FloatArray
from covnmt.data.padding import PaddedIds, map_in_batches, pad_ids
from covnmt.decoding.engines import Engine
from covnmt.text.codec import Codec

if TYPE_CHECKING:
    from covnmt.metrics.attention_statistics import AttendedPair

T = TypeVar("T")

BATCH_SIZE = 64

IdPair = tuple[Sequence[int], Sequence[int]]  # source and target, without end symbols


class ForcedPair(NamedTuple):
    """What the model computes for one pair, its end symbols included."""

    alpha: FloatArray  # [I, J]
    log_prob: float  # of the whole target
    token_log_probs: FloatArray  # [I]
    fertility: FloatArray | None  # [J], where the model predicts it


@dataclass(frozen=True)
class ForcedDecoder:
    """An engine and the vocabularies of its models."""

    engine: Engine
    source: Codec
    target: Codec

    def map_decoded(
        self,
        function: Callable[[int, ForcedPair], T],
        pairs: Sequence[IdPair],
        batch_size: int | None = None,
    ) -> list[T]:
        """Decode pairs; return what the function makes of the index of each and its result."""

        def decode_batch(indices: list[int]) -> Iterator[T]:
            source, target = self._pad([pairs[k] for k in indices])
            forced = self.engine.force_decode(source, target)
            for row, k in enumerate(indices):
                J, I = (len(side) + 1 for side in pairs[k])
                yield function(
                    k,
                    ForcedPair(
                        forced.alpha[row, :I, :J],
                        float(forced.log_probs[row]),
                        forced.token_log_probs[row, :I],
                        None if forced.fertility is None else forced.fertility[row, :J],
                    ),
                )

        return map_in_batches(decode_batch, _lengths(pairs), batch_size or BATCH_SIZE)

    def ablate_coverage(self, pairs: Sequence[IdPair]) -> list["AttendedPair"]:
        """Attend at every step with the coverage and without; end symbols are not included."""
        # here, as it imports sacreBLEU, without which translating starts faster
        from covnmt.metrics.attention_statistics import AttendedPair

        def attend_batch(indices: list[int]) -> Iterator[AttendedPair]:
            source, target = self._pad([pairs[k] for k in indices])
            ablation = self.engine.ablate_coverage(source, target)
            Phi, unattended = ablation.fertility, ablation.unattended
            for row, k in enumerate(indices):
                J, I = map(len, pairs[k])
                yield AttendedPair(
                    ablation.alpha[row, :I, :J],
                    ablation.without_coverage[row, :I, :J],
                    None if Phi is None else Phi[row, :J],
                    None if unattended is None else unattended[row, :I, :J],
                )

        return map_in_batches(attend_batch, _lengths(pairs), BATCH_SIZE)

    def _pad(self, pairs: Sequence[IdPair]) -> tuple[PaddedIds, PaddedIds]:
        source = pad_ids([pair[0] for pair in pairs], self.source.vocabulary.end_id)
        return source, pad_ids([pair[1] for pair in pairs], self.target.vocabulary.end_id)


def _lengths(pairs: Sequence[IdPair]) -> list[int]:
    return [len(source) + len(target) for source, target in pairs]
