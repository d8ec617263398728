"""Commands of the phrase-based baseline: smt train, tune, translate; and words align."""

import json
from pathlib import Path
from typing import Annotated

import typer

from covnmt.base.console import log
from covnmt.base.errors import UserError
from covnmt.cli.options import (
    FromSettings,
    JsonLinesOption,
    OutputArgument,
    OutputDirectoryOption,
    OutputOption,
    expand_settings,
    output_file_option,
    resumable,
    take_one_output,
)
from covnmt.phrase_based.settings import (
    AlignerSettings,
    PhraseBasedSettings,
    StackSearchSettings,
    WeightTuningSettings,
)

app = typer.Typer(
    no_args_is_help=True, help="Train and run the phrase-based baseline (extra `smt`)."
)
words_app = typer.Typer(no_args_is_help=True, help="Statistical word alignment (extra `smt`).")

OPTION_NAMES = {
    "kind": "--aligner",
    "joining": "--symmetrize",
    "processes": "--workers",
    "sentences": "--max-sentences",
    # as Moses calls them
    "samplers": "--chains",
    "options": "--ttable-limit",
    "order": "--lm-order",
    "reorder": "--distortion-limit",
    "stack": "--stack-size",
}
ModelArgument = Annotated[
    Path | None, typer.Argument(metavar="MODEL", help="model; or give --model")
]
PhraseModelOption = Annotated[
    Path | None, typer.Option("--model", "-m", help="directory made by `covnmt smt train`")
]
AlignOptions = Annotated[AlignerSettings, FromSettings(AlignerSettings, names=OPTION_NAMES)]
SearchOptions = Annotated[
    StackSearchSettings, FromSettings(StackSearchSettings, names=OPTION_NAMES)
]
AlignerWorkers = Annotated[
    int,
    typer.Option("--workers", "-j", min=1, help="processes that share the chains of the aligner"),
]


@app.command()
@expand_settings
def train(
    data: Annotated[Path, typer.Argument(help="directory made by `covnmt prepare`")],
    argument: OutputArgument = None,
    output: OutputDirectoryOption = None,
    workers: AlignerWorkers = 1,
    *,
    settings: Annotated[
        PhraseBasedSettings,
        FromSettings(PhraseBasedSettings, names=OPTION_NAMES),
    ],
) -> None:
    """Train a phrase-based system: align words, extract phrases, count n-grams. Resumes."""
    from covnmt.phrase_based.model import train_phrase_based

    model = take_one_output(output, argument, "the directory of the new model")
    with resumable():
        train_phrase_based(data, model, settings, workers)
    log(f"{model}: ready; next: covnmt smt tune {model}")


@app.command()
@expand_settings
def tune(
    argument: ModelArgument = None,
    model_option: PhraseModelOption = None,
    *,
    settings: Annotated[
        WeightTuningSettings, FromSettings(WeightTuningSettings, names=OPTION_NAMES)
    ],
) -> None:
    """Tune the feature weights for dev BLEU (MERT). Run the same command again to resume."""
    from covnmt.phrase_based.model import PhraseBasedModel
    from covnmt.phrase_based.tune_weights import tune_phrase_based

    model, surplus = _model_and_file(model_option, argument, None)
    if surplus:
        raise UserError(f"one model: {model} or {surplus}?")
    with resumable():
        scores = [bleu for _, bleu in tune_phrase_based(PhraseBasedModel.open(model), settings)]
    best = max(scores)
    log(
        f"{model}: dev BLEU {best:.2f} (round {scores.index(best) + 1} of {len(scores)}; "
        f"{scores[0]:.2f} before tuning)"
    )


@app.command()
@expand_settings
def translate(
    argument: ModelArgument = None,
    file: Annotated[
        Path | None, typer.Argument(help="text to translate; default: standard input")
    ] = None,
    model_option: PhraseModelOption = None,
    output: OutputOption = None,
    as_json: JsonLinesOption = False,
    links: Annotated[
        Path | None,
        output_file_option("also write links of source and output, in Pharaoh format"),
    ] = None,
    *,
    settings: SearchOptions,
) -> None:
    """Translate a file or a pipe. Order and empty lines are kept."""
    from covnmt.base.files import check_distinct_paths, read_input_lines, write_output_lines
    from covnmt.metrics.alignment import format_links
    from covnmt.phrase_based.model import PhraseBasedModel
    from covnmt.phrase_based.translate import translate_phrase_based

    model, file = _model_and_file(model_option, argument, file)
    check_distinct_paths([output, links], [file])
    lines = list(read_input_lines(file))
    translations = list(translate_phrase_based(PhraseBasedModel.open(model), lines, settings))
    write_output_lines(
        output,
        (json.dumps(t.to_json(), ensure_ascii=False) if as_json else t.text for t in translations),
    )
    if links:
        write_output_lines(links, (format_links(translation.links) for translation in translations))


def _model_and_file(*arguments: Path | None) -> tuple[Path, Path | None]:
    """Return the model, which is --model or the first argument, and the file after it."""
    given = [argument for argument in arguments if argument]
    if not given:
        raise UserError("no model given: add --model DIRECTORY")
    if len(given) > 2:
        raise UserError(f"two models given: {given[0]} and {given[1]}")
    return given[0], given[1] if len(given) > 1 else None


@words_app.command()
@expand_settings
def align(
    source: Annotated[Path, typer.Argument(help="text, words separated by spaces")],
    target: Annotated[Path, typer.Argument(help="text, words separated by spaces")],
    output: OutputOption = None,
    data: Annotated[Path | None, typer.Option(help="prepared corpus to learn from as well")] = None,
    pairs: Annotated[int, typer.Option(min=0, help="number of pairs of --data; 0: all")] = 0,
    workers: AlignerWorkers = 1,
    *,
    settings: AlignOptions,
) -> None:
    """Align the words of two parallel files; print links in Pharaoh format."""
    from covnmt.base.files import check_distinct_paths, write_output_lines
    from covnmt.data.corpus import Corpus
    from covnmt.metrics.alignment import format_links
    from covnmt.phrase_based.align_files import align_files

    check_distinct_paths([output], [source, target])
    corpus = Corpus.open(data) if data else None
    links = align_files(source, target, corpus, settings, pairs, workers)
    write_output_lines(output, map(format_links, links))
