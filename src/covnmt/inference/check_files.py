"""Check files: read their pairs, check these in processes, keep reports to resume from."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

from covnmt.base.console import log
from covnmt.base.errors import UserError
from covnmt.base.files import (
    PARSE_ERRORS,
    file_digest,
    is_file_path,
    read_lines,
    read_parallel_lines,
    require_lock,
)
from covnmt.base.processes import chunked
from covnmt.inference.check_settings import MAX_TOKENS, MIN_PROBABILITY
from covnmt.inference.model import Model, ModelLoader
from covnmt.inference.omissions import (
    CheckedPair,
    Omission,
    OmissionReport,
    SkippedPair,
    TextPair,
)
from covnmt.inference.parallel import map_lines, models_identity
from covnmt.model.directory import CALIBRATION_FILE, LEXICON_FILE
from covnmt.text.bilingual_files import (
    BilingualFormat,
    bilingual_format,
    has_both_sides,
    read_segments,
)
from covnmt.text.codec import stored_languages

CheckFormat = Literal["text", "tsv", "po", "tmx", "xliff"]
Report = OmissionReport | SkippedPair

CHUNK_PAIRS = 128  # few enough that all processes have work, enough to batch them


@dataclass(frozen=True)
class CheckInput:
    """A text and its translation: in two files line by line, or in one file of another format."""

    source: Path
    target: Path | None = None
    languages: tuple[str, str] = ("", "")
    format: BilingualFormat | None = None  # of one file

    @classmethod
    def find(
        cls, source: Path, target: Path | None, name: CheckFormat | None, loader: ModelLoader
    ) -> "CheckInput":
        """Choose the format by the names of the files, unless `name` says it."""
        if target is not None:
            if name not in (None, "text"):
                raise UserError(f"--format {name} is for one file that holds both texts")
            for path in (source, target):
                if name is None and has_both_sides(path):
                    raise UserError(
                        f"{path}: a file of this type holds both texts, so give it alone; or "
                        "--format text if it has a plain line for every line of the other"
                    )
            return cls(source, target)
        languages = stored_languages(loader.directories[0]) or ("", "")
        return cls(source, None, languages, bilingual_format(source, name))

    @property
    def paths(self) -> list[Path]:
        """The files."""
        return [self.source] if self.target is None else [self.source, self.target]

    def __str__(self) -> str:
        """Return what comes before the id of a pair in messages."""
        kind = "line" if self.format in (None, "tsv", "po") else "unit"
        return f"{' and '.join(map(str, self.paths))}, {kind}"

    @property
    def can_be_read_twice(self) -> bool:
        """Whether the files are neither pipes nor standard input."""
        return all(is_file_path(path) and path.is_file() for path in self.paths)

    @cached_property
    def counts(self) -> tuple[int, int] | None:
        """How many pairs there are, and how many units without a finished translation.

        None if that is not known before they are read. Raises a UserError if two files have
        different numbers of lines.
        """
        if self.format and (self.can_be_read_twice or self.format != "tsv"):
            finished = [0, 0]
            for segment in read_segments(self.source, self.format, self.languages):
                finished[segment.is_finished] += 1
            if not finished[True]:
                source, target = (language or "?" for language in self.languages)
                kind = f" from {source} to {target}" if self.format == "tmx" else ""
                raise UserError(f"{self.source}: no finished translation{kind}")
            return finished[True], finished[False]
        if not self.can_be_read_twice:
            return None
        first, *others = (sum(1 for _ in read_lines(path)) for path in self.paths)
        if self.target and others != [first]:
            raise UserError(
                f"{self.source} has {first:,} lines but {self.target} has {others[0]:,}: line n "
                "of one must be the translation of line n of the other"
            )
        return first, 0

    def pairs(self) -> Iterator[TextPair]:
        """Yield the pairs to check."""
        if self.format:
            for row in read_segments(self.source, self.format, self.languages):
                if row.is_finished:
                    yield TextPair(row.id, row.source, row.target, row.place)
        elif self.target:
            for number, (x, y) in enumerate(read_parallel_lines(self.source, self.target), 1):
                yield TextPair(str(number), x, y)


def check_pairs(
    loader: ModelLoader,
    pairs: Iterable[TextPair],
    min_probability: float = MIN_PROBABILITY,
    words: bool = False,
    max_tokens: int = MAX_TOKENS,
) -> Iterator[CheckedPair]:
    """Check pairs for omissions, in order."""
    workers = loader.default_workers
    check = partial(_check_chunk, min_probability, words, max_tokens)
    return map_lines(loader, check, chunked(pairs, CHUNK_PAIRS), workers)


def _check_chunk(
    min_probability: float,
    words: bool,
    max_tokens: int,
    model: Model,
    pairs: list[TextPair],
    _first: int,
) -> Iterator[CheckedPair]:
    texts = [(pair.source, pair.target) for pair in pairs]
    reports = model.check_stream(texts, min_probability, words, max_tokens)
    return (CheckedPair(*row) for row in zip(pairs, reports, strict=True))


@dataclass
class SavedReports:
    """A file of reports that were made before a check was interrupted, beside its output."""

    path: Path
    identity: dict[str, Any]  # all that reports depend on
    reports: list[Report] = field(default_factory=list)

    @classmethod
    def beside(
        cls, output: Path, check_input: CheckInput, loader: ModelLoader, settings: dict[str, Any]
    ) -> "SavedReports":
        """Name the file by an output of the check, and say what its reports depend on."""
        identity = {
            "input": [file_digest(path) for path in check_input.paths],
            "format": check_input.format,
            **models_identity(loader.directories[:1], (CALIBRATION_FILE, LEXICON_FILE)),
            **settings,
        }
        return cls(output.with_name(f".{output.name}.check.jsonl"), identity)

    def resume(
        self,
        pairs: Iterable[TextPair],
        check: Callable[[Iterable[TextPair]], Iterator[CheckedPair]],
    ) -> Iterator[CheckedPair]:
        """Yield pairs with the reports of an interrupted check, then check and keep the rest."""
        remaining = iter(pairs)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            stream = self.path.open("a+", encoding="utf-8")
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror})") from None
        with closing(stream):
            require_lock(stream.fileno(), self.path)
            self._load(stream)
            if self.reports:
                log(f"{self.path}: {len(self.reports):,} pairs were checked before")
            done = zip(islice(remaining, len(self.reports)), self.reports, strict=True)
            yield from (CheckedPair(*row) for row in done)
            for checked in check(remaining):
                stream.write(json.dumps(_to_tree(checked.report), ensure_ascii=False) + "\n")
                stream.flush()
                yield checked

    def _load(self, stream: IO[str]) -> None:
        """Read the reports; begin the file anew if they are of another check or damaged."""
        try:
            stream.seek(0)
            header, *rows = stream.read().splitlines(keepends=True) or [""]
            if json.loads(header) == self.identity:
                self.reports = [_from_tree(json.loads(row)) for row in rows if row.endswith("\n")]
                if rows and not rows[-1].endswith("\n"):  # cut off by the interruption
                    self._write(stream)
                return
        except (*PARSE_ERRORS, KeyError, TypeError, OSError):
            pass
        self.reports = []
        self._write(stream)

    def _write(self, stream: IO[str]) -> None:
        stream.seek(0)
        stream.truncate()
        for tree in (self.identity, *map(_to_tree, self.reports)):
            stream.write(json.dumps(tree, ensure_ascii=False) + "\n")
        stream.flush()

    def remove(self) -> None:
        """Remove the file: the check is complete."""
        self.path.unlink(missing_ok=True)


def _to_tree(report: Report) -> dict[str, Any]:
    tree = asdict(report)
    tree.pop("probabilities", None)  # ranges; nothing that is written needs them
    return tree


def _from_tree(tree: dict[str, Any]) -> Report:
    if "tokens" in tree:
        return SkippedPair(**tree)
    tree["source_tokens"] = tuple(tree["source_tokens"])
    tree["omissions"] = tuple(Omission(**omission) for omission in tree["omissions"])
    return OmissionReport(**tree)
