"""The commands of the phrase-based row: smt train, tune and translate; and words align."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from covnmt.base.console import log
from covnmt.cli.options import OutputOption, stoppable, writable

if TYPE_CHECKING:
    from covnmt.phrase_based.settings import StackSearchSettings

app = typer.Typer(no_args_is_help=True, help="The phrase-based baseline (extra `smt`).")
words_app = typer.Typer(no_args_is_help=True, help="Statistical word alignment (extra `smt`).")

Kind = Literal["eflomal", "hmm", "fast_align", "ibm1", "ibm3", "ibm4"]
Joining = Literal[
    "grow-diag-final-and", "grow-diag-final", "intersection", "union", "forward", "backward"
]
ModelArgument = Annotated[Path, typer.Argument(help="made by `covnmt smt train`")]
AlignerOption = Annotated[Kind, typer.Option(help="how words are linked")]
JoiningOption = Annotated[Joining, typer.Option(help="of the two directions")]
SeedOption = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="of everything random")]
ReorderOption = Annotated[
    int, typer.Option(min=0, help="source words that may be jumped over; 0: monotone")
]
StackOption = Annotated[
    int, typer.Option(min=1, help="hypotheses for each number of covered words")
]
ProcessesOption = Annotated[int, typer.Option(min=1, help="sentences are shared among them")]


@app.command()
def train(
    data: Annotated[Path, typer.Argument(help="directory made by `covnmt prepare`")],
    model: Annotated[Path, typer.Argument(help="where the model goes")],
    aligner: AlignerOption = "eflomal",
    joining: JoiningOption = "grow-diag-final-and",
    samplers: Annotated[int, typer.Option(min=1, help="chains of eflomal")] = 3,
    pairs: Annotated[int, typer.Option(min=0, help="train on that many; 0: all")] = 0,
    max_phrase: Annotated[int, typer.Option(min=1, max=10, help="words of a phrase")] = 7,
    options: Annotated[int, typer.Option(min=1, help="translations of a source phrase")] = 20,
    order: Annotated[int, typer.Option(min=1, max=6, help="of the language model")] = 4,
    processes: Annotated[int, typer.Option(min=1, help="chains are shared among them")] = 1,
    seed: SeedOption = 1234,
) -> None:
    """Link words, collect phrases, count n-grams; what is done already is not done again."""
    from covnmt.phrase_based.model import train_phrase_based
    from covnmt.phrase_based.settings import AlignerSettings, PhraseBasedSettings

    settings = PhraseBasedSettings(
        align=AlignerSettings(kind=aligner, samplers=samplers, joining=joining, seed=seed),
        pairs=pairs,
        max_phrase=max_phrase,
        options=options,
        order=order,
    )
    with stoppable():
        train_phrase_based(data, model, settings, processes)
    log(f"{model}: ready; next: covnmt smt tune {model}")


@app.command()
def tune(
    model: ModelArgument,
    iterations: Annotated[int, typer.Option(min=1, help="rounds, at most")] = 8,
    nbest: Annotated[int, typer.Option(min=1, help="translations of each sentence")] = 100,
    restarts: Annotated[int, typer.Option(min=0, help="random starts in each round")] = 8,
    sentences: Annotated[int, typer.Option(min=0, help="first ones of dev; 0: all")] = 0,
    reorder: ReorderOption = 6,
    stack: StackOption = 100,
    processes: ProcessesOption = 1,
    seed: SeedOption = 1234,
) -> None:
    """Find the weights that give the best BLEU on the dev set; goes on where it was stopped."""
    from covnmt.phrase_based.model import PhraseBasedModel
    from covnmt.phrase_based.settings import WeightTuningSettings
    from covnmt.phrase_based.tune_weights import tune_phrase_based

    settings = WeightTuningSettings(
        search=_search(reorder, stack, processes),
        iterations=iterations,
        nbest=nbest,
        restarts=restarts,
        sentences=sentences,
        seed=seed,
    )
    with stoppable():
        scores = [bleu for _, bleu in tune_phrase_based(PhraseBasedModel.open(model), settings)]
    best = max(scores)
    log(
        f"{model}: dev BLEU {best:.2f} (round {scores.index(best) + 1} of {len(scores)}; "
        f"{scores[0]:.2f} before tuning)"
    )


@app.command()
def translate(
    model: ModelArgument,
    file: Annotated[Path | None, typer.Argument(help="text to translate; standard input")] = None,
    out: OutputOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line")] = False,
    links: Annotated[
        Path | None,
        typer.Option(dir_okay=False, callback=writable, help="Pharaoh links of source and output"),
    ] = None,
    reorder: ReorderOption = 6,
    stack: StackOption = 100,
    processes: ProcessesOption = 1,
) -> None:
    """Translate a file or a pipe, line by line; order and empty lines are kept."""
    from covnmt.base.files import check_distinct_paths, input_lines, output_lines
    from covnmt.metrics.alignment import format_links
    from covnmt.phrase_based.model import PhraseBasedModel
    from covnmt.phrase_based.translate import translate_phrase_based

    check_distinct_paths([out, links], [file])
    settings = _search(reorder, stack, processes)
    done = list(
        translate_phrase_based(PhraseBasedModel.open(model), list(input_lines(file)), settings)
    )
    told = (json.dumps(e.to_json(), ensure_ascii=False) if as_json else e.text for e in done)
    output_lines(out, told)
    if links:
        output_lines(links, (format_links(each.links) for each in done))


@words_app.command()
def align(
    source: Annotated[Path, typer.Argument(help="words between spaces")],
    target: Annotated[Path, typer.Argument(help="words between spaces")],
    out: OutputOption = None,
    data: Annotated[
        Path | None, typer.Option(help="prepared directory whose pairs are learnt from too")
    ] = None,
    pairs: Annotated[int, typer.Option(min=0, help="of --data, that many; 0: all")] = 0,
    aligner: AlignerOption = "eflomal",
    joining: JoiningOption = "grow-diag-final-and",
    samplers: Annotated[int, typer.Option(min=1, help="chains of eflomal")] = 3,
    processes: Annotated[int, typer.Option(min=1, help="chains are shared among them")] = 1,
    seed: SeedOption = 1234,
) -> None:
    """Link the words of two parallel files; prints Pharaoh links."""
    from covnmt.base.files import check_distinct_paths, output_lines
    from covnmt.data.corpus import Corpus
    from covnmt.metrics.alignment import format_links
    from covnmt.phrase_based.align_files import align_files
    from covnmt.phrase_based.settings import AlignerSettings

    check_distinct_paths([out], [source, target])
    settings = AlignerSettings(kind=aligner, samplers=samplers, joining=joining, seed=seed)
    corpus = Corpus.open(data) if data else None
    found = align_files(source, target, corpus, settings, pairs, processes)
    output_lines(out, map(format_links, found))


def _search(reorder: int, stack: int, processes: int) -> "StackSearchSettings":
    from covnmt.phrase_based.settings import StackSearchSettings

    return StackSearchSettings(reorder=reorder, stack=stack, processes=processes)
