"""A phrase-based model of the tiny corpus, made once per worker; tests must not change it."""

from pathlib import Path

import pytest

from covnmt.smt.engine import train
from covnmt.smt.model import SmtModel
from covnmt.smt.settings import AlignSettings, TrainSettings

SETTINGS = TrainSettings(align=AlignSettings(samplers=1), max_phrase=4, order=3)


@pytest.fixture(scope="session")
def tiny_smt(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> SmtModel:
    """Trained, not tuned."""
    return train(tiny_corpus, tmp_path_factory.mktemp("smt") / "model", SETTINGS)
