"""A few pairs of sentences, and settings to prepare them."""

from pathlib import Path

from covnmt.data.corpus import Corpus
from covnmt.data.settings import PrepareSettings, SplitName
from covnmt.text.tokenize import TokenizerSettings

WORDS = TokenizerSettings(kind="whitespace")
SUBWORDS = TokenizerSettings(kind="sentencepiece")

TRAIN = [
    ("a b c", "x y"),
    ("a b", "x y z"),
    ("", "x"),
    ("a", " "),
    ("a a a a a a", "x"),
    ("b c a", "y x x"),
    ("a", "x x x x"),
]
DEV = [("a d", "x q"), ("", "x"), ("a " * 30, "y")]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def write_pairs(stem: Path, pairs: list[tuple[str, str]]) -> tuple[Path, Path]:
    source = write(Path(f"{stem}.s"), [source for source, _ in pairs])
    return source, write(Path(f"{stem}.t"), [target for _, target in pairs])


def make_settings(directory: Path, **changes: object) -> PrepareSettings:
    values: dict[str, object] = {
        "source": WORDS,
        "target": WORDS,
        "train": (write_pairs(directory / "train", TRAIN),),
        "dev": write_pairs(directory / "dev", DEV),
        "max_length": 5,
        "max_ratio": 3.0,
    }
    return PrepareSettings.model_validate(values | changes)


def decoded(corpus: Corpus, name: SplitName) -> list[tuple[str, str]]:
    """Decode the ids of a split."""
    split = corpus.split(name)
    source, target = corpus.codec("source"), corpus.codec("target")
    return [
        (
            source.detokenize(source.vocabulary.decode(split.source[i].tolist())),
            target.detokenize(target.vocabulary.decode(split.target[i].tolist())),
        )
        for i in range(len(split))
    ]
