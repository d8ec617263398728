"""Tuning: it raises dev BLEU, resumes after an interruption, and is repeatable."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from covnmt.base.errors import UserError
from covnmt.base.files import read_json, write_json
from covnmt.phrase_based.model import PhraseBasedModel, train_phrase_based
from covnmt.phrase_based.settings import StackSearchSettings, WeightTuningSettings
from covnmt.phrase_based.stack import FEATURES
from covnmt.phrase_based.translate import load_feature_weights
from covnmt.phrase_based.tune_weights import NBestPool, best_round, tune_phrase_based

SETTINGS = WeightTuningSettings(
    search=StackSearchSettings(reorder=3, stack=10), iterations=4, nbest=20, restarts=2
)


@pytest.fixture
def model(tiny_smt: PhraseBasedModel, tmp_path: Path) -> PhraseBasedModel:
    """A copy that may be changed."""
    shutil.copytree(tiny_smt.directory, tmp_path / "model")
    return PhraseBasedModel.open(tmp_path / "model")


def test_tuning_raises_dev_bleu_and_resumes(model: PhraseBasedModel) -> None:
    whole = tune_phrase_based(model, SETTINGS)
    content = read_json(model.directory / "weights.json")
    assert content["dev_bleu"] == max(bleu for _, bleu in whole) > whole[0][1]
    best = next(weights for weights, bleu in whole if bleu == content["dev_bleu"])
    assert load_feature_weights(model).tolist() == best
    assert list(content["weights"]) == list(FEATURES)
    assert tune_phrase_based(model, SETTINGS) == whole  # nothing is left to do

    (model.directory / "weights.json").unlink()
    assert tune_phrase_based(model, SETTINGS.model_copy(update={"iterations": 2})) == whole[:2]
    assert tune_phrase_based(model, SETTINGS) == whole


def test_weights_from_before_the_moses_driver_was_removed_still_fit(
    model: PhraseBasedModel,
) -> None:
    tune_phrase_based(model, SETTINGS.model_copy(update={"iterations": 1, "sentences": 3}))
    path = model.directory / "weights.json"
    content = read_json(path)
    content["made_from"]["model"]["settings"]["engine"] = "covnmt"
    write_json(path, content)
    assert load_feature_weights(model).tolist() == list(content["weights"].values())


@pytest.mark.parametrize("lost", ["weights of round 2", "pool"])
def test_tuning_interrupted_between_its_two_files_resumes(
    lost: str, model: PhraseBasedModel
) -> None:
    few = SETTINGS.model_copy(update={"iterations": 1, "sentences": 3})
    more = few.model_copy(update={"iterations": 3})
    tune_phrase_based(model, few)
    first = (model.directory / "weights.json").read_bytes()
    tune_phrase_based(model, few.model_copy(update={"iterations": 2}))
    if lost == "pool":
        (model.directory / "tuning.npz").unlink()
    else:
        (model.directory / "weights.json").write_bytes(first)
    rounds = tune_phrase_based(model, more)
    (model.directory / "weights.json").unlink()
    assert rounds == tune_phrase_based(model, more)


def test_other_settings_start_anew(model: PhraseBasedModel) -> None:
    quick = SETTINGS.model_copy(update={"iterations": 1, "sentences": 3})
    [(_, bleu)] = tune_phrase_based(model, quick)
    [(_, other)] = tune_phrase_based(model, quick.model_copy(update={"sentences": 4}))
    assert bleu != other


def test_weights_of_another_training_are_refused(
    model: PhraseBasedModel, tiny_corpus: Path
) -> None:
    tune_phrase_based(model, SETTINGS.model_copy(update={"iterations": 1, "sentences": 3}))
    again = train_phrase_based(
        tiny_corpus, model.directory, model.settings.model_copy(update={"order": 2})
    )
    with pytest.raises(UserError, match="trained anew since it was tuned"):
        load_feature_weights(again)


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"weights": {}}', '{"weights": {"words": "1"}}', '{"weights": 1}']
)
def test_damaged_weights_are_refused(content: str, model: PhraseBasedModel) -> None:
    (model.directory / "weights.json").write_text(content)
    with pytest.raises(UserError, match=r"weights\.json: "):
        load_feature_weights(model)
    with pytest.raises(UserError, match=r"weights\.json: "):
        tune_phrase_based(model, SETTINGS)


def test_dev_set_without_usable_sentences_is_refused(model: PhraseBasedModel) -> None:
    for side in ("source", "target"):
        (model.directory / f"dev.{side}.txt").write_text(" ".join("a" * 101) + "\n\n")
    with pytest.raises(UserError, match=r" dev .* 100 "):
        tune_phrase_based(model, SETTINGS)


def test_dev_files_of_different_lengths_are_refused(model: PhraseBasedModel) -> None:
    with (model.directory / "dev.target.txt").open("a") as stream:
        stream.write("one more\n")
    with pytest.raises(UserError, match=r"dev\.source\.txt .* line \d+ .*dev\.target\.txt "):
        tune_phrase_based(model, SETTINGS)


def test_best_round_is_the_first_of_equals() -> None:
    rounds = [([0.1], 20.0), ([0.2], 21.0), ([0.3], 21.0), ([0.4], 19.0)]
    assert best_round(rounds) == ([0.2], 21.0)


def test_pool_has_no_duplicates() -> None:
    def pool(*rows: tuple[int, float]) -> NBestPool:
        features = np.array([[value] for _, value in rows])
        return NBestPool(
            np.array([n for n, _ in rows]), features, np.ones((len(rows), 10), np.int64)
        )

    one = pool((0, 1.0), (1, 2.0))
    both = one.merged_with(pool((1, 2.0), (0, 3.0), (0, 1.0), (2, 1.0)))
    assert both.sentence.tolist() == [0, 0, 1, 2]
    assert both.features.ravel().tolist() == [1.0, 3.0, 2.0, 1.0]
    assert both.lists().real.tolist() == [[True, True], [True, False], [True, False]]
