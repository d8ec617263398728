"""A general corpus of German and English: open text of several kinds, filtered and mixed.

The directory of the corpus has one folder for each source of text, with the training files
train*.de and train*.en (also .xz); that of Europarl has the test sets of WMT 2013 and 2014 too.
Both directions are trained on the same pairs and share one vocabulary.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covnmt.base.console import track
from covnmt.base.errors import UserError
from covnmt.base.files import (
    atomic_write,
    lock_directory,
    read_json,
    read_lines,
    read_parallel_lines,
    write_json,
)
from covnmt.data.corpus import REPORT_FILE, Corpus, report_digest
from covnmt.data.prepare import prepare_corpus
from covnmt.data.settings import SPLIT_NAMES, PathPair, PrepareSettings
from covnmt.text.codec import vocabulary_fingerprint
from covnmt.text.tokenize import subword_settings

EUROPARL = "europarl-de-en"
SOURCES = (EUROPARL, "suttacentral-de-en", "libreoffice-de-en", "cataclysm-de-en")
DEV, TEST = "newstest2013", "newstest2014"
HELD_OUT = (DEV, TEST, "newstest2015", "dev", "test")  # no line of these is trained on
MAX_MIXED_SUBWORDS = 80  # of a training sentence
MAX_CHARACTERS = 320
MAX_RATIO, RATIO_SLACK = 1.8, 15  # of characters; short lines may differ by some more
WITHOUT_FULL_STOP = 10  # of so many pairs that end in full stops, one is read without them
_WORD = re.compile(r"[^\W\d_]+")
# Frequent words that only one of the two languages has.
GERMAN_WORDS = frozenset(
    _WORD.findall(
        "der die das und ist nicht den dem ein eine einen einer zu mit von für auf sich es wir ich "
        "sie werden wird dass auch haben im bei oder aber nach aus"
    )
)
ENGLISH_WORDS = frozenset(
    _WORD.findall(
        "the and of to is not that this it we you are for with have has be on as by from or but "
        "which they at our"
    )
)
_NUMBER = re.compile(r"\d+(?:[.,' \u00a0]\d+)*")
_NOT_DIGIT = re.compile(r"\D")
_LETTER = re.compile(r"[^\W\d_]{2}")


def may_be_translations(german: str, english: str) -> bool:
    """Tell whether two lines pass the rules: length, language, numbers, question marks."""
    if not (_LETTER.search(german) and _LETTER.search(english)) or german == english:
        return False
    shorter, longer = sorted((len(german), len(english)))
    if longer > MAX_CHARACTERS or longer > MAX_RATIO * shorter + RATIO_SLACK:
        return False
    if german.endswith("?") != english.endswith("?"):
        return False
    if _numbers(german) != _numbers(english):
        return False
    return _mostly_from(german, GERMAN_WORDS, ENGLISH_WORDS) and _mostly_from(
        english, ENGLISH_WORDS, GERMAN_WORDS
    )


def _numbers(line: str) -> list[str]:
    """Return the digits of all numbers, without separators, in any order."""
    return sorted(_NOT_DIGIT.sub("", number) for number in _NUMBER.findall(line))


def _mostly_from(line: str, language: frozenset[str], other: frozenset[str]) -> bool:
    """Tell whether a line has no more frequent words of the other language than of its own."""
    words = [word.lower() for word in _WORD.findall(line)]
    return sum(word in other for word in words) <= sum(word in language for word in words)


def filter_pairs(
    pairs: Iterable[tuple[str, ...]], held_out: frozenset[str]
) -> Iterator[tuple[str, str]]:
    """Yield pairs that may be translations, each once, without lines of the test sets."""
    seen = set[int]()
    for german, english in pairs:
        german, english = german.strip(), english.strip()
        key = hash((german.lower(), english.lower()))
        if key in seen or german in held_out or english in held_out:
            continue
        seen.add(key)
        if may_be_translations(german, english):
            yield german, english


def drop_some_full_stops(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Take the full stops from every tenth pair that ends in them: people leave them out.

    In open corpora (`experiments`) such pairs are added instead.
    """
    number = 0
    for german, english in pairs:
        if german.endswith(".") and english.endswith("."):
            number += 1
            if number % WITHOUT_FULL_STOP == 0:
                german, english = german.rstrip(". "), english.rstrip(". ")
        yield german, english


def write_mixed_corpus(raw: Path, folder: Path) -> PathPair:
    """Write the filtered pairs of all sources to two files, and return their paths."""
    german, english = folder / "train.de", folder / "train.en"
    europarl = raw / EUROPARL
    held_out = frozenset(
        line.strip()
        for name in HELD_OUT
        for language in ("de", "en")
        if (path := europarl / f"{name}.{language}").exists()
        for line in read_lines(path)
    )
    files = [pair for source in SOURCES for pair in training_files(raw / source)]
    lines = (pair for paths in files for pair in read_parallel_lines(*paths))
    pairs = drop_some_full_stops(filter_pairs(lines, held_out))
    with atomic_write(german) as german_file, atomic_write(english) as english_file:
        for german_line, english_line in track(pairs, None, "filtering", "pairs"):
            german_file.write(f"{german_line}\n".encode())
            english_file.write(f"{english_line}\n".encode())
    return german, english


def training_files(folder: Path) -> list[PathPair]:
    """List the parallel training files of a source."""
    german = sorted(path for path in folder.glob("train*.de*") if path.is_file())
    if not german:
        raise UserError(
            f"{folder}: no training files (train*.de and train*.en); "
            "docs/reproduce.md says where the text comes from"
        )
    return [(path, path.with_name(path.name.replace(".de", ".en"))) for path in german]


@dataclass(frozen=True)
class MixedCorpusText:
    """German and English text of several sources, read and written as people do."""

    language: str  # of the source
    subwords: int  # vocabulary size, of both languages together
    plain: bool = True
    deterministic: bool = False  # a reference is one of several correct translations
    gold: str = ""

    def prepare(self, raw: Path, prepared: Path) -> None:
        """Filter and mix the sources, learn subwords, and encode; English to German is reversed."""
        text = prepared.parent / "text"
        forward = self.language == "de"
        from_german = prepared if forward else prepared.parent / "from-german"
        dev, test = (
            (raw / EUROPARL / f"{name}.de", raw / EUROPARL / f"{name}.en") for name in (DEV, TEST)
        )
        settings = PrepareSettings(
            source=subword_settings("de"),
            target=subword_settings("en"),
            train=(write_mixed_corpus(raw, text),),
            dev=dev,
            test=test,
            source_size=self.subwords,
            target_size=self.subwords,
            max_length=MAX_MIXED_SUBWORDS,
            open_vocabulary=True,
            joint=True,
        )
        prepare_corpus(settings, from_german)
        if not forward:
            reverse_corpus(from_german, prepared)


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
