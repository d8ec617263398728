"""Tokenize, count and encode one pair of parallel files of a corpus.

File pairs are independent, so several processes work on them at once. Their results stay in a
working directory with a record of all that they depend on, so that an interrupted `prepare`
continues with the missing ones.

    train.3.source, train.3.target    the tokens of the pairs that are kept
    train.3.source.counts, .target    the tokens of these pairs and how often they occur
    train.3.json                      the record, with the number of pairs kept and dropped
    train.3.source.ids, .ends         the ids end to end, and where each sentence ends
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from covnmt.base import files
from covnmt.base.config import read_if_made_from
from covnmt.base.console import track
from covnmt.base.errors import UserError
from covnmt.data.corpus import DropReason, id_dtype
from covnmt.data.settings import PathPair, PrepareSettings, SplitName
from covnmt.text.codec import SIDES, Side
from covnmt.text.tokenize import build_tokenizer, clean_line
from covnmt.text.vocabulary import UNK_ID, Vocabulary, most_frequent

MAX_COUNTED_TOKENS = 1_000_000  # different tokens per side; the rarer half is forgotten
LINES_PER_CHUNK = 10_000


@dataclass(frozen=True)
class FilePairTask:
    """Two parallel files of a split, how they are tokenized, and where the results go."""

    split: SplitName
    number: int
    paths: PathPair
    digests: tuple[str, ...]  # SHA-256 of the files
    settings: PrepareSettings
    spm_models: dict[Side, Path | None]
    work: Path

    def __str__(self) -> str:
        return " and ".join(map(str, self.paths))

    def file(self, ending: str) -> Path:
        """Return a path in the working directory."""
        return self.work / f"{self.split}.{self.number}.{ending}"

    def made_from(self) -> dict[str, Any]:
        """Return everything that the tokens depend on."""
        return {
            "files": list(self.digests),
            "models": {side: files.file_digest(p) for side, p in self.spm_models.items() if p},
            **self.settings.model_dump(mode="json", include={*SIDES, "max_length", "max_ratio"}),
        }


def tokenize_file_pair(pair: FilePairTask) -> dict[str, int]:
    """Write tokens and counts unless they are there; returns how many pairs are kept and dropped.

    Only training pairs are dropped, and only tokens of kept pairs are counted.
    """
    record, made_from = pair.file("json"), pair.made_from()
    if content := read_if_made_from(record, made_from):
        return dict(content["tally"])
    tally: Counter[str] = Counter()
    counts: dict[Side, Counter[str]] = {side: Counter() for side in SIDES}
    with (
        files.atomic_write_text(pair.file("source")) as source_file,
        files.atomic_write_text(pair.file("target")) as target_file,
    ):
        for source, target in track(_tokenize(pair), None, f"tokenizing {pair.split}"):
            if pair.split == "train":
                if reason := _drop_reason(len(source), len(target), pair.settings):
                    tally[reason] += 1
                    continue
                count_tokens(counts["source"], source)
                count_tokens(counts["target"], target)
            source_file.write(" ".join(source) + "\n")
            target_file.write(" ".join(target) + "\n")
            tally["kept"] += 1
        if not tally:
            raise UserError(f"{pair} are empty; name files with a sentence on each line")
    for side, token_counts in counts.items():
        lines = (f"{token} {count}" for token, count in token_counts.items())
        files.write_lines(pair.file(f"{side}.counts"), lines)
    files.write_json(record, {"made_from": made_from, "tally": tally})
    return tally


def _tokenize(pair: FilePairTask) -> Iterator[tuple[list[str], list[str]]]:
    source, target = (pair.settings.tokenizer_settings(side) for side in SIDES)
    source_tokenizer = build_tokenizer(source, pair.spm_models["source"])
    target_tokenizer = build_tokenizer(target, pair.spm_models["target"])
    for source_line, target_line in files.read_parallel_lines(*pair.paths):
        yield (
            source_tokenizer.tokenize(clean_line(source_line, source)),
            target_tokenizer.tokenize(clean_line(target_line, target)),
        )


def _drop_reason(source: int, target: int, settings: PrepareSettings) -> DropReason | None:
    """Say why a pair of these lengths is unsuitable for training, if it is."""
    shorter, longer = sorted((source, target))
    if not shorter:
        return "empty"
    if longer > settings.max_length:
        return "too_long"
    if settings.max_ratio and longer > settings.max_ratio * shorter:
        return "ratio"
    return None


def add_token_counts(counts: Counter[str], path: Path) -> None:
    """Add the counts of one file pair."""
    for line in files.read_lines(path):
        token, count = line.split(" ")
        counts[token] += int(count)
    count_tokens(counts, ())


def count_tokens(counts: Counter[str], tokens: Iterable[str]) -> None:
    """Count tokens, and forget the rarer half of them whenever there are too many.

    So counts of rare tokens are approximate in text with more types than `MAX_COUNTED_TOKENS`.
    """
    counts.update(tokens)
    if len(counts) > MAX_COUNTED_TOKENS:
        frequent = most_frequent(counts, MAX_COUNTED_TOKENS // 2)
        counts.clear()
        counts.update(frequent)


@dataclass(frozen=True)
class EncodingTask:
    """One side of a file pair, to be turned into ids."""

    pair: FilePairTask
    side: Side
    vocabulary: Vocabulary

    def __str__(self) -> str:
        return str(self.pair.file(self.side))


def encode_file(task: EncodingTask) -> tuple[Side, int, int]:
    """Write the ids of one side and the ends of its sentences; returns counts of ids and UNKs."""
    end = unknown = 0
    tokens = task.pair.file(task.side)
    lines = track(files.read_lines(tokens), None, f"encoding {tokens.name}")
    with (
        files.atomic_write(task.pair.file(f"{task.side}.ids")) as ids_file,
        files.atomic_write(task.pair.file(f"{task.side}.ends")) as ends_file,
    ):
        while chunk := list(islice(lines, LINES_PER_CHUNK)):
            rows = [task.vocabulary.encode(line.split()) for line in chunk]
            ids = np.fromiter(chain.from_iterable(rows), id_dtype(len(task.vocabulary)))
            ends = end + np.cumsum([len(row) for row in rows], dtype="<i8")
            ids_file.write(ids.tobytes())
            ends_file.write(ends.tobytes())
            end = int(ends[-1])
            unknown += int(np.count_nonzero(ids == UNK_ID))
    return task.side, end, unknown
