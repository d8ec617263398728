"""A phrase-based model of the tiny corpus, made once per worker; tests must not change it."""

from pathlib import Path

import pytest

from covnmt.phrase_based.model import PhraseBasedModel, train_phrase_based
from covnmt.phrase_based.settings import AlignerSettings, PhraseBasedSettings

SETTINGS = PhraseBasedSettings(align=AlignerSettings(samplers=1), max_phrase=4, order=3)


@pytest.fixture(scope="session")
def tiny_smt(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> PhraseBasedModel:
    """Trained, not tuned."""
    return train_phrase_based(tiny_corpus, tmp_path_factory.mktemp("smt") / "model", SETTINGS)
