"""Command-line options: made from settings classes, shared by several commands, and checked."""

import difflib
import inspect
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from rich.table import Column, Table

from covnmt.base.config import Settings
from covnmt.base.console import log, stdout_console
from covnmt.base.errors import UserError
from covnmt.base.files import check_writable, is_file_path, write_output_lines
from covnmt.base.recipe import read_toml

SHORT_NAMES = {"--workers": ("-j",)}
LARGEST_SHOWN = 10**6  # --help shows no upper limit from here on


def check_finite(value: float | None) -> float | None:
    """Refuse nan and inf, which `float` reads: the callback of every option with a fraction."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value


def check_all_finite(values: list[float] | None) -> list[float] | None:
    """Refuse nan and inf in an option that may be repeated."""
    for value in values or ():
        check_finite(value)
    return values


def check_output_path(path: Path | None) -> Path | None:
    """Refuse, before the work, a file that cannot be written: the callback of output options."""
    if is_file_path(path):
        check_writable(path)
    return path


def output_file_option(explanation: str, *names: str, **settings: Any) -> Any:
    """Make an option that names a file to write."""
    return typer.Option(
        *names, dir_okay=False, callback=check_output_path, help=explanation, **settings
    )


def file_or_text(argument: str | None) -> Path | str | None:
    """Tell whether an argument is a file or a text, which has spaces or letters beyond ASCII."""
    if argument is None:
        return None
    with suppress(OSError):  # a text may be too long for a path
        if argument == "-" or Path(argument).exists():
            return Path(argument)
    has_suffix = re.search(r"[/\\]|\.\w{1,4}$", argument) is not None
    if not argument or re.search(r"\s", argument) or not (argument.isascii() or has_suffix):
        return argument
    raise UserError(
        f"{argument}: no such file; to translate one word, pipe it: echo {argument} | covnmt ..."
    )


def take_output(
    output: Path | None, arguments: Sequence[str], needed: str
) -> tuple[Path, list[str]]:
    """Return where a command writes, --output or the first argument, and the other arguments."""
    if output:
        return output, list(arguments)
    if len(arguments) < 2:
        raise UserError(f"name {needed} with --output")
    check_output_path(Path(arguments[0]))
    return Path(arguments[0]), list(arguments[1:])


def take_one_output(output: Path | None, argument: Path | None, needed: str) -> Path:
    """Return where a command writes: --output, or its last argument."""
    if output and argument:
        raise UserError(f"{needed} is {argument} or {output}? Give it once")
    if place := output or argument:
        return place
    raise UserError(f"name {needed} with --output")


def pair_paths(paths: Sequence[Path], option: str) -> list[tuple[Path, Path]]:
    """Return source and target files of a repeated option that names them in turn."""
    if len(paths) % 2:
        raise UserError(
            f"{option}: name a source file and, with the next {option}, its translation"
        )
    return list(zip(paths[::2], paths[1::2], strict=True))


def check_utf8(value: str) -> str:
    """Refuse an argument that cannot be written to pages and figures: it can be any bytes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"{value!r}: not UTF-8; write it in other letters") from None
    return value


@dataclass(frozen=True)
class FromSettings:
    """Marks a command's parameter: `expand_settings` makes an option of each field of a class.

        decode: Annotated[dict[str, Any], FromSettings(DecodeConfig, defaults=False)]

    Annotated with the settings class, the command gets an instance; annotated as a dictionary, it
    gets the values. Without `defaults` these are only the options that were given: the others keep
    values that are known later (a model's own). Name, type, limits, help and default come from the
    field; a field that is itself a settings class adds its own fields.
    """

    settings: type[Settings]
    names: Mapping[str, str] = field(default_factory=dict)  # field -> option name
    omit: frozenset[str] = frozenset()  # fields without an option: they keep their defaults
    hidden: frozenset[str] = frozenset()  # fields whose options --help does not list
    defaults: bool = True

    def options(
        self, settings: type[Settings] | None = None, path: tuple[str, ...] = ()
    ) -> Iterator[tuple[tuple[str, ...], inspect.Parameter]]:
        """Yield the path to each field, and the parameter that typer makes an option of."""
        for name, info in (settings or self.settings).model_fields.items():
            kind: Any = info.annotation
            if name in self.omit:
                continue
            if inspect.isclass(kind) and issubclass(kind, Settings):
                yield from self.options(kind, (*path, name))
                continue
            option = self.names.get(name, "--" + name.replace("_", "-"))
            flags = option
            if kind is bool and not self.defaults:
                flags = f"{option}/--no-{option.removeprefix('--')}"
            limits = {"callback": check_finite} if kind is float else typer_limits(info)
            declared = typer.Option(
                flags,
                *SHORT_NAMES.get(option, ()),
                help=info.description,
                show_default=self.defaults or "the model's",
                hidden=name in self.hidden,
                **limits,
            )
            yield (
                (*path, name),
                inspect.Parameter(
                    option.removeprefix("--").replace("-", "_"),
                    inspect.Parameter.KEYWORD_ONLY,
                    default=info.get_default(call_default_factory=True) if self.defaults else None,
                    annotation=Annotated[kind if self.defaults else kind | None, declared],
                ),
            )


def apply_settings_file(context: typer.Context, path: Path | None) -> Path | None:
    """Take the defaults of a command's other options from a TOML file: an option's callback.

    What is given on the command line or by an environment variable comes first.
    """
    options = {option.name: option for option in context.command.params}
    defaults: dict[str, Any] = {}
    for key, value in (read_toml(path) if path else {}).items():
        name = key.replace("-", "_")
        option = options.get(name)
        if option is None or name == "help":
            names = [other.replace("_", "-") for other in options if not other.startswith("_")]
            nearest = difflib.get_close_matches(key, names, 1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(names)}"
            raise UserError(f"{path}: unknown setting {key}; {hint}")
        repeatable = getattr(option, "multiple", False) and not isinstance(value, list)
        defaults[name] = [value] if repeatable else value
        try:
            option.process_value(context, defaults[name])
        except typer.BadParameter as error:
            raise UserError(f"{path}: {key}: {error.message}") from None
    context.default_map = defaults
    return path


def typer_limits(info: FieldInfo) -> dict[str, Any]:
    """Return the limits of a whole number as typer takes them: `min` and `max`, both included."""
    limits: dict[str, Any] = {}
    for rule in info.metadata if info.annotation is int else ():
        if (least := getattr(rule, "ge", None)) is not None:
            limits["min"] = least
        if (below := getattr(rule, "gt", None)) is not None:
            limits["min"] = below + 1
        if (most := getattr(rule, "le", None)) is not None and most < LARGEST_SHOWN:
            limits["max"] = most
    return limits


def expand_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Replace every parameter marked `FromSettings` by the options of its settings class."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, dict[tuple[str, ...], str]]] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        marks = [mark for mark in get_args(parameter.annotation) if isinstance(mark, FromSettings)]
        if marks:
            options = dict(marks[0].options())
            parameters += options.values()
            kind = get_args(parameter.annotation)[0]
            groups[name] = kind, {path: option.name for path, option in options.items()}
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    def run(**values: Any) -> None:
        for name, (kind, options) in groups.items():
            given = {path: values.pop(option) for path, option in options.items()}
            values[name] = settings_from(kind, given, options)
        command(**values)

    run.__name__, run.__doc__, run.__module__ = (
        command.__name__,
        command.__doc__,
        command.__module__,
    )
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def settings_from(
    kind: Any, values: Mapping[tuple[str, ...], Any], options: Mapping[tuple[str, ...], str]
) -> Any:
    """Build the settings, or the dictionary, that a command gets from the values of its options."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        if value is not None:
            branch = tree
            for key in path[:-1]:
                branch = branch.setdefault(key, {})
            branch[path[-1]] = value
    if not inspect.isclass(kind) or not issubclass(kind, Settings):
        return tree
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        problem = error.errors()[0]
        option = options.get(tuple(map(str, problem["loc"])), "").replace("_", "-")
        message = str(problem["msg"]).removeprefix("Value error, ")
        raise typer.BadParameter(message, param_hint=f"'--{option}'" if option else None) from None


def require_models(models: list[Path]) -> list[Path]:
    """Return the directories of the models that were named; name the bundled ones if none was."""
    from covnmt.model.directory import bundled_models, find_model

    if not models:
        bundled = ", ".join(bundled_models())
        hint = f", or a bundled one: {bundled}" if bundled else ""
        raise UserError(f"no model given: add --model DIRECTORY{hint}")
    return [find_model(model) for model in models]


def require_one_model(models: list[Path], command: str) -> Path:
    """Return the directory of the one model that a command takes."""
    directories = require_models(models)
    if len(directories) > 1:
        raise UserError(f"{command} takes one model: give --model once")
    return directories[0]


def require_model_argument(argument: Path | None, option: list[Path], command: str) -> Path:
    """Return the model that a command takes as an argument or as --model."""
    if argument is None:
        return require_one_model(option, command)
    if option and str(option[0]) != os.environ.get("COVNMT_MODEL"):
        raise UserError(f"{command} takes one model: give {argument} or --model {option[0]}")
    return argument


@contextmanager
def resumable() -> Iterator[None]:
    """Exit with code 130 at Ctrl-C, and say that the same command resumes."""
    try:
        yield
    except KeyboardInterrupt:
        log("stopped; run the same command again to resume")
        raise typer.Exit(130) from None


def print_table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print a table on a terminal, and tab-separated lines elsewhere, for other programs."""
    cells = [[str(cell) for cell in row] for row in rows]
    if not stdout_console.is_terminal:
        write_output_lines(None, map("\t".join, [head, *cells]))
        return
    first, *others = head
    table = Table(Column(first, no_wrap=True), *(Column(name, overflow="fold") for name in others))
    for row in cells:
        table.add_row(*row)
    stdout_console.print(table)


SourceArgument = Annotated[Path, typer.Argument(help="source text")]
TargetArgument = Annotated[Path, typer.Argument(help="its translation, line by line")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, or a GPU: cuda:1")]
JsonOption = Annotated[bool, typer.Option("--json", help="print one JSON object")]
JsonLinesOption = Annotated[bool, typer.Option("--json", help="print one JSON object per line")]
TokenizeOption = Annotated[str, typer.Option(help="sacreBLEU tokenizer")]
LinkMethodOption = Annotated[
    Literal["argmax", "argmax_with_end", "threshold"],
    typer.Option(
        help="how attention becomes links; argmax_with_end: no link where the end symbol gets more "
        "attention than any word"
    ),
]
ThresholdOption = Annotated[
    float, typer.Option(help="for --link-method threshold", callback=check_finite)
]
OutputOption = Annotated[
    Path | None,
    output_file_option("file to write", "--output", "-o", show_default="standard output"),
]
OutputDirectoryOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", file_okay=False, help="directory of the new files"),
]
OutputArgument = Annotated[
    Path | None, typer.Argument(metavar="OUTPUT", help="or give --output", file_okay=False)
]
ThreadsOption = Annotated[
    int,
    typer.Option(
        min=0,
        help="CPU threads in all; 0: one per core. Exported models: one process per thread, unless "
        "`translate --workers` gives their number",
    ),
]
TrainingThreadsOption = Annotated[int, typer.Option(min=0, help="CPU threads; 0: one per core")]
ModelOption = Annotated[
    list[Path],
    typer.Option(
        "--model",
        "-m",
        envvar="COVNMT_MODEL",
        help="model directory, bundled model (see `covnmt models`) or OWNER/NAME on the hub; "
        "required unless COVNMT_MODEL is set; repeatable: an ensemble",
    ),
]
# declared as a list, so that a second --model is an error and does not silently win
SingleModelOption = Annotated[
    list[Path],
    typer.Option(
        "--model",
        "-m",
        envvar="COVNMT_MODEL",
        metavar="<path>",
        help="model directory, bundled model (see `covnmt models`) or OWNER/NAME on the hub; "
        "or set COVNMT_MODEL",
    ),
]
