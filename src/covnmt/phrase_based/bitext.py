"""Training pairs of a prepared corpus as concatenated ids, and NumPy files of a model."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

import numpy as np

from covnmt.base.arrays import ARRAY_FILE_ERRORS, AnyArray, IntArray
from covnmt.base.errors import UserError
from covnmt.base.files import atomic_write
from covnmt.data.corpus import SentenceIds, Split

NamedArrays = dict[str, AnyArray]


@dataclass(frozen=True)
class Bitext:
    """Parallel sentences; both sides have the same number of them."""

    source: SentenceIds
    target: SentenceIds

    def __len__(self) -> int:
        return len(self.source.offsets) - 1

    @classmethod
    def from_split(cls, split: Split, pairs: int = 0) -> "Bitext":
        """Take the first pairs of the shuffled order; 0 takes all, in the order on disk."""
        if not pairs or pairs >= len(split):
            return cls(split.source, split.target)
        rows = np.sort(split.order[:pairs])
        return cls(
            select_sentences(split.source, rows),
            select_sentences(split.target, rows),
        )

    def token_pairs(self) -> Iterator[tuple[list[str], list[str]]]:
        """Yield each pair as strings of ids, as Thot's aligners take them."""
        for n in range(len(self)):
            yield [str(i) for i in self.source[n]], [str(i) for i in self.target[n]]

    def swapped(self) -> "Bitext":
        """Exchange source and target."""
        return Bitext(self.target, self.source)

    def followed_by(self, other: "Bitext") -> "Bitext":
        """Append the pairs of another bitext."""
        return Bitext(_append(self.source, other.source), _append(self.target, other.target))

    def save(self, path: Path) -> None:
        """Write all ids, so that a model needs no data directory."""
        sides = {"source": self.source, "target": self.target}
        ids = {f"{name}_ids": np.asarray(side.ids) for name, side in sides.items()}
        offsets = {f"{name}_offsets": side.offsets for name, side in sides.items()}
        save_arrays(path, ids | offsets)

    @classmethod
    def load(cls, path: Path) -> "Bitext":
        """Read what `save` wrote."""
        arrays = load_arrays(path)
        try:
            source, target = (
                SentenceIds(arrays[f"{side}_ids"], arrays[f"{side}_offsets"])
                for side in ("source", "target")
            )
        except KeyError as error:
            raise _unreadable(path, error) from None
        return cls(source, target)


@dataclass(frozen=True)
class ArrayFile:
    """A dataclass of arrays, each stored under its name in one .npz file."""

    def save(self, path: Path) -> None:
        """Write all arrays."""
        save_arrays(path, {field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote."""
        try:
            return cls(**load_arrays(path))
        except TypeError as error:  # other names
            raise _unreadable(path, error) from None


def select_sentences(sentences: SentenceIds, rows: IntArray) -> SentenceIds:
    """Concatenate the sentences of some rows."""
    offsets = np.concatenate([[0], np.cumsum(sentences.lengths(rows))])
    return SentenceIds(concatenate_ids(sentences[int(row)] for row in rows), offsets)


def _append(first: SentenceIds, second: SentenceIds) -> SentenceIds:
    offsets = np.concatenate([first.offsets, first.offsets[-1] + second.offsets[1:]])
    return SentenceIds(concatenate_ids([first.ids, second.ids]), offsets)


def concatenate_sentences(rows: Sequence[Sequence[int]]) -> SentenceIds:
    """Concatenate lists of ids."""
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return SentenceIds(concatenate_ids(np.array(row, dtype=np.uint32) for row in rows), offsets)


def concatenate_ids(rows: Iterable[AnyArray]) -> AnyArray:
    """Concatenate rows; no rows give an empty array."""
    return np.concatenate([np.zeros(0, np.uint16), *rows])


def save_arrays(path: Path, arrays: NamedArrays) -> None:
    """Write arrays to an .npz file, atomically."""
    with atomic_write(path) as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]


def load_arrays(path: Path) -> NamedArrays:
    """Read what `save_arrays` wrote; nothing in the file is executed."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except ARRAY_FILE_ERRORS as error:
        raise _unreadable(path, error) from None


def map_array(path: Path) -> AnyArray:
    """Memory-map an .npy file: processes on one machine share its memory."""
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except ARRAY_FILE_ERRORS as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(
        f"{path}: cannot be read ({error}); remove it and run `covnmt smt train` and `covnmt smt "
        "tune` again: they rebuild what is missing"
    )
