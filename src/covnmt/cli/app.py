"""The `covnmt` command: the groups of commands, and what happens when one fails.

Each command parses its arguments, calls one function and prints the result. Heavy imports happen
inside the commands, so that `covnmt --help` answers at once.
"""

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn

import typer

from covnmt import __version__
from covnmt.base.console import log_detail, print_error, set_verbosity
from covnmt.base.errors import UserError, install_command
from covnmt.cli import (
    data,
    doctor,
    evaluate,
    models,
    phrase_based,
    reproduce,
    serve,
    train,
    translate,
)
from covnmt.cli.first_tries import take_first_tries
from covnmt.cli.groups import GroupedCommands
from covnmt.cli.renamed import rename_options

app = typer.Typer(
    cls=GroupedCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train, run and evaluate neural translators with coverage: they record which source words "
    "are already translated.",
    epilog="Exit codes: 0 done; 1 findings, with check --exit-code; 2 bad input or usage; "
    "3 nothing could be judged; 130 stopped by Ctrl-C or SIGTERM.",
)
for commands in (data, train, translate, evaluate, serve, models, doctor, reproduce):
    app.add_typer(commands.app)
app.add_typer(phrase_based.app, name="smt")
app.add_typer(phrase_based.words_app, name="words")

COMMON_OPTIONS = ("--quiet", "-q", "--verbose", "-v", "--no-progress")
OUT_OF_MEMORY_MESSAGES = (
    "out of memory",
    "can't allocate memory",
)  # what PyTorch says, on a GPU and a CPU
OUTPUT_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
OPTIONAL_PACKAGES = ("torch", "safetensors", "onnx")  # what a plain install does without


def main() -> None:
    """Run a command; bad input ends with a message and exit code 2, never with a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # text is UTF-8, whatever the locale says
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    try:
        with _standard_output():
            try:
                app(_prepare_arguments(sys.argv[1:]), prog_name="covnmt")
            finally:
                log_detail("done")
    except UserError as error:
        _refuse(str(error))
    except KeyboardInterrupt:  # before typer's own handler is active
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL_PACKAGES:
            raise
        _refuse(f"this needs {error.name}, which is not installed: {install_command('train')}")
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(
            words in str(error) for words in OUT_OF_MEMORY_MESSAGES
        ):
            raise
        reason = str(error).partition("\n")[0] or "Python has none left"
        _refuse(
            f"not enough memory ({reason}); try smaller batches, a narrower beam, a smaller model"
        )


def _refuse(reason: str) -> NoReturn:
    print_error(reason)
    sys.exit(2)


@contextmanager
def _standard_output() -> Iterator[None]:
    """Turn OS errors, late ones of standard output included, into messages."""
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
        where = error.filename or (
            "standard output" if error.errno in OUTPUT_ERRNOS else "the system"
        )
        raise UserError(f"{where}: {error.strerror or error}") from None


def _version(wanted: bool) -> None:
    if wanted:
        print(f"covnmt {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_version, is_eager=True, help="print and exit"),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="print only results, warnings and errors")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="also print files, devices, threads and durations"),
    ] = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="show no progress")] = False,
) -> None:
    """These options may also stand after the command."""
    set_verbosity(not quiet, progress=not (quiet or no_progress), details=verbose and not quiet)


def _prepare_arguments(arguments: list[str]) -> list[str]:
    """Replace words of other programs and old names; put the options of every command first."""
    end = arguments.index("--") if "--" in arguments else len(arguments)  # no options after it
    words = rename_options(take_first_tries(arguments[:end]))
    common = [word for word in words if word in COMMON_OPTIONS]
    return [*common, *(word for word in words if word not in common), *arguments[end:]]
