"""The curl commands of the documents, run against a server, give what the documents show."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_docs import blocks, read
from tests.serve.server import PATIENCE, UNLIMITED, Running, serving

DOCUMENTED = "http://127.0.0.1:8000"
EXAMPLES = [
    command
    for block in blocks(read("docs/serve.md"), "console")
    for command in block.replace("\\\n", " ").split("$ ")
    if command.startswith("curl ")
]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving({"ja-en": Path("ja-en"), "zh-en": Path("zh-en")}, UNLIMITED) as running:
        yield running


def run(command: str, server: Running) -> str:
    """Run a documented command against this server."""
    assert DOCUMENTED in command
    command = command.replace(DOCUMENTED, server.url)
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    return done.stdout


def without_scores(content: Any) -> Any:
    """Leave out what depends on the processor."""
    if isinstance(content, dict):
        return {key: without_scores(value) for key, value in content.items() if key != "score"}
    return [without_scores(value) for value in content] if isinstance(content, list) else content


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4


@pytest.mark.skipif(shutil.which("curl") is None, reason="apt install curl: skipped")
@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_of_the_server_run(example: str, server: Running) -> None:
    command, _, shown = example.partition("\n")
    answer = run(command, server)
    if "/stream" in command:
        assert answer.count("event: done") == 1
        return
    content = json.loads(answer)
    assert "error" not in content
    if shown.strip():
        assert without_scores(content) == without_scores(json.loads(shown))
