"""The commands that make models: from text to a model, and to the mean of several."""

from pathlib import Path

import pytest
import torch

from covnmt.base.files import read_lines
from covnmt.model.checkpoint import load_tensors
from tests.conftest import Run


def test_average(run: Run, tiny_model: Path, source: Path, tmp_path: Path) -> None:
    kept = sorted((tiny_model / "recent").iterdir())
    done = run("average", tiny_model, tmp_path / "mean", "--last", 2)
    assert all(path.stem in done.err for path in kept)
    [one, other] = [load_tensors(path)[0] for path in kept]
    mean, _ = load_tensors(tmp_path / "mean" / "model.safetensors")
    for name, weight in mean.items():
        torch.testing.assert_close(weight, (one[name] + other[name]) / 2)
    assert len(run("translate", source, "--model", tmp_path / "mean").out.splitlines()) == 20


def test_from_nothing_to_a_model(run: Run, tmp_path: Path) -> None:
    """Write text, prepare it, train, go on training, translate."""
    text, data, model = tmp_path / "text", tmp_path / "data", tmp_path / "model"
    run("synthetic", text, "--train", 60, "--dev", 4, "--test", 3, "--seed", 7)
    assert [len(list(read_lines(text / f"{p}.src"))) for p in ("train", "dev", "test")] == [
        60,
        4,
        3,
    ]
    files = {part: (text / f"{part}.src", text / f"{part}.tgt") for part in ("train", "dev")}
    prepare = ("prepare", data, "--train", *files["train"], "--dev", *files["dev"])
    words = ("--source-tokenizer", "whitespace", "--target-tokenizer", "whitespace")
    assert "60 of 60 pairs" in run(*prepare, *words).out
    assert "nothing to do" in run(*prepare, *words).out
    small = ("model.embedding=6", "model.hidden=6", "model.rank=6", "train.validate_beam=1")
    train = ("train", "demo/gru10", "--run", model, f"data.directory={data}", *small)
    assert "made 2 updates" in run(*train, "train.updates=2").err
    assert "made 3 updates" in run(*train, "train.updates=3", "--device", "cpu").err
    done = run("translate", text / "test.src", "--model", model, "--beam", 1)
    assert len(done.out.splitlines()) == 3


def test_a_run_has_the_name_of_its_recipe(
    run: Run, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    short = ("train.updates=1", "train.validate_bleu=false", "train.select=loss")
    Path("mine.toml").write_text("[model]\nembedding = 4\nhidden = 4\nrank = 4\n")
    run("train", "mine.toml", "--data", tiny_corpus, *short)
    small = ("model.embedding=4", "model.hidden=4", "model.rank=4")
    run("train", "demo/gru10", f"data.directory={tiny_corpus}", *small, *short)
    assert sorted(path.name for path in Path("runs").iterdir()) == ["demo-gru10", "mine"]


def test_without_a_recipe_the_small_one_is_trained_on_a_cpu(
    run: Run, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    short = ("train.updates=1", "train.validate_bleu=false", "train.select=loss")
    small = ("model.embedding=4", "model.hidden=4", "model.rank=4")
    message = run("train", "--device", "cpu", "--data", tiny_corpus, *small, *short).err
    assert "recipe: small/gru10" in message
    assert "weights, gradients and optimizer take 0.0 GB" in message
    assert "runs/small-gru10: made 1 updates" in message


def test_setting_in_place_of_the_recipe_is_explained(run: Run) -> None:
    assert "the recipe comes first" in run("recipe", "show", "data.directory=data", code=2).err


def test_a_run_directory_is_no_file(run: Run, tiny_corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    train = ("train", "demo/gru10", "--data", tiny_corpus, "--run", tmp_path / "file")
    assert "is a file; --run takes a directory" in run(*train, code=2).err.replace("\n", " ")
    assert (tmp_path / "file").read_text() == "mine"
