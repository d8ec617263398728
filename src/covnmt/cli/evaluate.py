"""Commands that score translations: evaluate, score, compare, report, plot, rate."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from covnmt.base.console import log, stdout_console, track, warn
from covnmt.base.cpus import available_cpus
from covnmt.base.errors import UserError
from covnmt.base.files import check_distinct_paths, read_lines, write_json, write_output_lines
from covnmt.base.table import Table
from covnmt.cli.options import (
    DeviceOption,
    LinkMethodOption,
    OutputDirectoryOption,
    OutputOption,
    SingleModelOption,
    SourceArgument,
    TargetArgument,
    ThreadsOption,
    ThresholdOption,
    TokenizeOption,
    check_utf8,
    output_file_option,
    require_one_model,
    take_output,
)

if TYPE_CHECKING:
    from covnmt.inference.model import ModelLoader

app = typer.Typer()
rate_app = typer.Typer(
    no_args_is_help=True, help="Make blinded rating sheets for human evaluation, and score them."
)
plot_app = typer.Typer(
    no_args_is_help=True, help="Draw one figure, as PNG or SVG by the file name."
)
app.add_typer(rate_app, name="rate")
app.add_typer(plot_app, name="plot")

ReferenceOption = Annotated[
    list[Path], typer.Option("--reference", "-r", help="reference translation; repeatable")
]
SourceOption = Annotated[Path | None, typer.Option("--source", "-s", help="source text")]
GoldOption = Annotated[
    Path | None,
    typer.Option(
        "--gold",
        "-g",
        help="gold alignment of the source and the first reference (Pharaoh format), for AER and "
        "SAER",
    ),
]
IndexBaseOption = Annotated[
    int, typer.Option(help="number of the first word in files of links: 0 or 1")
]
UniqueReferenceOption = Annotated[
    bool,
    typer.Option(
        help="treat every difference from the reference as an error: count omitted and repeated "
        "words exactly. Valid only if it is the only correct translation, as for the synthetic pair"
    ),
]
TerOption = Annotated[bool, typer.Option(help="compute TER, which is slow on long texts")]
SymmetrizeOption = Annotated[
    Literal["grow-diag-final", "union", "intersection"],
    typer.Option(help="how links of both directions are combined"),
]
BaselineOption = Annotated[
    list[str] | None,
    typer.Option(
        help="system that the others are tested against; repeatable", show_default="the first"
    ),
]
JudgeOption = Annotated[
    str | None,
    typer.Option(
        help="model that counts omissions, as `covnmt check` does, and additions; needs --source"
    ),
]
JsonTablesOption = Annotated[
    bool, typer.Option("--json", help="print one JSON object instead of tables")
]
ScoresOption = Annotated[
    Path | None,
    output_file_option("also write all scores to this JSON file", "--output", "-o"),
]
FigureOption = Annotated[
    Path | None,
    output_file_option("figure: PNG or SVG", "--output", "-o"),
]
NamedFiles = Annotated[
    list[str],
    typer.Argument(help="outputs: NAME=FILE or FILE, text or .jsonl of `translate --json`"),
]
ReferenceAttentionOption = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=FILE.npz: attention matrices of the first reference, from `covnmt align "
        "--matrices`; repeatable"
    ),
]


@app.command()
def evaluate(
    hypothesis: Annotated[
        Path, typer.Argument(help="text, or .jsonl of `translate --json`; -: standard input")
    ],
    references: Annotated[
        list[Path] | None, typer.Argument(help="reference translations; or give --reference")
    ] = None,
    reference: ReferenceOption = [],  # noqa: B006
    source: SourceOption = None,
    gold: GoldOption = None,
    reference_attention: Annotated[
        Path | None,
        typer.Option(
            help="attention matrices of the first reference (.npz), from `covnmt align "
            "--matrices`, for AER and SAER"
        ),
    ] = None,
    links: Annotated[
        Path | None,
        typer.Option(
            help="links of the source and the first reference by any aligner (Pharaoh format), for "
            "AER and DROP; with --reference-attention, these links are used"
        ),
    ] = None,
    reverse_links: Annotated[
        Path | None,
        typer.Option(
            help="links of the same texts by an aligner that ran from the target to the source, "
            "also written source-target; combined with --links"
        ),
    ] = None,
    attention: Annotated[
        Path | None,
        typer.Option(
            help="attention matrices of the output (.npz), for DROP and statistics of attention"
        ),
    ] = None,
    output_links: Annotated[
        Path | None,
        typer.Option(help="links of the source and the output (Pharaoh format), for DROP"),
    ] = None,
    index_base: IndexBaseOption = 0,
    unique_reference: UniqueReferenceOption = False,
    tokenize: TokenizeOption = "13a",
    link_method: LinkMethodOption = "argmax",
    threshold: ThresholdOption = 0.5,
    symmetrize: SymmetrizeOption = "grow-diag-final",
    renormalize: Annotated[
        bool,
        typer.Option(
            help="for SAER, divide each row of the matrices by its sum, as if the end symbol had "
            "no weight"
        ),
    ] = False,
    ter: TerOption = True,
    judge: JudgeOption = None,
    as_json: JsonTablesOption = False,
    output: ScoresOption = None,
) -> None:
    """Score one system: BLEU, chrF, TER, and more if more files are given.

    AER (alignment error rate) needs --source, --gold and --links or --reference-attention, SAER
    (the same for soft attention) --reference-attention. DROP (source words left untranslated) needs
    --links and --output-links, or --reference-attention and the attention of the output. REP
    (repeated words) needs no other file. Links are in Pharaoh format: source-target word pairs such
    as 0-0 1-2.
    """
    from covnmt.evaluation.evaluate import EvaluationOptions
    from covnmt.evaluation.evaluate import evaluate as evaluate_system
    from covnmt.evaluation.tables import evaluation_table, length_table
    from covnmt.evaluation.test_set import load_evaluation_set, load_output

    reference = [*(references or ()), *reference]
    if not reference:
        raise UserError("name the reference translation: covnmt evaluate OUTPUT REFERENCE")
    inputs = [
        hypothesis,
        *reference,
        source,
        gold,
        reference_attention,
        links,
        reverse_links,
        attention,
    ]
    check_distinct_paths([output], [*inputs, output_links])
    first_number = _first_word_number(index_base)
    test_set = load_evaluation_set(reference, source, gold, first_number, unique_reference)
    system = load_output(
        hypothesis,
        test_set,
        reference_attention,
        links,
        reverse_links,
        attention,
        output_links,
        first_number,
    )
    options = EvaluationOptions(
        tokenize,
        link_method,
        threshold,
        symmetrize,
        renormalize,
        ter=ter,
        workers=available_cpus(),
        judge=_find_judge(judge, source),
    )
    evaluation = evaluate_system(system, test_set, options)
    tables = [evaluation_table(evaluation)]
    if evaluation.by_length:
        tables.append(length_table({hypothesis.name: evaluation}))
    _show(tables, evaluation.to_json(), as_json, output)


def _find_judge(name: str | None, source: Path | None) -> "ModelLoader | None":
    if name is None:
        return None
    if source is None:
        raise UserError("--judge needs --source: it compares the output with it")
    from covnmt.inference.model import ModelLoader

    return ModelLoader.find([name])


@app.command()
def score(
    source: SourceArgument,
    target: TargetArgument,
    model: SingleModelOption = [],  # noqa: B006
    output: OutputOption = None,
    per_token: Annotated[bool, typer.Option(help="divide by the number of target tokens")] = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
) -> None:
    """Print the log-probability that a model gives each translation."""
    from covnmt.inference.model import ModelLoader
    from covnmt.inference.parallel import align_parallel_files

    check_distinct_paths([output], [source, target])
    loader = ModelLoader.find([require_one_model(model, "score")], device, threads)
    total, tokens = 0.0, 0

    def lines() -> Iterator[str]:
        nonlocal total, tokens
        pairs = align_parallel_files(loader, source, target, tokenized=False)
        for pair in track(pairs, None, "scoring", "pairs"):
            size = len(pair.target_tokens) + 1  # with the end symbol
            total, tokens = total + pair.log_prob, tokens + size
            yield f"{pair.log_prob / (size if per_token else 1):.4f}"

    write_output_lines(output, lines())
    if tokens:
        mean = total / tokens
        log(f"mean per token: {mean:.4f}; perplexity per token: {exp(-mean):.2f}")


@app.command()
def compare(
    systems: NamedFiles,
    reference: ReferenceOption,
    source: SourceOption = None,
    gold: GoldOption = None,
    reference_attention: ReferenceAttentionOption = None,
    baseline: BaselineOption = None,
    one_sided: Annotated[
        bool, typer.Option(help="test only whether a system is better, not whether it differs")
    ] = False,
    index_base: IndexBaseOption = 0,
    unique_reference: UniqueReferenceOption = False,
    tokenize: TokenizeOption = "13a",
    ter: TerOption = True,
    judge: JudgeOption = None,
    as_json: JsonTablesOption = False,
    output: ScoresOption = None,
) -> None:
    """Compare systems on one test set, with sign tests and bootstrap confidence intervals."""
    from covnmt.evaluation.evaluate import EvaluationOptions
    from covnmt.evaluation.evaluate import compare as compare_systems
    from covnmt.evaluation.tables import comparison_table, length_table, significance_table
    from covnmt.evaluation.test_set import load_evaluation_set, load_output

    files = _named_files(systems)
    matrices = _named_matrices(reference_attention, files)
    check_distinct_paths([output], [*files.values(), *matrices.values(), *reference, source, gold])
    test_set = load_evaluation_set(
        reference, source, gold, _first_word_number(index_base), unique_reference
    )
    outputs = {
        name: load_output(path, test_set, matrices.get(name)) for name, path in files.items()
    }
    alternative: Literal["greater", "two-sided"] = "greater" if one_sided else "two-sided"
    options = EvaluationOptions(
        tokenize,
        alternative=alternative,
        ter=ter,
        workers=available_cpus(),
        judge=_find_judge(judge, source),
    )
    comparison = compare_systems(outputs, test_set, baseline or (), options)
    tables = [comparison_table(comparison), significance_table(comparison)]
    if source:
        tables.append(length_table(comparison.systems))
    _show(tables, comparison.to_json(), as_json, output)


@app.command()
def report(
    systems: NamedFiles,
    reference: ReferenceOption,
    source: Annotated[Path, typer.Option("--source", "-s", help="source text")],
    output: OutputDirectoryOption = None,
    gold: GoldOption = None,
    reference_attention: ReferenceAttentionOption = None,
    baseline: BaselineOption = None,
    title: Annotated[
        str, typer.Option(help="title of the page", callback=check_utf8)
    ] = "Translation report",
    index_base: IndexBaseOption = 0,
    unique_reference: UniqueReferenceOption = False,
    tokenize: TokenizeOption = "13a",
    ter: TerOption = True,
    max_sentences: Annotated[int, typer.Option(min=0, help="sentences in each list")] = 10,
    maps: Annotated[int, typer.Option(min=0, help="sentences with heat maps")] = 4,
) -> None:
    """Write a self-contained HTML report: tables, curves, heat maps, sentences that differ most."""
    from covnmt.evaluation.alignment_files import load_matrices
    from covnmt.evaluation.evaluate import EvaluationOptions
    from covnmt.evaluation.html import write_report
    from covnmt.evaluation.system_output import read_outputs
    from covnmt.evaluation.test_set import load_evaluation_set

    directory, systems = take_output(output, systems, "the directory of the report")
    test_set = load_evaluation_set(
        reference, source, gold, _first_word_number(index_base), unique_reference
    )
    n = len(test_set.references[0])
    files = _named_files(systems)
    rows = {name: read_outputs(path, n) for name, path in files.items()}
    matrices = {
        name: load_matrices(path)
        for name, path in _named_matrices(reference_attention, files).items()
    }
    options = EvaluationOptions(tokenize, ter=ter, workers=available_cpus())
    page = write_report(
        directory, title, test_set, rows, matrices, baseline or (), options, max_sentences, maps
    )
    log(f"wrote {page}")


@plot_app.command("heat-maps")
def plot_heat_maps(
    systems: Annotated[list[str], typer.Argument(help="NAME=FILE.jsonl of `translate --json`")],
    output: FigureOption = None,
    sentence: Annotated[int, typer.Option(help="line number, from 1")] = 1,
) -> None:
    """Draw the attention of one sentence, by one or several systems."""
    from covnmt.evaluation.figures import draw_heat_maps
    from covnmt.evaluation.html import read_heat_maps

    figure, systems = take_output(output, systems, "the figure")
    draw_heat_maps(read_heat_maps(_named_files(systems), sentence), figure)
    log(f"wrote {figure}")


@plot_app.command("lengths")
def plot_lengths(
    systems: NamedFiles,
    reference: ReferenceOption,
    source: Annotated[Path, typer.Option("--source", "-s", help="source text")],
    output: FigureOption = None,
    tokenize: TokenizeOption = "13a",
) -> None:
    """Draw BLEU and output length by source length (the paper's Figure 6)."""
    from covnmt.evaluation.evaluate import EvaluationOptions
    from covnmt.evaluation.evaluate import evaluate as evaluate_system
    from covnmt.evaluation.figures import draw_length_curves
    from covnmt.evaluation.test_set import load_evaluation_set, load_output

    figure, systems = take_output(output, systems, "the figure")
    test_set = load_evaluation_set(reference, source)
    curves = {
        name: evaluate_system(
            load_output(path, test_set), test_set, EvaluationOptions(tokenize, ter=False)
        ).by_length
        for name, path in _named_files(systems).items()
    }
    draw_length_curves(curves, figure)
    log(f"wrote {figure}")


@plot_app.command("training")
def plot_training(
    runs: Annotated[list[str], typer.Argument(help="NAME=DIRECTORY of `covnmt train`")],
    output: FigureOption = None,
) -> None:
    """Draw loss and BLEU during training."""
    from covnmt.evaluation.figures import draw_training_curves
    from covnmt.evaluation.training_curves import read_training_curves

    figure, runs = take_output(output, runs, "the figure")
    directories = _named_files(runs).items()
    logs = {name: read_training_curves(path / "log.jsonl") for name, path in directories}
    draw_training_curves(logs, figure)
    log(f"wrote {figure}")


@rate_app.command("make")
def rate_make(
    systems: NamedFiles,
    source: Annotated[Path, typer.Option("--source", "-s", help="source text")],
    output: OutputDirectoryOption = None,
    n: Annotated[int, typer.Option("--max-sentences", "-n", help="sentences to sample")] = 200,
    seed: Annotated[int, typer.Option(help="random seed of the sample")] = 1,
) -> None:
    """Write blinded sheets for raters: a spreadsheet and an HTML form."""
    from covnmt.evaluation.human_evaluation import given_source_words, make_rating_sheets
    from covnmt.evaluation.system_output import read_outputs

    directory, systems = take_output(output, systems, "the directory of the sheets")
    lines = list(read_lines(source))
    rows = {name: read_outputs(path, len(lines)) for name, path in _named_files(systems).items()}
    texts = {name: [line.text for line in outputs] for name, outputs in rows.items()}
    files = make_rating_sheets(
        texts, lines, n, seed, directory, given_source_words(rows.values(), lines)
    )
    log(f"for the raters: {files.form} or {files.sheet}; keep secret: {files.key}")


@rate_app.command("score")
def rate_score(
    key: Annotated[Path, typer.Argument(help="key.json of `rate make`")],
    sheets: Annotated[list[Path], typer.Argument(help="filled sheets, one per rater")],
    as_json: JsonTablesOption = False,
    output: ScoresOption = None,
) -> None:
    """Score filled sheets: the paper's Table 2, and agreement between raters."""
    from covnmt.evaluation.human_evaluation import score_rating_sheets
    from covnmt.evaluation.tables import agreement_table, ratings_table

    check_distinct_paths([output], [key, *sheets])
    ratings = score_rating_sheets(key, sheets)
    tables = [ratings_table(ratings)]
    if ratings.agreement:
        tables.append(agreement_table(ratings))
    for sheet, missing in ratings.unfilled.items():
        if missing:
            warn(f"{sheet}: {len(missing)} outputs not rated")
    _show(tables, asdict(ratings), as_json, output)


def _named_files(texts: Sequence[str]) -> dict[str, Path]:
    """Read NAME=FILE pairs; a file without a name is named by its stem."""
    files: dict[str, Path] = {}
    for pair in texts:
        name, equals, path = pair.partition("=")
        name, path = (name, path) if equals else (Path(pair).stem, pair)
        if not name or not path:
            raise UserError(
                f"{pair!r}: the name or the file is missing; write NAME=FILE, or just FILE"
            )
        if name in files:
            raise UserError(f"two systems are named {name!r}; write NAME=FILE to name them")
        files[check_utf8(name)] = Path(path)
    return files


def _named_matrices(texts: list[str] | None, systems: dict[str, Path]) -> dict[str, Path]:
    """Read NAME=FILE.npz pairs; every name must be a system."""
    files = _named_files(texts or [])
    for name in files.keys() - systems.keys():
        raise UserError(
            f"--reference-attention {name}: no such system; there are {', '.join(systems)}"
        )
    return files


def _first_word_number(number: int) -> Literal[0, 1]:
    if number == 0:
        return 0
    if number == 1:
        return 1
    raise UserError(f"--index-base {number}: must be 0 or 1")


def _show(
    tables: Sequence[Table], scores: dict[str, Any], as_json: bool, path: Path | None
) -> None:
    """Print the tables, or the scores as JSON; also write the scores to a file."""
    if as_json:
        print(json.dumps(scores, ensure_ascii=False, indent=2))
    for table in () if as_json else tables:
        stdout_console.print(table)
    if path:
        write_json(path, scores)
