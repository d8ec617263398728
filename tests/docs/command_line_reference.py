"""Generate the reference of all commands from the command line itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from typer.core import TyperGroup

from covnmt.base.table import markdown_table
from covnmt.cli.app import app
from covnmt.cli.groups import EXAMPLES

TYPE_NAMES = {int: "number", float: "number", Path: "path"}


def command_line_reference() -> str:
    """Describe every command: what it does, its usage, arguments and options."""
    return "\n\n".join(
        describe(name, command) for name, command in commands(typer.main.get_command(app), "covnmt")
    )


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield all commands that do something, with their whole names, by group."""
    if isinstance(command, TyperGroup):
        context: Any = None
        for listed in command.list_commands(context):
            part = command.commands[listed]
            if not part.hidden:
                yield from commands(part, f"{name} {part.name}")
    else:
        yield name, command


def describe(name: str, command: Any) -> str:
    usage = " ".join([name, *(metavar(p) for p in command.params if is_argument(p)), "[OPTIONS]"])
    parts = [f"## {name}", join_lines(command.help), f"```text\n{usage}\n```"]
    rows = [
        (spelling(parameter), values(parameter), escape(parameter.help), default(parameter))
        for parameter in command.params
        if not parameter.hidden
    ]
    if rows:
        parts.append(markdown_table(("argument or option", "value", "meaning", "default"), rows))
    if examples := EXAMPLES.get(name.removeprefix("covnmt ")):
        parts.append("\n".join(["```console", *(f"$ {example}" for example in examples), "```"]))
    return "\n\n".join(parts)


def join_lines(text: str | None) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (text or "").split("\n\n"))


def is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def metavar(parameter: Any) -> str:
    name = (parameter.metavar or parameter.name).upper().strip("[]")
    name += "..." if parameter.nargs == -1 else ""
    return name if parameter.required else f"[{name}]"


def spelling(parameter: Any) -> str:
    if is_argument(parameter):
        return f"`{metavar(parameter).strip('[].')}`"
    return ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])


def values(parameter: Any) -> str:
    """Say what an option takes: nothing, one of some choices, or a type."""
    if getattr(parameter, "is_flag", False):
        return ""
    kind, repeatable = parameter.type_descriptor.annotation, ""
    if get_origin(kind) is list:
        [kind], repeatable = get_args(kind), ", repeatable"
    if get_origin(kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(kind)) + repeatable
    return TYPE_NAMES.get(kind, "text") + ("" if is_argument(parameter) else repeatable)


def default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    value = parameter.default
    if isinstance(value, bool) and parameter.secondary_opts:
        return "on" if value else "off"
    plain = isinstance(value, str | int | float | Path) and not isinstance(value, bool)
    return f"`{value}`" if plain and str(value) else ""


def escape(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|").replace("<", "&lt;")
