"""Commands that make and verify training data: prepare, synthetic, corpus, verify."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from covnmt.base.console import log, warn
from covnmt.base.cpus import available_cpus
from covnmt.base.errors import UserError
from covnmt.cli.options import (
    FromSettings,
    OutputArgument,
    OutputDirectoryOption,
    expand_settings,
    print_table,
    take_one_output,
)
from covnmt.data.settings import PrepareSettings

if TYPE_CHECKING:
    from covnmt.text.tokenize import TokenizerSettings

app = typer.Typer()
corpus_app = typer.Typer(no_args_is_help=True, help="List and download public parallel corpora.")
app.add_typer(corpus_app, name="corpus")


def normalize_language_code(code: str | None) -> str | None:
    """Check a language code and drop its region: pt-BR becomes pt."""
    if code is None:
        return None
    name = re.fullmatch(r"([a-z]{2,3})([-_].+)?", code.lower())
    if not name:
        raise typer.BadParameter(f"{code} is not a code of two or three letters, such as de or tr.")
    return name[1]


FilePair = tuple[Path, Path]
PrepareOptions = Annotated[
    dict[str, Any],
    FromSettings(
        PrepareSettings,
        names={
            "source_size": "--source-vocab",
            "target_size": "--target-vocab",
            "open_vocabulary": "--plain",
        },
        omit=frozenset({"source", "target", "train", "dev", "test"}),
    ),
]
LanguageOption = Annotated[
    str | None,
    typer.Option(
        help="language code such as de", show_default="en", callback=normalize_language_code
    ),
]
TokenizerKind = Literal["moses", "jieba", "characters", "whitespace", "sentencepiece"]
SourceTokenizerOption = Annotated[
    TokenizerKind, typer.Option(help="how source lines become tokens")
]
TargetTokenizerOption = Annotated[
    TokenizerKind, typer.Option(help="how target lines become tokens")
]
CHINESE = "zh"


@app.command()
def synthetic(
    argument: OutputArgument = None,
    output: OutputDirectoryOption = None,
    train: Annotated[int, typer.Option(help="training pairs")] = 30_000,
    dev: Annotated[int, typer.Option(help="development pairs")] = 500,
    test: Annotated[int, typer.Option(help="test pairs")] = 1_000,
    seed: Annotated[int, typer.Option(help="random seed")] = 1,
) -> None:
    """Write the synthetic embedded language pair, with gold alignments."""
    from covnmt.data.synthetic import write_synthetic_corpus

    directory = take_one_output(output, argument, "the directory of the new files")
    write_synthetic_corpus(directory, seed=seed, train=train, dev=dev, test=test)
    log(f"wrote {train:,} + {dev:,} + {test:,} pairs to {directory}")


@app.command()
@expand_settings
def prepare(
    files: Annotated[
        list[str] | None,
        typer.Argument(help="training text: source and target file; several: a.ja,b.ja a.en,b.en"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", file_okay=False, help="directory of the prepared corpus"),
    ] = None,
    train: Annotated[
        tuple[str, str] | None,
        typer.Option(help="the same as FILES; then the argument is the output"),
    ] = None,
    dev: Annotated[
        FilePair | None, typer.Option(help="source and target file for validation")
    ] = None,
    test: Annotated[
        FilePair | None, typer.Option(help="source and target file for the final score")
    ] = None,
    source_tokenizer: SourceTokenizerOption = "moses",
    target_tokenizer: TargetTokenizerOption = "moses",
    source_language: LanguageOption = None,
    target_language: LanguageOption = None,
    lowercase: Annotated[bool, typer.Option(help="lower-case both sides")] = False,
    simplify: Annotated[
        bool, typer.Option("--simplify", help="convert traditional Chinese to simplified")
    ] = False,
    numerals: Annotated[
        bool, typer.Option("--numerals", help="write numbers in Chinese text as 十二, not 12")
    ] = False,
    overwrite: Annotated[bool, typer.Option(help="replace an existing corpus")] = False,
    workers: Annotated[
        int, typer.Option("--workers", "-j", min=0, help="processes; 0: one per core")
    ] = 0,
    options: PrepareOptions = {},  # noqa: B006 (always replaced)
) -> None:
    """Prepare a parallel corpus: tokenize, build vocabularies, write ids."""
    from covnmt.base.config import validate_settings
    from covnmt.data.prepare import prepare_corpus

    directory, train = _prepare_paths(files or [], output, train)
    plain = options["open_vocabulary"]
    chinese = {"simplified": simplify, "numerals": numerals}
    if any(chinese.values()) and CHINESE not in (source_language, target_language):
        raise UserError("--simplify and --numerals are for Chinese: add --source-language zh")
    settings = validate_settings(
        PrepareSettings,
        {
            "source": _tokenizer_settings(
                source_tokenizer, source_language, lowercase, plain, chinese
            ),
            "target": _tokenizer_settings(
                target_tokenizer, target_language, lowercase, plain, chinese
            ),
            "train": _file_pairs(*train),
            "dev": dev,
            "test": test,
            **options,
        },
    )
    for line in prepare_corpus(settings, directory, overwrite, workers or available_cpus()).lines():
        print(line)


@app.command()
def verify(
    directory: Annotated[str, typer.Argument(help="prepared corpus, model or run directory")],
) -> None:
    """Verify every file of a prepared corpus or a model: checksums, ranges, finite weights."""
    from covnmt.inference.verify import verify_directory

    result = verify_directory(directory)
    print_table(("what", "result"), result.rows)
    if result.damaged:
        raise UserError(f"{directory}: {result.damaged} of {len(result.rows)} checks failed")


def _tokenizer_settings(
    kind: TokenizerKind,
    language: str | None,
    lowercase: bool,
    plain: bool,
    chinese: dict[str, bool],
) -> "TokenizerSettings":
    """Return the tokenizer settings of one side."""
    from covnmt.base.config import validate_settings
    from covnmt.text.tokenize import UNSPACED_LANGUAGES, TokenizerSettings, subword_settings

    if plain and not language:
        raise UserError("--plain needs both --source-language and --target-language")
    if plain and kind not in ("moses", "sentencepiece"):
        raise UserError("--plain trains subwords itself: remove the tokenizer options")
    if kind == "moses" and not plain and language in UNSPACED_LANGUAGES:
        warn(f"{language} has no spaces between words, so moses finds few; try --plain")
    changes = {"lowercase": lowercase} | (chinese if language == CHINESE else {})
    chosen = validate_settings(
        TokenizerSettings, {"kind": kind, "language": language or "en", **changes}
    )
    return subword_settings(chosen.language).model_copy(update=changes) if plain else chosen


def _prepare_paths(
    files: list[str], output: Path | None, train: tuple[str, str] | None
) -> tuple[Path, tuple[str, str]]:
    """Return the directory of the corpus, and its training files as FILES or --train names them."""
    if train is None and len(files) == 3 and not output:
        output, files = Path(files[0]), files[1:]
    if train is None and len(files) == 2:
        train = files[0], files[1]
    elif train is None:
        raise UserError("name the training text: covnmt prepare SOURCE TARGET --output DIRECTORY")
    elif len(files) + bool(output) == 1:
        output = output or Path(files[0])
    elif files:
        raise UserError(f"{files[-1]}: give the training text as arguments or with --train")
    if not output:
        raise UserError("name the directory of the prepared corpus with --output DIRECTORY")
    return output, train


def _file_pairs(source: str, target: str) -> list[FilePair]:
    # a name with a comma in it is one file if there is such a file
    sources, targets = ([n] if Path(n).exists() else n.split(",") for n in (source, target))
    if len(sources) != len(targets):
        raise UserError(
            f"--train: {len(sources)} source files but {len(targets)} target files "
            "(commas separate the names of several files)"
        )
    if not all(sources + targets):
        raise UserError("--train: a file name is missing beside a comma")
    return [(Path(s), Path(t)) for s, t in zip(sources, targets, strict=True)]


@corpus_app.command("list")
def corpus_list() -> None:
    """List the corpora that can be downloaded."""
    from covnmt.data.open_corpora import list_open_corpora

    print_table(("name", "languages", "what", "license", "address"), list_open_corpora())


@corpus_app.command("get")
def corpus_get(
    name: Annotated[str, typer.Argument(help="name from `covnmt corpus list`")],
    argument: OutputArgument = None,
    output: OutputDirectoryOption = None,
) -> None:
    """Download a corpus, verify it, and write parallel text files."""
    from covnmt.data.open_corpora import download_corpus

    directory = take_one_output(output, argument, "the directory of the new files")
    for file, lines in download_corpus(name, directory).items():
        print(f"{directory / file}: {lines:,} lines")
