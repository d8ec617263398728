"""The training pairs of a prepared corpus, laid end to end for NumPy."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from covnmt.base.arrays import IntArray
from covnmt.base.errors import UserError
from covnmt.base.files import atomic_write
from covnmt.data.corpus import SentenceIds, Split

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Bitext:
    """Parallel sentences; both sides have the same number of them."""

    source: SentenceIds
    target: SentenceIds

    def __len__(self) -> int:
        return len(self.source.offsets) - 1

    @classmethod
    def of(cls, split: Split, pairs: int = 0) -> "Bitext":
        """The first pairs of the shuffled order; 0 takes all, as they lie on disk."""
        if not pairs or pairs >= len(split):
            return cls(split.source_sentences, split.target_sentences)
        chosen = np.sort(split.order[:pairs])
        return cls(
            select_sentences(split.source_sentences, chosen),
            select_sentences(split.target_sentences, chosen),
        )

    def words(self) -> Iterator[tuple[list[str], list[str]]]:
        """Each pair as words for an aligner."""
        for n in range(len(self)):
            yield [str(i) for i in self.source[n]], [str(i) for i in self.target[n]]

    def turned(self) -> "Bitext":
        """Source and target exchanged."""
        return Bitext(self.target, self.source)

    def and_then(self, other: "Bitext") -> "Bitext":
        """These pairs followed by others."""
        return Bitext(_chained(self.source, other.source), _chained(self.target, other.target))

    def save(self, path: Path) -> None:
        """Write all ids, so that a model needs no data directory."""
        sides = {"source": self.source, "target": self.target}
        arrays = {f"{name}_ids": np.asarray(side.ids) for name, side in sides.items()}
        save_arrays(
            path, arrays | {f"{name}_offsets": side.offsets for name, side in sides.items()}
        )

    @classmethod
    def load(cls, path: Path) -> "Bitext":
        """Read what `save` wrote."""
        found = load_arrays(path)
        source, target = (
            SentenceIds(found[f"{side}_ids"], found[f"{side}_offsets"])
            for side in ("source", "target")
        )
        return cls(source, target)


def select_sentences(sentences: SentenceIds, chosen: IntArray) -> SentenceIds:
    """Some sentences, laid end to end again."""
    offsets = np.concatenate([[0], np.cumsum(sentences.lengths(chosen))])
    return SentenceIds(concatenate_ids(sentences[int(i)] for i in chosen), offsets)


def _chained(one: SentenceIds, other: SentenceIds) -> SentenceIds:
    offsets = np.concatenate([one.offsets, one.offsets[-1] + other.offsets[1:]])
    return SentenceIds(concatenate_ids([one.ids, other.ids]), offsets)


def concatenate_sentences(rows: Sequence[Sequence[int]]) -> SentenceIds:
    """Lists of ids, laid end to end."""
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return SentenceIds(concatenate_ids(np.array(row, dtype=np.uint32) for row in rows), offsets)


def concatenate_ids(rows: Iterable[NDArray[Any]]) -> NDArray[Any]:
    """Rows end to end; no rows give an empty array."""
    return np.concatenate([np.zeros(0, np.uint16), *rows])


def save_arrays(path: Path, arrays: Arrays) -> None:
    """Write arrays to an .npz file as a whole."""
    with atomic_write(path) as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]


def load_arrays(path: Path) -> Arrays:
    """Read what `save_arrays` wrote; nothing in the file is executed."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except (OSError, ValueError, EOFError, KeyError, BadZipFile) as error:
        raise _unreadable(path, error) from None


def map_array(path: Path) -> NDArray[Any]:
    """An .npy file, mapped: processes on one machine share its memory."""
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(
        f"{path}: cannot be read ({error}); remove it, and give `covnmt smt train` and `covnmt smt "
        "tune` again: they make what is missing"
    )
