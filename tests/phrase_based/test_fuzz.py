"""Damaged files of a phrase-based model are read or refused."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from covnmt.base.files import write_json
from covnmt.phrase_based.bitext import Bitext
from covnmt.phrase_based.language_model import LanguageModel
from covnmt.phrase_based.lexicon import LinkCounts
from covnmt.phrase_based.model import MODEL_FILE, PhraseBasedModel
from covnmt.phrase_based.phrases import PhraseOccurrences
from covnmt.phrase_based.stack import FEATURES
from covnmt.phrase_based.translate import TunedWeights
from tests.system.fuzz import Mutation, Reader, check_reader, mutate_bytes, mutate_json


def read_model(path: Path) -> None:
    PhraseBasedModel.open(path.parent).identity()


def read_language_model(path: Path) -> None:
    LanguageModel.load(path.parent)


READERS: dict[str, tuple[Mutation, Callable[[Path], object]]] = {
    MODEL_FILE: (mutate_json, read_model),
    "links.json": (mutate_json, read_model),
    "weights.json": (mutate_json, TunedWeights.read),
    "bitext.npz": (mutate_bytes, Bitext.load),
    "phrases.npz": (mutate_bytes, PhraseOccurrences.load),
    "lexicon.npz": (mutate_bytes, LinkCounts.load),
    "lm/rows.npy": (mutate_bytes, read_language_model),
    "lm/score.npy": (mutate_bytes, read_language_model),
}


@pytest.fixture(scope="module")
def model(tiny_smt: PhraseBasedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("smt") / "model"
    shutil.copytree(tiny_smt.directory, directory)
    identity = tiny_smt.identity().model_dump(mode="json")
    tuned = {
        "made_from": {"model": identity, "tune": {}},
        "weights": dict.fromkeys(FEATURES, 1.0),
        "rounds": [([0.5], 1.0)],
    }
    write_json(directory / "weights.json", tuned)
    return directory


@pytest.mark.filterwarnings("ignore:Reading `.npy`", "ignore:Data type alias")  # of NumPy
@pytest.mark.parametrize("name", READERS)
def test_damaged_file_is_read_or_refused(name: str, model: Path) -> None:
    check_reader(Reader(name, *READERS[name]), model)
