"""The notebook of the docs runs from top to bottom."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from tests.docs.generated_tables import ROOT

NOTEBOOK = ROOT / "docs/tutorial.ipynb"


def to_python(cell: str) -> str:
    """Turn lines that begin with ! into calls of `shell`, as IPython does."""
    return re.sub(r"^( *)!(.*)$", r"\1shell(f'''\2''')", cell, flags=re.MULTILINE)


def smaller(code: str) -> str:
    for old, new in (
        ("UPDATES = 600", "UPDATES = 2"),
        ("synthetic", "synthetic --train 300 --test 9"),
    ):
        assert code.count(old) == 1
        code = code.replace(old, new)
    return code


@pytest.mark.slow
def test_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    shown = []

    def shell(command: str) -> None:
        program, *arguments = command.split()
        assert program == "covnmt"
        shown.append(run(*arguments, *(["--device", "cpu"] if arguments[0] == "train" else [])).out)

    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"shell": shell}
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            code = to_python("".join(cell["source"]))
            if "UPDATES = " in code:
                code = smaller(code)
            exec(code, names)
    assert "gru10" in shown[-1]
    assert names["translation"].text == "This temple is located in the north of Kyoto City."
    page = names["translation"]._repr_html_()
    assert page.count("<tr>") == 1 + len(names["translation"].tokens)
