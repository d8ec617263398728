"""Download open corpora and turn them into plain parallel files.

The published files go to DIRECTORY/download, where an interrupted download is resumed, and are
verified; their text goes to DIRECTORY/train.SOURCE, DIRECTORY/train.TARGET and so on, one sentence
per line. DIRECTORY/corpus.json records where everything came from.

sacreBLEU downloads some of these test sets too, but leaves `&amp;` and the like in the text.
"""

import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from html import unescape
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from covnmt.base.console import track
from covnmt.base.errors import UserError
from covnmt.base.files import atomic_write_text, read_json, read_lines, write_json
from covnmt.data.download import PublishedFile, download_verified, extract_members

RECORD_FILE = "corpus.json"

_SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg\s*>", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(r"<[A-Za-z/!?][^>]*>")

# lines: one sentence per line; table: target, tab, source; segments: the <seg> elements of an SGM
# or XML test set; talks: sentences between lines of markup, as in the IWSLT training text.
TextFormat = Literal["lines", "table", "segments", "talks"]


@dataclass(frozen=True)
class OpenSplit:
    """A pair of plain files to write, and where their text comes from.

    `source` and `target` name a published file, and in archives a member: "a.zip/b/c.txt".
    """

    name: str
    source: str
    target: str
    format: TextFormat = "lines"
    # percent of the corpus, by a hash of the target sentence: equal sentences stay in one split
    percent: range = range(100)


@dataclass(frozen=True)
class OpenCorpus:
    """A corpus to download; `source` and `target` are language codes."""

    name: str
    source: str
    target: str
    title: str
    license: str
    home: str
    files: tuple[PublishedFile, ...]
    splits: tuple[OpenSplit, ...]


_MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
_WIT3 = "https://raw.githubusercontent.com/hlt-mt/WIT3/master/archive/2017-01-trnted/texts"
_WMT = "https://data.statmt.org/wmt{}/translation-task/test.tgz"
_NEWS_COMMENTARY = "news-commentary-v18.en-zh.tsv.gz"
_TATOEBA = "cmn-eng.zip/cmn.txt"

CORPORA = (
    OpenCorpus(
        name="kftt",
        source="ja",
        target="en",
        title="Kyoto Free Translation Task: Wikipedia articles about Kyoto",
        license="CC BY-SA 3.0",
        home="https://www.phontron.com/kftt",
        files=(
            PublishedFile(
                "kftt.tar.gz", "https://www.phontron.com/kftt/download/kftt-data-1.0.tar.gz"
            ),
        ),
        # Japanese as the publisher segmented it into words, English as written.
        splits=tuple(
            OpenSplit(
                name,
                f"kftt.tar.gz/kftt-data-1.0/data/tok/kyoto-{name}.ja",
                f"kftt.tar.gz/kftt-data-1.0/data/orig/kyoto-{name}.en",
            )
            for name in ("train", "dev", "tune", "test")
        ),
    ),
    OpenCorpus(
        name="news-commentary-zh-en",
        source="zh",
        target="en",
        title="News Commentary v18.1: opinion pieces from newspapers (training text only)",
        license="CC0 for the compilation; the articles belong to their owners",
        home="https://data.statmt.org/news-commentary/README",
        files=(
            PublishedFile(
                _NEWS_COMMENTARY,
                f"https://data.statmt.org/news-commentary/v18.1/training/{_NEWS_COMMENTARY}",
            ),
        ),
        splits=(OpenSplit("train", _NEWS_COMMENTARY, _NEWS_COMMENTARY, "table"),),
    ),
    OpenCorpus(
        name="wmt-zh-en",
        source="zh",
        target="en",
        title="WMT news test sets of 2017, 2018 and 2019 (no training text)",
        license="free for research; cite the WMT overview paper",
        home="https://www.statmt.org/wmt19/translation-task.html",
        files=(
            PublishedFile("wmt17.tgz", _WMT.format(17), "md5:86a1724c276004aa25455ae2a04cef26"),
            PublishedFile("wmt18.tgz", _WMT.format(18), "md5:f996c245ecffea23d0006fa4c34e9064"),
            PublishedFile("wmt19.tgz", _WMT.format(19), "md5:84de7162d158e28403103b01aeefc39a"),
        ),
        splits=tuple(
            OpenSplit(
                f"newstest20{year}",
                f"wmt{year}.tgz/{folder}/newstest20{year}-zhen-src.zh.sgm",
                f"wmt{year}.tgz/{folder}/newstest20{year}-zhen-ref.en.sgm",
                "segments",
            )
            for year, folder in ((17, "test"), (18, "test"), (19, "sgm"))
        ),
    ),
    OpenCorpus(
        name="multi30k",
        source="de",
        target="en",
        title="Multi30k task 1: descriptions of photographs",
        license="none stated; the English side comes from Flickr30k (research use)",
        home="https://github.com/multi30k/dataset",
        files=tuple(
            PublishedFile(name, f"{_MULTI30K}/{name}", f"md5:{md5}")
            for name, md5 in (
                ("train.de.gz", "81ff90b99829c0cd4b1b587d394afd39"),
                ("train.en.gz", "0065d13af80720a55ca8153d126e6627"),
                ("val.de.gz", "6e0e229eb049e3fc99a1ef02fb2d5f91"),
                ("val.en.gz", "2b69aa9253948ac9f67e94917272dd40"),
                ("test_2016_flickr.de.gz", "efd67d314d98489b716b145475101932"),
                ("test_2016_flickr.en.gz", "ff2c0fcb4893a13bd73414306bc250ae"),
            )
        ),
        splits=tuple(
            OpenSplit(name, f"{stem}.de.gz", f"{stem}.en.gz")
            for name, stem in (("train", "train"), ("dev", "val"), ("test", "test_2016_flickr"))
        ),
    ),
    OpenCorpus(
        name="tatoeba-zh-en",
        source="zh",
        target="en",
        title="Tatoeba, as ManyThings exports it: short everyday sentences; grows over time",
        license="CC BY 2.0 FR",
        home="https://www.manythings.org/anki",
        files=(PublishedFile("cmn-eng.zip", "https://www.manythings.org/anki/cmn-eng.zip"),),
        splits=(
            OpenSplit("train", _TATOEBA, _TATOEBA, "table", percent=range(10, 100)),
            OpenSplit("dev", _TATOEBA, _TATOEBA, "table", percent=range(5)),
            OpenSplit("test", _TATOEBA, _TATOEBA, "table", percent=range(5, 10)),
        ),
    ),
    OpenCorpus(
        name="iwslt17-zh-en",
        source="zh",
        target="en",
        title="IWSLT 2017: subtitles of TED talks, from WIT3",
        license="CC BY-NC-ND 4.0 (TED)",
        home="https://sites.google.com/site/iwsltevaluation2017",
        files=(
            PublishedFile(
                "iwslt17.tgz", f"{_WIT3}/zh/en/zh-en.tgz", "md5:1c0ae40171d52593df8a6963d3828116"
            ),
        ),
        splits=(
            OpenSplit(
                "train",
                "iwslt17.tgz/zh-en/train.tags.zh-en.zh",
                "iwslt17.tgz/zh-en/train.tags.zh-en.en",
                "talks",
            ),
            *(
                OpenSplit(
                    name,
                    f"iwslt17.tgz/zh-en/IWSLT17.TED.{talks}.zh-en.zh.xml",
                    f"iwslt17.tgz/zh-en/IWSLT17.TED.{talks}.zh-en.en.xml",
                    "segments",
                )
                for name, talks in (("dev", "dev2010"), ("tst2014", "tst2014"), ("test", "tst2015"))
            ),
        ),
    ),
)


def list_open_corpora() -> list[tuple[str, str, str, str, str]]:
    """Return name, languages, title, license and home page of each corpus."""
    return [(c.name, f"{c.source}-{c.target}", c.title, c.license, c.home) for c in CORPORA]


def download_corpus(name: str, directory: Path) -> dict[str, int]:
    """Download a corpus by its name; returns the number of pairs in each split."""
    corpora = {corpus.name: corpus for corpus in CORPORA}
    if name not in corpora:
        near = get_close_matches(name, corpora, n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(corpora)}"
        raise UserError(f"{name}: no such corpus; {hint}")
    return write_open_corpus(corpora[name], directory)


def write_open_corpus(corpus: OpenCorpus, directory: Path) -> dict[str, int]:
    """Download, verify, extract and write; finished steps of an earlier call are kept."""
    record = _claim_directory(corpus, directory)
    if "pairs" in record and all(path.exists() for path in _output_paths(corpus, directory)):
        return dict(record["pairs"])
    files: dict[str, dict[str, str]] = {}
    for file in corpus.files:
        sha256 = download_verified(file, directory / "download" / file.name)
        files[file.name] = {"address": file.address, "sha256": sha256}
    with tempfile.TemporaryDirectory(prefix=".unpacked-", dir=directory) as folder:
        texts = _extract_texts(corpus, directory / "download", Path(folder))
        pairs = {
            split.name: _write_split(corpus, split, texts, directory) for split in corpus.splits
        }
    write_json(
        directory / RECORD_FILE,
        {
            "corpus": corpus.name,
            "licence": corpus.license,  # the key's spelling is part of the format
            "home": corpus.home,
            "files": files,
            "pairs": pairs,
        },
    )
    return pairs


def _output_paths(corpus: OpenCorpus, directory: Path) -> list[Path]:
    languages = (corpus.source, corpus.target)
    return [directory / f"{split.name}.{lang}" for split in corpus.splits for lang in languages]


def _claim_directory(corpus: OpenCorpus, directory: Path) -> dict[str, Any]:
    """Return the record of an earlier call, or write a first one; refuse foreign files."""
    path = directory / RECORD_FILE
    record = read_json(path) if path.exists() else {"corpus": corpus.name}
    if not isinstance(record, dict) or record.get("corpus") != corpus.name:
        raise UserError(f"{path}: not a record of {corpus.name}; choose another directory")
    foreign = [output.name for output in _output_paths(corpus, directory) if output.exists()]
    if foreign and not path.exists():
        raise UserError(f"{directory}: already has {', '.join(foreign)}; choose another directory")
    try:
        (directory / "download").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{directory}: cannot be made ({error.strerror})") from None
    if not path.exists():
        write_json(path, record)
    return record


def _extract_texts(corpus: OpenCorpus, download: Path, folder: Path) -> dict[str, Path]:
    """Extract the texts of all splits; returns their paths by the names that splits give."""
    names = {name for split in corpus.splits for name in (split.source, split.target)}
    texts = {}
    for file in corpus.files:
        members = {n.partition("/")[2]: n for n in names if n.partition("/")[0] == file.name}
        for member, path in extract_members(download / file.name, members, folder).items():
            texts[members[member]] = path
    if missing := sorted(names - set(texts)):
        raise UserError(
            f"{download}/{missing[0]}: missing, or not a plain file: the published files have "
            f"changed, see {corpus.home}"
        )
    return texts


def parse_segments(lines: Iterable[str]) -> list[str]:
    """Return the text of the <seg> elements of an SGM or XML test set, one line each."""
    segments = _SEGMENT.findall("\n".join(lines))
    return [" ".join(unescape(_TAG.sub("", segment)).split()) for segment in segments]


def _read_side(path: Path, form: TextFormat, column: int) -> Iterator[str]:
    """Yield the lines of one language, with those that `_read_pairs` drops."""
    lines = read_lines(path)
    if form == "segments":
        return iter(parse_segments(lines))
    if form == "table":
        return ((*line.split("\t"), "")[column].strip() for line in lines)
    return map(str.strip, lines)


def _read_pairs(split: OpenSplit, source: Path, target: Path) -> Iterator[tuple[str, str]]:
    rows = zip_longest(_read_side(source, split.format, 1), _read_side(target, split.format, 0))
    for number, (left, right) in enumerate(rows, 1):
        if left is None or right is None:
            raise UserError(
                f"{split.source} and {split.target}: one ends before line {number} of the other; "
                "the published files have changed"
            )
        # an empty row of a table ends an article; a talk begins with lines of markup
        empty = split.format == "table" and not (left and right)
        markup = split.format == "talks" and (left.startswith("<") or right.startswith("<"))
        if not empty and not markup and zlib.crc32(right.encode()) % 100 in split.percent:
            yield left, right


def _write_split(
    corpus: OpenCorpus, split: OpenSplit, texts: dict[str, Path], directory: Path
) -> int:
    """Write the two plain files of a split; returns the number of pairs."""
    pairs = _read_pairs(split, texts[split.source], texts[split.target])
    count = 0
    with (
        atomic_write_text(directory / f"{split.name}.{corpus.source}") as source_file,
        atomic_write_text(directory / f"{split.name}.{corpus.target}") as target_file,
    ):
        for source, target in track(pairs, None, split.name, "pairs"):
            source_file.write(f"{source}\n")
            target_file.write(f"{target}\n")
            count += 1
        if not count:
            raise UserError(f"{split.source}: no sentences found, the published files have changed")
    return count
