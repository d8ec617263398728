"""The documentation site and the front page."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from covnmt.cli.app import app
from covnmt.cli.groups import EXAMPLES, GROUPS
from tests.docs.generated_tables import ROOT
from tests.docs.test_docs import check_command


@pytest.mark.slow
def test_site_builds_without_warnings(tmp_path: Path) -> None:
    """Of a copy: the build writes beside its configuration."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    (tmp_path / "src").symlink_to(ROOT / "src")
    build = Path(sys.executable).with_name("zensical")
    done = subprocess.run(
        [build, "build", "--strict"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "build/site/python.html").read_text("utf-8")
    assert "translate_stream" in page
    assert "googleapis" not in page  # it is read without a network too


def test_every_page_is_in_the_navigation() -> None:
    tabs = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    listed = {
        page if isinstance(page, str) else next(iter(page.values()))
        for tab in tabs
        for pages in tab.values()
        for page in pages
    }
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert pages - listed == {"examples/README.md"}  # about the files beside it


def test_readme_is_short() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert len(readme.split()) <= 1_000
    assert readme.count("\n") <= 160


def test_every_command_is_in_a_group_of_the_help() -> None:
    grouped = {name for names in GROUPS.values() for name in names}
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert {name for name, command in commands.items() if not command.hidden} == grouped


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_the_help_parse(name: str) -> None:
    for example in EXAMPLES[name]:
        commands = [part.partition(" > ")[0] for part in example.split(" | ")]
        [command] = [part for part in commands if part.startswith("covnmt")]
        assert f"{command} ".startswith(f"covnmt {name} ")
        check_command(shlex.split(command)[1:])
