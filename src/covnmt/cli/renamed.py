"""Old names of options: they still work, with a warning, until the next minor version."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from covnmt.base.console import warn

LINK_OPTIONS = {
    "--base": "--index-base",
    "--deterministic": "--unique-reference",
    "--no-deterministic": "--no-unique-reference",
    "--forced": "--reference-attention",
}
ALIGNER_OPTIONS = {
    "--joining": "--symmetrize",
    "--processes": "--workers",
    "--samplers": "--chains",
}
STACK_SEARCH_OPTIONS = {
    "--processes": "--workers",
    "--reorder": "--distortion-limit",
    "--stack": "--stack-size",
}
RENAMED_OPTIONS = {
    "translate": {
        "--out": "--output-dir",
        "--overlong": "--long-lines",
        "--sentences": "--split-sentences",
    },
    "calibrate": {"--field": "--domain"},
    "align": {"--method": "--link-method"},
    "info": {"--words": "--vocabulary-size"},
    "train": {"--restarts": "--max-restarts"},
    "evaluate": {
        **LINK_OPTIONS,
        "--extraction": "--link-method",
        "--symmetry": "--symmetrize",
        "--renormalise": "--renormalize",
        "--no-renormalise": "--no-renormalize",
    },
    "compare": LINK_OPTIONS,
    "report": {**LINK_OPTIONS, "--sentences": "--max-sentences"},
    "rate make": {"--sentences": "--max-sentences"},
    "reproduce": {"--at-once": "--workers"},
    "smt train": {
        **ALIGNER_OPTIONS,
        "--options": "--ttable-limit",
        "--order": "--lm-order",
    },
    "smt tune": {**STACK_SEARCH_OPTIONS, "--sentences": "--max-sentences"},
    "smt translate": STACK_SEARCH_OPTIONS,
    "words align": ALIGNER_OPTIONS,
}
# these commands had --json FILE, and --json - for only the JSON on standard output
JSON_FILE_COMMANDS = ("evaluate", "compare", "rate score")


def rename_options(arguments: Sequence[str]) -> list[str]:
    """Replace the old names of options by the new ones, and warn once about each."""
    words = [argument for argument in arguments if not argument.startswith("-")]
    commands = {" ".join(words[:2]), *words[:1]}  # a command has one word or two
    if not commands.isdisjoint(JSON_FILE_COMMANDS):
        arguments = list(_rename_json_file(arguments))
    names = next((RENAMED_OPTIONS[name] for name in commands & RENAMED_OPTIONS.keys()), {})
    renamed = []
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if new := names.get(option):
            _warn_renamed(option, new)
        renamed.append(f"{new or option}{equals}{value}")
    return renamed


def _rename_json_file(arguments: Sequence[str]) -> Iterator[str]:
    remaining = iter(arguments)
    for argument in remaining:
        option, equals, value = argument.partition("=")
        if option != "--json":
            yield argument
            continue
        if not equals:
            value = next(remaining, "")
        if value == "-":
            _warn_renamed("--json -", "--json")
            yield "--json"
        elif equals or (value.endswith(".json") and not Path(value).exists()):
            _warn_renamed("--json FILE", "--output FILE")
            yield from ("--output", value)
        else:
            yield from ("--json", *([value] if value else []))


def _warn_renamed(old: str, new: str) -> None:
    warn(f"{old} is now called {new}; the old name will be removed")
