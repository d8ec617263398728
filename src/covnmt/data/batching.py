"""Id arrays -> batches, in an order that depends on nothing but settings, seed and batch number.

So a resumed run goes on with the batch it would have seen. Training batches come in blocks: the
paper's pools (SPEC 1.1), or sections of the shuffled corpus, sorted into token buckets. A block is
a pure function of its number and is made from its own pairs alone, so neither the beginning of a
run nor its memory depends on the size of the corpus. Letters: B pairs, J source and I target
positions, both with the end symbol.
"""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from covnmt.base.arrays import IntArray
from covnmt.base.config import DataConfig
from covnmt.base.errors import UserError
from covnmt.data.corpus import Split, TokenIds
from covnmt.data.padding import length_sorted_batches as by_length
from covnmt.data.padding import pad_ids
from covnmt.text.vocabulary import PAD_ID

T = TypeVar("T")

# Batches of a token bucket that exchange pairs between epochs: enough to mix, few enough that
# the shorter sides of the pairs stay alike too.
BATCHES_PER_CELL = 16
# Most pairs that are sorted into buckets together.
SECTION = 1 << 20


@dataclass(frozen=True)
class Batch:
    """Pairs side by side; both sides end with the end symbol and are padded with 0."""

    source: Tensor  # [B, J] int64
    source_mask: Tensor  # [B, J] bool, true on words and end symbols
    target: Tensor  # [B, I] int64
    target_mask: Tensor  # [B, I] bool

    @property
    def size(self) -> int:
        """Pairs."""
        return self.source.shape[0]

    @property
    def target_tokens(self) -> int:
        """Target words with their end symbols, without padding."""
        return int(self.target_mask.sum())

    def to(self, device: torch.device | str) -> "Batch":
        """A copy on the device; from pinned memory it does not wait."""
        pinned = self.source.is_pinned()
        return self._map(lambda tensor: tensor.to(device, non_blocking=pinned))

    def pin_memory(self) -> "Batch":
        """A copy in memory that a GPU reads directly."""
        return self._map(Tensor.pin_memory)

    def clone(self) -> "Batch":
        """A copy of its own."""
        return self._map(Tensor.clone)

    def copy_(self, other: "Batch") -> None:
        """Take over another batch of the same shape, in place."""
        for name in ("source", "source_mask", "target", "target_mask"):
            getattr(self, name).copy_(getattr(other, name), non_blocking=True)

    def pad_to_multiples(self, rows: int, columns: int) -> "Batch":
        """The same padded to multiples of so many pairs and words on both sides: fewer shapes.

        Rows that are added have one source position to look at and no target words.
        """

        def padded(tensor: Tensor, value: int) -> Tensor:
            missing = (0, -tensor.shape[1] % columns, 0, -self.size % rows)
            return nn.functional.pad(tensor, missing, value=value)

        source_mask = padded(self.source_mask, False)
        source_mask[self.size :, 0] = True
        return Batch(
            padded(self.source, PAD_ID),
            source_mask,
            padded(self.target, PAD_ID),
            padded(self.target_mask, False),
        )

    def _map(self, move: Callable[[Tensor], Tensor]) -> "Batch":
        return Batch(
            move(self.source), move(self.source_mask), move(self.target), move(self.target_mask)
        )


class BatchPosition(NamedTuple):
    """Where a batch stands in the endless sequence of them."""

    block: int
    batch: int  # within the block


FIRST_POSITION = BatchPosition(0, 0)


class PlannedBatch(NamedTuple):
    """Which pairs of a split form a training batch."""

    position: BatchPosition
    epoch: int
    indices: IntArray


def collate(
    pairs: Sequence[tuple[TokenIds | Sequence[int], TokenIds | Sequence[int]]],
    source_end: int,
    target_end: int,
) -> Batch:
    """Put pairs of ids side by side, adding the end symbols."""
    source = pad_ids([source for source, _ in pairs], source_end)
    target = pad_ids([target for _, target in pairs], target_end)
    return Batch(*map(torch.from_numpy, (*source, *target)))


def read_batch(split: Split, indices: IntArray, shape: tuple[int, int] = (1, 1)) -> Batch:
    """Read these pairs, rounded up to `shape`; into pinned memory where a GPU takes them."""
    pairs = [(split.source(i), split.target(i)) for i in indices.tolist()]
    batch = collate(pairs, split.source_end_id, split.target_end_id) if pairs else empty_batch()
    batch = batch.pad_to_multiples(*shape)
    return batch.pin_memory() if torch.cuda.is_available() else batch


def empty_batch() -> Batch:
    """A batch without words, whose gradient is zero: for a worker that has nothing to do.

    It has a source position to look at and two target steps, so that every weight takes part.
    """
    source, target = torch.full((1, 1), PAD_ID), torch.full((1, 2), PAD_ID)
    return Batch(source, torch.ones_like(source, dtype=torch.bool), target, target != PAD_ID)


def evaluation_batches(split: Split, batch_size: int) -> Iterator[IntArray]:
    """Every pair once, those of similar length together, shortest first."""
    for batch in by_length(_longer_side(split, slice(None)).tolist(), batch_size):
        yield np.array(batch)


def train_batches(
    split: Split, config: DataConfig, seed: int, start: BatchPosition = FIRST_POSITION
) -> Iterator[PlannedBatch]:
    """Training batches from `start` on, without end; a place beyond its block counts on."""
    batching = build_batching(split, config, seed)
    skip = start.batch
    for number in count(start.block):
        block = batching.block(number)
        for batch in range(skip, len(block)):
            place = BatchPosition(number, batch)
            yield PlannedBatch(place, batching.epoch(place), block[batch])
        skip = max(skip - len(block), 0)


class Batching(Protocol):
    """An endless sequence of batches, cut into blocks."""

    def block(self, number: int) -> list[IntArray]:
        """The batches of one block: indices of pairs."""

    def epoch(self, place: BatchPosition) -> int:
        """How often the whole corpus was read before this batch."""


def build_batching(split: Split, config: DataConfig, seed: int) -> Batching:
    """The scheme that the settings name, over the pairs that are not too long."""
    pairs = _fitting(split, config.max_length)
    if not len(pairs):
        raise UserError(
            f"{split.directory}: no pair of {split.name} has at most data.max_length = "
            f"{config.max_length} tokens on both sides; raise it, or prepare the text otherwise"
        )
    if config.batching == "paper":
        return PaperBatching(split, pairs, config.batch_size, config.pool)
    return TokenBatching(split, pairs, config.batch_tokens, seed)


def _fitting(split: Split, max_length: int) -> IntArray:
    """The pairs that are not too long, shuffled; looks at them only if some might be."""
    if split.max_length is not None and split.max_length <= max_length:
        return split.order
    return split.order[_longer_side(split, slice(None))[split.order] <= max_length]


def _longer_side(split: Split, pairs: IntArray | slice) -> IntArray:
    return np.maximum(*split.lengths(pairs))


class PaperBatching:
    """Pools of pairs in corpus order, each sorted by length and cut into batches (SPEC 1.1).

    The corpus is read as a ring: the last pool of an epoch goes on with the first pairs.
    """

    def __init__(self, split: Split, pairs: IntArray, batch_size: int, pool: int) -> None:
        self._split, self._pairs = split, pairs
        self._batch_size, self._pool = batch_size, pool

    def block(self, number: int) -> list[IntArray]:
        size = self._pool * self._batch_size
        pairs = self._pairs[np.arange(number * size, (number + 1) * size) % len(self._pairs)]
        shortest_first = np.argsort(_longer_side(self._split, pairs), kind="stable")
        return np.split(pairs[shortest_first], self._pool)

    def epoch(self, place: BatchPosition) -> int:
        number = place.block * self._pool + place.batch
        return number * self._batch_size // len(self._pairs)


class TokenBatching:
    """Batches of pairs of similar length with at most `batch_tokens` on either side.

    The shuffled corpus is read in sections, one a block. The pairs of a section are divided into
    cells of similar length; every epoch shuffles the pairs within each cell, cuts it into batches
    and shuffles those. All cuts are the same in every epoch.
    """

    def __init__(self, split: Split, pairs: IntArray, batch_tokens: int, seed: int) -> None:
        self._split, self._pairs = split, pairs
        self._batch_tokens, self._seed = batch_tokens, seed
        self._sections = -(-len(pairs) // SECTION)
        self._held: tuple[int, Section] | None = None

    def block(self, number: int) -> list[IntArray]:
        section = self._section(number % self._sections)
        random = np.random.default_rng([self._seed, number])
        shuffled = random.permutation(len(section.pairs))
        by_cell = shuffled[np.argsort(section.cells[shuffled], kind="stable")]
        batches = np.split(section.pairs[by_cell], section.cuts)
        return [batches[i] for i in random.permutation(len(batches))]

    def epoch(self, place: BatchPosition) -> int:
        return place.block // self._sections

    def _section(self, number: int) -> "Section":
        if self._held is None or self._held[0] != number:
            first, end = (k * len(self._pairs) // self._sections for k in (number, number + 1))
            section = divide_into_cells(self._split, self._pairs[first:end], self._batch_tokens)
            self._held = (number, section)
        return self._held[1]


class Section(NamedTuple):
    """Pairs sorted into cells, and where their batches begin."""

    pairs: IntArray
    cells: npt.NDArray[np.int32]  # of each pair
    cuts: IntArray


def divide_into_cells(split: Split, pairs: IntArray, batch_tokens: int) -> Section:
    """Divide these pairs into cells of similar length."""
    source, target = split.lengths(pairs)
    longer = np.maximum(source, target) + 1  # with the end symbol
    buckets = np.searchsorted(_bucket_edges(int(longer.max())), longer)
    # within a bucket by the difference, so that the shorter sides are alike as well
    order = np.lexsort((target - source, buckets))
    bucket_starts = np.flatnonzero(np.diff(buckets[order])) + 1
    cells, batches = _cut(np.split(longer[order], bucket_starts), batch_tokens)
    numbers = np.repeat(np.arange(len(cells), dtype=np.int32), cells)
    return Section(pairs[order], numbers, np.cumsum(batches)[:-1])


def _bucket_edges(longest: int) -> list[int]:
    """The greatest length of each bucket: a tenth, or one, more than that before."""
    edges = [1]
    while edges[-1] < longest:
        edges.append(edges[-1] + 1 + edges[-1] // 10)
    return edges


def _cut(buckets: Iterable[IntArray], batch_tokens: int) -> tuple[list[int], list[int]]:
    """The number of pairs in each cell and in each batch, given the lengths in each bucket."""
    cells, batches = [], []
    for lengths in buckets:
        most = max(1, batch_tokens // int(lengths.max()))
        for cell in _parts(len(lengths), most * BATCHES_PER_CELL):
            cells.append(cell)
            batches += _parts(cell, most)
    return cells, batches


def _parts(total: int, most: int) -> list[int]:
    """The fewest parts that are no more than `most`, as even as possible."""
    number = -(-total // most)
    return [(i + 1) * total // number - i * total // number for i in range(number)]


def prefetch(items: Iterable[T], depth: int) -> Iterator[T]:
    """The same items, made up to `depth` ahead in a background thread.

    An exception there is raised here. When the consumer stops, so does the thread.
    """
    ready: queue.Queue[T | _Done] = queue.Queue(depth)
    stop = threading.Event()
    thread = threading.Thread(target=_produce, args=(items, ready, stop), daemon=True)
    thread.start()
    try:
        while not isinstance(item := ready.get(), _Done):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stop.set()
        thread.join()


class _Done(NamedTuple):
    """Comes after the last item."""

    error: BaseException | None


def _produce(items: Iterable[T], ready: "queue.Queue[T | _Done]", stop: threading.Event) -> None:
    try:
        for item in items:
            if not _put(item, ready, stop):
                return
        end = _Done(None)
    except BaseException as error:  # the consumer's to handle
        end = _Done(error)
    _put(end, ready, stop)


def _put(item: T, ready: "queue.Queue[T]", stop: threading.Event) -> bool:
    """Wait for room; false if the consumer stopped instead."""
    while not stop.is_set():
        try:
            ready.put(item, timeout=0.1)
        except queue.Full:
            continue
        return True
    return False
