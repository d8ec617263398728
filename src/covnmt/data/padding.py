"""Sentences of different lengths side by side."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from covnmt.data.corpus import TokenIds
from covnmt.text.vocabulary import PAD_ID

T = TypeVar("T")

LONG = 400  # tokens; sentences up to here are put side by side as many as there may be


class PaddedIds(NamedTuple):
    """S sentences as one array; J is the longest, with its end symbol."""

    ids: NDArray[np.int64]  # [S, J]
    mask: NDArray[np.bool_]  # [S, J] true on words and end symbols

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Real positions of each [S]."""
        lengths: NDArray[np.int64] = self.mask.sum(axis=1)
        return lengths


def length_sorted_batches(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """The numbers of all sentences, so many at a time, shortest first: little to fill up.

    Fewer at a time where one is so long that the others would cost far too much beside it.
    """
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        tokens = (len(batch) + 1) * lengths[number]
        if len(batch) == size or (batch and tokens > size * LONG):
            yield batch
            batch = []
        batch.append(number)
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


def pad_ids(rows: Sequence[TokenIds | Sequence[int]], end: int) -> PaddedIds:
    """Put sentences side by side, each with its end symbol."""
    lengths = np.array([len(row) for row in rows])  # [S]
    ids = np.full((len(rows), lengths.max() + 1), PAD_ID, dtype=np.int64)  # [S, J]
    for padded, row in zip(ids, rows, strict=True):
        padded[: len(row)] = row
        padded[len(row)] = end
    return PaddedIds(ids, np.arange(ids.shape[1]) <= lengths[:, None])
