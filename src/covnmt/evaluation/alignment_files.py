"""Read and write alignments: Pharaoh files of links, and .npz files of soft matrices."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from covnmt.base.arrays import ARRAY_FILE_ERRORS, FloatArray
from covnmt.base.errors import UserError
from covnmt.base.files import atomic_write, open_decompressed, read_lines
from covnmt.metrics.alignment import GoldAlignment, Links, parse_links


def read_links(path: Path, index_base: Literal[0, 1] = 0) -> list[GoldAlignment]:
    """Read a Pharaoh file, whose words count from `index_base`; an empty line has no links."""
    alignments = []
    for number, line in enumerate(read_lines(path), 1):
        try:
            alignments.append(parse_links(line, index_base))
        except UserError as error:
            raise UserError(f"{path}, line {number}: {error}") from None
    return alignments


def check_links(
    alignments: Sequence[Links], lengths: Sequence[tuple[int, int]], name: str | Path
) -> None:
    """Raise on the first link outside its sentence; lengths are (source words, target words)."""
    for number, (links, (source, target)) in enumerate(zip(alignments, lengths, strict=True), 1):
        for j, i in sorted(links):
            if j >= source or i >= target:
                raise UserError(
                    f"{name}, line {number}: link {j}-{i} (counted from 0) is outside the sentence "
                    f"of {source} source and {target} target words; does the file count from 1, "
                    "put the target first, or belong to another tokenization?"
                )


def save_matrices(path: Path, matrices: Iterable[FloatArray]) -> None:
    """Write soft matrices [I, J] to an .npz file, one array per sentence under "0", "1", ..."""
    arrays = {str(number): np.asarray(m, dtype=np.float32) for number, m in enumerate(matrices)}
    with atomic_write(path) as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]


def load_matrices(path: Path) -> list[FloatArray]:
    """Read the .npz file of `save_matrices`; nothing in the file is executed."""
    try:
        with open_decompressed(path) as stream, np.load(stream, allow_pickle=False) as arrays:
            matrices = [arrays[str(number)] for number in range(len(arrays.files))]
    except ARRAY_FILE_ERRORS:
        # NumPy's own message would advise to unpickle the file
        raise UserError(
            f"{path}: not a file of soft matrices, or damaged; expected an .npz with one array per "
            'sentence under the keys "0", "1", ...'
        ) from None
    for number, matrix in enumerate(matrices, 1):
        if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
            expected = "expected a matrix of numbers, target words by source words"
            raise UserError(f"{path}, sentence {number}: {expected}")
        if not np.isfinite(matrix).all() or (matrix < 0).any():
            raise UserError(f"{path}, sentence {number}: attention must be finite and not negative")
    return [matrix.astype(np.float32, copy=False) for matrix in matrices]


def check_matrices(
    matrices: Sequence[FloatArray], lengths: Sequence[tuple[int, int]], name: str | Path
) -> None:
    """Raise on the first matrix of another shape; lengths are (source words, target words)."""
    for number, (matrix, (source, target)) in enumerate(zip(matrices, lengths, strict=True), 1):
        if matrix.shape != (target, source):
            raise UserError(
                f"{name}, sentence {number}: a matrix of {matrix.shape[0]} target by "
                f"{matrix.shape[1]} source words for a sentence of {target} and {source}; fold "
                "subwords to words, drop the end symbols, or use the tokenization of the matrices"
            )
