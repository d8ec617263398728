"""Corpora and scales: how their text is prepared, and errors where it is missing."""

from pathlib import Path

import pytest

from covnmt.base.errors import UserError
from covnmt.base.recipe import find_recipe, load_recipe
from covnmt.data.corpus import Corpus
from covnmt.paper.experiments import (
    EXPERIMENTS,
    GOLD_FILES,
    Experiment,
    OpenCorpusText,
    find_experiment,
)
from covnmt.paper.systems import recipe_overrides
from tests.paper.sample_results import KFTT, write_open_corpus


def test_open_corpora_are_prepared_as_words(tmp_path: Path) -> None:
    write_open_corpus(tmp_path)
    prepared = tmp_path / "prepared"
    for _ in range(2):  # the second time there is nothing to do
        KFTT.prepare(tmp_path, prepared)
    corpus = Corpus.open(prepared)
    assert corpus.codec("target").tokenize("Temple 3.") == ["temple", "3", "."]
    assert corpus.codec("source").tokenize("寺 は 3 。") == ["寺", "は", "3", "。"]
    assert corpus.split("test").text("target")[0] == "Temple 0."
    assert [(prepared / name).read_text("utf-8") for name in GOLD_FILES] == [
        "寺 ␣ 。\n",  # a wide space counts as a word there
        "temple .\n",
        "0-0 2-1\n",
    ]


def test_corpus_files_may_be_in_the_directory_itself(tmp_path: Path) -> None:
    write_open_corpus(tmp_path, gold=False)
    KFTT.prepare(tmp_path / "kftt-ja-en", tmp_path / "prepared")
    assert not (tmp_path / "prepared" / GOLD_FILES[2]).exists()


MISSING = {
    "kftt": r"train\.ja: .*covnmt corpus get kftt DIR",
    "twlaw": r"train\.seg\.zh: .*twlaw-zh-en\.tar\.xz",
}


@pytest.mark.parametrize("corpus", MISSING)
def test_missing_corpus_says_how_to_get_it(corpus: str, tmp_path: Path) -> None:
    experiment = find_experiment(corpus)
    with pytest.raises(UserError, match=MISSING[corpus]):
        experiment.prepare(tmp_path, tmp_path / "prepared")
    with pytest.raises(UserError, match=r"--data.* --unpack FILE"):
        experiment.prepare(None, tmp_path / "prepared")


@pytest.mark.parametrize(
    ("corpus", "scale", "message"),
    [
        ("kfft", None, "kfft: no such corpus; choose from kftt, twlaw, embedded"),
        ("kftt", "tiny", "kftt has no scale 'tiny'; it is run at scale paper"),
        ("embedded", "paper", "embedded has no scale 'paper'; it is run at scale small or tiny"),
    ],
)
def test_unknown_corpora_and_scales_are_refused(
    corpus: str, scale: str | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        find_experiment(corpus, scale)


def test_every_experiment_has_its_own_name_and_a_recipe() -> None:
    assert len({experiment.name for experiment in EXPERIMENTS}) == len(EXPERIMENTS)
    for experiment in EXPERIMENTS:
        assert find_experiment(experiment.corpus, experiment.scale) == experiment
        assert set(experiment.second_seed) <= set(experiment.systems)
        load_recipe(find_recipe(experiment.recipe), recipe_overrides(experiment.systems[-1]))


@pytest.mark.parametrize(
    "experiment", [e for e in EXPERIMENTS if isinstance(e.text, OpenCorpusText)]
)
def test_examples_include_long_sentences_and_are_tokenized(
    experiment: Experiment, tmp_path: Path
) -> None:
    lines = experiment.examples(tmp_path)
    assert 10 <= len(lines) <= 15
    assert sum(len(line.split()) > 30 for line in lines) >= 4
    assert all(line == " ".join(line.split()) and line.endswith("。") for line in lines)
