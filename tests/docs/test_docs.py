"""The documents are true: tables, links, files, functions, commands and examples."""

import ast
import json
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from torch import Tensor, nn
from typer.core import TyperGroup

from covnmt import __version__
from covnmt.base.config import ModelConfig
from covnmt.base.errors import UserError, install_command
from covnmt.base.files import write_lines
from covnmt.base.recipe import find_recipe, load_recipe
from covnmt.cli.app import app
from covnmt.decoding.onnx.export import write_graphs
from covnmt.evaluation.alignment_files import save_matrices
from covnmt.model import decoder
from covnmt.model.coverage import Coverage, CoverageInputs
from covnmt.model.initialize import initialize_weights
from covnmt.serve import schemas
from covnmt.training import state
from tests.conftest import Run
from tests.docs.generated_tables import MARKED, PAGES, ROOT, TABLES, with_tables
from tests.model.small import small_batch, small_config, small_model

PACKAGE = ROOT / "src/covnmt"
DOCS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *PACKAGE.rglob("*.md")])
NAMES = [str(path.relative_to(ROOT)) for path in DOCS]
HISTORY = ("CHANGELOG.md", "docs/LOG.md")  # true when written
# of other programs: grep, torchrun, mypy, docker
OTHER_OPTIONS = {
    *("--help", "--libretranslate", "--line-buffered", "--max-restarts", "--strict", "--tmpfs")
}


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def blocks(page: str, language: str) -> list[str]:
    """Return the contents of the fenced blocks of this language ("" for none)."""
    matches = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return [content for name, content in matches if name == language]


def prose(page: str) -> str:
    return re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", PAGES)
def test_generated_tables_are_up_to_date(name: str) -> None:
    page = read(name)
    assert page == with_tables(page), "run: scripts/update-docs"


def test_every_generated_table_stands_on_one_page() -> None:
    names = [match[2] for name in PAGES for match in MARKED.finditer(read(name))]
    assert sorted(names) == sorted(TABLES)


def test_every_key_of_result_files_is_documented() -> None:
    section = (
        read("docs/reproduce.md").partition("## What a result file holds")[2].partition("## ")[0]
    )
    files = ROOT.glob("docs/results/*/*-seed*.json")
    keys = {key for path in files for key in json.loads(path.read_text("utf-8"))}
    assert [key for key in sorted(keys) if f"`{key}`" not in section] == []


def test_keys_that_may_change_between_runs_are_documented() -> None:
    section = read("docs/recipes.md").partition("## Resume")[2].partition("##")[0]
    assert [key for key in state.MAY_CHANGE if f"`{key}`" not in section] == []


@pytest.mark.parametrize(
    ("name", "extra"),
    [("README.md", "train"), ("docs/serve.md", "serve"), ("docs/phrase-based.md", "smt")],
)
def test_pages_have_the_install_commands_of_messages(name: str, extra: str) -> None:
    assert install_command(extra).partition(" in ")[0] in read(name)


def test_citation_has_the_version() -> None:
    assert f"\nversion: {__version__}\n" in read("CITATION.cff")


def anchors(path: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(path.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", NAMES)
def test_links_resolve(name: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(read(name))):
        if re.match(r"[a-z]+:", target):
            continue
        place, _, anchor = target.partition("#")
        path = (ROOT / name).parent / place if place else ROOT / name
        assert path.exists(), f"{name} links to {target}"
        assert not anchor or anchor in anchors(path), f"{name} links to {target}"


def named_files(page: str) -> Iterator[tuple[str, str]]:
    """Yield the files of the project in backticks, each with the name after ::, if any."""
    for text in re.findall(r"`([^`\n]+)`", prose(page)):
        if match := re.fullmatch(
            r"([\w./-]+\.(?:py|toml|md)|[\w-]+/[\w./-]+/)(?:::([\w.]+))?", text
        ):
            yield match[1], match[2] or ""


def defined_in(path: Path) -> set[str]:
    """Return the functions, classes, Class.method and constants of a module."""
    names: set[str] = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        match node:
            case ast.FunctionDef(name=name):
                names.add(name)
            case ast.ClassDef(name=name, body=body):
                methods = [part.name for part in body if isinstance(part, ast.FunctionDef)]
                names |= {name, *(f"{name}.{method}" for method in methods)}
            case ast.Assign(targets=targets):
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return names


@pytest.mark.parametrize("name", NAMES)
def test_named_files_and_functions_exist(name: str) -> None:
    missing = []
    generated = read(".gitignore").splitlines()  # such files come only with use
    for file, function in named_files(read(name)):
        paths = [path for base in (ROOT, PACKAGE, ROOT / "docs") if (path := base / file).exists()]
        if f"/{file}" in generated:
            continue
        if not paths or (function and function not in defined_in(paths[0])):
            missing.append(f"{file}::{function}")
    assert missing == []


def shell_lines(page: str) -> Iterator[list[str]]:
    """Yield the arguments of every `covnmt` command of a page."""
    for block in blocks(page, "console"):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ ") and "covnmt" in line:
                for part in re.split(r" \| | && ", line.removeprefix("$ ")):
                    words = shlex.split(part.partition(" > ")[0], comments=True)
                    if words and words[0] == "covnmt":
                        yield words[1:]


def check_command(words: list[str]) -> None:
    """Parse a command as the command line does, without running it; raise on errors."""
    command, group = typer.main.get_command(app), ""
    while isinstance(command, TyperGroup) and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"no command {words[0]}"
        group = command.name or ""
        command, words = command.commands[words[0]], words[1:]
    if "--help" not in words:
        command.make_context("covnmt", list(words))
    of_a_recipe = command.name in ("train", "show", "info") and group != "smt"
    if of_a_recipe and words and not words[0].startswith(("runs/", "-")):
        load_recipe(find_recipe(words[0]), [word for word in words[1:] if "=" in word])


@pytest.mark.parametrize("name", NAMES)
def test_commands_parse(name: str) -> None:
    for words in shell_lines(read(name)):
        check_command(words)


def options(command: Any, name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of every command with the names of each of its options."""
    if isinstance(command, TyperGroup):
        for part in command.commands.values():
            yield from options(part, f"{name} {part.name}")
    for option in command.params:
        if option.opts[0].startswith("-"):
            yield name, option.opts + option.secondary_opts


def test_every_option_is_documented() -> None:
    pages = [read(name) for name in NAMES if name not in HISTORY]
    undocumented = [
        f"{command} {names[0]}"
        for command, names in options(typer.main.get_command(app), "covnmt")
        if not any(command in page and has_word(page, names) for page in pages)
    ]
    assert undocumented == []


def test_documented_options_exist() -> None:
    existing = {o for _, names in options(typer.main.get_command(app), "") for o in names}
    for name in NAMES:
        documented = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", prose(read(name))))
        assert name in HISTORY or documented <= existing | OTHER_OPTIONS, name


def test_every_field_of_the_server_is_documented() -> None:
    page = read("docs/serve.md")
    kinds = [kind for kind in vars(schemas).values() if hasattr(kind, "model_fields")]
    fields = {each.alias or name for kind in kinds for name, each in kind.model_fields.items()}
    assert [name for name in sorted(fields) if f"`{name}`" not in page] == []


def has_word(page: str, words: Iterable[str]) -> bool:
    return any(re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", page) for word in words)


WRONG = {
    "trian": "no command trian",
    "train paper/gru10 --rum x": "No such option",
    "train paper/gru11": "no such recipe",
    "train paper/gru10 model.hiden=8": "unknown key model.hiden",
    "corpus get": "Missing",
    "align a b --link-method c": "is not one of",
}


@pytest.mark.parametrize("command", WRONG)
def test_wrong_commands_do_not_parse(command: str) -> None:
    with pytest.raises(Exception, match=WRONG[command]):
        check_command(command.split())


def test_commands_are_found_in_pipes_and_over_lines() -> None:
    assert list(shell_lines("```console\n$ cat a | covnmt translate \\\n  -m x > y\n```\n")) == [
        ["translate", "-m", "x"]
    ]


@pytest.mark.parametrize("name", ["README.md", "docs/python.md"])
def test_python_of_the_readme_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    [example] = blocks(read(name), "python")
    exec(example, {})
    assert "Kinkaku-ji" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["README.md", "docs/check.md"])
def test_what_the_pages_show_of_check_is_what_it_prints(
    name: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """README makes the files itself; docs/check.md has them in a table."""
    page = read(name)
    [shown] = [block for block in blocks(page, "console") if "\tOMISSION" in block]
    monkeypatch.chdir(tmp_path)
    made = re.findall(r"^\$ echo (.*) > (\S+)$", shown, re.MULTILINE)
    rows = re.findall(r"^\| \d \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    for text, path in made:
        write_lines(Path(path), [text])
    if not made:
        write_lines(Path("source.ja"), [source for source, _ in rows])
        write_lines(Path("translation.en"), [target for _, target in rows])
    [command] = re.findall(r"^\$ covnmt (check .*)$", shown, re.MULTILINE)
    printed = run(*command.split()).out
    expected = [line for line in shown.splitlines() if re.match(r"\d+\t", line)]
    assert printed.splitlines() == expected


def test_python_of_check_runs(capsys: pytest.CaptureFixture[str]) -> None:
    [example] = blocks(read("docs/check.md"), "python")
    exec(example, {})
    assert "京都" in capsys.readouterr().out


def test_python_of_evaluation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("test.ref0", "test.ref1", "test.src", "base.txt", "cover.jsonl"):
        write_lines(Path(name), ["a b c d e", "f g h i"])
    write_lines(Path("test.align"), ["0-0 1p2", "3-3"])
    for name in ("base.npz", "cover.npz"):
        save_matrices(Path(name), [np.eye(n, dtype=np.float32) for n in (5, 4)])
    [example] = blocks(read("docs/evaluation.md"), "python")
    exec(example, {})
    assert "coverage [('BLEU (paper)', 100.0)" in capsys.readouterr().out


@pytest.mark.parametrize("scheme", ["paper", "modern"])
def test_worked_coverage_model(
    scheme: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The example of docs/architecture.md trains, needs no kernel, and cannot be exported."""
    [example] = [b for b in blocks(read("docs/architecture.md"), "python") if "FadingCoverage" in b]
    names: dict[str, Any] = {
        "nn": nn,
        "torch": torch,
        "Tensor": Tensor,
        "Coverage": Coverage,
        "CoverageInputs": CoverageInputs,
    }
    exec(example, names)
    monkeypatch.setattr(decoder, "build_coverage", lambda *sizes: names["FadingCoverage"]())
    config: ModelConfig = small_config(ModelConfig().coverage)
    model = small_model(config)
    initialize_weights(model, "paper" if scheme == "paper" else "modern")
    forced = model(small_batch([(4, 3), (2, 5)]))
    torch.testing.assert_close(forced.alpha.sum(dim=-1), torch.ones(2, 6).double())
    nn.init.normal_(model.decoder.attention.v)
    model(small_batch([(4, 3), (2, 5)])).features.sum().backward()
    gradient = dict(model.named_parameters())["decoder.coverage.fade"].grad
    assert gradient is not None
    assert gradient != 0
    assert model.decoder.coverage.kernel_spec() is None
    with pytest.raises(UserError, match="FadingCoverage cannot be exported to ONNX"):
        write_graphs(model, tmp_path, "fp32")
