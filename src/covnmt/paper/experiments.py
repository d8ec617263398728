"""Experiments: on which text, prepared how, with which systems (paper, section 5.1).

The paper's corpora cannot be redistributed, so its experiment is run on two open ones, and on the
embedded pair, where errors can be counted exactly. Mixed text (`mixed_corpus`) is for the bundled
models alone. A prepared directory also holds the pairs with a gold alignment: gold.source.txt,
gold.target.txt and gold.links.
"""

from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

from covnmt.base.config import PAPER_SYSTEMS
from covnmt.base.console import warn
from covnmt.base.errors import UserError
from covnmt.base.files import read_lines, read_parallel_lines, write_lines
from covnmt.data.corpus import REPORT_FILE
from covnmt.data.prepare import prepare_corpus
from covnmt.data.settings import SPLIT_NAMES, PathPair, PrepareSettings
from covnmt.data.synthetic import write_synthetic_corpus
from covnmt.paper.mixed_corpus import (
    FULL_STOPS,
    WITHOUT_FULL_STOP,
    MixedCorpusText,
    TextSource,
    without_full_stops,
)
from covnmt.paper.systems import VARIANTS
from covnmt.text.tokenize import WHITESPACE_SETTINGS, TokenizerSettings, subword_settings

CorpusName = Literal["kftt", "twlaw", "embedded", "de-en", "en-de", "ja-en", "zh-en"]
Scale = Literal["paper", "original", "modern", "shipped", "small", "tiny"]
DEFAULT_SCALES = ("paper", "small")  # are not in the name of an experiment

GOLD_FILES = ("gold.source.txt", "gold.target.txt", "gold.links")
VOCABULARY_WORDS = 30_000  # of either side
MAX_WORDS, MAX_SUBWORDS, MAX_PLAIN_SUBWORDS = 80, 100, 150  # of a training sentence
# A word of its own in the Japanese gold pairs; splitting at white space would lose it.
IDEOGRAPHIC_SPACE, VISIBLE_SPACE = "\u3000", "␣"
# Example sentences of the embedded pair: long enough for errors, short enough for a heat map.
EXAMPLE_LENGTHS = range(12, 26)


@dataclass(frozen=True)
class OpenCorpusText:
    """An open corpus: parallel files as they are published, English on the target side."""

    folder: str  # inside its archive
    source_suffix: str  # of the source files
    language: str
    how_to_get: str
    gold_folder: str
    gold: str  # description of the gold alignments, for the page
    subwords: int = 0  # vocabulary size of either side; 0 where systems read words
    plain: bool = False  # systems read and write text as people do: cased, not split into words
    normalization: tuple[str, ...] = ()  # tokenizer settings that normalize plain text
    deterministic: bool = False  # whether the reference is the only correct translation

    def prepare(self, raw: Path, prepared: Path) -> None:
        """Prepare words with English lowercased, subwords of these, or subwords of plain text."""
        train, dev, test = (
            (self._find(raw, f"{split}.{self.source_suffix}"), self._find(raw, f"{split}.en"))
            for split in SPLIT_NAMES
        )
        if self.plain:
            normalization = dict.fromkeys(self.normalization, True)
            source = subword_settings(self.language).model_copy(update=normalization)
            target = subword_settings("en")
            max_length = MAX_PLAIN_SUBWORDS
        else:
            source = WHITESPACE_SETTINGS.model_copy(update={"language": self.language})
            target = TokenizerSettings(kind="moses", language="en", lowercase=True)
            max_length = MAX_SUBWORDS if self.subwords else MAX_WORDS
            if self.subwords:
                source, target = (
                    side.model_copy(update={"kind": "sentencepiece"}) for side in (source, target)
                )
        without_full_stop = (
            write_pairs_without_full_stop(train, prepared.parent) if self.plain else []
        )
        settings = PrepareSettings(
            source=source,
            target=target,
            train=(train, *without_full_stop),
            dev=dev,
            test=test,
            source_size=self.subwords or VOCABULARY_WORDS,
            target_size=self.subwords or VOCABULARY_WORDS,
            max_length=max_length,
            open_vocabulary=self.plain,
        )
        prepare_corpus(settings, prepared)
        if not self.plain:  # subwords of plain text do not end where words of gold pairs do
            self._copy_gold(raw, prepared)

    def _find(self, raw: Path, name: str) -> Path:
        paths = [raw / name, raw / self.folder / name]
        for path in paths:
            if path.exists():
                return path
        raise UserError(f"{paths[0]}: no such file (nor {paths[1]}); {self.how_to_get}")

    def _copy_gold(self, raw: Path, prepared: Path) -> None:
        """Copy the hand alignments, if there are any; without them there is no AER."""
        folder = raw / "gold-align" / self.gold_folder
        if folder.exists():
            names = (f"test.{self.language}", "test.en", "test.talp")
            for name, copy in zip(names, GOLD_FILES, strict=True):
                lines = (
                    line.replace(IDEOGRAPHIC_SPACE, VISIBLE_SPACE)
                    for line in read_lines(folder / name)
                )
                write_lines(prepared / copy, lines)
        else:
            warn(f"{folder}: no such directory of hand alignments; AER and SAER are not measured")


def write_pairs_without_full_stop(pair: PathPair, folder: Path) -> list[PathPair]:
    """Write copies, without full stops, of every tenth pair that ends in them; returns the files.

    People leave the full stop out, and a system that never saw that may answer with anything.
    """
    pairs = ((a, b) for a, b in read_parallel_lines(*pair) if a.endswith(FULL_STOPS))
    with_stops = ((a, b) for a, b in pairs if b.endswith(FULL_STOPS))
    chosen = list(islice(with_stops, 0, None, WITHOUT_FULL_STOP))
    source, target = folder / "bare.source", folder / "bare.target"
    write_lines(source, (without_full_stops(a) for a, _ in chosen))
    write_lines(target, (without_full_stops(b) for _, b in chosen))
    return [(source, target)] if chosen else []


@dataclass(frozen=True)
class EmbeddedPairText:
    """The embedded pair, generated; its test set is aligned by construction."""

    train: int  # number of pairs
    dev: int
    test: int
    example_count: int = 6
    gold: str = "pairs of the test set, aligned by construction"
    subwords: int = 0
    plain: bool = False
    deterministic: bool = True

    def prepare(self, prepared: Path) -> None:
        """Generate and prepare the pair."""
        text = prepared.parent / "text"
        write_synthetic_corpus(text, train=self.train, dev=self.dev, test=self.test)
        for ending, copy in zip(("src", "tgt", "align"), GOLD_FILES, strict=True):
            write_lines(prepared / copy, read_lines(text / f"test.{ending}"))
        train, dev, test = ((text / f"{name}.src", text / f"{name}.tgt") for name in SPLIT_NAMES)
        settings = PrepareSettings(
            source=WHITESPACE_SETTINGS,
            target=WHITESPACE_SETTINGS,
            train=(train,),
            dev=dev,
            test=test,
        )
        prepare_corpus(settings, prepared)

    def examples(self, prepared: Path) -> list[str]:
        """Return the first test sentences of a good length; they are generated, no corpus text."""
        lines = read_lines(prepared / "test.source.txt")
        fitting = (line for line in lines if len(line.split()) in EXAMPLE_LENGTHS)
        return list(islice(fitting, self.example_count))


# all have `subwords`, `plain`, `deterministic` and `gold`
ExperimentText = OpenCorpusText | EmbeddedPairText | MixedCorpusText


@dataclass(frozen=True)
class Experiment:
    """One corpus at one scale."""

    corpus: CorpusName
    scale: Scale
    title: str
    text: ExperimentText
    systems: tuple[str, ...] = tuple(PAPER_SYSTEMS)
    second_seed: tuple[str, ...] = ()  # systems that are run with a second seed too
    minutes: float | None = None  # of one job; None: as long as the recipe says
    tunes_length_penalty: bool = False  # on the dev set, for every system
    checkpoints: int = 0  # the last ones, whose scores and mean weights are measured too
    measuring_share: float = 0.15  # of a job's minutes, for the last validation and all scores
    other_recipe: str = ""  # instead of reproduce/NAME

    @property
    def name(self) -> str:
        """Name of its directories of data and results."""
        return self.corpus if self.scale in DEFAULT_SCALES else f"{self.corpus}-{self.scale}"

    @property
    def recipe(self) -> str:
        """The recipe that its systems share."""
        return self.other_recipe or f"reproduce/{self.name}"

    def prepare(self, raw: Path | None, prepared: Path) -> None:
        """Prepare the text from the corpus as published, if it needs one; else it must be there."""
        complete = (prepared / REPORT_FILE).exists()
        if isinstance(self.text, EmbeddedPairText):
            if not complete:
                self.text.prepare(prepared)
        elif raw is not None:
            self.text.prepare(raw, prepared)
        elif not complete:
            raise UserError(f"{prepared}: no prepared data; give --data, or --unpack FILE")

    def examples(self, prepared: Path) -> list[str]:
        """Return sentences to be translated by every system: our own, or generated ones."""
        if isinstance(self.text, EmbeddedPairText):
            return self.text.examples(prepared)
        return example_sentences(self.text.language)


SECOND_SEED_SYSTEMS = ("baseline", "fertility", "gru10")
# With three jobs at once, those that matter most come first.
ORIGINAL_SYSTEMS = (*SECOND_SEED_SYSTEMS, "linguistic", "tanh1", "gru1")
LAST_CHECKPOINTS = 10
JOB_MINUTES = 9.5
KFTT = OpenCorpusText(
    folder="kftt-ja-en",
    source_suffix="ja",
    language="ja",
    how_to_get="fetch it with `covnmt corpus get kftt DIR` and give --data DIR",
    gold_folder="ja-en-kftt",
    gold="hand-aligned pairs of the same corpus",
)
TWLAW = OpenCorpusText(
    folder="twlaw-zh-en",
    source_suffix="seg.zh",
    language="zh",
    how_to_get="unpack twlaw-zh-en.tar.xz in DIR and give --data DIR",
    gold_folder="zh-en-tsinghua",
    gold="hand-aligned newswire pairs, OUT OF DOMAIN for these systems",
)


def open_corpus_experiments(
    corpus: CorpusName, title: str, words: OpenCorpusText, plain: OpenCorpusText
) -> tuple[Experiment, ...]:
    """List the scales of an open corpus: the paper's network trained in two ways, and subwords."""
    timed = partial(Experiment, corpus, minutes=JOB_MINUTES)
    tuned = partial(timed, tunes_length_penalty=True)
    as_in_the_paper = Experiment(
        corpus,
        "original",
        f"{title}, the paper's own training",
        words,
        systems=ORIGINAL_SYSTEMS,
        second_seed=ORIGINAL_SYSTEMS,
        checkpoints=LAST_CHECKPOINTS,
        measuring_share=0.08,
    )
    subwords, bundled = replace(words, subwords=16_000), replace(plain, subwords=9_500, plain=True)
    return (
        timed("paper", title, words, second_seed=SECOND_SEED_SYSTEMS),
        as_in_the_paper,
        tuned("modern", f"{title}, modern recipe", subwords, systems=("baseline", "gru10")),
        tuned("shipped", f"{title}, the bundled model", bundled, systems=("gru10",)),
    )


GERMAN_TEXT = MixedCorpusText(
    language="de",
    foreign="de",
    sources=tuple(map(TextSource, ("europarl", "suttacentral", "libreoffice", "cataclysm"))),
    dev="newstest2013",
    test="newstest2014",
    held_out=("newstest2013", "newstest2014", "newstest2015", "dev", "test"),
    subwords=9_500,
    joint=True,
)
SOFTWARE_SOURCES = (
    TextSource("libreoffice"),
    TextSource("pythondocs"),
    TextSource("kubernetes", min_lexicon_score=0.45),
    TextSource("mdn", min_lexicon_score=0.45),
)
JAPANESE_TEXT = MixedCorpusText(
    language="ja",
    foreign="ja",
    sources=(
        TextSource("kftt", filtered=False),
        TextSource("cataclysm", times=2),
        *SOFTWARE_SOURCES,
    ),
    dev="dev",
    test="test",
    held_out=("dev", "test"),
    subwords=9_500,
    max_length=MAX_PLAIN_SUBWORDS,
    holds_out=True,
)
CHINESE_TEXT = replace(
    JAPANESE_TEXT,
    language="zh",
    foreign="zh",
    sources=(
        TextSource("twlaw", filtered=False),
        TextSource("tatoeba", times=3),
        TextSource("3am"),
        TextSource("cataclysm"),
        *SOFTWARE_SOURCES,
    ),
    normalization=("simplified", "numerals"),
)


def mixed_text_experiment(
    corpus: CorpusName, title: str, text: MixedCorpusText, recipe: str = ""
) -> Experiment:
    """Return the training of a model small enough to bundle, on text of several sources."""
    return Experiment(
        corpus,
        "shipped",
        title,
        text,
        systems=("gru10",),
        minutes=14.0,
        tunes_length_penalty=True,
        other_recipe=recipe,
    )


EXPERIMENTS = (
    *open_corpus_experiments("kftt", "KFTT, Japanese to English", KFTT, KFTT),
    *open_corpus_experiments(
        "twlaw",
        "Laws of Taiwan, Chinese to English",
        TWLAW,
        replace(TWLAW, source_suffix="zh", normalization=("simplified", "numerals")),
    ),
    Experiment(
        "embedded",
        "small",
        "The synthetic pair",
        EmbeddedPairText(train=20_000, dev=300, test=600),
    ),
    Experiment(
        "embedded",
        "tiny",
        "The synthetic pair, a test of every step",
        EmbeddedPairText(train=300, dev=20, test=40, example_count=2),
        systems=("baseline", "gru10"),
    ),
    Experiment(
        "embedded",
        "original",
        "The synthetic pair, a test of every step of the paper's own training",
        EmbeddedPairText(train=200, dev=6, test=10, example_count=1),
        systems=("baseline", "gru10"),
        second_seed=("baseline", "gru10"),
        checkpoints=LAST_CHECKPOINTS,
    ),
    mixed_text_experiment("de-en", "German to English, the bundled model", GERMAN_TEXT),
    mixed_text_experiment(
        "en-de",
        "English to German, not bundled",
        replace(GERMAN_TEXT, language="en"),
        "reproduce/de-en-shipped",
    ),
    mixed_text_experiment("ja-en", "Japanese to English, general text", JAPANESE_TEXT),
    mixed_text_experiment("zh-en", "Chinese to English, general text", CHINESE_TEXT),
)


def find_experiment(corpus: str, scale: str | None = None) -> Experiment:
    """Find an experiment by corpus and scale; the first scale of a corpus is its default."""
    candidates = [experiment for experiment in EXPERIMENTS if experiment.corpus == corpus]
    if not candidates:
        names = ", ".join(dict.fromkeys(experiment.corpus for experiment in EXPERIMENTS))
        raise UserError(f"{corpus}: no such corpus; choose from {names}")
    for experiment in candidates:
        if scale in (None, experiment.scale):
            return experiment
    scales = " or ".join(experiment.scale for experiment in candidates)
    raise UserError(f"{corpus} has no scale {scale!r}; it is run at scale {scales}")


def should_tune_length_penalty(experiment: Experiment, system: str) -> bool:
    """Tell whether a system's length penalty is chosen on the dev set: not if it defines it."""
    variant = VARIANTS.get(system)
    if variant is None:
        return experiment.tunes_length_penalty
    if any(change.startswith("decode.length_penalty=") for change in variant.changes):
        return False
    return experiment.tunes_length_penalty or variant.tunes_length_penalty


def example_sentences(language: str) -> list[str]:
    """Read the sentences of docs/examples in a language, split into words by spaces."""
    package = Path(__file__).parents[1]
    installed, clone = package / "examples", package.parents[1] / "docs/examples"
    path = (installed if installed.exists() else clone) / f"{language}.txt"
    return list(read_lines(path)) if path.exists() else []
