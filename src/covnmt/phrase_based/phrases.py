"""Phrase pairs that agree with the word links: where each occurs, and how it follows the last.

A phrase pair is a run of source words and a run of target words such that no link leaves the two
(Och and Ney, 2004). Unlinked words at the edge of the target run may belong to it or not; at the
edge of a source run they are runs of their own. Every occurrence in the corpus is found once and
kept as five numbers, for all sentences at the same time: NumPy sees the corpus laid end to end.

The fifth is the orientation (Koehn et al., 2005): whether the target word before the phrase comes
from the source word before it (monotone), from the one after it (swap), or from elsewhere (other),
leaving aside words without a link.

Phrases are compared by 64-bit hashes, which for n different phrases collide with a chance below
n^2 / 2^64.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covnmt.base.arrays import AnyArray, BoolArray, IntArray
from covnmt.base.console import track
from covnmt.data.corpus import SentenceIds
from covnmt.phrase_based.aligner import WordLinks
from covnmt.phrase_based.bitext import Arrays, Bitext
from covnmt.text.vocabulary import UNK_ID

Hashes = NDArray[np.uint64]

CHUNK = 20_000  # pairs looked at together
BLOCK = 1_000_000  # phrases looked at together
FAR = np.iinfo(np.int64).max  # before any word that has a link
MONOTONE, SWAP, DISCONTINUOUS = range(3)
BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so it has an inverse modulo 2^64


@dataclass(frozen=True)
class Spans:
    """Runs of words in a corpus laid end to end: where each starts, and how long it is."""

    starts: IntArray
    lengths: IntArray

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, chosen: IntArray | BoolArray | slice) -> "Spans":
        return Spans(self.starts[chosen], self.lengths[chosen])


@dataclass(frozen=True)
class PhraseOccurrences:
    """Every occurrence of every phrase pair: row n of all three."""

    source: Spans
    target: Spans
    orientation: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, chosen: IntArray | BoolArray) -> "PhraseOccurrences":
        return PhraseOccurrences(self.source[chosen], self.target[chosen], self.orientation[chosen])

    def arrays(self) -> Arrays:
        """For a file."""
        spans = {
            f"{side}_{part}": getattr(spans, part).astype(np.int32 if part == "starts" else np.int8)
            for side, spans in (("source", self.source), ("target", self.target))
            for part in ("starts", "lengths")
        }
        return spans | {"orientation": self.orientation.astype(np.int8)}

    @classmethod
    def of(cls, arrays: Arrays) -> "PhraseOccurrences":
        """From such a file."""
        source, target = (
            Spans(arrays[f"{side}_starts"], arrays[f"{side}_lengths"])
            for side in ("source", "target")
        )
        return cls(source, target, arrays["orientation"])


def extract_phrases(bitext: Bitext, links: WordLinks, longest: int) -> PhraseOccurrences:
    """All occurrences of phrase pairs of up to `longest` words a side, without unknown words."""
    starts = range(0, len(bitext), CHUNK)
    unit = f"x {CHUNK:,} pairs"
    parts = [
        part
        for start in track(starts, len(starts), "extracting phrases", unit)
        for part in _extract_chunk(bitext, links, slice(start, start + CHUNK), longest)
    ]
    orientation = np.concatenate([np.zeros(0, np.int8), *(p.orientation for p in parts)])
    sides = _joined([p.source for p in parts]), _joined([p.target for p in parts])
    return PhraseOccurrences(*sides, orientation)


def _joined(spans: Sequence[Spans]) -> Spans:
    return Spans(
        np.concatenate([np.zeros(0, np.int32), *(each.starts for each in spans)]),
        np.concatenate([np.zeros(0, np.int8), *(each.lengths for each in spans)]),
    )


@dataclass(frozen=True)
class SentenceBlock:
    """One side of some of the sentences."""

    begin: int  # where they lie in the corpus
    unknown: IntArray  # [words + 1] unknown words before each place
    sentence: IntArray  # [words] the sentence of each word
    starts: IntArray  # [sentences] where each begins

    @classmethod
    def of(cls, sentences: SentenceIds, part: slice) -> "SentenceBlock":
        """Sentences `part` of a corpus."""
        offsets = sentences.offsets[part.start : part.stop + 1]
        ids = sentences.ids[offsets[0] : offsets[-1]]
        unknown = np.concatenate([[0], np.cumsum(ids == UNK_ID)])
        sentence = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        return cls(int(offsets[0]), unknown, sentence, offsets[:-1] - offsets[0])

    def known(self, starts: IntArray, lengths: IntArray) -> BoolArray:
        """Whether these runs have no unknown word."""
        return np.asarray(self.unknown[starts + lengths] == self.unknown[starts])

    def start(self, words: IntArray) -> IntArray:
        """Where the sentence of each word begins."""
        return self.starts[self.sentence[words]]

    def spans(self, starts: IntArray, lengths: IntArray) -> Spans:
        """These runs as places of the whole corpus, in few bytes."""
        return Spans((starts + self.begin).astype(np.int32), lengths.astype(np.int8))


def _extract_chunk(
    bitext: Bitext, links: WordLinks, part: slice, longest: int
) -> Iterator[PhraseOccurrences]:
    """The same for some of the pairs, by the length of the source phrase."""
    source, target = SentenceBlock.of(bitext.source, part), SentenceBlock.of(bitext.target, part)
    counts = np.diff(links.offsets[part.start : part.stop + 1])
    pair = part.start + np.repeat(np.arange(len(counts)), counts)
    chosen = slice(links.offsets[part.start], links.offsets[part.start + len(counts)])
    j = links.source[chosen] + bitext.source.offsets[pair] - source.begin
    i = links.target[chosen] + bitext.target.offsets[pair] - target.begin
    linked = _linked(i, target)
    neighbours = Neighbours.of(source, target, j, i)
    left = _free_before(linked, target.sentence, longest)
    right = _free_before(linked[::-1], target.sentence[::-1], longest)[::-1]
    for length, starts, first, width in _tight(source, len(linked), j, i, longest):
        room = left[first], right[first + width - 1]
        for a, b, wide in _widened(starts, first, width, room, longest):
            lengths = np.full_like(a, length)
            known = source.known(a, lengths) & target.known(b, wide)
            a, b, wide, lengths = a[known], b[known], wide[known], lengths[known]
            orientation = neighbours.orientation(a, b, length)
            yield PhraseOccurrences(source.spans(a, lengths), target.spans(b, wide), orientation)


@dataclass(frozen=True)
class Neighbours:
    """What the orientation of a phrase pair depends on; words without a link are passed over."""

    before_source: IntArray  # [words + 1] the last linked word before each place
    after_source: IntArray  # [words + 1] the first linked word from each place on
    before_target: IntArray
    low: IntArray  # [target words] the first and the last source word of each
    high: IntArray
    source: SentenceBlock
    target: SentenceBlock

    @classmethod
    def of(
        cls, source: SentenceBlock, target: SentenceBlock, j: IntArray, i: IntArray
    ) -> "Neighbours":
        """From the links (j, i) of these sides."""
        before = [
            np.maximum.accumulate(np.append(-1, np.where(linked, np.arange(len(linked)), -1)))
            for linked in (_linked(j, source), _linked(i, target))
        ]
        here = np.where(_linked(j, source), np.arange(len(source.sentence)), FAR)
        after = np.minimum.accumulate(np.append(here, FAR)[::-1])[::-1]
        reach = _reach(i, j, len(target.sentence))
        return cls(before[0], after, before[1], *reach, source, target)

    def orientation(self, a: IntArray, b: IntArray, length: int) -> NDArray[np.int8]:
        """Of pairs whose source phrase begins at `a` and whose target phrase begins at `b`."""
        last = self.before_target[b]
        monotone = np.where(
            last < self.target.start(b),
            self.before_source[a] < self.source.start(a),
            self.high[last] == self.before_source[a],
        )
        swap = (last >= self.target.start(b)) & (self.low[last] == self.after_source[a + length])
        return np.where(monotone, MONOTONE, np.where(swap, SWAP, DISCONTINUOUS)).astype(np.int8)


def _linked(here: IntArray, side: SentenceBlock) -> BoolArray:
    return np.asarray(np.bincount(here, minlength=len(side.sentence)) > 0)


def _widened(
    starts: IntArray,
    first: IntArray,
    width: IntArray,
    room: tuple[IntArray, IntArray],
    longest: int,
) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
    """The same pairs with any number of the free words before and after the target run."""
    for before in range(longest):
        for after in range(longest - before):
            wide = width + before + after
            fits = (room[0] >= before) & (room[1] >= after) & (wide <= longest)
            yield starts[fits], first[fits] - before, wide[fits]


def _tight(
    source: SentenceBlock, target_words: int, j: IntArray, i: IntArray, longest: int
) -> Iterator[tuple[int, IntArray, IntArray, IntArray]]:
    """Phrase pairs whose target run begins and ends with linked words, for every source length:
    where the source run starts, where the target run starts, and its length."""
    low, high = _reach(j, i, len(source.sentence))
    least, most = _windows(*_reach(i, j, target_words), longest)
    first, last = low, high
    for length in range(1, longest + 1):
        if length > 1:
            first = np.minimum(first[:-1], low[length - 1 :])
            last = np.maximum(last[:-1], high[length - 1 :])
        starts = np.arange(len(first))
        one_sentence = source.sentence[starts] == source.sentence[starts + length - 1]
        fits = one_sentence & (last >= 0) & (last - first < longest)
        starts, begin, width = starts[fits], first[fits], (last - first + 1)[fits]
        closed = (least[width - 1, begin] >= starts) & (most[width - 1, begin] < starts + length)
        yield length, starts[closed], begin[closed], width[closed]


def _reach(here: IntArray, there: IntArray, words: int) -> tuple[IntArray, IntArray]:
    """For each word the first and the last word of the other side that it is linked to."""
    low, high = np.full(words, FAR), np.full(words, -1)
    np.minimum.at(low, here, there)
    np.maximum.at(high, here, there)
    return low, high


def _windows(low: IntArray, high: IntArray, longest: int) -> tuple[IntArray, IntArray]:
    """The reach of every run of words: row k holds the runs of k + 1 words by their start."""
    least, most = np.tile(low, (longest, 1)), np.tile(high, (longest, 1))
    for k in range(1, min(longest, len(low))):
        least[k, :-k] = np.minimum(least[k - 1, :-k], low[k:])
        most[k, :-k] = np.maximum(most[k - 1, :-k], high[k:])
    return least, most


def _free_before(linked: BoolArray, sentence: IntArray, longest: int) -> IntArray:
    """How many words without a link stand right before each word, up to `longest`."""
    count = np.zeros(len(linked), dtype=np.int64)
    free = np.ones(len(linked), dtype=bool)
    for k in range(1, min(longest, len(linked))):
        free[:k] = False
        free[k:] &= ~linked[:-k] & (sentence[:-k] == sentence[k:])
        count += free
    return count


def all_spans(text: SentenceIds, longest: int) -> Spans:
    """Every run of words in every sentence."""
    lengths = text.lengths()
    sentence = np.repeat(np.arange(len(lengths)), lengths)
    parts = []
    for length in range(1, longest + 1):
        starts = np.arange(len(sentence) - length + 1)
        starts = starts[sentence[starts] == sentence[starts + length - 1]]
        parts.append(Spans(starts, np.full(len(starts), length)))
    return _joined(parts)


def hash_spans(ids: AnyArray, spans: Spans) -> Hashes:
    """A number for each run of words, the same wherever the run stands.

    The sum of scattered ids times powers of a base, divided by the power at the run's start; all
    of it modulo 2^64, where an odd base can be divided by.
    """
    powers = np.cumprod(np.full(len(ids), BASE))
    inverse = np.cumprod(np.full(len(ids) + 1, np.uint64(pow(int(BASE), -1, 2**64))))
    sums = np.concatenate(
        [np.zeros(1, np.uint64), np.cumsum(mix_bits(ids.astype(np.uint64)) * powers)]
    )
    result = np.empty(len(spans), dtype=np.uint64)
    for block in range(0, len(spans), BLOCK):
        part = spans[slice(block, block + BLOCK)]
        start = part.starts.astype(np.int64)
        result[block : block + BLOCK] = (sums[start + part.lengths] - sums[start]) * inverse[start]
    return result


def mix_bits(values: Hashes) -> Hashes:
    """Numbers scattered over all 64 bits, different ones to different ones."""
    values = (values + np.uint64(1)) * BASE
    values = (values ^ (values >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.asarray(values ^ (values >> np.uint64(32)))


def find_hashes(values: Hashes, among: Hashes) -> IntArray:
    """Where each value stands in a sorted array, -1 for nowhere.

    Hashes are spread evenly, so the first bits of one tell nearly where it must be.
    """
    bits = max(len(among), 1).bit_length()
    rest = np.uint64(64 - bits)
    firsts = np.searchsorted(among, np.arange(2**bits, dtype=np.uint64) << rest)
    ended = np.append(among, np.uint64(2**64 - 1))
    places = np.full(len(values), -1)
    for block in range(0, len(values), BLOCK):
        part = values[block : block + BLOCK]
        at = firsts[part >> rest]
        before = np.flatnonzero(ended[at] < part)
        while len(before):
            at[before] += 1
            before = before[ended[at[before]] < part[before]]
        places[block : block + BLOCK] = np.where((ended[at] == part) & (at < len(among)), at, -1)
    return places
