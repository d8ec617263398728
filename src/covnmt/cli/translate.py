"""Commands that run a model on text: translate, align, check, calibrate, tune."""

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from covnmt.base.config import DecodeConfig
from covnmt.base.console import log, track, warn
from covnmt.base.errors import UserError
from covnmt.base.files import check_distinct_paths, is_file_path, output_is_file, write_output_lines
from covnmt.cli.options import (
    DeviceOption,
    FromSettings,
    JsonLinesOption,
    JsonOption,
    LinkMethodOption,
    ModelOption,
    OutputOption,
    SingleModelOption,
    SourceArgument,
    TargetArgument,
    ThreadsOption,
    ThresholdOption,
    TokenizeOption,
    check_all_finite,
    check_finite,
    expand_settings,
    file_or_text,
    output_file_option,
    pair_paths,
    print_table,
    require_model_argument,
    require_models,
    require_one_model,
)
from covnmt.inference.check_settings import MAX_TOKENS, MIN_PROBABILITY

app = typer.Typer()

# an option that is not given keeps the value that the model's config.json has
DecodeOptions = Annotated[
    dict[str, Any],
    FromSettings(
        DecodeConfig, omit=frozenset({"max_length", "retry", "max_retry_beam"}), defaults=False
    ),
]


@app.command()
@expand_settings
def translate(
    file: Annotated[
        str | None,
        typer.Argument(help="existing file, or the text itself in quotes; default: standard input"),
    ] = None,
    model: ModelOption = [],  # noqa: B006 (typer makes its own copy)
    output: OutputOption = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="print one JSON object per line, with alignment and coverage"),
    ] = False,
    dictionary: Annotated[
        Path | None, typer.Option(help="for --replace-unk: source word, tab, translation")
    ] = None,
    long_lines: Annotated[
        Literal["cut", "split"],
        typer.Option(help="cut sentences longer than --max-source, or translate them in parts"),
    ] = "cut",
    split_sentences: Annotated[
        bool,
        typer.Option(
            help="translate the sentences of a line separately; use --no-split-sentences for test "
            "sets, where a line is one sentence",
        ),
    ] = True,
    document_format: Annotated[
        Literal["text", "html", "markdown", "srt"],
        typer.Option("--format", help="translate the text of a document, and keep its markup"),
    ] = "text",
    terms: Annotated[
        Path | None,
        typer.Option(
            help="file of terms: a term, a tab, its translation; a term alone stays as it is",
        ),
    ] = None,
    shards: Annotated[
        list[Path] | None,
        typer.Option(
            help="translate this file, or all files of this directory; repeatable; "
            "needs --output-dir"
        ),
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="directory for the translations of --shards"),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            "--workers",
            "-j",
            min=0,
            help="processes; 0: one per core for exported models, one per GPU or two cores for "
            "--shards, else one",
        ),
    ] = 0,
    ray: Annotated[
        str | None, typer.Option(help="address of a Ray cluster: auto, or HOST:PORT")
    ] = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    decode: DecodeOptions = {},  # noqa: B006 (always replaced)
) -> None:
    """Translate a text, a file, a pipe or typed lines. Order and empty lines are kept."""
    from covnmt.inference.model import ModelLoader
    from covnmt.inference.parallel import (
        TranslationJob,
        translate_files,
        translate_input,
    )
    from covnmt.inference.translate import format_translations, override_decoding

    check_distinct_paths([output], [dictionary, terms])
    source = file_or_text(file)
    check_distinct_paths([output], [source if is_file_path(source) else None])
    loader = ModelLoader.find(require_models(model), device, threads, dictionary)
    settings = override_decoding(loader.decode, decode)
    if dictionary and not settings.replace_unk:
        raise UserError("--dictionary needs --replace-unk")
    job = TranslationJob(loader, settings, long_lines, split_sentences, as_json)
    if document_format != "text" or terms:
        if shards or output_dir or ray or as_json or settings.nbest > 1:
            raise UserError("--format and --terms work without --shards, --json and --nbest")
        from covnmt.inference.documents import translate_document_input
        from covnmt.inference.terms import NO_TERMS, Terms

        required = Terms.read(terms) if terms else NO_TERMS
        document = translate_document_input(job, source, document_format, required, workers)
        write_output_lines(output, [document.text])
        return
    if shards or output_dir:
        if source or output:
            raise UserError(
                "use either FILE with --output, or --shards (once per file) with --output-dir"
            )
        log(str(translate_files(job, shards or [], output_dir, workers, ray)))
        return
    if ray:
        raise UserError("--ray needs --shards and --output-dir")
    done = translate_input(job, source, workers)
    if monitor := loader.domain_monitor():
        done = monitor.watch(done)
    if is_file_path(source) and output_is_file(output):  # a pipe may pause for days
        done = track(done, None, "translating")
    write_output_lines(output, format_translations(done, as_json, settings.nbest))


@app.command()
def align(
    source: SourceArgument,
    target: TargetArgument,
    model: SingleModelOption = [],  # noqa: B006
    output: OutputOption = None,
    matrices: Annotated[
        Path | None,
        output_file_option("also write attention matrices (.npz)"),
    ] = None,
    link_method: LinkMethodOption = "argmax",
    threshold: ThresholdOption = 0.5,
    tokenized: Annotated[
        bool, typer.Option(help="the input is tokenized: align its space-separated words")
    ] = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
) -> None:
    """Align translations by forced decoding (the model reads the given translation).

    Prints links in Pharaoh format: source-target word pairs, counted from 0.
    """
    from covnmt.evaluation.alignment_files import save_matrices
    from covnmt.inference.align import Alignment
    from covnmt.inference.model import ModelLoader
    from covnmt.inference.parallel import align_parallel_files
    from covnmt.metrics.alignment import format_links, links_from_attention

    check_distinct_paths([output, matrices], [source, target])
    loader = ModelLoader.find([require_one_model(model, "align")], device, threads)
    alignments = align_parallel_files(loader, source, target, tokenized)
    aligned: Iterable[Alignment] = track(alignments, None, "aligning", "pairs")
    if matrices:
        aligned = list(aligned)  # read twice
    links = (links_from_attention(pair.matrix, link_method, threshold) for pair in aligned)
    write_output_lines(output, (format_links(link) for link in links))
    if matrices:
        save_matrices(matrices, [pair.matrix for pair in aligned])


@app.command()
def check(
    source: Annotated[
        Path, typer.Argument(help="text; or a TSV, PO, TMX or XLIFF file that holds both sides")
    ],
    target: Annotated[
        Path | None,
        typer.Argument(help="its translation, line by line, from any translator"),
    ] = None,
    model: SingleModelOption = [],  # noqa: B006
    file_format: Annotated[
        Literal["text", "tsv", "po", "tmx", "xliff"] | None,
        typer.Option(
            "--format", help="format of the input", show_default="by the name of the file"
        ),
    ] = None,
    output: OutputOption = None,
    as_json: JsonLinesOption = False,
    words: Annotated[
        bool,
        typer.Option(help="report single words too: slower, with more false alarms"),
    ] = False,
    min_probability: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="report findings with at least this probability",
            callback=check_finite,
        ),
    ] = MIN_PROBABILITY,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="skip pairs with more tokens on a side")
    ] = MAX_TOKENS,
    report: Annotated[
        Path | None,
        output_file_option("also write a web page of the marked pairs"),
    ] = None,
    annotated: Annotated[
        Path | None,
        output_file_option("also write a copy of the PO, TMX or XLIFF file with findings as notes"),
    ] = None,
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code",
            help="exit with status 1 if anything was found, 3 if nothing could be judged",
        ),
    ] = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
) -> None:
    """Find omissions: parts of a text that its translation probably leaves out.

    The probabilities need a calibrated model, as the bundled ones are: see `covnmt calibrate`.
    """
    from covnmt.evaluation.omission_page import write_omission_page
    from covnmt.inference.check_files import CheckInput, SavedReports, check_pairs
    from covnmt.inference.check_output import CheckSummary, format_pairs, notes
    from covnmt.inference.model import ModelLoader
    from covnmt.text.bilingual_files import write_with_notes

    check_distinct_paths([output, report, annotated], [source, target])
    loader = ModelLoader.find([require_one_model(model, "check")], device, threads)
    pairs = CheckInput.find(source, target, file_format, loader)
    if loader.calibration is None:
        name = loader.directories[0]
        warn(
            f"{name}: not calibrated, so the numbers are no probabilities: covnmt calibrate {name}"
        )
    if annotated and pairs.format in (None, "tsv"):
        raise UserError("--annotated copies a PO, TMX or XLIFF file: text has no place for notes")
    total, unfinished = pairs.counts or (None, 0)
    summary = CheckSummary(loader.domain_monitor(), str(pairs), unfinished=unfinished)
    settings = {"min": min_probability, "words": words, "max": max_tokens}
    to_check = partial(
        check_pairs, loader, min_probability=min_probability, words=words, max_tokens=max_tokens
    )
    written = next((path for path in (output, report, annotated) if is_file_path(path)), None)
    saved = None
    if written and pairs.can_be_read_twice and (written.is_file() or not written.exists()):
        saved = SavedReports.beside(written, pairs, loader, settings)
    checked = saved.resume(pairs.pairs(), to_check) if saved else to_check(pairs.pairs())
    tracked = track(summary.watch(checked), total, "checking", "pairs")
    write_output_lines(output, format_pairs(tracked, as_json))
    if report:
        write_omission_page(report, summary.marked_pairs, str(summary))
    if annotated:
        write_with_notes(source, annotated, notes(summary.marked_pairs))
    if saved:
        saved.remove()
    log(str(summary))
    if summary.nothing_judged:
        warn("no word could be judged")
    if exit_code and (summary.marked or summary.nothing_judged):
        raise typer.Exit(1 if summary.marked else 3)


@app.command()
def calibrate(
    model: Annotated[
        Path | None, typer.Argument(help="model directory, which gets the result")
    ] = None,
    model_option: SingleModelOption = [],  # noqa: B006
    *,
    dev: Annotated[
        tuple[Path, Path],
        typer.Option(help="source and target of the model's dev set, not training or test text"),
    ],
    other_dev: Annotated[
        list[Path] | None,
        typer.Option(
            "--other",
            help="other text that you will check: source; the next --other is its translation",
        ),
    ] = None,
    train: Annotated[
        list[Path] | None,
        typer.Option(help="text for a lexicon: source; the next --train is its translation"),
    ] = None,
    domain: Annotated[
        str, typer.Option(help="kind of text the model was trained on, named in warnings")
    ] = "",
    pairs: Annotated[
        int, typer.Option(min=50, help="use at most this many pairs of --dev, and of each --other")
    ] = 400,
) -> None:
    """Calibrate `covnmt check` for a model, and build its lexicon: a few minutes on one core."""
    from covnmt.inference.calibrate import calibrate_model

    directory = require_model_argument(model, model_option, "calibrate")
    others, trained = (
        pair_paths(paths or [], name)
        for paths, name in ((other_dev, "--other"), (train, "--train"))
    )
    calibration = calibrate_model(directory, dev, others, trained, domain, pairs)
    log(f"{directory}: calibrated with {calibration.made_from}")


@app.command()
def tune(
    source: Annotated[
        Path, typer.Argument(help="source of a dev set, which is neither training nor test text")
    ],
    reference: TargetArgument,
    model: ModelOption = [],  # noqa: B006
    length_penalty: Annotated[
        list[float] | None,
        typer.Option(
            help="value to try; repeatable",
            show_default="0, 0.2, 0.4 and so on to 1.6",
            callback=check_all_finite,
        ),
    ] = None,
    coverage_penalty: Annotated[
        list[float] | None,
        typer.Option(
            help="value to try; repeatable",
            show_default="the model's",
            callback=check_all_finite,
        ),
    ] = None,
    beam: Annotated[int | None, typer.Option(help="beam size", show_default="the model's")] = None,
    tokenize: TokenizeOption = "13a",
    write: Annotated[
        bool, typer.Option("--write", help="store the best settings as the model's defaults")
    ] = False,
    as_json: JsonOption = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
) -> None:
    """Tune the length penalty, and the coverage penalty if values are given, on a dev set.

    Without --write, only print the scores.
    """
    from covnmt.inference.model import ModelLoader
    from covnmt.inference.parallel import TranslationJob
    from covnmt.inference.translate import override_decoding
    from covnmt.inference.tune_penalties import (
        check_can_save_decoding,
        penalty_grid,
        save_decoding,
        tune_penalties,
    )

    if write:
        require_one_model(model, "tune --write")
        check_can_save_decoding(model[0])
    loader = ModelLoader.find(require_models(model), device, threads)
    decode = override_decoding(loader.decode, {"beam": beam})
    settings = penalty_grid(decode, length_penalty or (), coverage_penalty or ())
    tuning = tune_penalties(TranslationJob(loader, decode), source, reference, settings, tokenize)
    if as_json:
        print(json.dumps(tuning.to_json(), indent=2))
    else:
        print_table(("length penalty", "coverage penalty", "BLEU", "length", ""), tuning.rows())
        log(tuning.advice())
    if write:
        save_decoding(loader.directories[0], tuning.best.decode)
        log(f"{loader.directories[0]}: stored as the model's defaults")
