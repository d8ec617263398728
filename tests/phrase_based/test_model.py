"""Stages of training: run once, run again when their inputs change, and repeatable."""

import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from covnmt.base.errors import UserError
from covnmt.base.files import read_json, write_json
from covnmt.data.corpus import Corpus
from covnmt.phrase_based import aligner, phrases
from covnmt.phrase_based.bitext import Bitext, load_arrays
from covnmt.phrase_based.model import PhraseBasedModel, stage_names, train_phrase_based
from covnmt.phrase_based.settings import PhraseBasedSettings

from .conftest import SETTINGS

STAGES = stage_names(SETTINGS)

# what a change of settings makes anew
CHANGES: list[tuple[dict[str, object], set[str]]] = [
    ({}, set()),
    ({"options": 3}, set()),
    ({"max_phrase": 3}, {"phrases"}),
    ({"order": 2}, {"language-model"}),
    ({"align": SETTINGS.align.model_copy(update={"joining": "union"})}, {"links", "phrases"}),
    ({"align": SETTINGS.align.model_copy(update={"seed": 7})}, set(STAGES) - {"language-model"}),
    ({"pairs": 200}, set(STAGES)),
]


def changed(settings: dict[str, object]) -> PhraseBasedSettings:
    return SETTINGS.model_copy(update=settings)


@pytest.mark.parametrize(("settings", "anew"), CHANGES)
def test_changed_settings_repeat_only_the_stages_that_depend_on_them(
    settings: dict[str, object],
    anew: set[str],
    tiny_smt: PhraseBasedModel,
    tiny_corpus: Path,
    tmp_path: Path,
) -> None:
    directory = tmp_path / "model"
    shutil.copytree(tiny_smt.directory, directory)
    before = {name: (directory / f"{name}.json").stat().st_mtime_ns for name in STAGES}
    model = train_phrase_based(tiny_corpus, directory, changed(settings))
    after = {name: (directory / f"{name}.json").stat().st_mtime_ns for name in STAGES}
    assert {name for name in STAGES if before[name] != after[name]} == anew
    assert PhraseBasedModel.open(directory) == model


def test_training_is_deterministic(
    tiny_smt: PhraseBasedModel, tiny_corpus: Path, tmp_path: Path
) -> None:
    again = train_phrase_based(tiny_corpus, tmp_path / "model", SETTINGS)
    for path in sorted(tiny_smt.directory.rglob("*")):
        other = again.directory / path.relative_to(tiny_smt.directory)
        if path.suffix == ".npz":
            one, two = load_arrays(path), load_arrays(other)
            assert one.keys() == two.keys()
            assert all(np.array_equal(one[name], two[name]) for name in one)
        elif path.is_file() and path.stem not in STAGES:
            assert path.read_bytes() == other.read_bytes(), path


def test_interrupted_stage_is_repeated(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(aligner, "combine_chains", stop)
        with pytest.raises(KeyboardInterrupt):
            train_phrase_based(tiny_corpus, tmp_path, SETTINGS)
    assert [name for name in STAGES if (tmp_path / f"{name}.json").exists()] == [*STAGES[:2]]
    with pytest.raises(UserError, match="covnmt smt train"):
        PhraseBasedModel.open(tmp_path)
    kept = (tmp_path / "forward-1.json").stat().st_mtime_ns
    train_phrase_based(tiny_corpus, tmp_path, SETTINGS)
    assert (tmp_path / "forward-1.json").stat().st_mtime_ns == kept


def test_directory_of_an_unfinished_training_is_no_model(
    tiny_smt: PhraseBasedModel, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    directory = tmp_path / "model"
    shutil.copytree(tiny_smt.directory, directory)
    monkeypatch.setattr(phrases, "extract_phrases", stop)
    with pytest.raises(KeyboardInterrupt):
        train_phrase_based(tiny_corpus, directory, changed({"pairs": 200}))
    with pytest.raises(UserError, match="covnmt smt train"):
        PhraseBasedModel.open(directory)


@pytest.mark.parametrize(
    ("file", "stage"),
    [
        ("forward-1.npz", "forward-1"),
        ("links.npz", "links"),
        ("lexicon.npz", "phrases"),
        ("lm/keys.npy", "language-model"),
    ],
)
def test_stage_with_a_missing_file_is_repeated(
    file: str, stage: str, tiny_smt: PhraseBasedModel, tiny_corpus: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "model"
    shutil.copytree(tiny_smt.directory, directory)
    (directory / file).unlink()
    before = {name: (directory / f"{name}.json").stat().st_mtime_ns for name in STAGES}
    train_phrase_based(tiny_corpus, directory, SETTINGS)
    after = {name: (directory / f"{name}.json").stat().st_mtime_ns for name in STAGES}
    assert {name for name in STAGES if before[name] != after[name]} == {stage}
    assert (directory / file).exists()


def test_stages_record_their_cost_and_outcome(tiny_smt: PhraseBasedModel) -> None:
    records = tiny_smt.stage_records()
    assert list(records) == list(STAGES)
    for record in records.values():
        assert record.seconds >= 0
        assert record.peak_mib > 0
        assert record.cpu_seconds >= 0
    phrases_record = records["phrases"].model_dump()
    assert phrases_record["occurrences"] == len(tiny_smt.occurrences())
    assert 1 < records["language-model"].model_dump()["dev_perplexity"] < 60


def test_bitext_takes_the_first_pairs_of_the_shuffled_order(tiny_corpus: Path) -> None:
    split = Corpus.open(tiny_corpus).split("train")
    some = Bitext.from_split(split, 10)
    rows = sorted(split.order[:10].tolist())
    assert [some.source[n].tolist() for n in range(10)] == [split.source[n].tolist() for n in rows]
    assert [some.target[n].tolist() for n in range(10)] == [split.target[n].tolist() for n in rows]
    assert len(Bitext.from_split(split, 10_000)) == len(split)


def test_damaged_files_are_named(tiny_smt: PhraseBasedModel, tmp_path: Path) -> None:
    whole = (tiny_smt.directory / "bitext.npz").read_bytes()
    for damaged in (b"", b"nothing", whole[:500], whole[:-500]):
        (tmp_path / "bitext.npz").write_bytes(damaged)
        with pytest.raises(UserError, match=r"bitext\.npz: "):
            PhraseBasedModel(tmp_path, SETTINGS).bitext()
    assert read_json(tiny_smt.directory / "smt.json")["order"] == SETTINGS.order


def test_directory_of_a_neural_model_is_refused(tiny_model: Path, tiny_corpus: Path) -> None:
    before = sorted(tiny_model.iterdir())
    with pytest.raises(UserError, match=f"^{tiny_model}: "):
        train_phrase_based(tiny_corpus, tiny_model, SETTINGS)
    assert sorted(tiny_model.iterdir()) == before


@pytest.mark.parametrize(("engine", "accepted"), [("covnmt", True), ("moses", False)])
def test_models_from_before_the_moses_driver_was_removed(
    engine: str, accepted: bool, tiny_smt: PhraseBasedModel, tmp_path: Path
) -> None:
    shutil.copytree(tiny_smt.directory, tmp_path / "model")
    path = tmp_path / "model" / "smt.json"
    write_json(path, {"engine": engine, **read_json(path)})
    refused = pytest.raises(UserError, match=r"smt\.json: damaged: .*engine")
    with nullcontext() if accepted else refused:
        assert PhraseBasedModel.open(tmp_path / "model").settings == tiny_smt.settings
