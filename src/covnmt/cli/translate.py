"""Commands that run a model on text: translate, align, check, tune."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from covnmt.base.config import DecodeConfig
from covnmt.base.console import log, track
from covnmt.base.errors import UserError
from covnmt.base.files import check_distinct_paths, is_file_path, output_is_file, write_output_lines
from covnmt.cli.options import (
    DeviceOption,
    ExtractionOption,
    FromSettings,
    ModelOption,
    OutputOption,
    SingleModelOption,
    ThreadsOption,
    check_all_finite,
    check_finite,
    check_output_path,
    expand_settings,
    print_table,
    require_models,
    require_one_model,
)

app = typer.Typer()

# an option that is not given keeps the value that the model's config.json has
DecodeOptions = Annotated[
    dict[str, Any],
    FromSettings(DecodeConfig, omit=frozenset({"max_length", "retry"}), defaults=False),
]


@app.command()
@expand_settings
def translate(
    file: Annotated[Path | None, typer.Argument(help="text to translate; standard input")] = None,
    model: ModelOption = [],  # noqa: B006 (typer makes its own copy)
    out: OutputOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line")] = False,
    dictionary: Annotated[Path | None, typer.Option(help="for --replace-unk: TSV")] = None,
    overlong: Annotated[Literal["cut", "split"], typer.Option(help="lines over the limit")] = "cut",
    sentences: Annotated[
        bool,
        typer.Option(
            "--split-sentences",
            "--sentences",
            help="split each line into sentences and translate them separately",
        ),
    ] = False,
    shards: Annotated[
        list[Path] | None, typer.Option(help="many files, or a directory of them; with --out")
    ] = None,
    into: Annotated[
        Path | None, typer.Option("--out", file_okay=False, help="where their translations go")
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="processes; 0: as suits the model")] = 0,
    ray: Annotated[str | None, typer.Option(help="on this Ray cluster: auto, or HOST:PORT")] = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    decode: DecodeOptions = {},  # noqa: B006 (always replaced)
) -> None:
    """Translate a file, a pipe or what is typed, line by line; order and empty lines are kept."""
    from covnmt.inference.parallel import TranslationJob, translate_files, translate_text
    from covnmt.inference.translate import format_translations, override_decoding
    from covnmt.model.directory import load_config

    check_distinct_paths([out], [file, dictionary])
    model = require_models(model)
    settings = override_decoding(load_config(model[0]).config.decode, decode)
    if dictionary and not settings.replace_unk:
        raise UserError("--dictionary is of use only with --replace-unk: give both, or neither")
    job = TranslationJob(
        tuple(model), settings, overlong, as_json, dictionary, device, threads, sentences
    )
    if shards or into:
        if file or out:
            raise UserError(
                "--shards and --out take the place of a file and of --output; for several files "
                "say --shards before each"
            )
        log(str(translate_files(job, shards or [], into, workers, ray)))
        return
    if ray:
        raise UserError("--ray is for many files: name them with --shards, and their --out")
    done = translate_text(job, file, workers)
    if is_file_path(file) and output_is_file(out):  # a pipe may pause for days
        done = track(done, None, "translating")
    write_output_lines(out, format_translations(done, as_json, settings.nbest))


@app.command()
def align(
    source: Path,
    target: Path,
    model: SingleModelOption = [],  # noqa: B006
    out: OutputOption = None,
    matrices: Annotated[
        Path | None,
        typer.Option(dir_okay=False, callback=check_output_path, help="soft matrices too (.npz)"),
    ] = None,
    method: ExtractionOption = "argmax",
    threshold: Annotated[
        float, typer.Option(help="for --method threshold", callback=check_finite)
    ] = 0.5,
    tokenized: Annotated[bool, typer.Option(help="words are what stands between spaces")] = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
) -> None:
    """Align given translations by forced decoding; prints Pharaoh links."""
    from covnmt.base.files import read_parallel_lines
    from covnmt.evaluation.alignment_files import save_matrices
    from covnmt.inference.align import Alignment, align_text
    from covnmt.metrics.alignment import format_links, links_from_attention

    check_distinct_paths([out, matrices], [source, target])
    pairs = ((s, t) for s, t in read_parallel_lines(source, target))
    where = f"{source} and {target}, line"
    made = align_text(require_one_model(model, "align"), pairs, tokenized, where, device, threads)
    found: Iterable[Alignment] = track(made, None, "aligning", "pairs")
    if matrices:
        found = list(found)  # gone through twice
    links = (links_from_attention(pair.matrix, method, threshold) for pair in found)
    write_output_lines(out, (format_links(link) for link in links))
    if matrices:
        save_matrices(matrices, [pair.matrix for pair in found])


@app.command()
def check(
    source: Path,
    target: Annotated[Path, typer.Argument(help="its translation, line by line, by anyone")],
    model: SingleModelOption = [],  # noqa: B006
    out: OutputOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="every line, as a JSON object")] = False,
    least: Annotated[
        float,
        typer.Option(help="nats gained without the words; more: surer", callback=check_finite),
    ] = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="per side; longer ones are skipped")] = 100,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
) -> None:
    """Find source words and sentences that given translations probably leave out."""
    from covnmt.base.files import read_parallel_lines
    from covnmt.inference.omissions import check_text, format_reports

    check_distinct_paths([out], [source, target])
    pairs = ((s, t) for s, t in read_parallel_lines(source, target))
    where = f"{source} and {target}, line"
    checks = check_text(
        require_one_model(model, "check"), pairs, least, device, threads, max_tokens, where
    )
    write_output_lines(out, format_reports(track(checks, None, "checking", "pairs"), as_json))


@app.command()
def tune(
    source: Annotated[Path, typer.Argument(help="a dev set; neither training nor test text")],
    reference: Annotated[Path, typer.Argument(help="its translation, line by line")],
    model: ModelOption = [],  # noqa: B006
    length_penalty: Annotated[
        list[float] | None,
        typer.Option(help="to try; repeatable; 0, 0.2, 0.4 to 1.6", callback=check_all_finite),
    ] = None,
    coverage_penalty: Annotated[
        list[float] | None,
        typer.Option(help="to try; repeatable; the model's own", callback=check_all_finite),
    ] = None,
    beam: Annotated[int | None, typer.Option(help="as for translate")] = None,
    tokenize: Annotated[str, typer.Option(help="sacreBLEU's tokeniser")] = "13a",
    write: Annotated[
        bool, typer.Option("--write", help="the model has the best from now on")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="as a JSON object")] = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
) -> None:
    """Find the penalties of the search that suit a model best, on a dev set."""
    from covnmt.inference.parallel import TranslationJob
    from covnmt.inference.translate import override_decoding
    from covnmt.inference.tune_penalties import (
        check_can_save_decoding,
        penalty_grid,
        save_decoding,
        tune_penalties,
    )
    from covnmt.model.directory import load_config

    if write:
        require_one_model(model, "tune --write")
        check_can_save_decoding(model[0])
    found = require_models(model)
    decode = override_decoding(load_config(found[0]).config.decode, {"beam": beam})
    settings = penalty_grid(decode, length_penalty or (), coverage_penalty or ())
    job = TranslationJob(tuple(found), decode, device=device, threads=threads)
    tuning = tune_penalties(job, source, reference, settings, tokenize)
    if as_json:
        print(json.dumps(tuning.to_json(), indent=2))
    else:
        print_table(("length penalty", "coverage penalty", "BLEU", "length", ""), tuning.rows())
        log(tuning.advice())
    if write:
        save_decoding(found[0], tuning.best.decode)
        log(f"{found[0]}: has it from now on")
