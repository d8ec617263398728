"""Extract, symmetrize and score word alignments: AER and SAER (paper, sections 5.1 and 5.3).

A hand alignment has sure links S and possible links P, with S inside P; a system's links are A.
A link is (j, i): source word j, target word i, both from 0. Soft matrices are [I, J]: I target
words, J source words, without the end symbols; what a row lacks to 1 is its weight on the source
end symbol. As text, links are Pharaoh lines, `0-0 1-2 2p2`, with `p` for a possible link.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from covnmt.base.arrays import FloatArray
from covnmt.base.errors import UserError

Links = frozenset[tuple[int, int]]

LinkExtraction = Literal["argmax", "argmax_with_end", "threshold"]
Symmetrization = Literal["union", "intersection", "grow-diag-final"]

NO_LINKS: Links = frozenset()
# horizontally and vertically first, then diagonally
NEIGHBORS = ((0, -1), (-1, 0), (0, 1), (1, 0), (-1, -1), (1, -1), (-1, 1), (1, 1))
PHARAOH_LINK = re.compile(r"(\d+)([-p])(\d+)", re.ASCII)


@dataclass(frozen=True)
class GoldAlignment:
    """A hand alignment of one sentence pair; its possible links include the sure ones."""

    sure: Links
    possible: Links

    def __post_init__(self) -> None:
        object.__setattr__(self, "possible", self.possible | self.sure)


@dataclass(frozen=True)
class AlignmentQuality:
    """The alignment scores of a corpus, each from 0 to 1; for `aer` lower is better."""

    aer: float
    precision: float
    recall: float

    @property
    def f1(self) -> float:
        return _ratio(2 * self.precision * self.recall, self.precision + self.recall)


def parse_links(line: str, index_base: Literal[0, 1] = 0) -> GoldAlignment:
    """Parse one Pharaoh line, whose words count from `index_base`."""
    sure: set[tuple[int, int]] = set()
    possible: set[tuple[int, int]] = set()
    for item in line.split():
        match = PHARAOH_LINK.fullmatch(item)
        if not match:
            raise UserError(
                f"{item!r} is not a link; expected source-target such as 3-4, or 3p4 if possible"
            )
        link = int(match[1]) - index_base, int(match[3]) - index_base
        if min(link) < 0:
            raise UserError(
                f"link {item} has a word 0, but --index-base 1 says that words count from 1"
            )
        (sure if match[2] == "-" else possible).add(link)
    return GoldAlignment(frozenset(sure), frozenset(possible))


def format_links(links: Links) -> str:
    """Format links as a Pharaoh line that counts from 0, ordered by source word."""
    return " ".join(f"{j}-{i}" for j, i in sorted(links))


def links_from_attention(
    matrix: FloatArray, method: LinkExtraction = "argmax", threshold: float = 0.5
) -> Links:
    """Extract links from one soft matrix [I, J].

    argmax: link each target word to its heaviest source word (the first of equals; none if all 0).
    argmax_with_end: the same, but no link where the source end symbol weighs more.
    threshold: link every pair with at least this weight.
    """
    if matrix.size == 0:
        return NO_LINKS
    if method == "threshold":
        return frozenset((int(j), int(i)) for i, j in np.argwhere(matrix >= threshold))
    heaviest = matrix.max(axis=1)  # [I]
    linked = heaviest > 0
    if method == "argmax_with_end":
        linked &= heaviest >= 1.0 - matrix.sum(axis=1)
    best = matrix.argmax(axis=1)  # [I]
    return frozenset((int(best[i]), int(i)) for i in np.flatnonzero(linked))


def symmetrize(forward: Links, backward: Links, method: Symmetrization) -> Links:
    """Combine the links of both directions, all written (source, target)."""
    if method == "union":
        return forward | backward
    if method == "intersection":
        return forward & backward
    return _grow_diag_final(forward, backward)


def _grow_diag_final(forward: Links, backward: Links) -> Links:
    """Symmetrize as Koehn et al. (2003).

    Grow from the intersection into neighboring links of the union, then add the remaining links,
    forward ones first; every added link must reach a word without a link.
    """
    links = set(forward & backward)
    union = sorted(forward | backward, key=_by_target)
    while new_links := _grow(links, union):
        links |= new_links
    for direction in (forward, backward):
        for link in sorted(direction, key=_by_target):
            if _reaches_new_word(link, links):
                links.add(link)
    return frozenset(links)


def _grow(links: set[tuple[int, int]], union: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return the links added in one pass by target word; added links grow further at once."""
    allowed = set(union)
    grown = set(links)
    for j, i in union:
        if (j, i) not in grown:
            continue
        for dj, di in NEIGHBORS:
            link = (j + dj, i + di)
            if link in allowed and _reaches_new_word(link, grown):
                grown.add(link)
    return grown - links


def _reaches_new_word(link: tuple[int, int], links: set[tuple[int, int]]) -> bool:
    return all(j != link[0] for j, _ in links) or all(i != link[1] for _, i in links)


def _by_target(link: tuple[int, int]) -> tuple[int, int]:
    return link[1], link[0]


def alignment_quality(links: Sequence[Links], gold: Sequence[GoldAlignment]) -> AlignmentQuality:
    """Compute AER, precision and recall from counts pooled over the corpus; 0 / 0 is 0.

        AER = 1 - (|A and S| + |A and P|) / (|A| + |S|)

    Precision is |A and P| / |A|, recall |A and S| / |S| (Och and Ney, 2003).
    """
    pairs = list(zip(links, gold, strict=True))
    in_sure = sum(len(a & g.sure) for a, g in pairs)
    in_possible = sum(len(a & g.possible) for a, g in pairs)
    predicted, sure = sum(len(a) for a, _ in pairs), sum(len(g.sure) for _, g in pairs)
    return AlignmentQuality(
        aer=1.0 - _ratio(in_sure + in_possible, predicted + sure),
        precision=_ratio(in_possible, predicted),
        recall=_ratio(in_sure, sure),
    )


def aer(links: Sequence[Links], gold: Sequence[GoldAlignment]) -> float:
    """Compute the corpus alignment error rate, 0 to 1; lower is better."""
    return alignment_quality(links, gold).aer


def saer(
    attention: Sequence[FloatArray], gold: Sequence[GoldAlignment], renormalize: bool = False
) -> float:
    """Compute the corpus soft alignment error rate, 0 to 1; lower is better.

        SAER = 1 - (|A*S| + |A*P|) / (|A| + |S|)

    On 0/1 attention it equals `aer`. With `renormalize` each row is first scaled to sum to 1, as
    if the source end symbol had no weight.
    """
    matched = mass = 0.0
    for matrix, alignment in zip(attention, gold, strict=True):
        a = renormalize_rows(matrix) if renormalize else matrix
        s, p = (link_matrix(links, a.shape) for links in (alignment.sure, alignment.possible))
        matched += float((a * s).sum(dtype=np.float64) + (a * p).sum(dtype=np.float64))
        mass += float(a.sum(dtype=np.float64) + s.sum(dtype=np.float64))
    return 1.0 - _ratio(matched, mass)


def renormalize_rows(matrix: FloatArray) -> FloatArray:
    """Scale each row of a matrix [I, J] to sum to 1; rows of zeros stay."""
    sums = matrix.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(matrix, sums, out=np.zeros_like(matrix), where=sums > 0))


def link_matrix(links: Links, shape: tuple[int, ...]) -> FloatArray:
    """Write links as a 0/1 matrix [I, J]."""
    matrix = np.zeros(shape, dtype=np.float32)
    for j, i in links:
        matrix[i, j] = 1.0
    return matrix


def fold_subwords(
    matrix: FloatArray, source_word_indices: Sequence[int], target_word_indices: Sequence[int]
) -> FloatArray:
    """Turn a matrix over subwords into one over words: sum source subwords, average target ones.

    `source_word_indices` holds the index of the word of each source subword, in order; likewise
    `target_word_indices`. Rows that sum to 1 still do.
    """
    sums = _sum_by_word(_sum_by_word(matrix, target_word_indices).T, source_word_indices).T
    counts = _sum_by_word(np.ones((len(target_word_indices), 1), np.float32), target_word_indices)
    return np.asarray(sums / np.maximum(counts, 1))  # a word without subwords has a row of zeros


def _sum_by_word(rows: FloatArray, word_indices: Sequence[int]) -> FloatArray:
    """Sum rows of subwords [P, n] to rows of words [W, n]."""
    sums = np.zeros((max(word_indices, default=-1) + 1, rows.shape[1]), np.float32)
    np.add.at(sums, np.asarray(word_indices, np.int64), rows)
    return sums


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0
