"""Make translations with known omissions from complete ones, to calibrate and to measure.

Words, phrases and clauses: a part of the source is chosen at random, and the target words that
attend mostly to it during forced decoding are cut out. Attention is no perfect alignment, so some
of these cuts leave a piece or take one too many. Sentences: two pairs are joined into a line, and
the translation of one is left out, which is exact.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from covnmt.base.arrays import DoubleArray, FloatArray
from covnmt.inference.forced_decoding import ForcedDecoder
from covnmt.inference.omission_features import Pair
from covnmt.inference.text_units import TextUnits
from covnmt.text.codec import Codec

CutKind = Literal["none", "word", "phrase", "clause", "sentence"]
KINDS: tuple[CutKind, ...] = ("none", "word", "phrase", "clause", "sentence")
WORDS: dict[CutKind, range] = {"word": range(1, 3), "phrase": range(3, 6)}
MIN_ATTENTION = 0.5  # of a target word to the part of the source
MAX_CUT = 0.7  # of the target words
TRIALS = 8  # parts that are tried for each kind


class Example(NamedTuple):
    """A pair of lines in which known tokens of the source have no translation."""

    kind: CutKind
    source: str
    target: str
    omitted: frozenset[int]  # tokens of the source
    origin: int  # the index of the pair it was made from


def synthetic_omissions(
    pairs: Sequence[tuple[str, str]], decoder: ForcedDecoder, seed: int
) -> Iterator[Example]:
    """Yield the pairs, and for each of them omissions of every kind that it allows."""
    rng = random.Random(seed)
    source, target = decoder.source, decoder.target
    rows = [Pair.from_lines(pair, source, target, None) for pair in pairs]
    attention = decoder.map_decoded(
        lambda _, forced: forced.alpha[:-1, :-1], [(row.source.ids, row.target.ids) for row in rows]
    )
    for index, (pair, row, alpha) in enumerate(zip(pairs, rows, attention, strict=True)):
        yield Example("none", *pair, frozenset(), index)
        for kind in ("word", "phrase", "clause"):
            if cut := _cut(kind, row, alpha, target, rng):
                yield Example(kind, pair[0], cut[1], frozenset(cut[0]), index)
    spaces = ["" if codec.settings.unspaced else " " for codec in (source, target)]
    for index, (first, second) in enumerate(pairwise(pairs)):
        if index % 2:
            continue
        line, both = map(str.join, spaces, zip(first, second, strict=True))
        units = TextUnits.from_line(line, source)
        start = len(TextUnits.from_line(first[0], source).ids)
        if not any(sentence.start == start for sentence in units.sentences):
            continue
        yield Example("none", line, both, frozenset(), index)
        if rng.random() < 0.5:
            yield Example("sentence", line, second[1], frozenset(range(start)), index)
        else:
            omitted = frozenset(range(start, len(units.ids)))
            yield Example("sentence", line, first[1], omitted, index)


def _cut(
    kind: CutKind, pair: Pair, alpha: FloatArray, target: Codec, rng: random.Random
) -> tuple[range, str] | None:
    """Choose a part of the source; return its tokens, and the target without its translation."""
    by_word: DoubleArray = np.array(
        [alpha[unit.start : unit.stop].mean(axis=0) for unit in pair.target.units]
    )  # [target words, source tokens]
    parts = [span for span in _parts(kind, pair, rng) if len(span) < len(pair.source.ids)]
    for span in rng.sample(parts, min(TRIALS, len(parts))):
        mass = by_word[:, span.start : span.stop].sum(axis=1)
        cut = np.flatnonzero(mass >= MIN_ATTENTION * np.maximum(by_word.sum(axis=1), 1e-6))
        words = pair.words(span)
        enough = len(cut) >= max(1, (words.stop - words.start) / 3)
        together = len(cut) and cut[-1] - cut[0] < 1.5 * len(cut) + 1
        if enough and together and len(cut) <= MAX_CUT * len(by_word):
            return span, _without(pair.target, cut.tolist(), target)
    return None


def _parts(kind: CutKind, pair: Pair, rng: random.Random) -> list[range]:
    """Return the parts of the source that could be omitted."""
    source = pair.source
    if kind == "clause":
        return source.clauses if len(source.clauses) > 1 else []
    sizes, units = WORDS[kind], source.units
    parts = []
    for first in range(len(units)):
        last = first + rng.choice(sizes) - 1
        if last < len(units):
            span = range(units[first].start, units[last].stop)
            if any(span.start in clause and span[-1] in clause for clause in source.clauses):
                parts.append(span)
    return parts


def _without(target: TextUnits, cut: Sequence[int], codec: Codec) -> str:
    """Return the target without these words, and without punctuation that then stands alone."""
    removed = {token for number in cut for token in target.units[number]}
    kept: list[str] = []
    words = {token for unit in target.units for token in unit}
    for k, token in enumerate(target.tokens):
        is_mark = k not in words
        if k in removed or (is_mark and k - 1 in removed and (not kept or _is_mark(kept[-1]))):
            continue
        kept.append(token)
    return codec.detokenize(kept)


def _is_mark(token: str) -> bool:
    return not any(letter.isalnum() for letter in token)
