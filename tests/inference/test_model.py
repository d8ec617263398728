"""Opening models: every file once, ensembles, and the public names of the package."""

import json
import pickle
import subprocess
import sys
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

import covnmt
from covnmt.base.errors import UserError
from covnmt.base.files import read_json, read_lines, write_json, write_lines
from covnmt.decoding.onnx.export import export_model
from covnmt.inference.model import Model, ModelLoader

# Translates with the command, and counts how often the files of the model are opened.
COUNT_OPENED = """
import json
import sys
from collections import Counter
from pathlib import Path
directory, text = map(Path, sys.argv[1:])
opened = Counter()

def count(event, args):
    if event == "open" and isinstance(args[0], (str, Path)) and Path(args[0]).parent == directory:
        opened[Path(args[0]).name] += 1

sys.addaudithook(count)
sys.argv[1:] = ["translate", str(text), "--model", str(directory), "--workers", "1"]
from covnmt.cli import main
try:
    main()
finally:
    print(json.dumps(opened), file=sys.stderr)
"""


def test_the_command_opens_every_file_of_a_model_once(tiny_model: Path, tmp_path: Path) -> None:
    export_model(tiny_model, tmp_path / "exported", "fp32")
    write_lines(tmp_path / "text", ["a b"])
    for directory in (tiny_model, tmp_path / "exported"):
        done = subprocess.run(
            [sys.executable, "-c", COUNT_OPENED, directory, tmp_path / "text"],
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        opened = json.loads(done.stderr.splitlines()[-1])
        assert set(opened.values()) == {1}
        read = {"config.json", "source.json", "source.vocab", "target.json", "target.vocab"}
        assert read <= opened.keys()


def test_one_model_translates_aligns_and_checks(tiny_model: Path, tiny_text: Path) -> None:
    model = covnmt.load(tiny_model, device="cpu")
    pairs = list(
        zip(read_lines(tiny_text / "test.src"), read_lines(tiny_text / "test.tgt"), strict=True)
    )[:3]
    [translation, *_] = model.translate([source for source, _ in pairs])
    [alignment, *_] = model.align(pairs)
    [report, *_] = model.check(pairs)
    assert isinstance(translation, covnmt.Translation)
    assert isinstance(alignment, covnmt.Alignment)
    assert isinstance(report, covnmt.OmissionReport)
    assert translation.source_tokens == alignment.source_tokens == report.source_tokens


def test_earlier_class_names_still_open_models(tiny_model: Path) -> None:
    for name in ("Translator", "Aligner", "Checker"):
        assert isinstance(getattr(covnmt, name).load(tiny_model), covnmt.Model)
    with pytest.raises(AttributeError, match="Nothing"):
        _ = covnmt.Nothing


def test_a_loader_is_the_same_model_in_another_process(tiny_model: Path) -> None:
    loader = ModelLoader.find([tiny_model], device="cpu", threads=1)
    copy = pickle.loads(pickle.dumps(loader))
    assert (copy, hash(copy)) == (loader, hash(loader))
    assert copy.decode == Model.load(tiny_model).decode


def test_models_of_an_ensemble_share_their_vocabularies(tiny_model: Path, tmp_path: Path) -> None:
    other = copytree(tiny_model, tmp_path / "other")
    assert len(Model.load(tiny_model, other, device="cpu").networks) == 2
    words = list(read_lines(other / "source.vocab"))
    write_lines(other / "source.vocab", [*words[:-1], "another"])
    with pytest.raises(UserError, match=r"other: its vocabularies or tokenizers are not those"):
        Model.load(tiny_model, other)
    loader = ModelLoader.find([other])
    settings = read_json(other / "config.json")
    assert loader.descriptions[0].fingerprint == settings["fingerprint"]


def test_a_vocabulary_size_in_config_that_is_not_that_of_the_file_is_an_error(
    tiny_model: Path, tmp_path: Path
) -> None:
    path = copytree(tiny_model, tmp_path / "other") / "config.json"
    settings = read_json(path)
    write_json(path, settings | {"words": settings["words"] | {"source": 5}})
    with pytest.raises(UserError, match=r"config\.json: damaged"):
        Model.load(tiny_model, path.parent)


NOT_TEXT: list[Any] = [b"x", 1, None, ["x"]]


@pytest.mark.parametrize("value", NOT_TEXT)
def test_what_is_not_text_is_refused_with_its_place(value: Any, translator: Model) -> None:
    kind = type(value).__name__
    with pytest.raises(TypeError, match=f"line 2 is .*, of type {kind}, not str"):
        translator.translate(["ka", value])
    for run in (translator.align, translator.check):
        with pytest.raises(TypeError, match=f"the target of pair 2 is .*, of type {kind}, not str"):
            run([("ka", "lo"), ("ka", value)])


@pytest.mark.parametrize("pair", ["ab", ("a",), ("a", "b", "c"), None])
def test_what_is_not_a_pair_is_refused(pair: Any, translator: Model) -> None:
    with pytest.raises(TypeError, match=r"pair 1 is .*, not \(source, target\)"):
        translator.check([pair])
    with pytest.raises(TypeError, match="not a string"):
        translator.align("ab")  # type: ignore[arg-type]
