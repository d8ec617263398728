"""The package as others meet it: what it exports, what it imports, and what its texts promise."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import typer.main

import covnmt
from covnmt import cli
from covnmt.config import find_recipe, load_recipe

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
TEXTS = [README, *sorted((ROOT / "docs").glob("*.md"))]

# a document, and the covnmt commands in it
FOUND = [
    ("no block\ncovnmt train x\n", []),
    ("```\ncovnmt train x\n```\n", ["train x"]),
    ("```console\n$ covnmt a \\\n    --b c\nthe covnmt output\n```\n", ["a --b c"]),
    ("```bash\n.venv/bin/covnmt a  # why\nmake demo\n```", ["a"]),
    ("```sh\ncat x | covnmt a -m d > y\n```", ["a -m d"]),
    ("```sh\nOMP_NUM_THREADS=1 covnmt a < x | covnmt b && covnmt c\n```", ["a", "b", "c"]),
    ("```python\nfrom covnmt import Translator\n```", []),
    ("```toml\n# covnmt train x\n```", []),
]
SHELLS = ("", "console", "bash", "sh", "shell")
AFTER_A_COMMAND = {"|", ">", ">>", "<", "&&", ";", "2>"}


def shell_lines(text: str) -> Iterator[str]:
    """The lines to type in the fenced blocks of a document; in `console` blocks after a $."""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            if language in SHELLS and (line.startswith("$ ") or language != "console"):
                yield line.removeprefix("$ ")


def commands(text: str) -> list[list[str]]:
    """The words of every covnmt command in a document, without the command itself."""
    found = []
    for line in filter(re.compile(r"\bcovnmt\s").search, shell_lines(text)):
        words = shlex.split(line, comments=True)
        for start, word in enumerate(words, 1):
            if Path(word).name == "covnmt":
                found.append(list(takewhile(lambda w: w not in AFTER_A_COMMAND, words[start:])))
    return found


def parse(words: list[str]) -> None:
    """Do what the command line does before it runs a command; raises where it would complain."""
    command: Any = typer.main.get_command(cli.app)
    rest = list(words)
    while inside := getattr(command, "commands", None):
        if rest[0] in ("--help", "--version"):
            return
        command = inside[rest.pop(0)]
    if "--help" not in rest:
        command.make_context("covnmt", rest)


def test_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", covnmt.__version__)


def test_types_are_shipped() -> None:
    assert (Path(covnmt.__file__).parent / "py.typed").is_file()


@pytest.mark.parametrize("name", covnmt.__all__)
def test_exports(name: str) -> None:
    assert getattr(covnmt, name) is not None


def test_exports_are_the_real_ones() -> None:
    from covnmt.align import Aligner
    from covnmt.translate import Translator

    assert (covnmt.Aligner, covnmt.Translator) == (Aligner, Translator)


def test_other_names_are_no_exports() -> None:
    with pytest.raises(AttributeError, match="module 'covnmt' has no attribute 'Transformer'"):
        _ = covnmt.Transformer


@pytest.mark.parametrize("module", ["covnmt", "covnmt.cli"])
def test_torch_is_not_loaded_before_it_is_needed(module: str) -> None:
    code = f"import {module}, sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("text", "expected"), FOUND)
def test_commands_are_found(text: str, expected: list[str]) -> None:
    assert [" ".join(words) for words in commands(text)] == expected


@pytest.mark.parametrize(
    "command", ["nothing", "translate --modell x", "prepare x", "align a b --method c"]
)
def test_commands_that_do_not_exist(command: str) -> None:
    with pytest.raises(Exception, match=r"nothing|No such option|Missing|is not one of"):
        parse(command.split())


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_commands_in_texts_exist(path: Path) -> None:
    for words in commands(path.read_text("utf-8")):
        parse(words)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_recipes_in_texts_exist(path: Path) -> None:
    """With the keys and values that the commands change in them."""
    for words in commands(path.read_text("utf-8")):
        for name in filter(re.compile(r"(paper|modern|demo)/\w+").fullmatch, words):
            load_recipe(find_recipe(name), [word for word in words if re.match(r"\w+\.\S+=", word)])


def test_readme_has_commands() -> None:
    text = README.read_text("utf-8")
    assert commands(text) or len(text.splitlines()) <= 50
