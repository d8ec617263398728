"""Commands that make training data: prepare, synthetic, corpus."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from covnmt.base.console import log
from covnmt.base.errors import UserError
from covnmt.base.processes import available_cpus
from covnmt.cli.options import check_finite, print_table

if TYPE_CHECKING:
    from covnmt.text.tokenize import TokenizerSettings

app = typer.Typer()
corpus_app = typer.Typer(no_args_is_help=True, help="Open corpora that can be downloaded by name.")
app.add_typer(corpus_app, name="corpus")


def language(code: str | None) -> str | None:
    """Check a language code and drop its region: pt-BR becomes pt."""
    if code is None:
        return None
    name = re.fullmatch(r"([a-z]{2,3})([-_].+)?", code.lower())
    if not name:
        raise typer.BadParameter(f"{code} is not a code of two or three letters, such as de or tr.")
    return name[1]


FilePair = tuple[Path, Path]
LanguageOption = Annotated[
    str | None,
    typer.Option(help="code such as de, for moses (else en) and --plain", callback=language),
]
Tokenisation = Literal["moses", "jieba", "characters", "whitespace", "sentencepiece"]
CHINESE = "zh"


@app.command()
def synthetic(
    directory: Path,
    train: Annotated[int, typer.Option(help="training pairs")] = 30_000,
    dev: Annotated[int, typer.Option(help="development pairs")] = 500,
    test: Annotated[int, typer.Option(help="test pairs")] = 1_000,
    seed: int = 1,
) -> None:
    """Write the synthetic embedded language pair, with gold alignments."""
    from covnmt.data.synthetic import write_synthetic_corpus

    write_synthetic_corpus(directory, seed=seed, train=train, dev=dev, test=test)
    log(f"wrote {train:,} + {dev:,} + {test:,} pairs to {directory}")


@app.command()
def prepare(
    directory: Annotated[Path, typer.Argument(help="where the prepared data goes")],
    train: Annotated[
        tuple[str, str], typer.Option(help="source and target file; several: a.ja,b.ja a.en,b.en")
    ],
    dev: Annotated[FilePair | None, typer.Option(help="source and target file")] = None,
    test: Annotated[FilePair | None, typer.Option(help="source and target file")] = None,
    source_tokenizer: Annotated[Tokenisation, typer.Option()] = "moses",
    target_tokenizer: Annotated[Tokenisation, typer.Option()] = "moses",
    source_language: LanguageOption = None,
    target_language: LanguageOption = None,
    lowercase: Annotated[bool, typer.Option(help="lower-case both sides")] = False,
    source_vocab: Annotated[
        int, typer.Option(min=3, help="most frequent words or pieces")
    ] = 30_000,
    target_vocab: Annotated[
        int, typer.Option(min=3, help="most frequent words or pieces")
    ] = 30_000,
    max_length: Annotated[int, typer.Option(help="longest side of a training pair")] = 80,
    max_ratio: Annotated[
        float, typer.Option(help="of the two lengths; 0: any", callback=check_finite)
    ] = 0.0,
    sentencepiece: Annotated[Literal["unigram", "bpe"], typer.Option()] = "unigram",
    plain: Annotated[
        bool, typer.Option(help="subwords of any text that people type; needs both languages")
    ] = False,
    simplify: Annotated[
        bool, typer.Option("--simplify", help="traditional Chinese becomes simplified")
    ] = False,
    numerals: Annotated[
        bool, typer.Option("--numerals", help="numbers in Chinese text: 12 becomes 十二")
    ] = False,
    joint: Annotated[bool, typer.Option(help="one vocabulary for both sides")] = False,
    seed: Annotated[int, typer.Option(help="of the shuffle")] = 1234,
    overwrite: Annotated[bool, typer.Option(help="replace what is there")] = False,
    workers: Annotated[int, typer.Option(min=0, help="training files at a time; 0: cores")] = 0,
) -> None:
    """Tokenise a parallel corpus, build vocabularies, write id arrays."""
    from covnmt.base.recipe import validate_settings
    from covnmt.data.corpus import PrepareSettings
    from covnmt.data.prepare import prepare_corpus as run

    chinese = {"simplified": simplify, "numerals": numerals}
    if any(chinese.values()) and CHINESE not in (source_language, target_language):
        raise UserError("--simplify and --numerals are for Chinese: say --source-language zh")
    settings = validate_settings(
        PrepareSettings,
        {
            "source": _side(source_tokenizer, source_language, lowercase, plain, chinese),
            "target": _side(target_tokenizer, target_language, lowercase, plain, chinese),
            "train": _file_pairs(*train),
            "dev": dev,
            "test": test,
            "source_size": source_vocab,
            "target_size": target_vocab,
            "max_length": max_length,
            "max_ratio": max_ratio,
            "sentencepiece": sentencepiece,
            "open_vocabulary": plain,
            "joint": joint,
            "seed": seed,
        },
    )
    for line in run(settings, directory, overwrite, workers or available_cpus()).lines():
        print(line)


def _side(
    kind: Tokenisation, language: str | None, lowercase: bool, plain: bool, chinese: dict[str, bool]
) -> "TokenizerSettings":
    """How one side of the corpus is split."""
    from covnmt.base.recipe import validate_settings
    from covnmt.text.tokenize import UNSPACED_LANGUAGES, TokenizerSettings, subword_settings

    if plain and not language:
        raise UserError("--plain needs both --source-language and --target-language")
    if plain and kind not in ("moses", "sentencepiece"):
        raise UserError("--plain makes subwords: leave out the tokenizers")
    if kind == "moses" and not plain and language in UNSPACED_LANGUAGES:
        log(f"{language}: no spaces part its words, so moses finds few; try --plain", "yellow")
    changes = {"lowercase": lowercase} | (chinese if language == CHINESE else {})
    chosen = validate_settings(
        TokenizerSettings, {"kind": kind, "language": language or "en", **changes}
    )
    return subword_settings(chosen.language).model_copy(update=changes) if plain else chosen


def _file_pairs(source: str, target: str) -> list[FilePair]:
    sources, targets = source.split(","), target.split(",")
    if len(sources) != len(targets):
        raise UserError(f"--train: {len(sources)} source files but {len(targets)} target files")
    if not all(sources + targets):
        raise UserError("--train: a file name is missing beside a comma")
    return [(Path(s), Path(t)) for s, t in zip(sources, targets, strict=True)]


@corpus_app.command("list")
def corpus_list() -> None:
    """List the corpora that can be downloaded."""
    from covnmt.data.open_corpora import list_open_corpora

    print_table(("name", "languages", "what", "licence", "address"), list_open_corpora())


@corpus_app.command("get")
def corpus_get(name: str, directory: Path) -> None:
    """Download a corpus, verify it, and write parallel text files."""
    from covnmt.data.open_corpora import download_corpus

    for file, lines in download_corpus(name, directory).items():
        print(f"{directory / file}: {lines:,} lines")
