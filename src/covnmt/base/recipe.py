"""Recipes: TOML files of settings, how they are found, put together and checked.

`extends` names another recipe to start from: a file beside this one, or one that comes along.
`key=value` on the command line comes last. A key that does not exist is an error that names the
nearest one that does; every error names its line.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from covnmt.base.config import Config, Settings, describe_keys
from covnmt.base.errors import UserError
from covnmt.base.files import PARSE_ERRORS

AnySettings = TypeVar("AnySettings", bound=Settings)


def load_recipe(path: Path, overrides: Sequence[str] | None = None) -> Config:
    """Read a recipe with everything it extends, then the overrides (`model.hidden=512`)."""
    tree: dict[str, Any] = {}
    places: dict[str, str] = {}
    for file, part in _lineage(path, seen=()):
        tree = _merge(tree, part)
        places |= {key: f"{file}, line {line}" for key, line in _lines(file).items()}
    for text in overrides or []:
        key, value = _parse_override(text)
        _set(tree, key, value)
        # a group that the command line changes is no longer what the file says
        places = {k: place for k, place in places.items() if not key.startswith(k)}
        places[key] = f"command line, {text}"
    return build_config(tree, " ".join([str(path), *(overrides or [])]), places)


def toml_string(path: Path) -> str:
    """A path as the value of an override, whatever characters it has."""
    # TOML has most escapes of JSON, but not its halves of characters beyond U+FFFF
    return json.dumps(str(path), ensure_ascii=False)


def build_config(
    tree: dict[str, Any], where: str, places: Mapping[str, str] | None = None
) -> Config:
    """Validate a tree; every problem is told with its key and the place that sets it."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        problems = []
        for problem in error.errors():
            place = _place([str(part) for part in problem["loc"]], places or {}) or where
            problems.append(_explain(dict(problem), f"{place}: "))
        raise UserError("\n".join(problems)) from None


def validate_settings(kind: type[AnySettings], values: dict[str, Any]) -> AnySettings:
    """Settings of one kind, from values that a person gave; what does not fit is told in words."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problems = [_explain(dict(problem), "") for problem in error.errors()]
        raise UserError("\n".join(problems)) from None


def find_recipe(name: str) -> Path:
    """A path as it is, or the name of a shipped recipe, such as `paper/gru10`."""
    found = Path(name) if Path(name).is_file() else _bundled(name)
    if found.is_file():
        return found
    raise UserError(f"{name}: no such recipe; `covnmt recipe list` names those that come along")


def bundled_recipes() -> list[str]:
    """The names of the recipes that come along, such as `paper/gru10`."""
    root = _recipes_directory()
    return sorted(str(path.relative_to(root).with_suffix("")) for path in root.rglob("*.toml"))


def _bundled(name: str) -> Path:
    """Where a recipe of this name would lie, if one came along."""
    return _recipes_directory() / f"{name.removesuffix('.toml')}.toml"


def _recipes_directory() -> Path:
    """Inside an installed package, or beside the sources of a checkout."""
    inside = Path(__file__).parents[1] / "recipes"
    return inside if inside.exists() else Path(__file__).parents[3] / "recipes"


def _lineage(path: Path, seen: tuple[Path, ...]) -> list[tuple[Path, dict[str, Any]]]:
    """A recipe after all that it extends."""
    tree = _read_toml(path)
    parent = tree.pop("extends", None)
    if parent is None:
        return [(path, tree)]
    beside = path.parent / str(parent)
    above = beside if beside.is_file() else _bundled(str(parent))
    if not above.is_file():
        raise UserError(
            f"{path}: extends {parent}, but there is no file {beside}, nor does such a recipe come "
            "along; `covnmt recipe list` names those that do"
        )
    if above.resolve() in (*seen, path.resolve()):
        raise UserError(f"{path}: extends {parent}, and so itself")
    return [*_lineage(above, (*seen, path.resolve())), (path, tree)]


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    except PARSE_ERRORS as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _set(tree: dict[str, Any], key: str, value: Any) -> None:
    *branches, leaf = key.split(".")
    for branch in branches:
        tree = tree.setdefault(branch, {})
        if not isinstance(tree, dict):
            raise UserError(f"{key}: {branch} is a value, not a group of settings")
    tree[leaf] = value


def _parse_override(text: str) -> tuple[str, Any]:
    key, found, value = text.partition("=")
    if not found or not key.strip():
        raise UserError(f"{text!r}: write overrides as key=value, such as train.seed=2")
    return key.strip(), _parse_value(value.strip())


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except PARSE_ERRORS:
        return text  # a bare word is a string: model.order=paper


def _explain(problem: dict[str, Any], place: str) -> str:
    """One line for one problem that pydantic found."""
    location = [str(part) for part in problem["loc"]]
    key = ".".join(location)
    if problem["type"] == "extra_forbidden":
        near = _nearest(key, group=isinstance(problem["input"], dict))
        hint = f"did you mean {near}?" if near else "`covnmt recipe keys` lists them all"
        return f"{place}unknown key {key}; {hint}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    given = "" if isinstance(problem["input"], dict) else f", not {problem['input']!r}"
    return f"{place}{key + ': ' if key else ''}{message}{given}"


def _nearest(key: str, group: bool) -> str | None:
    """The key, or group of keys, that was probably meant; its last part says most."""
    known = [name for name, *_ in describe_keys()]
    if group:
        known = sorted({name.rpartition(".")[0] for name in known})

    def likeness(name: str) -> float:
        last, given = name.split(".")[-1], key.split(".")[-1]
        whole = SequenceMatcher(None, name, key).ratio()
        return (whole + 2 * SequenceMatcher(None, last, given).ratio()) / 3

    best = max(known, key=likeness)
    return best if likeness(best) > 0.6 else None


def _place(location: Sequence[str], places: Mapping[str, str]) -> str | None:
    """Where this key is set; failing that, the group or list it belongs to."""
    keys = (".".join(location[:size]) for size in range(len(location), 0, -1))
    return next((places[key] for key in keys if key in places), None)


def _lines(path: Path) -> dict[str, int]:
    """The line of every key and group of a recipe."""
    lines, section = {}, ""
    for number, line in enumerate(path.read_text("utf-8-sig").split("\n"), 1):
        if header := re.match(r"\s*\[([\w.\s-]+)\]", line):
            lines[header[1].strip()] = number
            section = header[1].strip() + "."
        elif key := re.match(r"\s*([\w.-]+)\s*=", line):
            lines[section + key[1]] = number
    return lines
