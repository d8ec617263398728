"""Phrase extraction: every occurrence of every phrase pair that agrees with the word links.

A phrase pair is a span of source words and a span of target words such that no link leaves the two
(Och and Ney, 2004). Unlinked words at the edge of the target span may belong to it or not; at the
edge of a source span they make further spans. Each occurrence in the corpus is stored as five
numbers. The whole corpus is searched at once, as concatenated arrays.

The fifth number is the orientation (Koehn et al., 2005): whether the target word before the phrase
comes from the source word before it (monotone), from the one after it (swap), or from elsewhere
(discontinuous), passing over words without a link.

Phrases are compared by 64-bit hashes, which for n different phrases collide with a chance below
n^2 / 2^64.

A link is (j, i), source and target position. A source span begins at a and has `length` words, the
target span begins at b and has `width_b`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covnmt.base.arrays import AnyArray, BoolArray, IntArray
from covnmt.base.console import track
from covnmt.data.corpus import SentenceIds
from covnmt.phrase_based.aligner import WordLinks
from covnmt.phrase_based.bitext import ArrayFile, Bitext
from covnmt.text.vocabulary import UNK_ID

Hashes = NDArray[np.uint64]

SENTENCES_AT_ONCE = 20_000  # sentence pairs in one array operation
PHRASES_AT_ONCE = 1_000_000  # phrases in one array operation
UNLINKED = np.iinfo(np.int64).max  # after any word that has a link
MONOTONE, SWAP, DISCONTINUOUS = range(3)
BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so it has an inverse modulo 2^64


@dataclass(frozen=True)
class Spans:
    """Spans of a concatenated corpus: row n of both arrays."""

    starts: IntArray
    lengths: IntArray

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, rows: IntArray | BoolArray | slice) -> "Spans":
        return Spans(self.starts[rows], self.lengths[rows])


@dataclass(frozen=True)
class PhraseOccurrences(ArrayFile):
    """Every occurrence of every phrase pair: row n of all arrays."""

    source_starts: AnyArray  # int32; lengths and orientation are int8
    source_lengths: AnyArray
    target_starts: AnyArray
    target_lengths: AnyArray
    orientation: AnyArray

    def __len__(self) -> int:
        return len(self.orientation)

    @property
    def source(self) -> Spans:
        """The source phrases."""
        return Spans(self.source_starts, self.source_lengths)

    @property
    def target(self) -> Spans:
        """The target phrases."""
        return Spans(self.target_starts, self.target_lengths)


def extract_phrases(bitext: Bitext, links: WordLinks, max_phrase_length: int) -> PhraseOccurrences:
    """Find all occurrences of phrase pairs without unknown words, up to a length of either side."""
    starts = range(0, len(bitext), SENTENCES_AT_ONCE)
    unit = f"x {SENTENCES_AT_ONCE:,} pairs"
    chunks = [
        columns
        for start in track(starts, len(starts), "extracting phrases", unit)
        for columns in _extract_chunk(
            bitext, links, slice(start, start + SENTENCES_AT_ONCE), max_phrase_length
        )
    ]
    none = [np.zeros(0, dtype) for dtype in (np.int32, np.int8, np.int32, np.int8, np.int8)]
    return PhraseOccurrences(*map(np.concatenate, zip(none, *chunks, strict=True)))


@dataclass(frozen=True)
class SentenceBlock:
    """One side of consecutive sentences; positions count from the first of them."""

    begin: int  # position of the block in the corpus
    unknown: IntArray  # [words + 1] number of unknown words before each position
    sentence: IntArray  # [words] the sentence of each word
    starts: IntArray  # [sentences] position of the first word

    @classmethod
    def from_rows(cls, sentences: SentenceIds, rows: slice) -> "SentenceBlock":
        """Take some sentences of a corpus."""
        offsets = sentences.offsets[rows.start : rows.stop + 1]
        ids = sentences.ids[offsets[0] : offsets[-1]]
        unknown = np.concatenate([[0], np.cumsum(ids == UNK_ID)])
        sentence = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        return cls(int(offsets[0]), unknown, sentence, offsets[:-1] - offsets[0])

    def all_known(self, starts: IntArray, lengths: IntArray) -> BoolArray:
        """Tell which spans have no unknown word."""
        return np.asarray(self.unknown[starts + lengths] == self.unknown[starts])

    def sentence_start(self, words: IntArray) -> IntArray:
        """Return the position where the sentence of each word begins."""
        return self.starts[self.sentence[words]]

    def spans(self, starts: IntArray, lengths: IntArray) -> tuple[AnyArray, AnyArray]:
        """Return starts in the whole corpus and lengths, in few bytes."""
        return (starts + self.begin).astype(np.int32), lengths.astype(np.int8)


def _extract_chunk(
    bitext: Bitext, links: WordLinks, rows: slice, max_phrase_length: int
) -> Iterator[tuple[AnyArray, ...]]:
    """Yield columns of `PhraseOccurrences`, by the length of the source phrase."""
    source, target = (
        SentenceBlock.from_rows(bitext.source, rows),
        SentenceBlock.from_rows(bitext.target, rows),
    )
    counts = np.diff(links.offsets[rows.start : rows.stop + 1])
    pair = rows.start + np.repeat(np.arange(len(counts)), counts)
    chosen = slice(links.offsets[rows.start], links.offsets[rows.start + len(counts)])
    j = links.source[chosen] + bitext.source.offsets[pair] - source.begin
    i = links.target[chosen] + bitext.target.offsets[pair] - target.begin
    linked = _linked(j, source), _linked(i, target)
    source_ranges = _link_ranges(j, i, len(source.sentence))
    target_ranges = _link_ranges(i, j, len(target.sentence))
    neighbors = LinkedNeighbors.from_links(source, target, linked, target_ranges)
    left = _unlinked_before(linked[1], target.sentence, max_phrase_length)
    right = _unlinked_before(linked[1][::-1], target.sentence[::-1], max_phrase_length)[::-1]
    for length, starts, first, width in _minimal_pairs(
        source, source_ranges, target_ranges, max_phrase_length
    ):
        free_neighbors = left[first], right[first + width - 1]
        for a, b, width_b in _widen_targets(
            starts, first, width, free_neighbors, max_phrase_length
        ):
            lengths = np.full_like(a, length)
            usable = source.all_known(a, lengths) & target.all_known(b, width_b)
            a, b, width_b, lengths = a[usable], b[usable], width_b[usable], lengths[usable]
            orientation = neighbors.orientation(a, b, length)
            yield *source.spans(a, lengths), *target.spans(b, width_b), orientation


@dataclass(frozen=True)
class LinkedNeighbors:
    """What the orientation of a phrase pair depends on; words without a link are passed over."""

    before_source: IntArray  # [words + 1] the last linked word before each position
    after_source: IntArray  # [words + 1] the first linked word from each position on
    before_target: IntArray
    low: IntArray  # [target words] the first and the last source word of each
    high: IntArray
    source: SentenceBlock
    target: SentenceBlock

    @classmethod
    def from_links(
        cls,
        source: SentenceBlock,
        target: SentenceBlock,
        linked: tuple[BoolArray, BoolArray],
        target_ranges: tuple[IntArray, IntArray],
    ) -> "LinkedNeighbors":
        """Build from which words of both sides are linked, and the link ranges of target words."""
        before = [
            np.maximum.accumulate(np.append(-1, np.where(side, np.arange(len(side)), -1)))
            for side in linked
        ]
        linked_source = np.where(linked[0], np.arange(len(linked[0])), UNLINKED)
        after = np.minimum.accumulate(np.append(linked_source, UNLINKED)[::-1])[::-1]
        return cls(before[0], after, before[1], *target_ranges, source, target)

    def orientation(self, a: IntArray, b: IntArray, length: int) -> NDArray[np.int8]:
        """Classify pairs whose source phrase begins at `a` and whose target phrase at `b`."""
        last = self.before_target[b]
        monotone = np.where(
            last < self.target.sentence_start(b),
            self.before_source[a] < self.source.sentence_start(a),
            self.high[last] == self.before_source[a],
        )
        inside = last >= self.target.sentence_start(b)
        swap = inside & (self.low[last] == self.after_source[a + length])
        return np.where(monotone, MONOTONE, np.where(swap, SWAP, DISCONTINUOUS)).astype(np.int8)


def _linked(positions: IntArray, side: SentenceBlock) -> BoolArray:
    return np.asarray(np.bincount(positions, minlength=len(side.sentence)) > 0)


def _widen_targets(
    starts: IntArray,
    first: IntArray,
    width: IntArray,
    free_neighbors: tuple[IntArray, IntArray],
    max_phrase_length: int,
) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
    """Yield the pairs with any number of the unlinked words before and after the target span."""
    for before in range(max_phrase_length):
        for after in range(max_phrase_length - before):
            widened = width + before + after
            fits = (
                (free_neighbors[0] >= before)
                & (free_neighbors[1] >= after)
                & (widened <= max_phrase_length)
            )
            yield starts[fits], first[fits] - before, widened[fits]


def _minimal_pairs(
    source: SentenceBlock,
    source_ranges: tuple[IntArray, IntArray],
    target_ranges: tuple[IntArray, IntArray],
    max_phrase_length: int,
) -> Iterator[tuple[int, IntArray, IntArray, IntArray]]:
    """Find the pairs whose target span begins and ends with linked words, for each source length.

    Yields the length, where the source and the target span start, and the length of the target.
    """
    low, high = source_ranges
    least, most = _span_link_ranges(*target_ranges, max_phrase_length)
    first, last = low, high
    for length in range(1, max_phrase_length + 1):
        if length > 1:
            first = np.minimum(first[:-1], low[length - 1 :])
            last = np.maximum(last[:-1], high[length - 1 :])
        starts = np.arange(len(first))
        one_sentence = source.sentence[starts] == source.sentence[starts + length - 1]
        fits = one_sentence & (last >= 0) & (last - first < max_phrase_length)
        starts, begin, width = starts[fits], first[fits], (last - first + 1)[fits]
        closed = (least[width - 1, begin] >= starts) & (most[width - 1, begin] < starts + length)
        yield length, starts[closed], begin[closed], width[closed]


def _link_ranges(
    positions: IntArray, other_positions: IntArray, words: int
) -> tuple[IntArray, IntArray]:
    """Find, for each word, the first and the last word of the other side that it is linked to."""
    low, high = np.full(words, UNLINKED), np.full(words, -1)
    np.minimum.at(low, positions, other_positions)
    np.maximum.at(high, positions, other_positions)
    return low, high


def _span_link_ranges(
    low: IntArray, high: IntArray, max_phrase_length: int
) -> tuple[IntArray, IntArray]:
    """Compute the link range of every span: row k holds the spans of k + 1 words by their start."""
    least, most = np.tile(low, (max_phrase_length, 1)), np.tile(high, (max_phrase_length, 1))
    for k in range(1, min(max_phrase_length, len(low))):
        least[k, :-k] = np.minimum(least[k - 1, :-k], low[k:])
        most[k, :-k] = np.maximum(most[k - 1, :-k], high[k:])
    return least, most


def _unlinked_before(linked: BoolArray, sentence: IntArray, max_phrase_length: int) -> IntArray:
    """Count the words without a link right before each word, up to `max_phrase_length`."""
    count = np.zeros(len(linked), dtype=np.int64)
    free = np.ones(len(linked), dtype=bool)
    for k in range(1, min(max_phrase_length, len(linked))):
        free[:k] = False
        free[k:] &= ~linked[:-k] & (sentence[:-k] == sentence[k:])
        count += free
    return count


def all_spans(text: SentenceIds, max_phrase_length: int) -> Spans:
    """List every span of up to `max_phrase_length` words in every sentence."""
    lengths = text.lengths()
    sentence = np.repeat(np.arange(len(lengths)), lengths)
    by_length = []
    for length in range(1, max_phrase_length + 1):
        starts = np.arange(len(sentence) - length + 1)
        by_length.append(starts[sentence[starts] == sentence[starts + length - 1]])
    counts = [len(starts) for starts in by_length]
    return Spans(np.concatenate(by_length), np.repeat(np.arange(1, max_phrase_length + 1), counts))


def hash_spans(ids: AnyArray, spans: Spans) -> Hashes:
    """Hash the words of each span, wherever the span is.

    The hash is the sum of mixed ids times powers of a base, divided by the power at the start of
    the span, modulo 2^64, where an odd base has an inverse.
    """
    powers = np.cumprod(np.full(len(ids), BASE))
    inverse = np.cumprod(np.full(len(ids) + 1, np.uint64(pow(int(BASE), -1, 2**64))))
    sums = np.concatenate(
        [np.zeros(1, np.uint64), np.cumsum(mix_bits(ids.astype(np.uint64)) * powers)]
    )
    result = np.empty(len(spans), dtype=np.uint64)
    for block in range(0, len(spans), PHRASES_AT_ONCE):
        rows = slice(block, block + PHRASES_AT_ONCE)
        start = spans[rows].starts.astype(np.int64)
        result[rows] = (sums[start + spans[rows].lengths] - sums[start]) * inverse[start]
    return result


def mix_bits(values: Hashes) -> Hashes:
    """Scatter numbers over all 64 bits; the mapping is one to one."""
    values = (values + np.uint64(1)) * BASE
    values = (values ^ (values >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.asarray(values ^ (values >> np.uint64(32)))


def find_hashes(values: Hashes, sorted_hashes: Hashes) -> IntArray:
    """Find the position of each value in a sorted array, or -1.

    Hashes are spread evenly, so the first bits of a value nearly give its position.
    """
    bits = max(len(sorted_hashes), 1).bit_length()
    shift = np.uint64(64 - bits)
    firsts = np.searchsorted(sorted_hashes, np.arange(2**bits, dtype=np.uint64) << shift)
    with_sentinel = np.append(sorted_hashes, np.uint64(2**64 - 1))
    positions = np.full(len(values), -1)
    for block in range(0, len(values), PHRASES_AT_ONCE):
        wanted = values[block : block + PHRASES_AT_ONCE]
        position = firsts[wanted >> shift]
        before = np.flatnonzero(with_sentinel[position] < wanted)
        while len(before):
            position[before] += 1
            before = before[with_sentinel[position[before]] < wanted[before]]
        equal = (with_sentinel[position] == wanted) & (position < len(sorted_hashes))
        positions[block : block + PHRASES_AT_ONCE] = np.where(equal, position, -1)
    return positions
