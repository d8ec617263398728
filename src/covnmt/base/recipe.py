"""Recipes: find, merge and check TOML files of settings.

`extends` names another recipe to start from: a file in the same directory, or a bundled recipe.
Overrides (`key=value` on the command line) come last. Every error names its line, and one about an
unknown key names the nearest key there is.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from covnmt.base.config import Config, validate_settings
from covnmt.base.console import log_detail
from covnmt.base.errors import UserError
from covnmt.base.files import PARSE_ERRORS, read_bytes


def load_recipe(path: Path, overrides: Sequence[str] | None = None) -> Config:
    """Read a recipe with everything it extends, then the overrides (`model.hidden=512`)."""
    tree: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for file, settings in _read_with_parents(path, seen=()):
        log_detail(f"reading {file}")
        tree = _merge(tree, settings)
        origins |= {key: f"{file}, line {line}" for key, line in _key_lines(file).items()}
    for override in overrides or []:
        key, value = _parse_override(override)
        _set_key(tree, key, value)
        # a group that the command line changes no longer comes from the file alone
        origins = {k: origin for k, origin in origins.items() if not key.startswith(k)}
        origins[key] = f"command line, {override}"
    recipe = " ".join([str(path), *(overrides or [])])

    def prefix(location: Sequence[str]) -> str:
        """Say where a key is set, or else the group or list that it belongs to."""
        keys = (".".join(location[:size]) for size in range(len(location), 0, -1))
        return next((f"{origins[key]}: " for key in keys if key in origins), f"{recipe}: ")

    return validate_settings(Config, tree, prefix)


def toml_string(path: Path) -> str:
    """Quote a path as the value of an override, whatever characters it has."""
    # TOML has the escapes of JSON except surrogates, the halves of characters beyond U+FFFF
    return json.dumps(str(path), ensure_ascii=False)


def find_recipe(name: str) -> Path:
    """Return the file of a recipe: a path, or the name of a bundled one, such as `paper/gru10`."""
    path = Path(name) if Path(name).is_file() else _bundled_path(name)
    if path.is_file():
        return path
    if "=" in name:
        raise UserError(
            f"{name}: a setting, but the recipe comes first, as in `covnmt train modern/gru10 "
            f"{name}`; `covnmt recipe list` names the bundled ones"
        )
    raise UserError(f"{name}: no such recipe; `covnmt recipe list` names the bundled ones")


def bundled_recipes() -> list[str]:
    """Return the names of the bundled recipes, such as `paper/gru10`."""
    root = _recipes_directory()
    return sorted(str(path.relative_to(root).with_suffix("")) for path in root.rglob("*.toml"))


def describe_recipe(name: str) -> str:
    """Return the first sentence of a recipe's comment, below the line with its command."""
    lines = _bundled_path(name).read_text("utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("#"), lines[1:])
    text = " ".join(line.removeprefix("#").strip() for line in comment)
    return text.partition(". ")[0].removesuffix(".")


def format_recipe(config: Config) -> str:
    """Write all settings as a recipe that extends nothing."""

    def lines(group: Mapping[str, Any], name: str) -> Iterator[str]:
        for key, value in group.items():
            if value is not None and not isinstance(value, dict):
                yield f"{key} = {json.dumps(value, ensure_ascii=False)}"
        for key, value in group.items():
            if isinstance(value, dict):
                yield from ("", f"[{name}{key}]", *lines(value, f"{name}{key}."))

    return "\n".join(lines(config.model_dump(mode="json"), "")).strip()


def _bundled_path(name: str) -> Path:
    return _recipes_directory() / f"{name.removesuffix('.toml')}.toml"


def _recipes_directory() -> Path:
    """Return the directory in an installed package, or in a clone."""
    inside = Path(__file__).parents[1] / "recipes"
    return inside if inside.exists() else Path(__file__).parents[3] / "recipes"


def _read_with_parents(path: Path, seen: tuple[Path, ...]) -> list[tuple[Path, dict[str, Any]]]:
    """Read a recipe and all that it extends, the most basic first."""
    tree = read_toml(path)
    parent = tree.pop("extends", None)
    if parent is None:
        return [(path, tree)]
    sibling = path.parent / str(parent)
    base = sibling if sibling.is_file() else _bundled_path(str(parent))
    if not base.is_file():
        raise UserError(
            f"{path}: extends {parent}, but there is neither a file {sibling} nor such a bundled "
            "recipe; `covnmt recipe list` names those"
        )
    if base.resolve() in (*seen, path.resolve()):
        raise UserError(f"{path}: extends {parent}, and so itself")
    return [*_read_with_parents(base, (*seen, path.resolve())), (path, tree)]


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    try:
        return tomllib.loads(read_bytes(path).decode("utf-8-sig"))
    except PARSE_ERRORS as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both_groups = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both_groups else value
    return merged


def _set_key(tree: dict[str, Any], key: str, value: Any) -> None:
    *branches, leaf = key.split(".")
    for branch in branches:
        tree = tree.setdefault(branch, {})
        if not isinstance(tree, dict):
            raise UserError(f"{key}: {branch} is a value, not a group of settings")
    tree[leaf] = value


def _parse_override(text: str) -> tuple[str, Any]:
    key, equals, value = (side.strip() for side in text.partition("="))
    if not equals or not key:
        raise UserError(f"{text!r}: write overrides as key=value, such as train.seed=2")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except PARSE_ERRORS:
        return key, value  # a word without quotes is a string: model.order=paper


def _key_lines(path: Path) -> dict[str, int]:
    """Return the line number of every key and group of a recipe."""
    lines, section = {}, ""
    for number, line in enumerate(path.read_text("utf-8-sig").split("\n"), 1):
        if header := re.match(r"\s*\[([\w.\s-]+)\]", line):
            lines[header[1].strip()] = number
            section = header[1].strip() + "."
        elif key := re.match(r"\s*([\w.-]+)\s*=", line):
            lines[section + key[1]] = number
    return lines
