"""A prepared corpus: its report and its memory-mapped ids (`Corpus`).

A prepared directory has, for each split (train, dev, test) and each side:

    train.source.ids           all sentences end to end: uint16, or uint32 for large vocabularies
    train.source.offsets.npy   int64; sentence i is ids[offsets[i] : offsets[i + 1]]
    train.order.npy            the one shuffle (docs/paper-to-code.md, section 1.1)
    dev.source.txt             the lines before tokenization, for scoring (dev and test)

and also the tokenizers and vocabularies (see `codec`) and `corpus.json`, the report. That is
written last, so a directory that has it is complete. The ids have no end symbols.
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
    "ratio": "with too different lengths",
}
CORPUS_FORMAT = 1  # version of the files in a prepared directory
REMEDY = "make it again with `covnmt prepare`"


class SplitReport(Settings):
    """What `prepare` did with one split."""

    read: int
    kept: int
    dropped: dict[DropReason, int]
    tokens: dict[Side, int]
    coverage: dict[Side, float] = Field(description="percent of tokens in the vocabulary")

    def __str__(self) -> str:
        dropped = f"dropped: {format_dropped(self.dropped) or 'none'}"
        sides = [
            f"{self.tokens[side]:,} {side} tokens, {self.coverage[side]}% in the vocabulary"
            for side in SIDES
        ]
        return "; ".join([f"{self.kept:,} of {self.read:,} pairs", dropped, *sides])


class PrepareReport(Settings):
    """The content of corpus.json: what `prepare` read, dropped and wrote."""

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)

    version: int
    settings: PrepareSettings
    inputs: dict[SplitName, tuple[str, ...]] = Field(description="SHA-256 of the files read")
    splits: dict[SplitName, SplitReport]
    vocabulary_sizes: dict[Side, int] = Field(alias="rows", description="with the end symbol")
    fingerprint: str = Field(description="of the tokenizers and vocabularies")
    reused: bool = Field(False, exclude=True, description="the directory was complete already")

    def lines(self) -> list[str]:
        """Format the report for the terminal."""
        source, target = (self.vocabulary_sizes[side] for side in SIDES)
        sizes = f"vocabulary sizes: {source:,} source, {target:,} target"
        reused = ["already prepared with these settings; nothing to do"] * self.reused
        return [*reused, *(f"{name}: {split}" for name, split in self.splits.items()), sizes]


def format_dropped(dropped: Mapping[DropReason, int]) -> str:
    """Say how many pairs were dropped, and why."""
    return ", ".join(f"{number:,} {DROP_REASONS[reason]}" for reason, number in dropped.items())


def id_dtype(vocabulary_size: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the smallest type on disk for the ids of a vocabulary."""
    return np.dtype("<u2" if vocabulary_size <= 2**16 else "<u4")


ALL_SENTENCES = slice(None)


@dataclass(frozen=True)
class SentenceIds:
    """The ids of one side of a split, memory-mapped; sentence i is between two offsets."""

    ids: TokenIds
    offsets: IntArray

    def __getitem__(self, i: int) -> TokenIds:
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    def lengths(self, sentences: IntArray | slice = ALL_SENTENCES) -> IntArray:
        """Count the tokens of sentences without reading them."""
        return self.offsets[1:][sentences] - self.offsets[:-1][sentences]


@dataclass(frozen=True)
class Split:
    """The pairs of train, dev or test; their ids have no end symbols."""

    name: SplitName
    directory: Path
    source: SentenceIds
    target: SentenceIds
    order: IntArray  # indices of all pairs, shuffled for train
    source_end_id: int
    target_end_id: int
    max_length: int | None = None  # tokens of the longest side, where known

    def __len__(self) -> int:
        return len(self.order)

    def lengths(self, pairs: IntArray | slice) -> tuple[IntArray, IntArray]:
        """Count source and target tokens of pairs."""
        return self.source.lengths(pairs), self.target.lengths(pairs)

    def text(self, side: Side) -> list[str]:
        """Read the untokenized lines of one side (dev and test)."""
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
        """Open a prepared directory; vocabularies that were changed since are an error."""
        path = directory / "corpus.json"
        if not path.exists():
            raise UserError(f"{directory}: not a prepared corpus; {REMEDY}")
        content = files.read_json(path)
        if isinstance(content, dict) and "corpus" in content:  # of `open_corpora`, same file name
            raise UserError(
                f"{directory}: holds text downloaded by `covnmt corpus get`; give `covnmt prepare` "
                "another directory"
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
        """Hash what corpus.json says, without paths: text, settings and results of `prepare`.

        Settings added by later versions are not in that file, and so do not change the hash.
        """
        paths = {"settings": {"train", "dev", "test"}}
        content = self.report.model_dump_json(exclude=paths, exclude_unset=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def codec(self, side: Side) -> Codec:
        """Load the tokenizer and vocabulary of one side."""
        return Codec.load(self.directory, side)

    def split(self, name: SplitName) -> Split:
        """Open the pairs of train, dev or test."""
        if name not in self.report.splits:
            raise UserError(f"{self.directory}: was prepared without {name} files; {REMEDY}")
        pairs, sizes = self.report.splits[name].kept, self.report.vocabulary_sizes
        order = self.directory / f"{name}.order.npy"
        return Split(
            name=name,
            directory=self.directory,
            source=_open_sentences(self.directory / f"{name}.source", pairs, sizes["source"]),
            target=_open_sentences(self.directory / f"{name}.target", pairs, sizes["target"]),
            order=_open_array(order, pairs) if name == "train" else np.arange(pairs),
            source_end_id=sizes["source"] - 1,
            target_end_id=sizes["target"] - 1,
            # dev and test keep pairs of any length
            max_length=self.report.settings.max_length if name == "train" else None,
        )


def _open_sentences(stem: Path, number: int, vocabulary_size: int) -> SentenceIds:
    offsets = _open_array(Path(f"{stem}.offsets.npy"), number + 1)
    path = Path(f"{stem}.ids")
    dtype = id_dtype(vocabulary_size)
    expected = int(offsets[-1]) * dtype.itemsize
    size = path.stat().st_size if path.exists() else 0
    if size != expected:
        raise UserError(f"{path}: has {size} bytes instead of {expected}; {REMEDY}")
    # an empty file cannot be mapped
    ids = np.memmap(path, dtype, "r") if expected else np.zeros(0, dtype)
    return SentenceIds(ids, offsets)


def _open_array(path: Path, length: int) -> IntArray:
    try:
        array: IntArray = np.load(path, mmap_mode="r")
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); {REMEDY}") from None
    if array.shape != (length,) or array.dtype != np.int64:
        raise UserError(f"{path}: damaged ({array.dtype}, {array.shape}); {REMEDY}")
    return array
