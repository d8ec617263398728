"""The commands of the phrase-based row: smt train, tune and translate; and words align."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from covnmt.progress import console as messages

app = typer.Typer(no_args_is_help=True, help="The phrase-based baseline (Thot; extra `smt`).")
words_app = typer.Typer(no_args_is_help=True, help="Statistical word alignment (extra `smt`).")


@app.command()
def train(
    data: Annotated[Path, typer.Argument(help="directory made by `covnmt prepare`")],
    model: Annotated[Path, typer.Argument(help="where the model goes")],
    pairs: Annotated[int, typer.Option(min=0, help="train on that many; 0: all")] = 0,
    max_phrase: Annotated[int, typer.Option(min=1, max=10, help="words of a phrase")] = 7,
    order: Annotated[int, typer.Option(min=1, max=6, help="of the language model")] = 4,
    min_count: Annotated[
        int, typer.Option(min=1, help="rarer n-grams of 3 or more words are left out")
    ] = 1,
    seed: Annotated[int, typer.Option(min=0, help="of the aligner")] = 1234,
) -> None:
    """Link words, collect phrases, count n-grams; what is done already is not done again."""
    from covnmt.smt.model import Builder
    from covnmt.smt.settings import AlignSettings, TrainSettings
    from covnmt.text.corpus import Corpus

    settings = TrainSettings(pairs=pairs, max_phrase=max_phrase, order=order, min_count=min_count, align=AlignSettings(seed=seed))
    Builder(Corpus.open(data), model, settings).build()


@app.command()
def tune(
    model: Annotated[Path, typer.Argument(help="made by `covnmt smt train`")],
    sentences: Annotated[int, typer.Option(min=0)] = 0,
    iterations: Annotated[int, typer.Option(min=1)] = 8,
    reorder: Annotated[int, typer.Option(min=0)] = 6,
    stack: Annotated[int, typer.Option(min=1)] = 5,
    nbest: Annotated[int, typer.Option(min=1)] = 100,
    processes: Annotated[int, typer.Option(min=1)] = 1,
) -> None:
    """Find the weights that give the best BLEU on the dev set."""
    from covnmt.smt.model import SmtModel
    from covnmt.smt.settings import SearchSettings, TuneSettings
    from covnmt.smt.tune import tune as run

    search = SearchSettings(reorder=reorder, stack=stack, processes=processes)
    settings = TuneSettings(search=search, iterations=iterations, nbest=nbest, sentences=sentences)
    print(run(SmtModel.open(model), settings))


@app.command()
def translate(
    model: Annotated[Path, typer.Argument(help="made by `covnmt smt train`")],
    file: Annotated[Path, typer.Argument(help="text to translate")],
    out: Annotated[Path, typer.Option("--output", "-o")],
    reorder: Annotated[int, typer.Option(min=0)] = 6,
    stack: Annotated[int, typer.Option(min=1)] = 5,
    processes: Annotated[int, typer.Option(min=1)] = 1,
) -> None:
    """Translate."""
    from covnmt.files import read_lines, write_lines
    from covnmt.smt.model import SmtModel
    from covnmt.smt.settings import SearchSettings
    from covnmt.smt.translate import translate as run

    search = SearchSettings(reorder=reorder, stack=stack, processes=processes)
    done = run(SmtModel.open(model), list(read_lines(file)), search)
    write_lines(out, (json.dumps(each.to_json(), ensure_ascii=False) for each in done))
