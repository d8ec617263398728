"""The commands that judge translations: evaluate, compare, report, plot, rate."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from covnmt.base.console import log, stdout_console, warn
from covnmt.base.errors import UserError
from covnmt.base.files import check_distinct_paths, read_lines, write_json
from covnmt.base.processes import available_cpus
from covnmt.cli.options import ExtractionOption, check_finite, check_output_path, check_utf8

app = typer.Typer()
rate_app = typer.Typer(no_args_is_help=True, help="Sheets for human judgement, and their scores.")
plot_app = typer.Typer(no_args_is_help=True, help="Single figures, PNG or SVG by the file's name.")
app.add_typer(rate_app, name="rate")
app.add_typer(plot_app, name="plot")

ReferenceOption = Annotated[list[Path], typer.Option("--reference", "-r", help="repeatable")]
SourceOption = Annotated[Path | None, typer.Option("--source", "-s", help="source text")]
GoldOption = Annotated[
    Path | None, typer.Option("--gold", "-g", help="hand alignment of source and first reference")
]
BaseOption = Annotated[int, typer.Option(help="number of the first word in link files: 0 or 1")]
DeterministicOption = Annotated[
    bool, typer.Option(help="the reference is the only right translation (embedded pair)")
]
TokenizeOption = Annotated[str, typer.Option(help="sacreBLEU's tokeniser")]
TerOption = Annotated[bool, typer.Option(help="TER is slow on long texts")]
SymmetryOption = Annotated[
    Literal["grow-diag-final", "union", "intersection"],
    typer.Option(help="of links in both directions"),
]
JsonOption = Annotated[
    Path | None,
    typer.Option(
        "--json",
        dir_okay=False,
        callback=check_output_path,
        help="write all figures here too; -: print only them",
    ),
]
FigureArgument = Annotated[
    Path, typer.Argument(dir_okay=False, callback=check_output_path, help="PNG or SVG")
]
NamedFiles = Annotated[list[str], typer.Argument(help="NAME=FILE, or just FILE")]
ForcedOption = Annotated[
    list[str] | None,
    typer.Option(help="NAME=FILE.npz: soft matrices of the reference, by `covnmt align`"),
]


@app.command()
def evaluate(
    hypothesis: Annotated[
        Path, typer.Argument(help="text, or .jsonl of `translate --json`; -: standard input")
    ],
    reference: ReferenceOption,
    source: SourceOption = None,
    gold: GoldOption = None,
    forced: Annotated[
        Path | None, typer.Option(help="soft matrices of the reference (.npz), by `covnmt align`")
    ] = None,
    links: Annotated[Path | None, typer.Option(help="Pharaoh links of any aligner")] = None,
    reverse_links: Annotated[
        Path | None, typer.Option(help="of the opposite direction, source first too")
    ] = None,
    attention: Annotated[Path | None, typer.Option(help="matrices of the output (.npz)")] = None,
    output_links: Annotated[Path | None, typer.Option(help="source to output, for DROP")] = None,
    base: BaseOption = 0,
    deterministic: DeterministicOption = False,
    tokenize: TokenizeOption = "13a",
    extraction: ExtractionOption = "argmax",
    threshold: Annotated[
        float, typer.Option(help="for --extraction threshold", callback=check_finite)
    ] = 0.5,
    symmetry: SymmetryOption = "grow-diag-final",
    renormalise: Annotated[bool, typer.Option(help="matrices, for SAER")] = False,
    ter: TerOption = True,
    json_file: JsonOption = None,
) -> None:
    """Every score of one system."""
    from covnmt.evaluation.evaluate import EvaluationOptions
    from covnmt.evaluation.evaluate import evaluate as run
    from covnmt.evaluation.tables import evaluation_table, length_table
    from covnmt.evaluation.test_set import load_evaluation_set, load_output

    read = [hypothesis, *reference, source, gold, forced, links, reverse_links, attention]
    check_distinct_paths([json_file], [*read, output_links])
    first = _base(base)
    on = load_evaluation_set(reference, source, gold, first, deterministic)
    system = load_output(
        hypothesis, on, forced, links, reverse_links, attention, output_links, first
    )
    options = EvaluationOptions(
        tokenize, extraction, threshold, symmetry, renormalise, ter=ter, workers=available_cpus()
    )
    found = run(system, on, options)
    tables = [evaluation_table(found)]
    if found.by_length:
        tables.append(length_table({hypothesis.name: found}))
    _show(tables, found.to_json(), json_file)


@app.command()
def compare(
    systems: NamedFiles,
    reference: ReferenceOption,
    source: SourceOption = None,
    gold: GoldOption = None,
    forced: ForcedOption = None,
    baseline: Annotated[
        list[str] | None, typer.Option(help="marks show who beats it; repeatable; the first")
    ] = None,
    one_sided: Annotated[bool, typer.Option(help="sign test for being better")] = False,
    base: BaseOption = 0,
    deterministic: DeterministicOption = False,
    tokenize: TokenizeOption = "13a",
    ter: TerOption = True,
    json_file: JsonOption = None,
) -> None:
    """Several systems on one test set, with significance."""
    from covnmt.evaluation.evaluate import EvaluationOptions
    from covnmt.evaluation.evaluate import compare as run
    from covnmt.evaluation.tables import comparison_table, length_table, significance_table
    from covnmt.evaluation.test_set import load_evaluation_set, load_output

    files = _named(systems)
    matrices = _matrices(forced, files)
    check_distinct_paths(
        [json_file], [*files.values(), *matrices.values(), *reference, source, gold]
    )
    on = load_evaluation_set(reference, source, gold, _base(base), deterministic)
    outputs = {name: load_output(path, on, matrices.get(name)) for name, path in files.items()}
    alternative: Literal["greater", "two-sided"] = "greater" if one_sided else "two-sided"
    options = EvaluationOptions(
        tokenize, alternative=alternative, ter=ter, workers=available_cpus()
    )
    found = run(outputs, on, baseline or (), options)
    tables = [comparison_table(found), significance_table(found)]
    if source:
        tables.append(length_table(found.systems))
    _show(tables, found.to_json(), json_file)


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(help="where the page and its figures go")],
    systems: NamedFiles,
    reference: ReferenceOption,
    source: Annotated[Path, typer.Option("--source", "-s", help="source text")],
    gold: GoldOption = None,
    forced: ForcedOption = None,
    baseline: Annotated[list[str] | None, typer.Option(help="as in compare")] = None,
    title: Annotated[str, typer.Option(callback=check_utf8)] = "Translation report",
    base: BaseOption = 0,
    deterministic: DeterministicOption = False,
    tokenize: TokenizeOption = "13a",
    ter: TerOption = True,
    sentences: Annotated[int, typer.Option(min=0, help="in each list")] = 10,
    maps: Annotated[int, typer.Option(min=0, help="heat maps")] = 4,
) -> None:
    """A self-contained web page: tables, curves, heat maps, and the sentences worth reading."""
    from covnmt.evaluation.alignment_files import load_matrices
    from covnmt.evaluation.evaluate import EvaluationOptions
    from covnmt.evaluation.html import write_report
    from covnmt.evaluation.system_output import read_outputs
    from covnmt.evaluation.test_set import load_evaluation_set

    on = load_evaluation_set(reference, source, gold, _base(base), deterministic)
    n = len(on.references[0])
    files = _named(systems)
    rows = {name: read_outputs(path, n) for name, path in files.items()}
    matrices = {name: load_matrices(path) for name, path in _matrices(forced, files).items()}
    options = EvaluationOptions(tokenize, ter=ter, workers=available_cpus())
    page = write_report(
        directory, title, on, rows, matrices, baseline or (), options, sentences, maps
    )
    log(f"wrote {page}")


@plot_app.command("heat-maps")
def plot_heat_maps(
    figure: FigureArgument,
    systems: Annotated[list[str], typer.Argument(help="NAME=FILE.jsonl of `translate --json`")],
    sentence: Annotated[int, typer.Option(help="line number, from 1")] = 1,
) -> None:
    """One sentence under one or several systems."""
    from covnmt.evaluation.figures import draw_heat_maps
    from covnmt.evaluation.html import read_heat_maps

    draw_heat_maps(read_heat_maps(_named(systems), sentence), figure)


@plot_app.command("lengths")
def plot_lengths(
    figure: FigureArgument,
    systems: NamedFiles,
    reference: ReferenceOption,
    source: Annotated[Path, typer.Option("--source", "-s", help="source text")],
    tokenize: TokenizeOption = "13a",
) -> None:
    """BLEU and output length by source length (the paper's figure)."""
    from covnmt.evaluation.evaluate import EvaluationOptions
    from covnmt.evaluation.evaluate import evaluate as run
    from covnmt.evaluation.figures import draw_length_curves
    from covnmt.evaluation.test_set import load_evaluation_set, load_output

    on = load_evaluation_set(reference, source)
    found = {
        name: run(load_output(path, on), on, EvaluationOptions(tokenize, ter=False)).by_length
        for name, path in _named(systems).items()
    }
    draw_length_curves(found, figure)


@plot_app.command("training")
def plot_training(
    figure: FigureArgument,
    runs: Annotated[list[str], typer.Argument(help="NAME=DIRECTORY of `covnmt train`")],
) -> None:
    """Loss and BLEU while training."""
    from covnmt.evaluation.figures import draw_training_curves

    logs = {name: path / "log.jsonl" for name, path in _named(runs).items()}
    draw_training_curves(logs, figure)


@rate_app.command("make")
def rate_make(
    directory: Annotated[Path, typer.Argument(help="where sheet, form and key go")],
    systems: NamedFiles,
    source: Annotated[Path, typer.Option("--source", "-s", help="source text")],
    n: Annotated[int, typer.Option("--sentences", "-n", help="sampled")] = 200,
    seed: int = 1,
) -> None:
    """Blinded sheets for raters: a spreadsheet and a form for the browser."""
    from covnmt.evaluation.human_evaluation import given_source_words, make_rating_sheets
    from covnmt.evaluation.system_output import read_outputs

    lines = list(read_lines(source))
    rows = {name: read_outputs(path, len(lines)) for name, path in _named(systems).items()}
    texts = {name: [each.text for each in outputs] for name, outputs in rows.items()}
    made = make_rating_sheets(
        texts, lines, n, seed, directory, given_source_words(rows.values(), lines)
    )
    log(f"for the raters: {made.form} or {made.sheet}; keep to yourself: {made.key}")


@rate_app.command("score")
def rate_score(
    key: Annotated[Path, typer.Argument(help="key.json of `rate make`")],
    sheets: Annotated[list[Path], typer.Argument(help="filled sheets, one per rater")],
    json_file: JsonOption = None,
) -> None:
    """Read the filled sheets: the paper's Table 2, and how far the raters agree."""
    from covnmt.evaluation.human_evaluation import score_rating_sheets
    from covnmt.evaluation.tables import agreement_table, ratings_table

    check_distinct_paths([json_file], [key, *sheets])
    found = score_rating_sheets(key, sheets)
    tables = [ratings_table(found)]
    if found.agreement:
        tables.append(agreement_table(found))
    for sheet, missing in found.unfilled.items():
        if missing:
            warn(f"{sheet}: {len(missing)} outputs not rated")
    _show(tables, found.to_json(), json_file)


def _named(texts: Sequence[str]) -> dict[str, Path]:
    """NAME=FILE pairs; a bare file is called by its stem."""
    files: dict[str, Path] = {}
    for pair in texts:
        name, given, path = pair.partition("=")
        name, path = (name, path) if given else (Path(pair).stem, pair)
        if not name or not path:
            raise UserError(f"{pair!r}: a name or a file is missing; write NAME=FILE, or just FILE")
        if name in files:
            raise UserError(f"two systems are called {name!r}; write NAME=FILE")
        files[check_utf8(name)] = Path(path)
    return files


def _matrices(texts: list[str] | None, systems: dict[str, Path]) -> dict[str, Path]:
    """NAME=FILE.npz pairs of systems that there are."""
    files = _named(texts or [])
    for name in files.keys() - systems.keys():
        raise UserError(f"--forced {name}: is not among the systems: {', '.join(systems)}")
    return files


def _base(number: int) -> Literal[0, 1]:
    if number == 0:
        return 0
    if number == 1:
        return 1
    raise UserError(f"--base {number}: words are numbered from 0 or from 1")


def _show(tables: Sequence[Table], figures: dict[str, Any], path: Path | None) -> None:
    """Print the tables, and write the figures where asked to; "-" prints the figures alone."""
    if str(path) == "-":
        print(json.dumps(figures, ensure_ascii=False, indent=2))
        return
    for table in tables:
        stdout_console.print(table)
    if path:
        write_json(path, figures)
