"""What is reproduced: on which text, prepared how, with which systems (paper, section 5.1).

The paper's corpora cannot be passed on, so its experiment is run on two open ones, and on the
embedded pair, where mistakes can be counted exactly. A prepared directory also holds the pairs with
a gold alignment: gold.source.txt, gold.target.txt and gold.links.
"""

from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal, Protocol

from covnmt.base.config import PAPER_SYSTEMS
from covnmt.base.errors import UserError
from covnmt.base.files import read_lines, read_parallel_lines, write_lines
from covnmt.data.prepare import prepare_corpus
from covnmt.data.settings import PathPair, PrepareSettings
from covnmt.data.synthetic import write_synthetic_corpus
from covnmt.paper.systems import VARIANTS
from covnmt.text.tokenize import TokenizerSettings, subword_settings

CorpusName = Literal["kftt", "twlaw", "embedded"]
Scale = Literal["paper", "modern", "shipped", "small", "tiny"]

PARTS = ("train", "dev", "test")
GOLD_FILES = ("gold.source.txt", "gold.target.txt", "gold.links")
WORDS = TokenizerSettings(kind="whitespace")
SUBWORDS = {"kind": "sentencepiece"}
WORDS_A_SIDE = 30_000
LONGEST_WORDS, LONGEST_PIECES, LONGEST_PLAIN = 80, 100, 150  # of a training sentence
FULL_STOPS = "。."
BARE = 10  # one in so many plain pairs that end in full stops is read without them too
# A word by itself in the Japanese gold pairs; at white space of any kind it would be lost.
IDEOGRAPHIC_SPACE, VISIBLE_SPACE = "\u3000", "␣"
# Example sentences of the embedded pair: long enough to get lost in, short enough to picture.
PICTURE_LENGTHS = range(12, 26)


class ExperimentText(Protocol):
    """Where the sentences come from."""

    @property
    def deterministic(self) -> bool:
        """Whether the reference is the only right translation."""

    @property
    def gold(self) -> str:
        """What the gold alignments are, for the reader."""

    @property
    def pieces(self) -> int:
        """Subwords of a side's vocabulary; 0 where systems read words."""

    @property
    def plain(self) -> bool:
        """Whether systems read and write text as people do: with capitals, not split into words."""

    def prepare(self, raw: Path | None, prepared: Path) -> None:
        """Fill a prepared directory; what is there already is left as it is."""

    def examples(self, prepared: Path) -> list[str]:
        """Sentences of our own, to be translated by every system."""


@dataclass(frozen=True)
class OpenCorpusText:
    """An open corpus: parallel files as they are published, English on the target side."""

    folder: str  # where its archive unpacks to
    source: str  # ending of the source files
    language: str
    fetch: str  # how to get it
    gold_folder: str
    gold: str
    pieces: int = 0
    plain: bool = False
    rewritten: tuple[str, ...] = ()  # what plain text is rewritten by, as the tokenizer calls it
    deterministic: bool = False

    def prepare(self, raw: Path | None, prepared: Path) -> None:
        """Words, 30,000 a side, at most 80 in a sentence, or subwords, with English lower-cased; or
        subwords of plain text."""
        if raw is None:
            if not (prepared / "corpus.json").exists():
                raise UserError(f"{prepared}: no prepared data; give --data, or --unpack FILE")
            return
        files = {part: self._files(raw, part) for part in PARTS}
        prepare_corpus(self._plain(files, prepared) if self.plain else self._split(files), prepared)
        if not self.plain:  # whose subwords do not end where those words do
            self._copy_gold(raw, prepared)

    def _split(self, files: dict[str, PathPair]) -> PrepareSettings:
        """Words as the corpus has them, or subwords of these."""
        source = WORDS.model_copy(update={"language": self.language})
        target = TokenizerSettings(kind="moses", language="en", lowercase=True)
        return PrepareSettings(
            source=source.model_copy(update=SUBWORDS) if self.pieces else source,
            target=target.model_copy(update=SUBWORDS) if self.pieces else target,
            train=(files["train"],),
            dev=files["dev"],
            test=files["test"],
            source_size=self.pieces or WORDS_A_SIDE,
            target_size=self.pieces or WORDS_A_SIDE,
            max_length=LONGEST_PIECES if self.pieces else LONGEST_WORDS,
        )

    def _plain(self, files: dict[str, PathPair], prepared: Path) -> PrepareSettings:
        """Subwords of whatever a person may type; some training pairs also without full stop."""
        bare = write_pairs_without_full_stop(files["train"], prepared.parent)
        rewritten = dict.fromkeys(self.rewritten, True)
        return PrepareSettings(
            source=subword_settings(self.language).model_copy(update=rewritten),
            target=subword_settings("en"),
            train=(files["train"], *bare),
            dev=files["dev"],
            test=files["test"],
            source_size=self.pieces,
            target_size=self.pieces,
            max_length=LONGEST_PLAIN,
            open_vocabulary=True,
        )

    def examples(self, prepared: Path) -> list[str]:
        """Return those of docs/examples, whatever was prepared."""
        return example_sentences(self.language)

    def _files(self, raw: Path, part: str) -> PathPair:
        return self._find(raw, f"{part}.{self.source}"), self._find(raw, f"{part}.en")

    def _find(self, raw: Path, name: str) -> Path:
        places = [raw / name, raw / self.folder / name]
        for place in places:
            if place.exists():
                return place
        raise UserError(f"{places[0]}: no such file (nor {places[1]}); {self.fetch}")

    def _copy_gold(self, raw: Path, prepared: Path) -> None:
        """The hand alignments, where they are; without them there is no AER."""
        folder = raw / "gold-align" / self.gold_folder
        if folder.exists():
            names = (f"test.{self.language}", "test.en", "test.talp")
            for name, own in zip(names, GOLD_FILES, strict=True):
                lines = (
                    line.replace(IDEOGRAPHIC_SPACE, VISIBLE_SPACE)
                    for line in read_lines(folder / name)
                )
                write_lines(prepared / own, lines)


def write_pairs_without_full_stop(pair: PathPair, folder: Path) -> list[PathPair]:
    """Files of every tenth pair in which both sides end in a full stop, without it, if any do.

    People leave it out, and a system that never saw that may answer with anything.
    """
    ends = tuple(FULL_STOPS)
    both = ((a, b) for a, b in read_parallel_lines(*pair) if a.endswith(ends) and b.endswith(ends))
    kept = list(islice(both, 0, None, BARE))
    source, target = folder / "bare.source", folder / "bare.target"
    write_lines(source, (a.rstrip(f"{FULL_STOPS} ") for a, _ in kept))
    write_lines(target, (b.rstrip(f"{FULL_STOPS} ") for _, b in kept))
    return [(source, target)] if kept else []


@dataclass(frozen=True)
class EmbeddedPairText:
    """The embedded pair, written on the spot; its test set is aligned by construction."""

    train: int
    dev: int
    test: int
    example_count: int = 6
    gold: str = "pairs of the test set, aligned by construction"
    pieces: int = 0
    plain: bool = False
    deterministic: bool = True

    def prepare(self, raw: Path | None, prepared: Path) -> None:
        """Write and prepare it; there is nothing to be fetched."""
        if (prepared / "corpus.json").exists():
            return
        text = prepared.parent / "text"
        write_synthetic_corpus(text, train=self.train, dev=self.dev, test=self.test)
        for ending, own in zip(("src", "tgt", "align"), GOLD_FILES, strict=True):
            write_lines(prepared / own, read_lines(text / f"test.{ending}"))
        pairs = {part: (text / f"{part}.src", text / f"{part}.tgt") for part in PARTS}
        settings = PrepareSettings(
            source=WORDS,
            target=WORDS,
            train=(pairs["train"],),
            dev=pairs["dev"],
            test=pairs["test"],
        )
        prepare_corpus(settings, prepared)

    def examples(self, prepared: Path) -> list[str]:
        """The first test sentences of a length to look at: no corpus text, they are generated."""
        lines = read_lines(prepared / "test.source.txt")
        fit = [line for line in lines if len(line.split()) in PICTURE_LENGTHS]
        return fit[: self.example_count]


@dataclass(frozen=True)
class Experiment:
    """One corpus at one scale; `name` is its folder of results."""

    name: str
    corpus: CorpusName
    scale: Scale
    title: str
    recipe: str
    text: ExperimentText
    systems: tuple[str, ...] = tuple(PAPER_SYSTEMS)
    again: tuple[str, ...] = ()  # systems with a second seed
    minutes: float | None = None  # of one job; None: as long as the recipe says
    tuned: bool = False  # the length penalty of every system is chosen on the dev set


SECOND_SEED_SYSTEMS = ("baseline", "fertility", "gru10")
JOB_MINUTES = 9.5  # minutes
KFTT = OpenCorpusText(
    folder="kftt-ja-en",
    source="ja",
    language="ja",
    fetch="fetch it with `covnmt corpus get kftt DIR` and say --data DIR",
    gold_folder="ja-en-kftt",
    gold="hand-aligned pairs of the same corpus",
)
TWLAW = OpenCorpusText(
    folder="twlaw-zh-en",
    source="seg.zh",
    language="zh",
    fetch="unpack twlaw-zh-en.tar.xz in DIR and say --data DIR",
    gold_folder="zh-en-tsinghua",
    gold="hand-aligned newswire pairs, OUT OF DOMAIN for these systems",
)


def open_corpus_experiments(
    corpus: CorpusName, title: str, words: OpenCorpusText, plain: OpenCorpusText
) -> tuple[Experiment, ...]:
    """An open corpus: as in the paper, trained today's way, and for the model that is shipped."""
    return (
        Experiment(
            corpus,
            corpus,
            "paper",
            title,
            f"reproduce/{corpus}",
            words,
            again=SECOND_SEED_SYSTEMS,
            minutes=JOB_MINUTES,
        ),
        Experiment(
            f"{corpus}-modern",
            corpus,
            "modern",
            f"{title}, today's way of training",
            f"reproduce/{corpus}-modern",
            replace(words, pieces=16_000),
            systems=("baseline", "gru10"),
            minutes=JOB_MINUTES,
            tuned=True,
        ),
        Experiment(
            f"{corpus}-shipped",
            corpus,
            "shipped",
            f"{title}, the model that is shipped",
            f"reproduce/{corpus}-shipped",
            replace(plain, pieces=9_500, plain=True),
            systems=("gru10",),
            minutes=JOB_MINUTES,
            tuned=True,
        ),
    )


EXPERIMENTS = (
    *open_corpus_experiments("kftt", "KFTT, Japanese to English", KFTT, KFTT),
    *open_corpus_experiments(
        "twlaw",
        "Laws of Taiwan, Chinese to English",
        TWLAW,
        replace(TWLAW, source="zh", rewritten=("simplified", "numerals")),
    ),
    Experiment(
        "embedded",
        "embedded",
        "small",
        "The embedded pair",
        "reproduce/embedded",
        EmbeddedPairText(train=20_000, dev=300, test=600),
    ),
    Experiment(
        "embedded-tiny",
        "embedded",
        "tiny",
        "The embedded pair, a trial of the machinery",
        "reproduce/embedded-tiny",
        EmbeddedPairText(train=300, dev=20, test=40, example_count=2),
        systems=("baseline", "gru10"),
    ),
)


def find_experiment(corpus: str, scale: str | None = None) -> Experiment:
    """An experiment by corpus and scale; the first scale of a corpus is its usual one."""
    known = [each for each in EXPERIMENTS if each.corpus == corpus]
    if not known:
        names = ", ".join(dict.fromkeys(each.corpus for each in EXPERIMENTS))
        raise UserError(f"{corpus}: no such corpus; choose from {names}")
    for each in known:
        if scale in (None, each.scale):
            return each
    scales = " or ".join(each.scale for each in known)
    raise UserError(f"{corpus} has no scale {scale!r}; it is run at scale {scales}")


def tunes_length_penalty(experiment: Experiment, system: str) -> bool:
    """Whether its length penalty is chosen on the dev set: not where it is what the system is."""
    variant = VARIANTS.get(system)
    if variant is None:
        return experiment.tuned
    own = any(change.startswith("decode.length_penalty=") for change in variant.changes)
    return (experiment.tuned or variant.tuned) and not own


def example_sentences(language: str) -> list[str]:
    """Read the sentences of docs/examples in a language, split into words by spaces."""
    package = Path(__file__).parents[1]
    installed, clone = package / "examples", package.parents[1] / "docs/examples"
    path = (installed if installed.exists() else clone) / f"{language}.txt"
    return list(read_lines(path)) if path.exists() else []
