"""Open text of several kinds, filtered and mixed: what the general models are trained on.

The directory of the text has one folder for each source, with the training files train*.LANGUAGE
and train*.en (also .xz). The first source is the main one: it has dev and test sets of its own. Of
the others, every 50th pair can be held out.
"""

import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from covnmt.base.console import log, track
from covnmt.base.errors import UserError
from covnmt.base.files import (
    atomic_write_text,
    lock_directory,
    read_json,
    read_lines,
    read_parallel_lines,
    write_json,
    write_lines,
)
from covnmt.data.corpus import REPORT_FILE, Corpus, report_digest
from covnmt.data.lexicon import Lexicon, train_lexicon
from covnmt.data.prepare import prepare_corpus
from covnmt.data.settings import SPLIT_NAMES, PathPair, PrepareSettings
from covnmt.paper.pair_filter import filter_pairs, lexicon_score
from covnmt.text.codec import SIDES, vocabulary_fingerprint
from covnmt.text.tokenize import (
    CHINESE_AND_JAPANESE,
    TokenizerSettings,
    clean_line,
    subword_settings,
)

LinePair = tuple[str, str]

WITHOUT_FULL_STOP = 10  # of so many pairs that end in full stops, one is read without them
FULL_STOPS = (".", "。")
HOW_TO_GET = "docs/reproduce.md says where the text comes from"  # for errors
HELD_OUT_EVERY = 50
MAX_DEV, MAX_TEST = 200, 500  # held-out pairs of each source
LEXICON_MAIN, LEXICON_OTHER = 120_000, 60_000  # pairs of a source that the lexicon learns from


@dataclass(frozen=True)
class TextSource:
    """One source of text, in the folder NAME-LANGUAGE-en."""

    name: str
    times: int = 1  # how often its pairs are in the mix
    filtered: bool = True  # False: only held-out lines are left out
    min_lexicon_score: float = 0.0  # of a pair; for text that a program aligned


@dataclass(frozen=True)
class MixedCorpusText:
    """Text of several sources in a language and English, read and written as people do."""

    language: str  # of the source side
    foreign: str  # the language that is not English
    sources: tuple[TextSource, ...]  # the main one first
    dev: str  # these three are names of files of the main source
    test: str
    held_out: tuple[str, ...]  # no line of these is trained on
    subwords: int  # vocabulary size, of either side or of both together
    joint: bool = False  # one vocabulary for both sides
    max_length: int = 80  # subwords of a training sentence
    normalization: tuple[str, ...] = ()  # tokenizer settings that normalize the text
    holds_out: bool = False  # every 50th pair of all sources but the main one
    plain: bool = True
    deterministic: bool = False  # a reference is one of several correct translations
    gold: str = ""

    def prepare(self, raw: Path, prepared: Path) -> None:
        """Filter and mix the sources, learn subwords, and encode; from English is reversed.

        A complete directory is left as it is.
        """
        if (prepared / REPORT_FILE).exists():
            return
        forward = self.language == self.foreign
        into_english = prepared if forward else prepared.parent / "into-english"
        mix = Mix(self, raw)
        train, dev = mix.write(prepared.parent / "text")
        settings = PrepareSettings(
            source=self._settings(self.foreign),
            target=self._settings("en"),
            train=(train,),
            dev=dev,
            test=mix.main_files(self.test),
            source_size=self.subwords,
            target_size=self.subwords,
            max_length=self.max_length,
            open_vocabulary=True,
            joint=self.joint,
        )
        mix.write_test_sets(into_english)  # before corpus.json, which says that nothing is missing
        prepare_corpus(settings, into_english)
        if not forward:
            reverse_corpus(into_english, prepared)

    def _settings(self, language: str) -> TokenizerSettings:
        normalization = dict.fromkeys(self.normalization if language != "en" else (), True)
        return subword_settings(language).model_copy(update=normalization)


class Mix:
    """The pairs of all sources of a text, as `raw` has them."""

    def __init__(self, text: MixedCorpusText, raw: Path) -> None:
        self.text, self.raw = text, raw
        self.languages = text.foreign, "en"
        self.settings = [
            subword_settings(language).model_copy(update={"simplified": language == "zh"})
            for language in self.languages
        ]
        for source in text.sources:  # before any work is done
            self.training_files(source)
        for path in (*self.main_files(text.dev), *self.main_files(text.test)):
            if not path.exists():
                raise UserError(f"{path}: no such file; {HOW_TO_GET}")
        held_out = [
            line
            for name in text.held_out
            if all(path.exists() for path in self.main_files(name))
            for pair in self._clean_pairs(self.main_files(name))
            for line in pair
        ]
        self.held_out_pairs = {
            source: list(filter_pairs(self._every_50th(source), frozenset(held_out), text.foreign))
            for source in text.sources[1:]
            if text.holds_out
        }
        held_out += [line for pairs in self.held_out_pairs.values() for p in pairs for line in p]
        self.held_out_lines = frozenset(held_out)
        has_scores = any(source.min_lexicon_score for source in text.sources)
        self.lexicon = self._train_lexicon() if has_scores else None

    def main_files(self, name: str) -> PathPair:
        """Return the paths of a dev or test set of the main source."""
        folder = self._folder(self.text.sources[0])
        return folder / f"{name}.{self.text.foreign}", folder / f"{name}.en"

    def _folder(self, source: TextSource) -> Path:
        return self.raw / f"{source.name}-{self.text.foreign}-en"

    def training_files(self, source: TextSource) -> list[PathPair]:
        """List the parallel training files of a source."""
        folder = self._folder(source)
        name = re.compile(rf"(train[^.]*)\.{self.text.foreign}(\.\w+)?")
        names = [
            match for path in sorted(folder.glob("train*")) if (match := name.fullmatch(path.name))
        ]
        if not names:
            raise UserError(
                f"{folder}: no training files (train*.{self.text.foreign} and train*.en); "
                f"{HOW_TO_GET}"
            )
        return [(folder / m[0], folder / f"{m[1]}.en{m[2] or ''}") for m in names]

    def write(self, folder: Path) -> tuple[PathPair, PathPair]:
        """Write the training and dev files, and return their paths."""
        train, dev = (self._paths(folder, name) for name in ("train", "dev"))
        mixed = (pair for source in self.text.sources for pair in self._mixed(source))
        pairs = drop_some_full_stops(mixed, self.held_out_lines)
        with atomic_write_text(train[0]) as source_file, atomic_write_text(train[1]) as target_file:
            for line, english in track(pairs, None, "filtering", "pairs"):
                source_file.write(f"{line}\n")
                target_file.write(f"{english}\n")
        if not self.held_out_pairs:
            return train, self.main_files(self.text.dev)
        dev_pairs = list(read_parallel_lines(*self.main_files(self.text.dev)))
        for source in self.held_out_pairs:
            dev_pairs += self._held_out(source)[0::2][:MAX_DEV]
        write_pairs(dev, dev_pairs)
        return train, dev

    def write_test_sets(self, prepared: Path) -> None:
        """Write test-NAME.source.txt and test-NAME.target.txt for each held-out source."""
        for source in self.held_out_pairs:
            paths = [prepared / f"test-{source.name}.{side}.txt" for side in SIDES]
            write_pairs((paths[0], paths[1]), self._held_out(source)[1::2][:MAX_TEST])

    def _paths(self, folder: Path, name: str) -> PathPair:
        first, second = (folder / f"{name}.{language}" for language in self.languages)
        return first, second

    def _clean_pairs(self, files: PathPair) -> Iterator[LinePair]:
        for line, english in read_parallel_lines(*files):
            yield clean_line(line, self.settings[0]), clean_line(english, self.settings[1])

    def _pairs(self, source: TextSource) -> Iterator[LinePair]:
        for files in self.training_files(source):
            yield from self._clean_pairs(files)

    def _every_50th(self, source: TextSource) -> Iterator[LinePair]:
        return islice(self._pairs(source), HELD_OUT_EVERY - 1, None, HELD_OUT_EVERY)

    def _training_pairs(self, source: TextSource) -> Iterator[LinePair]:
        """Yield the pairs that pass the rules; of an unfiltered source all but held-out lines."""
        pairs, held_out = self._pairs(source), self.held_out_lines
        if source.filtered:
            return filter_pairs(pairs, held_out, self.text.foreign)
        return (p for p in pairs if all(p) and not (p[0] in held_out or p[1] in held_out))

    def _train_lexicon(self) -> Lexicon:
        sample = list[LinePair]()
        for source in self.text.sources:
            pairs = list(self._training_pairs(source))
            limit = LEXICON_OTHER if source.filtered else LEXICON_MAIN
            sample += random.Random(1).sample(pairs, min(limit, len(pairs)))
        return train_lexicon(sample, (self.text.foreign in CHINESE_AND_JAPANESE, False))

    def _above_score(self, source: TextSource, pairs: Iterable[LinePair]) -> Iterator[LinePair]:
        """Yield the pairs whose lines the lexicon takes for translations of each other."""
        lowest = source.min_lexicon_score
        for pair in pairs:
            if self.lexicon is None or not lowest or lexicon_score(self.lexicon, *pair) >= lowest:
                yield pair

    def _held_out(self, source: TextSource) -> list[LinePair]:
        return list(self._above_score(source, self.held_out_pairs[source]))

    def _mixed(self, source: TextSource) -> Iterator[LinePair]:
        """Yield the pairs of a source as often as it is in the mix."""
        by_rules = list(self._training_pairs(source))
        kept = list(self._above_score(source, by_rules))
        read = sum(1 for files in self.training_files(source) for _ in read_lines(files[0]))
        log(
            f"{source.name}: {read:,} pairs, {len(by_rules):,} after the rules, {len(kept):,} "
            f"after the lexicon; times {source.times}"
        )
        for _ in range(source.times):
            yield from kept


def write_pairs(files: PathPair, pairs: Iterable[tuple[str, ...]]) -> None:
    """Write pairs to two parallel files."""
    listed = list(pairs)
    for n, file in enumerate(files):
        write_lines(file, (pair[n] for pair in listed))


def drop_some_full_stops(pairs: Iterable[LinePair], held_out: frozenset[str]) -> Iterator[LinePair]:
    """Take the full stops from every tenth pair that ends in them: people leave them out.

    Not from a line that would then be a held-out one. In open corpora (`experiments`) such pairs
    are added instead.
    """
    number = 0
    for line, english in pairs:
        if line.endswith(FULL_STOPS) and english.endswith(FULL_STOPS):
            number += 1
            bare = without_full_stops(line), without_full_stops(english)
            if number % WITHOUT_FULL_STOP == 0 and held_out.isdisjoint(bare):
                line, english = bare
        yield line, english


def without_full_stops(line: str) -> str:
    """Take the full stops from the end of a line."""
    return line.rstrip("".join(FULL_STOPS) + " ")


SIDE_NAMES = {"source": "target", "target": "source"}
_SIDE = re.compile("source|target")


def reverse_file_name(name: str) -> str:
    """Exchange source and target in the name of a file of a prepared directory."""
    return _SIDE.sub(lambda match: SIDE_NAMES[match[0]], name)


def reverse_corpus(prepared: Path, output: Path) -> None:
    """Make a prepared directory for the other direction, of links to the same files."""
    if (output / REPORT_FILE).exists():
        return
    Corpus.open(prepared)
    with lock_directory(output):
        for path in prepared.iterdir():
            if path.is_file() and path.name != REPORT_FILE and not path.name.startswith("."):
                link = output / reverse_file_name(path.name)
                link.unlink(missing_ok=True)
                link.hardlink_to(path)
        content = reverse_report(read_json(prepared / REPORT_FILE))
        content["fingerprint"] = vocabulary_fingerprint(output)
        content["checksums"][REPORT_FILE] = report_digest(content)
        write_json(output / REPORT_FILE, content)


def reverse_report(content: dict[str, Any]) -> dict[str, Any]:
    """Exchange source and target in the content of corpus.json."""
    settings = {reverse_file_name(key): value for key, value in content["settings"].items()}
    for name in SPLIT_NAMES:
        files = settings[name]
        settings[name] = [pair[::-1] for pair in files] if name == "train" else files[::-1]
    return {
        **content,
        "settings": settings,
        "inputs": {
            name: [digests[k ^ 1] for k in range(len(digests))]
            for name, digests in content["inputs"].items()
        },
        "splits": {
            name: {**split, **{key: _reversed(split[key]) for key in ("tokens", "coverage")}}
            for name, split in content["splits"].items()
        },
        "rows": _reversed(content["rows"]),
        "checksums": {reverse_file_name(name): d for name, d in content["checksums"].items()},
    }


def _reversed(by_side: dict[str, Any]) -> dict[str, Any]:
    return {side: by_side[other] for side, other in SIDE_NAMES.items()}
