"""Pad sentences of different lengths to one array, and choose which share a batch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from covnmt.base.arrays import BoolArray, IntArray
from covnmt.text.vocabulary import PAD_ID

if TYPE_CHECKING:
    from covnmt.data.corpus import TokenIds

T = TypeVar("T")

LONG_SENTENCE = 400  # tokens; longer sentences share a batch with fewer others


class PaddedIds(NamedTuple):
    """S sentences as one array; J is the longest length, with the end symbol."""

    ids: IntArray  # [S, J]
    mask: BoolArray  # [S, J] false on padding

    @property
    def lengths(self) -> IntArray:
        """Count the tokens of each sentence, with its end symbol [S]."""
        lengths: IntArray = self.mask.sum(axis=1)
        return lengths


def length_sorted_batches(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Yield the indices of all sentences in batches of `size`, shortest first to save padding.

    Batches of very long sentences are smaller, so that memory stays bounded.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        padded_tokens = (len(batch) + 1) * lengths[index]
        if len(batch) == size or (batch and padded_tokens > size * LONG_SENTENCE):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def map_in_batches(
    function: Callable[[list[int]], Iterable[T]], lengths: Sequence[int], size: int
) -> list[T]:
    """Apply a function to batches of indices of similar length; return results in index order.

    The function returns one result for each index it is given.
    """
    results: dict[int, T] = {}
    for batch in length_sorted_batches(lengths, size):
        results.update(zip(batch, function(batch), strict=True))
    return [results[index] for index in range(len(lengths))]


def pad_ids(sentences: "Sequence[TokenIds | Sequence[int]]", end_id: int) -> PaddedIds:
    """Add the end symbol to each sentence, and padding up to the longest."""
    lengths = np.array([len(sentence) for sentence in sentences])  # [S]
    ids = np.full((len(sentences), lengths.max() + 1), PAD_ID, dtype=np.int64)  # [S, J]
    for row, sentence in zip(ids, sentences, strict=True):
        row[: len(sentence)] = sentence
        row[len(sentence)] = end_id
    return PaddedIds(ids, np.arange(ids.shape[1]) <= lengths[:, None])
