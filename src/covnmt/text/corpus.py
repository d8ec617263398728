"""Parallel text files -> memory-mapped id arrays on disk (`prepare`), and back (`Corpus`).

A prepared directory holds, for each split (train, dev, test) and each side:

    train.source.ids           all sentences end to end: uint16, or uint32 for large vocabularies
    train.source.offsets.npy   int64; sentence i is ids[offsets[i] : offsets[i + 1]]
    train.order.npy            the shuffle, made once and for all (SPEC 1.1)
    dev.source.txt             the raw lines, for scoring (not for train)

next to the tokenizers and vocabularies (see `codec`), and `corpus.json`: what was done and what
came out. It is written last, so a directory that has it is complete. Ids carry no end symbol.
"""

import hashlib
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from covnmt import files
from covnmt.config import Count, Positive, Settings
from covnmt.errors import UserError
from covnmt.progress import track
from covnmt.text.codec import SIDES, Codec, Side, fingerprint, read_settings
from covnmt.text.tokenize import (
    SentencePieceTokenizer,
    Tokenizer,
    TokenizerSettings,
    build_tokenizer,
    clean,
)
from covnmt.text.vocab import UNK, Vocabulary, most_frequent, train_sentencepiece

SplitName = Literal["train", "dev", "test"]
SPLITS: tuple[SplitName, ...] = get_args(SplitName)
Fault = Literal["empty", "too_long", "ratio"]
PathPair = tuple[Path, Path]
TokenPair = tuple[list[str], list[str]]
Ids = npt.NDArray[np.unsignedinteger[Any]]
Integers = npt.NDArray[np.int64]

VERSION = 1  # of the directory's layout
TYPES_IN_MEMORY = 1_000_000  # of each side, while counting; the rarest go when there are more
LINES_AT_A_TIME = 10_000
REMEDY = "make it again with `covnmt prepare`"


class PrepareSettings(Settings):
    """What to prepare, and how."""

    source: TokenizerSettings
    target: TokenizerSettings
    train: tuple[PathPair, ...] = Field(min_length=1, description="parallel files, put together")
    dev: PathPair | None = Field(None, description="for validation; no pair is ever dropped")
    test: PathPair | None = Field(None, description="for the last score; none is dropped either")
    source_size: Annotated[int, Field(ge=3)] = Field(30_000, description="words, and 2 reserved")
    target_size: Annotated[int, Field(ge=3)] = Field(30_000, description="words, and 2 reserved")
    max_length: Positive = Field(80, description="longest side of a training pair, in tokens")
    max_ratio: Annotated[float, Field(ge=0)] = Field(
        0.0, description="longer side over shorter side of a training pair; 0: any"
    )
    seed: Count = Field(1234, description="of the shuffle and of sentencepiece's sample")
    sentencepiece: Literal["unigram", "bpe"] = Field("unigram", description="kind of subwords")
    joint: bool = Field(False, description="one vocabulary (and subword model) for both sides")

    @model_validator(mode="after")
    def _joint_sides_agree(self) -> "PrepareSettings":
        kinds, sizes = (self.source.kind, self.target.kind), (self.source_size, self.target_size)
        for what, (source, target) in {"kind": kinds, "size": sizes}.items():
            if self.joint and source != target:
                raise ValueError(f"joint needs the same {what}, not {source} and {target}")
        return self

    def tokenizer(self, side: Side) -> TokenizerSettings:
        """How the text of one side is split."""
        return self.source if side == "source" else self.target

    def size(self, side: Side) -> int:
        """The size of one side's vocabulary."""
        return self.source_size if side == "source" else self.target_size

    def files(self) -> dict[SplitName, tuple[PathPair, ...]]:
        """The parallel files of each split there is."""
        splits: dict[SplitName, tuple[PathPair, ...]] = {"train": self.train}
        if self.dev:
            splits["dev"] = (self.dev,)
        if self.test:
            splits["test"] = (self.test,)
        return splits


class SplitReport(Settings):
    """What became of one split."""

    read: int
    kept: int
    dropped: dict[Fault, int]
    tokens: dict[Side, int]
    coverage: dict[Side, float] = Field(description="percent of tokens in the vocabulary")

    def __str__(self) -> str:
        faults = [f"{number:,} {fault.replace('_', ' ')}" for fault, number in self.dropped.items()]
        dropped = f"dropped {', '.join(faults) or 'none'}"
        text = [
            f"{self.tokens[side]:,} {side} tokens, {self.coverage[side]}% in the vocabulary"
            for side in SIDES
        ]
        return "; ".join([f"{self.kept:,} of {self.read:,} pairs", dropped, *text])


class PrepareReport(Settings):
    """What `prepare` did and what came out: the content of corpus.json."""

    version: int
    settings: PrepareSettings
    inputs: dict[SplitName, tuple[str, ...]] = Field(description="SHA-256 of the files read")
    splits: dict[SplitName, SplitReport]
    rows: dict[Side, int] = Field(description="of the vocabularies, with the end symbol")
    fingerprint: str = Field(description="of the tokenizers and vocabularies")
    reused: bool = Field(False, exclude=True, description="all was there already")

    def lines(self) -> list[str]:
        """The report in words."""
        rows = f"vocabulary rows: {self.rows['source']:,} source, {self.rows['target']:,} target"
        state = ["already prepared with these settings; nothing to do"] * self.reused
        return [*state, *(f"{name}: {split}" for name, split in self.splits.items()), rows]


def prepare(settings: PrepareSettings, output: Path, overwrite: bool = False) -> PrepareReport:
    """Tokenise, build vocabularies and write id arrays; streams, whatever the size of the text."""
    inputs = {name: _digests(pairs) for name, pairs in settings.files().items()}
    if (output / "corpus.json").exists() and not overwrite:
        return _reuse(output, settings, inputs)
    work = output / ".prepare"
    _clear(output, work)
    try:
        splits, rows = _fill(settings, output, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    report = PrepareReport(
        version=VERSION,
        settings=settings,
        inputs=inputs,
        splits=splits,
        rows=rows,
        fingerprint=fingerprint(output),
    )
    files.write_json(output / "corpus.json", report.model_dump(mode="json"))
    return report


def _digests(pairs: Iterable[PathPair]) -> tuple[str, ...]:
    digests = []
    for path in chain.from_iterable(pairs):
        try:
            with path.open("rb") as stream:
                digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    return tuple(digests)


def _reuse(
    output: Path, settings: PrepareSettings, inputs: Mapping[SplitName, tuple[str, ...]]
) -> PrepareReport:
    """The report of a directory made with the same settings from the same text."""
    corpus = Corpus.open(output)
    old = _identity(corpus.report.settings, corpus.report.inputs)
    new = _identity(settings, inputs)
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    if changed:
        raise UserError(
            f"{output}: already holds a corpus made with other settings or text "
            f"({', '.join(changed)}); choose another directory, or overwrite this one"
        )
    for name in corpus.report.splits:
        corpus.split(name)
    return corpus.report.model_copy(update={"reused": True})


def _identity(
    settings: PrepareSettings, inputs: Mapping[SplitName, tuple[str, ...]]
) -> dict[str, Any]:
    """What the result depends on: not where the text lies, but what it says."""
    return settings.model_dump() | {name: inputs.get(name) for name in SPLITS}


def _clear(output: Path, work: Path) -> None:
    """Take away the mark of completeness and whatever a killed run left behind."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        (output / "corpus.json").unlink(missing_ok=True)
        shutil.rmtree(work, ignore_errors=True)
        for leftover in chain.from_iterable(output.glob(f".{name}.*.tmp") for name in SPLITS):
            leftover.unlink()
    except OSError as error:
        raise UserError(f"{output}: cannot be written to ({error.strerror})") from None


def _fill(
    settings: PrepareSettings, output: Path, work: Path
) -> tuple[dict[SplitName, SplitReport], dict[Side, int]]:
    """Write everything but corpus.json; `work` holds the tokens between the two passes."""
    models = _train_subwords(settings, work)
    tokenizers = {side: build_tokenizer(settings.tokenizer(side), models[side]) for side in SIDES}
    counts: dict[Side, Counter[str]] = {side: Counter() for side in SIDES}
    if settings.joint:
        counts["target"] = counts["source"]
    tallies = {
        name: _tokenise(settings, name, tokenizers, counts, work) for name in settings.files()
    }
    vocabularies = {}
    for side, model in models.items():
        vocabularies[side] = _build_vocabulary(counts[side], settings.size(side), model)
        codec = Codec(settings.tokenizer(side), tokenizers[side], vocabularies[side], model)
        codec.save(output, side)
    _write_order(output, tallies["train"]["kept"], settings.seed)
    _write_texts(settings, output)
    splits = {name: _encode(name, vocabularies, tallies[name], work, output) for name in tallies}
    return splits, {side: len(vocabularies[side]) for side in SIDES}


def _train_subwords(settings: PrepareSettings, work: Path) -> dict[Side, Path | None]:
    """A sentencepiece model for each side that wants one; joint sides share it."""
    models: dict[Side, Path | None] = {"source": None, "target": None}
    for side in SIDES:
        if settings.tokenizer(side).kind != "sentencepiece":
            continue
        if settings.joint and side == "target":
            models[side] = models["source"]
            continue
        models[side] = path = work / f"{side}.spm"
        text = _train_lines(settings, SIDES if settings.joint else (side,))
        text = track(text, None, f"reading {side} for sentencepiece")
        train_sentencepiece(text, path, settings.size(side), settings.sentencepiece, settings.seed)
    return models


def _train_lines(settings: PrepareSettings, sides: Iterable[Side]) -> Iterator[str]:
    for side in sides:
        for pair in settings.train:
            for line in files.read_lines(pair[SIDES.index(side)]):
                yield clean(line, settings.tokenizer(side).lowercase)


def _tokenise(
    settings: PrepareSettings,
    name: SplitName,
    tokenizers: Mapping[Side, Tokenizer],
    counts: Mapping[Side, Counter[str]],
    work: Path,
) -> Counter[str]:
    """Write the tokens of a split to `work`, and tally the pairs that are kept and dropped.

    Only training pairs are dropped, and only those that stay count for the vocabulary.
    """
    tally: Counter[str] = Counter()
    pairs = track(_token_pairs(settings.files()[name], tokenizers), None, f"tokenising {name}")
    if name == "train":
        pairs = _counted(_filtered(pairs, settings, tally), counts)
    with (
        files.atomic_text(work / f"{name}.source") as source_file,
        files.atomic_text(work / f"{name}.target") as target_file,
    ):
        for source, target in pairs:
            source_file.write(" ".join(source) + "\n")
            target_file.write(" ".join(target) + "\n")
            tally["kept"] += 1
    if not tally["kept"]:
        faults = ", ".join(f"{number:,} {fault}" for fault, number in tally.items() if number)
        raise UserError(f"no training pair is left ({faults}): check the text and max_length")
    return tally


def _token_pairs(
    paths: Iterable[PathPair], tokenizers: Mapping[Side, Tokenizer]
) -> Iterator[TokenPair]:
    for source_path, target_path in paths:
        empty = True
        for source, target in files.read_parallel(source_path, target_path):
            empty = False
            yield tokenizers["source"].tokenize(source), tokenizers["target"].tokenize(target)
        if empty:
            raise UserError(f"{source_path} and {target_path} are empty")


def _filtered(
    pairs: Iterable[TokenPair], settings: PrepareSettings, tally: Counter[str]
) -> Iterator[TokenPair]:
    for source, target in pairs:
        if fault := _fault(len(source), len(target), settings):
            tally[fault] += 1
        else:
            yield source, target


def _fault(source: int, target: int, settings: PrepareSettings) -> Fault | None:
    """Why a pair of these lengths is of no use for training, if it is not."""
    shorter, longer = sorted((source, target))
    if not shorter:
        return "empty"
    if longer > settings.max_length:
        return "too_long"
    if settings.max_ratio and longer > settings.max_ratio * shorter:
        return "ratio"
    return None


def _counted(
    pairs: Iterable[TokenPair], counts: Mapping[Side, Counter[str]]
) -> Iterator[TokenPair]:
    for source, target in pairs:
        _count(counts["source"], source)
        _count(counts["target"], target)
        yield source, target


def _count(counts: Counter[str], tokens: list[str]) -> None:
    """Count, forgetting the rarer half of the types whenever there are too many of them."""
    counts.update(tokens)
    if len(counts) > TYPES_IN_MEMORY:
        frequent = most_frequent(counts, TYPES_IN_MEMORY // 2)
        counts.clear()
        counts.update(frequent)


def _build_vocabulary(counts: Mapping[str, int], size: int, model: Path | None) -> Vocabulary:
    if model is None:
        return Vocabulary.from_counts(counts, size)
    return Vocabulary(tuple(SentencePieceTokenizer(model).pieces()))


def _write_order(output: Path, pairs: int, seed: int) -> None:
    with files.atomic_write(output / "train.order.npy") as stream:
        np.save(stream, np.random.default_rng(seed).permutation(pairs))


def _write_texts(settings: PrepareSettings, output: Path) -> None:
    for name, pairs in settings.files().items():
        if name != "train":
            for side, path in zip(SIDES, pairs[0], strict=True):
                files.write_lines(output / f"{name}.{side}.txt", files.read_lines(path))


def _encode(
    name: SplitName,
    vocabularies: Mapping[Side, Vocabulary],
    tally: Counter[str],
    work: Path,
    output: Path,
) -> SplitReport:
    """Turn the tokens in `work` into id arrays."""
    tokens, coverage = {}, {}
    for side, vocabulary in vocabularies.items():
        stem = f"{name}.{side}"
        lines = track(files.read_lines(work / stem), tally["kept"], f"encoding {stem}")
        tokens[side], unknown = _write_ids(lines, tally["kept"], vocabulary, output / stem)
        coverage[side] = round(100 * (1 - unknown / max(tokens[side], 1)), 2)
    return SplitReport(
        read=tally.total(),
        kept=tally["kept"],
        dropped={fault: tally[fault] for fault in get_args(Fault) if tally[fault]},
        tokens=tokens,
        coverage=coverage,
    )


def _write_ids(
    lines: Iterator[str], number: int, vocabulary: Vocabulary, stem: Path
) -> tuple[int, int]:
    """Append the ids of each line to one file, where it ends to another; count ids and UNKs."""
    end = unknown = 0
    with (
        files.atomic_write(Path(f"{stem}.ids")) as ids_file,
        files.atomic_write(Path(f"{stem}.offsets.npy")) as offsets_file,
    ):
        header = {"descr": "<i8", "fortran_order": False, "shape": (number + 1,)}
        np.lib.format.write_array_header_1_0(offsets_file, header)
        offsets_file.write(np.zeros(1, "<i8").tobytes())
        while chunk := list(islice(lines, LINES_AT_A_TIME)):
            rows = [vocabulary.encode(line.split()) for line in chunk]
            ids = np.fromiter(chain.from_iterable(rows), id_type(len(vocabulary)))
            ends = end + np.cumsum([len(row) for row in rows], dtype="<i8")
            ids_file.write(ids.tobytes())
            offsets_file.write(ends.tobytes())
            end = int(ends[-1])
            unknown += int(np.count_nonzero(ids == UNK))
    return end, unknown


def id_type(rows: int) -> np.dtype[np.unsignedinteger[Any]]:
    """The smallest type on disk that holds every id of a vocabulary."""
    return np.dtype("<u2" if rows <= 2**16 else "<u4")


@dataclass(frozen=True)
class Sentences:
    """One side of a split: ragged rows of ids, mapped from disk."""

    ids: Ids
    offsets: Integers

    def __getitem__(self, i: int) -> Ids:
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    @cached_property
    def lengths(self) -> Integers:
        """Tokens of every sentence, known without reading them."""
        return np.diff(self.offsets)


@dataclass(frozen=True)
class Split:
    """The pairs of train, dev or test. Ids come without the end symbols, given by their ids."""

    name: SplitName
    directory: Path
    source_sentences: Sentences
    target_sentences: Sentences
    order: Integers
    source_end: int
    target_end: int

    def __len__(self) -> int:
        return len(self.order)

    def source(self, i: int) -> Ids:
        """The source ids of pair i."""
        return self.source_sentences[i]

    def target(self, i: int) -> Ids:
        """The target ids of pair i."""
        return self.target_sentences[i]

    @property
    def source_lengths(self) -> Integers:
        """Source tokens of every pair."""
        return self.source_sentences.lengths

    @property
    def target_lengths(self) -> Integers:
        """Target tokens of every pair."""
        return self.target_sentences.lengths

    def source_text(self) -> list[str]:
        """The raw source lines (dev and test)."""
        return list(files.read_lines(self.directory / f"{self.name}.source.txt"))

    def target_text(self) -> list[str]:
        """The raw target lines (dev and test)."""
        return list(files.read_lines(self.directory / f"{self.name}.target.txt"))


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
        corpus = cls(directory, read_settings(path, PrepareReport))
        if corpus.report.version != VERSION:
            raise UserError(f"{path}: layout {corpus.report.version}, not {VERSION}; {REMEDY}")
        if fingerprint(directory) != corpus.report.fingerprint:
            raise UserError(f"{directory}: the vocabularies are not those of its ids; {REMEDY}")
        return corpus

    def codec(self, side: Side) -> Codec:
        """The tokenizer and vocabulary of one side."""
        return Codec.load(self.directory, side)

    def split(self, name: SplitName) -> Split:
        """The pairs of train, dev or test."""
        if name not in self.report.splits:
            raise UserError(f"{self.directory}: was prepared without {name} files; {REMEDY}")
        pairs, rows = self.report.splits[name].kept, self.report.rows
        order = self.directory / f"{name}.order.npy"
        return Split(
            name=name,
            directory=self.directory,
            source_sentences=_open_sentences(
                self.directory / f"{name}.source", pairs, rows["source"]
            ),
            target_sentences=_open_sentences(
                self.directory / f"{name}.target", pairs, rows["target"]
            ),
            order=_open_array(order, pairs) if name == "train" else np.arange(pairs),
            source_end=rows["source"] - 1,
            target_end=rows["target"] - 1,
        )


def _open_sentences(stem: Path, number: int, rows: int) -> Sentences:
    offsets = _open_array(Path(f"{stem}.offsets.npy"), number + 1)
    path = Path(f"{stem}.ids")
    expected = int(offsets[-1]) * id_type(rows).itemsize
    found = path.stat().st_size if path.exists() else 0
    if found != expected:
        raise UserError(f"{path}: has {found} bytes instead of {expected}; {REMEDY}")
    # an empty file cannot be mapped
    ids = np.memmap(path, id_type(rows), "r") if expected else np.zeros(0, id_type(rows))
    return Sentences(ids, offsets)


def _open_array(path: Path, length: int) -> Integers:
    try:
        array: Integers = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); {REMEDY}") from None
    if array.shape != (length,) or array.dtype != np.int64:
        raise UserError(f"{path}: damaged ({array.dtype}, {array.shape}); {REMEDY}")
    return array
