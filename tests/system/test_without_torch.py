"""A plain install has no PyTorch: exported models work, and what needs it says so."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from covnmt.base.errors import UserError, install_command
from covnmt.base.files import read_json, read_lines, write_json
from covnmt.decoding.onnx.format import ENCODER_FILE, MANIFEST_FILE, STEP_FILE, WEIGHTS_FILE
from covnmt.inference.info import model_info
from covnmt.inference.model import Model
from tests.conftest import RunCli

# Makes the import of everything that only training needs impossible, then runs the command.
PLAIN = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in ("torch", "safetensors", "onnx", "triton"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=top)

sys.meta_path.insert(0, Missing())
from covnmt.cli import main
main()
"""


def plain(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PLAIN, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def exported(tiny_model: Path, run_cli: RunCli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("exports") / "tiny"
    done = run_cli("export", tiny_model, "-o", directory)
    assert done.returncode == 0, done.stderr
    assert "MiB" in done.stderr
    return directory


def test_tunes(exported: Path, tiny_text: Path) -> None:
    files = tiny_text / "dev.src", tiny_text / "dev.tgt"
    done = plain("tune", *files, "--model", exported, "--tokenize", "char")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\tbest\n") == 1


def test_translates(exported: Path, tiny_model: Path, tiny_text: Path) -> None:
    """The same translations as with PyTorch, from a file and from a pipe."""
    source = tiny_text / "test.src"
    wanted = [found.text for found in Model.load(tiny_model).translate(read_lines(source))]
    from_file = plain("translate", source, "-m", exported)
    assert from_file.returncode == 0, from_file.stderr
    assert from_file.stdout.splitlines() == wanted
    piped = plain("translate", "-m", exported, stdin=source.read_text("utf-8"))
    assert piped.stdout.splitlines() == wanted


def test_aligns(exported: Path, tiny_model: Path, tiny_text: Path, tmp_path: Path) -> None:
    sides = tiny_text / "test.src", tiny_text / "test.tgt"
    done = plain("align", *sides, "-m", exported, "--matrices", tmp_path / "soft.npz")
    assert done.returncode == 0, done.stderr
    pairs = zip(*map(read_lines, sides), strict=True)
    with np.load(tmp_path / "soft.npz") as found:
        for number, wanted in enumerate(Model.load(tiny_model).align(pairs)):
            np.testing.assert_allclose(found[str(number)], wanted.matrix, atol=1e-4)


def test_tells_what_it_is(exported: Path, tiny_model: Path) -> None:
    done = plain("info", exported, "--json")
    assert done.returncode == 0, done.stderr
    wanted = model_info(str(tiny_model), 9).to_json()
    wanted["settings"]["data"]["directory"] = "data"  # where it was trained stays there
    assert json.loads(done.stdout) == wanted


@pytest.mark.parametrize("command", [("train", "paper/gru10"), ("demo", "nowhere")])
def test_what_needs_torch_says_so(command: tuple[str, ...]) -> None:
    done = plain(*command)
    assert done.returncode == 2
    message = f"this needs torch, which is not installed: {install_command('train')}"
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_trained_models_say_so(tiny_model: Path) -> None:
    done = plain("translate", "-m", tiny_model, stdin="a\n")
    assert done.returncode == 2
    assert "PyTorch" in done.stderr
    assert "covnmt export" in done.stderr


@pytest.mark.parametrize("command", ["translate", "check", "align", "serve"])
def test_a_name_that_is_misspelt_needs_no_torch(command: str, tiny_text: Path) -> None:
    files = {"translate": ["src"], "serve": []}.get(command, ["src", "tgt"])
    done = plain(command, *(tiny_text / f"test.{side}" for side in files), "-m", "ja-em")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ja-em: not a model directory")


def test_torch_stays_out_where_it_is_installed(exported: Path) -> None:
    code = (
        "import sys; from covnmt import Model; "
        f"Model.load({str(exported)!r}).translate(['a']); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- directories that are not whole ------------------------------------------------------------


def copy_of(directory: Path, to: Path) -> Path:
    to.mkdir()
    for path in directory.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


@pytest.mark.parametrize(
    "name", [MANIFEST_FILE, ENCODER_FILE, STEP_FILE, WEIGHTS_FILE, "config.json", "target.vocab"]
)
def test_missing_file(name: str, exported: Path, tmp_path: Path) -> None:
    copy = copy_of(exported, tmp_path / "copy")
    (copy / name).unlink()
    with pytest.raises(UserError, match=r"no such file|not a model directory|cannot be read"):
        Model.load(copy)


@pytest.mark.parametrize("name", [ENCODER_FILE, STEP_FILE, WEIGHTS_FILE])
@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_damaged_graph(name: str, damage: str, exported: Path, tmp_path: Path) -> None:
    path = copy_of(exported, tmp_path / "copy") / name
    content = bytearray(path.read_bytes())
    if damage == "cut":
        content = content[: len(content) // 2]
    else:
        content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"{name}: damaged; copy it again"):
        Model.load(path.parent)


DESCRIPTIONS = [
    ({"format": 99}, "made by a newer covnmt \\(format 99\\); please upgrade"),
    ({"format": 1}, "made by an older covnmt \\(format 1\\); export the model anew"),
    ({"format": "x"}, "not made by `covnmt export`"),
    ({"files": None}, "damaged"),
    ({"parameters": {"output": "many"}}, "damaged"),
    ({"matrices": {"step.matrix1": 7}}, "damaged"),
    ({"output": {"rows": -1}}, "damaged"),
]


@pytest.mark.parametrize(("change", "message"), DESCRIPTIONS)
def test_other_description(
    change: dict[str, object], message: str, exported: Path, tmp_path: Path
) -> None:
    path = copy_of(exported, tmp_path / "copy") / MANIFEST_FILE
    write_json(path, {**read_json(path), **change})
    with pytest.raises(UserError, match=message):
        Model.load(path.parent)


def test_ensembles_are_of_one_kind(exported: Path, tiny_model: Path) -> None:
    assert len(Model.load(exported, exported).networks) == 2
    with pytest.raises(UserError, match="exported and trained models"):
        Model.load(exported, tiny_model)


def test_exported_models_run_on_the_cpu(exported: Path) -> None:
    with pytest.raises(UserError, match="an exported model runs on the CPU"):
        Model.load(exported, device="cuda")


def test_an_export_cannot_be_exported(exported: Path, run_cli: RunCli, tmp_path: Path) -> None:
    done = run_cli("export", exported, "--int8", "-o", tmp_path / "again")
    assert done.returncode == 2
    assert "is exported already" in done.stderr


def test_the_export_lies_beside_the_model(
    tiny_model: Path, run_cli: RunCli, tmp_path: Path
) -> None:
    (tmp_path / "model").symlink_to(tiny_model)
    done = run_cli("export", tmp_path / "model", "--int8")
    assert done.returncode == 0, done.stderr
    assert read_json(tmp_path / "model-int8" / MANIFEST_FILE)["precision"] == "int8"
    assert Model.load(tmp_path / "model-int8").translate(["a"])
