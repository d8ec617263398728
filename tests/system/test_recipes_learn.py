"""Every system of the paper learns to translate: text in, BLEU out, no step mocked.

An easy form of the synthetic language (few words, short sentences, but reordering, agreement and
words that become two) and models of some 72,000 parameters, so that each takes seconds.
"""

from pathlib import Path

import pytest
import torch

from covnmt.base.config import PAPER_SYSTEMS, Config
from covnmt.base.files import read_lines
from covnmt.data.prepare import prepare_corpus
from covnmt.data.settings import PrepareSettings
from covnmt.data.synthetic import SyntheticSettings, write_synthetic_corpus
from covnmt.inference.model import Model
from covnmt.metrics.bleu import paper_bleu
from covnmt.text.tokenize import TokenizerSettings
from covnmt.training.loop import train

EASY = SyntheticSettings(
    nouns=8,
    verbs=4,
    adjectives=2,
    adverbs=2,
    fertilities=(1, 2),
    homonym_every=100,
    mean_clauses=1.2,
    max_length=12,
    repeat=0,
    subordinate=0,
    relative=0,
    degree=0.1,
)
UPDATES = 300
BLEU = 70.0  # three seeds gave 89 to 97; the references of other sentences get 4


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("easy")
    write_synthetic_corpus(directory, train=4000, dev=50, test=200, settings=EASY)
    return directory


@pytest.fixture(scope="module")
def data(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    words = TokenizerSettings(kind="whitespace")
    pairs = {part: (text / f"{part}.src", text / f"{part}.tgt") for part in ("train", "dev")}
    settings = PrepareSettings(
        source=words, target=words, train=(pairs["train"],), dev=pairs["dev"]
    )
    prepare_corpus(settings, directory)
    return directory


def settings(system: str, data: Path) -> Config:
    return Config.model_validate(
        {
            "data": {"directory": data, "batching": "tokens", "batch_tokens": 600},
            "model": {
                "embedding": 32,
                "hidden": 48,
                "rank": 32,
                "init": "modern",
                "coverage": PAPER_SYSTEMS[system],
            },
            "train": {
                "updates": UPDATES,
                "optimizer": "adamw",
                "learning_rate": 0.01,
                "schedule": "cosine",
                "warmup": 20,
                "loss": "token_mean",
                "validate_every": UPDATES,
                "validate_beam": 1,
                "checkpoint_every": UPDATES,
            },
        }
    )


@pytest.mark.parametrize("system", PAPER_SYSTEMS)
def test_system_learns(system: str, text: Path, data: Path, tmp_path: Path) -> None:
    train(settings(system, data), tmp_path / "run", torch.device("cpu"))
    translator = Model.load(tmp_path / "run", device="cpu")
    outputs = translator.translate(
        read_lines(text / "test.src"), translator.decode.model_copy(update={"beam": 2})
    )
    references = list(read_lines(text / "test.tgt"))
    score = paper_bleu([output.text for output in outputs], [references]).value
    print(f"{system}: BLEU {score:.1f}")
    assert score >= BLEU
