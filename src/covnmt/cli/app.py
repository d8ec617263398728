"""The commands. Each parses its arguments, calls one function, and prints what comes back.

Heavy imports happen inside the commands, so that `covnmt --help` answers at once.
"""

import errno
import io
import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer
from rich.table import Column, Table

from covnmt import __version__
from covnmt.base.console import log, output, track
from covnmt.base.errors import UserError, install_command
from covnmt.base.files import check_distinct_paths, is_file_path, output_is_file, output_lines
from covnmt.cli import data, evaluate, phrase_based, reproduce, serve, train
from covnmt.cli.options import (
    DeviceOption,
    ExtractionOption,
    ModelOption,
    OutputOption,
    SingleModelOption,
    ThreadsOption,
    TrainingThreadsOption,
    all_finite,
    finite,
    given,
    single,
    writable,
)

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Train, run and inspect neural translators that keep track of what they translated.",
)
corpus_app = typer.Typer(no_args_is_help=True, help="Open corpora that can be fetched by name.")
recipe_app = typer.Typer(no_args_is_help=True, help="Recipes: lists, keys, resolved settings.")
app.add_typer(corpus_app, name="corpus")
app.add_typer(recipe_app, name="recipe")
for commands in (data, train, evaluate, reproduce, serve):
    app.add_typer(commands.app)
app.add_typer(phrase_based.app, name="smt")
app.add_typer(phrase_based.words_app, name="words")

NO_ROOM = ("out of memory", "can't allocate memory")  # what PyTorch says, on a GPU and a CPU
OF_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
TRAINING_ONLY = ("torch", "safetensors", "onnx")  # what a plain install does without


def main() -> None:
    """Run a command; bad input ends with a message and exit code 2, never with a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # text is UTF-8, whatever the locale says
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # takes away what is half written
    try:
        with _standard_output():
            app(prog_name="covnmt")
    except UserError as error:
        _refuse(str(error))
    except KeyboardInterrupt:  # while typer puts the commands together; later it hears of it
        sys.exit(130)
    except ImportError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # so a module says that it was stopped
            sys.exit(130)
        if not isinstance(error, ModuleNotFoundError) or error.name not in TRAINING_ONLY:
            raise
        _refuse(f"this needs {error.name}, which is not installed: {install_command('train')}")
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(words in str(error) for words in NO_ROOM):
            raise
        reason = str(error).partition("\n")[0] or "Python has none left"
        _refuse(
            f"not enough memory ({reason}); try smaller batches, a narrower beam, a smaller model"
        )


def _refuse(reason: str) -> NoReturn:
    log(f"error: {reason}", style="red")
    sys.exit(2)


@contextmanager
def _standard_output() -> Iterator[None]:
    """Trouble with standard output, most of which shows only in the end, is bad input too."""
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        # what is still to be written goes nowhere, or Python would try again when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if error.errno == errno.EPIPE:
            sys.exit(1)  # whoever reads has seen enough, as in `covnmt recipe list | head -1`
        where = error.filename or ("standard output" if error.errno in OF_OUTPUT else "the system")
        raise UserError(f"{where}: {error.strerror or error}") from None


def _version(wanted: bool) -> None:
    if wanted:
        print(f"covnmt {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print and exit")
    ] = False,
) -> None:
    pass


@corpus_app.command("list")
def corpus_list() -> None:
    """The corpora known by name."""
    from covnmt.data.open_corpora import listing

    _print_table(("name", "languages", "what", "licence", "address"), listing())


@corpus_app.command("get")
def corpus_get(name: str, directory: Path) -> None:
    """Download a corpus, check it, and write plain parallel files."""
    from covnmt.data.open_corpora import get

    for file, lines in get(name, directory).items():
        print(f"{directory / file}: {lines:,} lines")


@recipe_app.command("list")
def recipe_list() -> None:
    """The recipes that come with covnmt."""
    from covnmt.base.recipe import bundled_recipes

    for name in bundled_recipes():
        print(name)


@recipe_app.command("keys")
def recipe_keys() -> None:
    """Every key with its choices, default and meaning."""
    from covnmt.base.config import describe_keys

    _print_table(("key", "choices", "default", "meaning"), describe_keys())


@recipe_app.command("show")
def recipe_show(
    recipe: str, overrides: Annotated[list[str] | None, typer.Argument()] = None
) -> None:
    """The resolved settings of a recipe, as JSON."""
    from covnmt.base.recipe import find_recipe, load_recipe

    print(load_recipe(find_recipe(recipe), overrides).model_dump_json(indent=2))


@app.command()
def translate(
    file: Annotated[Path | None, typer.Argument(help="text to translate; standard input")] = None,
    model: ModelOption = [],  # noqa: B006 (typer makes its own copy)
    out: OutputOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line")] = False,
    beam: Annotated[int | None, typer.Option(help="1 is greedy")] = None,
    nbest: Annotated[int | None, typer.Option(help="translations per line")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="0: off", callback=finite)] = None,
    coverage_penalty: Annotated[
        float | None, typer.Option(help="GNMT's; 0: off", callback=finite)
    ] = None,
    length_rules: Annotated[bool | None, typer.Option(help="the paper's limits")] = None,
    forbid_unk: Annotated[bool | None, typer.Option(help="never say UNK")] = None,
    replace_unk: Annotated[bool | None, typer.Option(help="by the word it aligns to")] = None,
    dictionary: Annotated[Path | None, typer.Option(help="for --replace-unk: TSV")] = None,
    overlong: Annotated[Literal["cut", "split"], typer.Option(help="lines over the limit")] = "cut",
    max_source: Annotated[int | None, typer.Option(help="that limit, in tokens")] = None,
    sentences: Annotated[
        bool, typer.Option("--sentences", help="those of a line are translated one by one")
    ] = False,
    batch_size: Annotated[int | None, typer.Option(help="sentences at a time")] = None,
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
) -> None:
    """Translate a file, a pipe or what is typed, line by line; order and empty lines are kept."""
    from covnmt.inference.parallel import TranslationJob, translate_files, translate_text
    from covnmt.inference.translate import format_translations, override_decoding
    from covnmt.model.directory import load_config

    options = {
        "beam": beam,
        "nbest": nbest,
        "length_penalty": length_penalty,
        "coverage_penalty": coverage_penalty,
        "length_rules": length_rules,
        "forbid_unk": forbid_unk,
        "replace_unk": replace_unk,
        "max_source": max_source,
        "batch_size": batch_size,
    }
    check_distinct_paths([out], [file, dictionary])
    model = given(model)
    decode = override_decoding(load_config(model[0]).config.decode, options)
    if dictionary and not decode.replace_unk:
        raise UserError("--dictionary is of use only with --replace-unk: give both, or neither")
    job = TranslationJob(
        tuple(model), decode, overlong, as_json, dictionary, device, threads, sentences
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
    output_lines(out, format_translations(done, as_json, decode.nbest))


@app.command()
def align(
    source: Path,
    target: Path,
    model: SingleModelOption = [],  # noqa: B006
    out: OutputOption = None,
    matrices: Annotated[
        Path | None,
        typer.Option(dir_okay=False, callback=writable, help="soft matrices too (.npz)"),
    ] = None,
    method: ExtractionOption = "argmax",
    threshold: Annotated[float, typer.Option(help="for --method threshold", callback=finite)] = 0.5,
    tokenized: Annotated[bool, typer.Option(help="words are what stands between spaces")] = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
) -> None:
    """Align given translations by forced decoding; prints Pharaoh links."""
    from covnmt.base.files import read_parallel
    from covnmt.inference.align import Alignment, align_text
    from covnmt.metrics.alignment import format_links, links_from_attention, save_matrices

    check_distinct_paths([out, matrices], [source, target])
    pairs = ((s, t) for s, t in read_parallel(source, target))
    where = f"{source} and {target}, line"
    made = align_text(single(model, "align"), pairs, tokenized, where, device, threads)
    found: Iterable[Alignment] = track(made, None, "aligning", "pairs")
    if matrices:
        found = list(found)  # gone through twice
    links = (links_from_attention(pair.matrix, method, threshold) for pair in found)
    output_lines(out, (format_links(link) for link in links))
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
        float, typer.Option(help="nats gained without the words; more: surer", callback=finite)
    ] = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="per side; longer ones are skipped")] = 100,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
) -> None:
    """Find source words and sentences that given translations probably leave out."""
    from covnmt.base.files import read_parallel
    from covnmt.inference.omissions import check_text, format_reports

    check_distinct_paths([out], [source, target])
    pairs = ((s, t) for s, t in read_parallel(source, target))
    where = f"{source} and {target}, line"
    checks = check_text(single(model, "check"), pairs, least, device, threads, max_tokens, where)
    output_lines(out, format_reports(track(checks, None, "checking", "pairs"), as_json))


@app.command()
def tune(
    source: Annotated[Path, typer.Argument(help="a dev set; neither training nor test text")],
    reference: Annotated[Path, typer.Argument(help="its translation, line by line")],
    model: ModelOption = [],  # noqa: B006
    length_penalty: Annotated[
        list[float] | None,
        typer.Option(help="to try; repeatable; 0, 0.2, 0.4 to 1.6", callback=all_finite),
    ] = None,
    coverage_penalty: Annotated[
        list[float] | None,
        typer.Option(help="to try; repeatable; the model's own", callback=all_finite),
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
        single(model, "tune --write")
        check_can_save_decoding(model[0])
    found = given(model)
    decode = override_decoding(load_config(found[0]).config.decode, {"beam": beam})
    settings = penalty_grid(decode, length_penalty or (), coverage_penalty or ())
    job = TranslationJob(tuple(found), decode, device=device, threads=threads)
    tuning = tune_penalties(job, source, reference, settings, tokenize)
    if as_json:
        print(json.dumps(tuning.to_json(), indent=2))
    else:
        _print_table(("length penalty", "coverage penalty", "BLEU", "length", ""), tuning.rows())
        log(tuning.advice())
    if write:
        save_decoding(found[0], tuning.best.decode)
        log(f"{found[0]}: has it from now on")


@app.command()
def models() -> None:
    """The trained models that come along; `--model NAME` takes one."""
    from covnmt.model.directory import bundled_model_rows

    if not (rows := bundled_model_rows()):
        log("no model comes along with this version; `covnmt train` makes one")
    _print_table(("name", "what", "directory"), rows)


@app.command()
def info(
    target: Annotated[str, typer.Argument(help="a recipe or a model")],
    as_json: Annotated[bool, typer.Option("--json")] = False,
    words: Annotated[
        int, typer.Option(min=4, max=10**9, help="vocabulary rows, for a recipe without data")
    ] = 30_001,
) -> None:
    """The resolved settings and the parameter count, in all and by block."""
    from covnmt.inference.info import model_info

    found = model_info(target, words)
    if as_json:
        print(json.dumps(found.to_json(), indent=2))
        return
    _print_table(("key", "value"), found.settings_rows())
    _print_table(("block", "parameters"), found.parameter_rows())


@app.command()
def demo(
    directory: Annotated[Path, typer.Argument(help="where everything goes")] = Path("demo"),
    threads: TrainingThreadsOption = 0,
) -> None:
    """Train the baseline and a coverage model on the embedded pair, and show the difference."""
    import torch

    from covnmt.paper.demo import run_demo

    if threads:
        torch.set_num_threads(threads)
    for part in run_demo(directory):
        output.print(part)


def _print_table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """A table on a terminal; tab-separated lines elsewhere, for other programs."""
    cells = [[str(cell) for cell in row] for row in rows]
    if not output.is_terminal:
        output_lines(None, map("\t".join, [head, *cells]))
        return
    first, *others = head
    table = Table(Column(first, no_wrap=True), *others)
    for row in cells:
        table.add_row(*row)
    output.print(table)
