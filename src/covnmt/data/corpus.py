"""A prepared corpus: its report (`PrepareReport`) and memory-mapped ids (`Corpus`).

A prepared directory holds, for each split (train, dev, test) and each side:

    train.source.ids           all sentences end to end: uint16, or uint32 for large vocabularies
    train.source.offsets.npy   int64; sentence i is ids[offsets[i] : offsets[i + 1]]
    train.order.npy            the shuffle, made once and for all (SPEC 1.1)
    dev.source.txt             the raw lines, for scoring (not for train)

next to the tokenizers and vocabularies (see `codec`), and `corpus.json`: what was done and what
came out. It is written last, so a directory that has it is complete. Ids carry no end symbol.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field

from covnmt.base import files
from covnmt.base.arrays import IntArray
from covnmt.base.config import Settings, read_settings
from covnmt.base.errors import UserError
from covnmt.data.settings import PrepareSettings, SplitName
from covnmt.text.codec import SIDES, Codec, Side, vocabulary_fingerprint

DropReason = Literal["empty", "too_long", "ratio"]
TokenIds = npt.NDArray[np.unsignedinteger[Any]]

DROP_REASONS: dict[DropReason, str] = {
    "empty": "with an empty side",
    "too_long": "too long",
    "ratio": "of too different lengths",
}
CORPUS_FORMAT = 1  # of the directory's layout
REMEDY = "make it again with `covnmt prepare`"


class SplitReport(Settings):
    """What became of one split."""

    read: int
    kept: int
    dropped: dict[DropReason, int]
    tokens: dict[Side, int]
    coverage: dict[Side, float] = Field(description="percent of tokens in the vocabulary")

    def __str__(self) -> str:
        dropped = f"dropped: {format_dropped(self.dropped) or 'none'}"
        text = [
            f"{self.tokens[side]:,} {side} tokens, {self.coverage[side]}% in the vocabulary"
            for side in SIDES
        ]
        return "; ".join([f"{self.kept:,} of {self.read:,} pairs", dropped, *text])


class PrepareReport(Settings):
    """The content of corpus.json: what `prepare` read, dropped and wrote."""

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)

    version: int
    settings: PrepareSettings
    inputs: dict[SplitName, tuple[str, ...]] = Field(description="SHA-256 of the files read")
    splits: dict[SplitName, SplitReport]
    vocabulary_sizes: dict[Side, int] = Field(alias="rows", description="with the end symbol")
    fingerprint: str = Field(description="of the tokenizers and vocabularies")
    reused: bool = Field(False, exclude=True, description="all was there already")

    def lines(self) -> list[str]:
        """The report in words."""
        source, target = (self.vocabulary_sizes[side] for side in SIDES)
        sizes = f"vocabulary sizes: {source:,} source, {target:,} target"
        state = ["already prepared with these settings; nothing to do"] * self.reused
        return [*state, *(f"{name}: {split}" for name, split in self.splits.items()), sizes]


def format_dropped(dropped: Mapping[DropReason, int]) -> str:
    """What was dropped and why."""
    return ", ".join(f"{number:,} {DROP_REASONS[fault]}" for fault, number in dropped.items())


def id_dtype(vocabulary_size: int) -> np.dtype[np.unsignedinteger[Any]]:
    """The smallest type on disk that holds every id of a vocabulary."""
    return np.dtype("<u2" if vocabulary_size <= 2**16 else "<u4")


ALL = slice(None)  # sentences


@dataclass(frozen=True)
class SentenceIds:
    """One side of a split: ragged rows of ids, mapped from disk."""

    ids: TokenIds
    offsets: IntArray

    def __getitem__(self, i: int) -> TokenIds:
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    def lengths(self, rows: IntArray | slice = ALL) -> IntArray:
        """Tokens of these sentences, known without reading them."""
        return self.offsets[1:][rows] - self.offsets[:-1][rows]


@dataclass(frozen=True)
class Split:
    """The pairs of train, dev or test. Ids come without the end symbols, given by their ids."""

    name: SplitName
    directory: Path
    source_sentences: SentenceIds
    target_sentences: SentenceIds
    order: IntArray
    source_end_id: int
    target_end_id: int
    max_length: int | None = None  # no side has more tokens, where that is known

    def __len__(self) -> int:
        return len(self.order)

    def source(self, i: int) -> TokenIds:
        """The source ids of pair i."""
        return self.source_sentences[i]

    def target(self, i: int) -> TokenIds:
        """The target ids of pair i."""
        return self.target_sentences[i]

    def lengths(self, pairs: IntArray | slice) -> tuple[IntArray, IntArray]:
        """Source and target tokens of these pairs."""
        return self.source_sentences.lengths(pairs), self.target_sentences.lengths(pairs)

    def source_text(self) -> list[str]:
        """The raw source lines (dev and test)."""
        return self._text("source")

    def target_text(self) -> list[str]:
        """The raw target lines (dev and test)."""
        return self._text("target")

    def _text(self, side: Side) -> list[str]:
        path = self.directory / f"{self.name}.{side}.txt"
        lines = list(files.read_lines(path))
        if len(lines) != len(self):
            raise UserError(f"{path}: has {len(lines)} lines instead of {len(self)}; {REMEDY}")
        return lines


@dataclass(frozen=True)
class Corpus:
    """A prepared directory."""

    directory: Path
    report: PrepareReport

    @classmethod
    def open(cls, directory: Path) -> "Corpus":
        """Open what `prepare` wrote; vocabularies that were changed since are an error."""
        path = directory / "corpus.json"
        if not path.exists():
            raise UserError(f"{directory}: holds no prepared corpus; {REMEDY}")
        said = files.read_json(path)
        if isinstance(said, dict) and "corpus" in said:  # a record of the same name
            raise UserError(
                f"{directory}: holds text that `covnmt corpus get` brought; what `covnmt prepare` "
                "makes of it needs another directory"
            )
        corpus = cls(directory, read_settings(path, PrepareReport))
        if corpus.report.version != CORPUS_FORMAT:
            raise UserError(
                f"{path}: layout {corpus.report.version}, not {CORPUS_FORMAT}; {REMEDY}"
            )
        if vocabulary_fingerprint(directory) != corpus.report.fingerprint:
            raise UserError(f"{directory}: the vocabularies are not those of its ids; {REMEDY}")
        return corpus

    def identity(self) -> str:
        """A digest of what was prepared and how, wherever its files lie.

        Of what corpus.json says, so that a setting which came later changes nothing.
        """
        places = {"settings": {"train", "dev", "test"}}
        said = self.report.model_dump_json(exclude=places, exclude_unset=True)
        return hashlib.sha256(said.encode()).hexdigest()

    def codec(self, side: Side) -> Codec:
        """The tokenizer and vocabulary of one side."""
        return Codec.load(self.directory, side)

    def split(self, name: SplitName) -> Split:
        """The pairs of train, dev or test."""
        if name not in self.report.splits:
            raise UserError(f"{self.directory}: was prepared without {name} files; {REMEDY}")
        pairs, sizes = self.report.splits[name].kept, self.report.vocabulary_sizes
        order = self.directory / f"{name}.order.npy"
        return Split(
            name=name,
            directory=self.directory,
            source_sentences=_open_sentences(
                self.directory / f"{name}.source", pairs, sizes["source"]
            ),
            target_sentences=_open_sentences(
                self.directory / f"{name}.target", pairs, sizes["target"]
            ),
            order=_open_array(order, pairs) if name == "train" else np.arange(pairs),
            source_end_id=sizes["source"] - 1,
            target_end_id=sizes["target"] - 1,
            # dev and test keep pairs of any length
            max_length=self.report.settings.max_length if name == "train" else None,
        )


def _open_sentences(stem: Path, number: int, vocabulary_size: int) -> SentenceIds:
    offsets = _open_array(Path(f"{stem}.offsets.npy"), number + 1)
    path = Path(f"{stem}.ids")
    expected = int(offsets[-1]) * id_dtype(vocabulary_size).itemsize
    found = path.stat().st_size if path.exists() else 0
    if found != expected:
        raise UserError(f"{path}: has {found} bytes instead of {expected}; {REMEDY}")
    # an empty file cannot be mapped
    ids = (
        np.memmap(path, id_dtype(vocabulary_size), "r")
        if expected
        else np.zeros(0, id_dtype(vocabulary_size))
    )
    return SentenceIds(ids, offsets)


def _open_array(path: Path, length: int) -> IntArray:
    try:
        array: IntArray = np.load(path, mmap_mode="r")
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); {REMEDY}") from None
    if array.shape != (length,) or array.dtype != np.int64:
        raise UserError(f"{path}: damaged ({array.dtype}, {array.shape}); {REMEDY}")
    return array
