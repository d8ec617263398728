"""Word alignments and how good they are: AER and its soft form SAER (paper, sections 5.1 and 5.3).

A hand alignment has sure links S and possible links P, with S inside P; a system's links are A.
A link is (j, i): source word j, target word i, both from 0. Soft matrices are [I, J]: I target
words, J source words, without the end symbols; what a row lacks to 1 is its weight on the source
end symbol. On disk links are Pharaoh lines, `0-0 1-2 2p2`, with `p` for a possible link.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from covnmt.base.arrays import FloatArray
from covnmt.base.errors import UserError
from covnmt.base.files import atomic_write, open_decompressed, read_lines

Links = frozenset[tuple[int, int]]

LinkExtraction = Literal["argmax", "argmax_with_end", "threshold"]
Symmetrization = Literal["union", "intersection", "grow-diag-final"]

NO_LINKS: Links = frozenset()
# horizontally and vertically first, then diagonally
NEIGHBORS = ((0, -1), (-1, 0), (0, 1), (1, 0), (-1, -1), (1, -1), (-1, 1), (1, 1))
PHARAOH_LINK = re.compile(r"(\d+)([-p])(\d+)", re.ASCII)


@dataclass(frozen=True)
class GoldAlignment:
    """The alignment of one sentence pair as a file gives it; possible links include the sure."""

    sure: Links
    possible: Links

    def __post_init__(self) -> None:
        object.__setattr__(self, "possible", self.possible | self.sure)


@dataclass(frozen=True)
class AlignmentQuality:
    """Alignment quality of a corpus, each from 0 to 1; for `aer` lower is better."""

    aer: float
    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return _ratio(2 * self.precision * self.recall, self.precision + self.recall)


def parse_links(line: str, base: Literal[0, 1] = 0) -> GoldAlignment:
    """Read one Pharaoh line; `base` is the number of the first word in it."""
    sure: set[tuple[int, int]] = set()
    possible: set[tuple[int, int]] = set()
    for item in line.split():
        match = PHARAOH_LINK.fullmatch(item)
        if not match:
            raise UserError(
                f"{item!r} is not a link; expected source-target such as 3-4, or 3p4 if possible"
            )
        link = int(match[1]) - base, int(match[3]) - base
        if min(link) < 0:
            raise UserError(f"link {item} has a word 0, but the words were said to count from 1")
        (sure if match[2] == "-" else possible).add(link)
    return GoldAlignment(frozenset(sure), frozenset(possible))


def format_links(links: Links) -> str:
    """One Pharaoh line, counted from 0, by source word."""
    return " ".join(f"{j}-{i}" for j, i in sorted(links))


def read_links(path: Path, base: Literal[0, 1] = 0) -> list[GoldAlignment]:
    """Read a Pharaoh file; an empty line is a sentence without links."""
    alignments = []
    for number, line in enumerate(read_lines(path), 1):
        try:
            alignments.append(parse_links(line, base))
        except UserError as error:
            raise UserError(f"{path}, line {number}: {error}") from None
    return alignments


def check_links(
    alignments: Sequence[GoldAlignment], lengths: Sequence[tuple[int, int]], name: str | Path
) -> None:
    """Raise on the first link outside its sentence; lengths are (source words, target words)."""
    for number, (alignment, (source, target)) in enumerate(
        zip(alignments, lengths, strict=True), 1
    ):
        for j, i in sorted(alignment.possible):
            if j >= source or i >= target:
                raise UserError(
                    f"{name}, line {number}: link {j}-{i} (counted from 0) is outside the sentence "
                    f"of {source} source and {target} target words; does the file count from 1, "
                    "put the target first, or belong to another tokenisation?"
                )


def links_from_attention(
    matrix: FloatArray, method: LinkExtraction = "argmax", threshold: float = 0.5
) -> Links:
    """Links of one soft matrix [I, J].

    argmax: each target word with its heaviest source word (the first of equals; none if all 0).
    argmax_with_end: the same, but none where the source end symbol weighs more.
    threshold: every pair with at least this weight.
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
    """Join the links of two directions, both written (source, target)."""
    if method == "union":
        return forward | backward
    if method == "intersection":
        return forward & backward
    return _grow_diag_final(forward, backward)


def _grow_diag_final(forward: Links, backward: Links) -> Links:
    """Koehn et al. (2003): grow from the intersection into neighbouring links of the union, then
    take every link left over, forward ones first; each must reach a word without a link."""
    links = set(forward & backward)
    union = sorted(forward | backward, key=_by_target)
    while grown := _grow(links, union):
        links |= grown
    for direction in (forward, backward):
        for link in sorted(direction, key=_by_target):
            if _reaches_new_word(link, links):
                links.add(link)
    return frozenset(links)


def _grow(links: set[tuple[int, int]], union: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    """One pass over the links by target word; a link grown in it can grow further ones at once."""
    allowed = set(union)
    now = set(links)
    for j, i in union:
        if (j, i) not in now:
            continue
        for dj, di in NEIGHBORS:
            link = (j + dj, i + di)
            if link in allowed and _reaches_new_word(link, now):
                now.add(link)
    return now - links


def _reaches_new_word(link: tuple[int, int], links: set[tuple[int, int]]) -> bool:
    return all(j != link[0] for j, _ in links) or all(i != link[1] for _, i in links)


def _by_target(link: tuple[int, int]) -> tuple[int, int]:
    return link[1], link[0]


def alignment_quality(links: Sequence[Links], gold: Sequence[GoldAlignment]) -> AlignmentQuality:
    """AER, precision and recall, counts pooled over the corpus; 0 of 0 counts as 0.

        AER = 1 - (|A and S| + |A and P|) / (|A| + |S|)

    Precision is |A and P| / |A|, recall |A and S| / |S| (Och and Ney, 2003).
    """
    pairs = list(zip(links, gold, strict=True))
    in_sure = sum(len(a & g.sure) for a, g in pairs)
    in_possible = sum(len(a & g.possible) for a, g in pairs)
    found, sure = sum(len(a) for a, _ in pairs), sum(len(g.sure) for _, g in pairs)
    return AlignmentQuality(
        aer=1.0 - _ratio(in_sure + in_possible, found + sure),
        precision=_ratio(in_possible, found),
        recall=_ratio(in_sure, sure),
    )


def aer(links: Sequence[Links], gold: Sequence[GoldAlignment]) -> float:
    """Corpus alignment error rate, 0 to 1; lower is better."""
    return alignment_quality(links, gold).aer


def saer(
    attention: Sequence[FloatArray], gold: Sequence[GoldAlignment], renormalize: bool = False
) -> float:
    """Corpus soft alignment error rate, 0 to 1; lower is better.

        SAER = 1 - (|A*S| + |A*P|) / (|A| + |S|)

    On 0/1 attention it equals `aer`, and the tests hold it to that. With `renormalize` each row
    is first scaled to sum to 1, as if the source end symbol had no weight.
    """
    hit = mass = 0.0
    for matrix, alignment in zip(attention, gold, strict=True):
        a = renormalize_rows(matrix) if renormalize else matrix
        s, p = (link_matrix(links, a.shape) for links in (alignment.sure, alignment.possible))
        # summed over the corpus, so long sentences weigh more
        hit += float((a * s).sum(dtype=np.float64) + (a * p).sum(dtype=np.float64))
        mass += float(a.sum(dtype=np.float64) + s.sum(dtype=np.float64))
    return 1.0 - _ratio(hit, mass)


def renormalize_rows(matrix: FloatArray) -> FloatArray:
    """Each row [J] scaled to sum to 1; rows of zeros stay."""
    sums = matrix.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(matrix, sums, out=np.zeros_like(matrix), where=sums > 0))


def link_matrix(links: Links, shape: tuple[int, ...]) -> FloatArray:
    """Links as a 0/1 matrix [I, J]."""
    matrix = np.zeros(shape, dtype=np.float32)
    for j, i in links:
        matrix[i, j] = 1.0
    return matrix


def fold_subwords(
    matrix: FloatArray, source_words: Sequence[int], target_words: Sequence[int]
) -> FloatArray:
    """A matrix over pieces as one over words: sum over source pieces, mean over target pieces.

    `source_words` holds for each source piece the number of its word, counted from 0 and in
    order; likewise `target_words`. Rows that sum to 1 still do.
    """
    sums = _summed(_summed(matrix, target_words).T, source_words).T
    pieces = _summed(np.ones((len(target_words), 1), np.float32), target_words)
    return np.asarray(sums / np.maximum(pieces, 1))  # a word without pieces has a row of zeros


def _summed(rows: FloatArray, words: Sequence[int]) -> FloatArray:
    """Rows of pieces [P, n] as rows of words [W, n]; `words` holds each piece's word."""
    sums = np.zeros((max(words, default=-1) + 1, rows.shape[1]), np.float32)
    np.add.at(sums, np.asarray(words, np.int64), rows)
    return sums


def save_matrices(path: Path, matrices: Iterable[FloatArray]) -> None:
    """Write soft matrices to an .npz file, one array per sentence under "0", "1", ..."""
    arrays = {str(number): np.asarray(m, dtype=np.float32) for number, m in enumerate(matrices)}
    with atomic_write(path) as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]


def load_matrices(path: Path) -> list[FloatArray]:
    """Read what `save_matrices` wrote; nothing in the file is executed."""
    try:
        with open_decompressed(path) as stream, np.load(stream, allow_pickle=False) as arrays:
            matrices = [arrays[str(number)] for number in range(len(arrays.files))]
    except (BadZipFile, KeyError, ValueError, EOFError, OSError, TypeError):
        # NumPy's own words would advise to unpickle whatever it does not know
        raise UserError(
            f"{path}: not a file of soft matrices, or damaged; expected an .npz with one array per "
            'sentence under the keys "0", "1", ...'
        ) from None
    for number, matrix in enumerate(matrices, 1):
        _check_matrix(matrix, f"{path}, sentence {number}")
    return [matrix.astype(np.float32, copy=False) for matrix in matrices]


def _check_matrix(matrix: NDArray[Any], name: str) -> None:
    if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
        raise UserError(f"{name}: expected a matrix of numbers, target words by source words")
    if not np.isfinite(matrix).all() or (matrix < 0).any():
        raise UserError(f"{name}: attention must be finite and not negative")


def check_matrices(
    matrices: Sequence[FloatArray], lengths: Sequence[tuple[int, int]], name: str | Path
) -> None:
    """Raise on the first matrix that does not fit; lengths are (source words, target words)."""
    for number, (matrix, (source, target)) in enumerate(zip(matrices, lengths, strict=True), 1):
        if matrix.shape != (target, source):
            raise UserError(
                f"{name}, sentence {number}: a matrix of {matrix.shape[0]} target by "
                f"{matrix.shape[1]} source words for a sentence of {target} and {source}; fold "
                "subwords to words, drop the end symbols, or use the tokenisation of the matrices"
            )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
