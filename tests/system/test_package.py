"""The package as others meet it: what it exports, and what it imports.

tests/docs/test_docs.py holds its texts to what they promise.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import covnmt


def test_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", covnmt.__version__)


def test_types_are_shipped() -> None:
    assert (Path(covnmt.__file__).parent / "py.typed").is_file()


@pytest.mark.parametrize("name", covnmt.__all__)
def test_exports(name: str) -> None:
    assert getattr(covnmt, name) is not None


def test_exports_are_the_real_ones() -> None:
    from covnmt.inference.model import Model

    assert (covnmt.Model, covnmt.Model, covnmt.Model) == (
        Model,
        Model,
        Model,
    )


def test_other_names_are_no_exports() -> None:
    with pytest.raises(AttributeError, match="module 'covnmt' has no attribute 'Transformer'"):
        _ = covnmt.Transformer


@pytest.mark.parametrize("module", ["covnmt", "covnmt.cli.app"])
def test_torch_is_not_loaded_before_it_is_needed(module: str) -> None:
    code = f"import {module}, sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
