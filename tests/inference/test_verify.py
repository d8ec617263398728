"""`covnmt verify` of corpora, runs and exported models."""

import shutil
from pathlib import Path

import pytest

from covnmt.inference.verify import verify_directory
from covnmt.model.directory import find_model
from tests.conftest import Run


def flip(path: Path) -> None:
    """Flip a bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


@pytest.fixture(params=["tiny_corpus", "tiny_model", "bundled"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    bundled = request.param == "bundled"
    original = find_model("ja-en") if bundled else request.getfixturevalue(request.param)
    return shutil.copytree(original, tmp_path / "copy")


NOT_VERIFIED = {"README.md", "log.jsonl"}


def test_damage_of_any_file_is_found(directory: Path) -> None:
    found = verify_directory(directory)
    assert found.rows
    assert {result for _, result in found.rows} == {"ok"}
    for path in [p for p in directory.rglob("*") if p.is_file() and p.name not in NOT_VERIFIED]:
        content = path.read_bytes()
        if path.name in ("config.json", "onnx.json"):
            path.write_bytes(content[: len(content) // 2])
        else:
            flip(path)
        found = verify_directory(directory)
        assert found.damaged >= 1, path
        assert any(path.name in result or "vocabular" in result for _, result in found.rows), path
        path.write_bytes(content)


def test_all_damaged_files_are_listed(run: Run, tiny_corpus: Path, tmp_path: Path) -> None:
    data = shutil.copytree(tiny_corpus, tmp_path / "data")
    assert run("verify", data).out.count("\tok\n") == 22
    for name in ("train.order.npy", "dev.source.txt"):
        flip(data / name)
    done = run("verify", data, code=2)
    for name in ("train.order.npy", "dev.source.txt"):
        assert f"{name}\t{data / name}: damaged (its checksum has changed)" in done.out
    assert "4 of 22 checks failed" in done.err
    assert "Traceback" not in done.err


def test_verify_refuses_other_directories(run: Run, tmp_path: Path) -> None:
    assert "neither a prepared corpus nor a model" in run("verify", tmp_path, code=2).err


def test_verify_does_not_look_up_a_mistyped_path_on_the_hub(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("covnmt.model.directory.is_hub_name", lambda name: True)
    monkeypatch.setattr("covnmt.model.directory.download_model", lambda name: pytest.fail(name))
    assert "data/mine: no such directory" in run("verify", "data/mine", code=2).err
    assert "\tok\n" in run("verify", "ja-en").out
