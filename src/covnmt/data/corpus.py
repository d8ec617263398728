"""A prepared corpus: its report and its memory-mapped ids (`Corpus`).

A prepared directory has, for each split (train, dev, test) and each side:

    train.source.ids           all sentences end to end: uint16, or uint32 for large vocabularies
    train.source.offsets.npy   int64; sentence i is ids[offsets[i] : offsets[i + 1]]
    train.order.npy            the one shuffle (docs/paper-to-code.md, section 1.1)
    dev.source.txt             the lines before tokenization, for scoring (dev and test)

and also the tokenizers and vocabularies (see `codec`) and `corpus.json`, the report. That is
written last, so a directory that has it is complete. The ids have no end symbols.

A split is verified when it is opened: SHA-256 of its files (2 GB/s), and ids, offsets and order in
range. Corpora of older versions have no checksums and get only the latter.
"""

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field

from covnmt.base import files
from covnmt.base.arrays import IntArray
from covnmt.base.config import PositiveInt, Settings, read_settings
from covnmt.base.console import log
from covnmt.base.errors import UserError
from covnmt.data.settings import PrepareSettings, SplitName
from covnmt.text.codec import SIDES, Codec, Side, vocabulary_fingerprint
from covnmt.text.vocabulary import PAD_ID

DropReason = Literal["empty", "too_long", "ratio"]
TokenIds = npt.NDArray[np.unsignedinteger[Any]]

DROP_REASONS: dict[DropReason, str] = {
    "empty": "with an empty side",
    "too_long": "too long",
    "ratio": "beyond the length ratio",
}
CORPUS_FORMAT = 1  # version of the files in a prepared directory
REPORT_FILE = "corpus.json"
REMEDY = "make it again with `covnmt prepare --overwrite`"
ENTRIES_PER_CHUNK = 1 << 20  # of arrays that are verified


class SplitReport(Settings):
    """What `prepare` did with one split."""

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)

    read: int
    kept: Annotated[int, Field(ge=0)]
    dropped: dict[DropReason, int]
    tokens: dict[Side, int]
    percent_known: dict[Side, float] = Field(
        alias="coverage", description="percent of tokens in the vocabulary"
    )

    def __str__(self) -> str:
        dropped = f"dropped: {format_dropped(self.dropped) or 'none'}"
        sides = [
            f"{self.tokens[side]:,} {side} tokens, {self.percent_known[side]}% in the vocabulary"
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
    vocabulary_sizes: dict[Side, PositiveInt] = Field(
        alias="rows", min_length=len(SIDES), description="with the end symbol"
    )
    fingerprint: str = Field(description="of the tokenizers and vocabularies")
    checksums: dict[str, str] = Field(
        {}, description="SHA-256 of the files of all splits, and of the rest of corpus.json"
    )
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
    checksums: Mapping[str, str] = field(default_factory=dict)  # of its files

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
        check_digest(path, self.checksums)
        return lines


@dataclass(frozen=True)
class Corpus:
    """A prepared directory."""

    directory: Path
    report: PrepareReport

    @classmethod
    def open(cls, directory: Path) -> "Corpus":
        """Open a prepared directory; vocabularies that were changed since are an error."""
        path = directory / REPORT_FILE
        if not path.exists():
            raise UserError(
                f"{directory}: not a prepared corpus; make one with "
                f"`covnmt prepare SOURCE TARGET --output {directory}`"
            )
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
        checksums = corpus.report.checksums
        if checksums and checksums.get(REPORT_FILE) != report_digest(content):
            raise UserError(f"{path}: damaged; {REMEDY}")
        if not checksums:
            log(
                f"{directory}: made by an older covnmt, without checksums, so damage may go "
                "unnoticed; `covnmt prepare --overwrite` makes it again with them"
            )
        if vocabulary_fingerprint(directory) != corpus.report.fingerprint:
            raise UserError(f"{directory}: the vocabularies are not those of its ids; {REMEDY}")
        return corpus

    def identity(self) -> str:
        """Hash what corpus.json says, without paths: text, settings and results of `prepare`.

        Settings added by later versions are not in that file, and so do not change the hash.
        """
        content = self.report.model_dump_json(
            exclude={"settings": {"train", "dev", "test"}, "checksums": True}, exclude_unset=True
        )
        return hashlib.sha256(content.encode()).hexdigest()

    def codec(self, side: Side) -> Codec:
        """Load the tokenizer and vocabulary of one side."""
        return Codec.load(self.directory, side)

    def split(self, name: SplitName) -> Split:
        """Open and verify the pairs of train, dev or test; lines of text when they are read."""
        if name not in self.report.splits:
            raise UserError(f"{self.directory}: was prepared without {name} files; {REMEDY}")
        report = self.report
        pairs, sizes = report.splits[name].kept, report.vocabulary_sizes
        stem, checksums = self.directory / name, report.checksums
        return Split(
            name=name,
            directory=self.directory,
            source=_open_sentences(Path(f"{stem}.source"), pairs, sizes["source"], checksums),
            target=_open_sentences(Path(f"{stem}.target"), pairs, sizes["target"], checksums),
            order=(
                _open_order(Path(f"{stem}.order.npy"), pairs, checksums)
                if name == "train"
                else np.arange(pairs)
            ),
            source_end_id=sizes["source"] - 1,
            target_end_id=sizes["target"] - 1,
            # dev and test keep pairs of any length
            max_length=report.settings.max_length if name == "train" else None,
            checksums=checksums,
        )


def report_digest(content: Mapping[str, Any]) -> str:
    """Hash the content of corpus.json, but for its own checksum."""
    checksums = {k: v for k, v in content["checksums"].items() if k != REPORT_FILE}
    text = json.dumps({**content, "checksums": checksums}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def split_files(name: SplitName) -> list[str]:
    """Return the names of the files of a split."""
    stems = [f"{name}.{side}" for side in SIDES]
    texts = ["train.order.npy"] if name == "train" else [f"{stem}.txt" for stem in stems]
    return [f"{stem}.{kind}" for stem in stems for kind in ("ids", "offsets.npy")] + texts


def check_digest(path: Path, checksums: Mapping[str, str]) -> None:
    """Raise an error if a file has changed since it was made, where that is known."""
    if checksums and files.file_digest(path) != checksums.get(path.name):
        raise UserError(f"{path}: damaged (its checksum has changed); {REMEDY}")


def _open_sentences(
    stem: Path, number: int, vocabulary_size: int, checksums: Mapping[str, str]
) -> SentenceIds:
    offsets = _open_array(Path(f"{stem}.offsets.npy"), number + 1, checksums)
    if offsets[0] != 0 or any((np.diff(chunk) < 0).any() for chunk in _chunks(offsets, 1)):
        raise UserError(f"{stem}.offsets.npy: damaged (not increasing from 0); {REMEDY}")
    path = Path(f"{stem}.ids")
    dtype = id_dtype(vocabulary_size)
    expected = int(offsets[-1]) * dtype.itemsize
    if not path.exists():
        raise UserError(f"{path}: missing; {REMEDY}")
    size = path.stat().st_size
    if size != expected:
        raise UserError(f"{path}: has {size} bytes instead of {expected}; {REMEDY}")
    if not expected:  # an empty file cannot be mapped
        return SentenceIds(np.zeros(0, dtype), offsets)
    check_digest(path, checksums)
    ids: TokenIds = np.memmap(path, dtype, "r")
    for chunk in _chunks(ids):
        if chunk.min() == PAD_ID or chunk.max() >= vocabulary_size - 1:
            raise UserError(
                f"{path}: damaged (ids outside of 1 to {vocabulary_size - 2}); {REMEDY}"
            )
    return SentenceIds(ids, offsets)


def _open_order(path: Path, pairs: int, checksums: Mapping[str, str]) -> IntArray:
    order = _open_array(path, pairs, checksums)
    missing = np.ones(pairs, bool)
    for chunk in _chunks(order):
        if chunk.min() < 0 or chunk.max() >= pairs:
            break
        missing[chunk] = False
    if missing.any():
        raise UserError(f"{path}: damaged (not each pair once); {REMEDY}")
    return order


def _chunks(array: npt.NDArray[Any], overlap: int = 0) -> Iterator[npt.NDArray[Any]]:
    for start in range(0, len(array), ENTRIES_PER_CHUNK):
        yield array[start : start + ENTRIES_PER_CHUNK + overlap]


def npy_header(length: int) -> bytes:
    """Return the beginning of an .npy file with this many int64."""
    stream = io.BytesIO()
    header = {"descr": "<i8", "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()


def _open_array(path: Path, length: int, checksums: Mapping[str, str]) -> IntArray:
    """Map int64 of an .npy file; NumPy's own reader takes a damaged header for Python code."""
    expected = npy_header(length)
    files.refuse_pipe(path, REMEDY)
    try:
        with path.open("rb") as stream:
            start = stream.read(len(expected))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {REMEDY}") from None
    if start != expected or path.stat().st_size != len(expected) + 8 * length:
        raise UserError(f"{path}: damaged (not {length:,} numbers); {REMEDY}")
    check_digest(path, checksums)
    array: IntArray = np.memmap(path, "<i8", "r", len(expected), (length,))
    return array
