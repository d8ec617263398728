"""One pair of files of a corpus, by itself: tokenised and counted, then turned into ids.

Parts share nothing, so several processes work on them at once. What was made of a part stays in a
working directory with a key of all that it depends on, so an interrupted `prepare` goes on with
the parts that are missing.

    train.3.source, train.3.target    the tokens of the pairs that are kept
    train.3.source.counts, .target    the words of these pairs and how often they come
    train.3.json                      key, and how many pairs were kept and dropped; written last
    train.3.source.ids, .ends         the ids end to end, and where each sentence ends
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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
from covnmt.text.tokenize import Tokenizer, build_tokenizer
from covnmt.text.vocabulary import UNK_ID, Vocabulary, most_frequent

TokenPair = tuple[list[str], list[str]]

TYPES_IN_MEMORY = 1_000_000  # of each side, while counting; the rarest go when there are more
LINES_AT_A_TIME = 10_000


@dataclass(frozen=True)
class FilePair:
    """One pair of files of a split, and where to work on it."""

    name: SplitName
    number: int
    paths: PathPair
    digests: tuple[str, ...]  # SHA-256 of the files
    settings: PrepareSettings
    models: dict[Side, Path | None]  # of sentencepiece
    work: Path

    def __str__(self) -> str:
        return " and ".join(map(str, self.paths))

    def file(self, ending: str) -> Path:
        """A file of this part in the working directory."""
        return self.work / f"{self.name}.{self.number}.{ending}"

    def made_from(self) -> dict[str, Any]:
        """Return everything that the tokens depend on."""
        return {
            "files": list(self.digests),
            "models": {side: files.file_digest(path) for side, path in self.models.items() if path},
            **self.settings.model_dump(mode="json", include={*SIDES, "max_length", "max_ratio"}),
        }


def tokenize_file_pair(part: FilePair) -> dict[str, int]:
    """Write the tokens and counts of a part, unless they are there; tallies its pairs.

    Only training pairs are dropped, and only those that stay count for the vocabulary.
    """
    record, made_from = part.file("json"), part.made_from()
    if found := read_if_made_from(record, made_from):
        return dict(found["tally"])
    tokenizers = {
        side: build_tokenizer(part.settings.tokenizer(side), part.models[side]) for side in SIDES
    }
    tally: Counter[str] = Counter()
    counts: dict[Side, Counter[str]] = {side: Counter() for side in SIDES}
    pairs = track(_token_pairs(part.paths, tokenizers), None, f"tokenising {part.name}")
    if part.name == "train":
        pairs = _counted(_filtered(pairs, part.settings, tally), counts)
    with (
        files.atomic_write_text(part.file("source")) as source_file,
        files.atomic_write_text(part.file("target")) as target_file,
    ):
        for source, target in pairs:
            source_file.write(" ".join(source) + "\n")
            target_file.write(" ".join(target) + "\n")
            tally["kept"] += 1
    for side, found_words in counts.items():
        lines = (f"{word} {times}" for word, times in found_words.items())
        files.write_lines(part.file(f"{side}.counts"), lines)
    files.write_json(record, {"made_from": made_from, "tally": tally})
    return tally


def _token_pairs(paths: PathPair, tokenizers: Mapping[Side, Tokenizer]) -> Iterator[TokenPair]:
    empty = True
    for source, target in files.read_parallel_lines(*paths):
        empty = False
        yield tokenizers["source"].tokenize(source), tokenizers["target"].tokenize(target)
    if empty:
        raise UserError(
            f"{paths[0]} and {paths[1]} are empty; name files with a sentence on each line"
        )


def _filtered(
    pairs: Iterable[TokenPair], settings: PrepareSettings, tally: Counter[str]
) -> Iterator[TokenPair]:
    for source, target in pairs:
        if fault := _fault(len(source), len(target), settings):
            tally[fault] += 1
        else:
            yield source, target


def _fault(source: int, target: int, settings: PrepareSettings) -> DropReason | None:
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
        count(counts["source"], source)
        count(counts["target"], target)
        yield source, target


def add_token_counts(counts: Counter[str], path: Path) -> None:
    """Add what was counted in a part."""
    for line in files.read_lines(path):
        word, times = line.split(" ")
        counts[word] += int(times)
    count(counts, ())


def count(counts: Counter[str], tokens: Iterable[str]) -> None:
    """Count, forgetting the rarer half of the types whenever there are too many of them."""
    counts.update(tokens)
    if len(counts) > TYPES_IN_MEMORY:
        frequent = most_frequent(counts, TYPES_IN_MEMORY // 2)
        counts.clear()
        counts.update(frequent)


@dataclass(frozen=True)
class EncodingTask:
    """One side of a part that waits to be turned into ids."""

    part: FilePair
    side: Side
    vocabulary: Vocabulary

    def __str__(self) -> str:
        return str(self.part.file(self.side))


def encode_file(job: EncodingTask) -> tuple[Side, int, int]:
    """Write the ids of one side, and where each sentence ends; counts ids and UNKs."""
    end = unknown = 0
    tokens = job.part.file(job.side)
    lines = track(files.read_lines(tokens), None, f"encoding {tokens.name}")
    with (
        files.atomic_write(job.part.file(f"{job.side}.ids")) as ids_file,
        files.atomic_write(job.part.file(f"{job.side}.ends")) as ends_file,
    ):
        while chunk := list(islice(lines, LINES_AT_A_TIME)):
            rows = [job.vocabulary.encode(line.split()) for line in chunk]
            ids = np.fromiter(chain.from_iterable(rows), id_dtype(len(job.vocabulary)))
            ends = end + np.cumsum([len(row) for row in rows], dtype="<i8")
            ids_file.write(ids.tobytes())
            ends_file.write(ends.tobytes())
            end = int(ends[-1])
            unknown += int(np.count_nonzero(ids == UNK_ID))
    return job.side, end, unknown
