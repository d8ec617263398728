"""`info`: settings and parameter counts of recipes and model directories."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from covnmt.base.config import Config
from covnmt.base.errors import UserError
from covnmt.base.files import read_json, write_json
from covnmt.base.recipe import load_recipe
from covnmt.inference.info import model_info
from covnmt.model.checkpoint import build_network
from covnmt.model.directory import load_config
from covnmt.model.seq2seq import count_parameters
from tests.paper.worked_example import ADDED, BLOCKS, TOTAL


@pytest.mark.parametrize("system", ADDED)
def test_parameter_counts_of_paper_recipes(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where there is no data
    found = json.loads(json.dumps(model_info(f"paper/{system}", 30_001).to_json()))
    counts = found["parameters"]
    assert counts.pop("total") == TOTAL + ADDED[system]
    assert counts == {**BLOCKS, "coverage": ADDED[system]}
    assert found["words"] == {"source": 30_001, "target": 30_001}
    assert found["settings"]["model"]["hidden"] == 1000


def test_info_of_a_model_directory(tiny_model: Path, tiny_config: Config) -> None:
    found = model_info(str(tiny_model), 30_001)
    assert found.config == tiny_config
    assert found.vocabulary_sizes == {"source": 23, "target": 33}
    # U_f and V_a for hidden = 12
    assert found.parameters["coverage"] == 3 * 12
    assert found.to_json()["parameters"]["total"] == sum(found.parameters.values())


def test_counting_parameters_takes_no_memory(tiny_model: Path, tmp_path: Path) -> None:
    tree = read_json(tiny_model / "config.json")
    tree["words"] = {"source": 10**9, "target": 10**9}
    tree["model"] |= {"embedding": 10**6, "hidden": 10**6, "rank": 10**6}
    write_json(tmp_path / "config.json", tree)
    found = model_info(str(tmp_path), 30_001).parameters
    assert found["source embedding"] == 10**15 + 10**6
    assert found["coverage"] == 3 * 10**6


def test_a_recipe_takes_vocabulary_sizes_from_its_prepared_data(
    tiny_corpus: Path, tmp_path: Path
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"[data]\ndirectory = '{tiny_corpus}'\n", "utf-8")
    found = model_info(str(path), 30_001)
    assert found.vocabulary_sizes == {"source": 23, "target": 33}
    assert found.config == load_recipe(path)


def test_table_rows_of_info(tiny_model: Path) -> None:
    found = model_info(str(tiny_model), 30_001)
    settings = dict(found.settings_rows())
    assert settings["model.coverage.kind"] == '"fertility"'
    assert settings["words.target"] == "33"
    *blocks, total = found.parameter_rows()
    assert total == ("total", f"{sum(found.parameters.values()):,}")
    assert [name for name, _ in blocks] == list(BLOCKS)


def test_an_unknown_name_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"neither a model nor a recipe.*covnmt models"):
        model_info(str(tmp_path / "gone"), 30_001)
    with pytest.raises(UserError, match="not a model directory"):
        model_info(str(tmp_path), 30_001)


def test_info_of_a_trained_model_does_not_import_torch(tiny_model: Path) -> None:
    code = (
        "import sys; from covnmt.inference.info import model_info; "
        "found = model_info(sys.argv[1], 4); print(found.parameters, 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tiny_model)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    network = build_network(load_config(tiny_model))
    assert done.stdout == f"{count_parameters(network)} False\n"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        (2).to_bytes(8, "little") + b"[]",
        (11).to_bytes(8, "little") + b'{"x.y": {}}',
        (20).to_bytes(8, "little") + b'{"x": {"shape": [1]}}',  # cut
    ],
)
def test_damaged_header_of_weights_is_refused(
    content: bytes, tiny_model: Path, tmp_path: Path
) -> None:
    shutil.copy(tiny_model / "config.json", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"model\.safetensors: damaged.*\(.+\)"):
        model_info(str(tmp_path), 4)


def test_unknown_weight_is_named(tiny_model: Path, tmp_path: Path) -> None:
    shutil.copy(tiny_model / "config.json", tmp_path)
    header = b'{"x": {"shape": [1]}}'
    content = len(header).to_bytes(8, "little") + header
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"not weights of covnmt \(unknown weight x\)"):
        model_info(str(tmp_path), 4)
