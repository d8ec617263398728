"""Small models and batches for tests, in float64 so that comparisons can be tight."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from covnmt.base.config import PAPER_SYSTEMS, Config, CoverageConfig, ModelConfig
from covnmt.data.batching import Batch, collate
from covnmt.inference.model import ModelLoader
from covnmt.model.seq2seq import Seq2Seq

VOCABULARY_SIZE = 11
END = VOCABULARY_SIZE - 1

# The paper's systems, with more than one unit where that tests more, and every option.
COVERAGES = {
    **PAPER_SYSTEMS,
    "gru10": CoverageConfig(kind="gru", size=3),
    "tanh2": CoverageConfig(kind="tanh", size=2),
    "subtract": CoverageConfig(kind="linguistic", accumulate="subtract"),
    "fertility-subtract": CoverageConfig(kind="fertility", accumulate="subtract"),
    "tanh-inputs": CoverageConfig(
        kind="tanh", size=2, bias=True, previous_context=True, energies=True
    ),
    "gru-inputs": CoverageConfig(
        kind="gru", size=2, bias=True, previous_context=True, current_context=True, energies=True
    ),
    "tanh-current": CoverageConfig(kind="tanh", size=2, current_context=True),
    "gru-attention-alone": CoverageConfig(kind="gru", size=2, annotation=False, state=False),
    "tanh-no-attention": CoverageConfig(kind="tanh", size=2, attention=False),
}


def small_config(coverage: CoverageConfig, **changes: object) -> ModelConfig:
    settings = {"embedding": 5, "hidden": 6, "rank": 4, "coverage": coverage}
    return ModelConfig.model_validate({**settings, **changes})


def small_model(config: ModelConfig, seed: int = 0) -> Seq2Seq:
    """A model with weights large enough that everything matters."""
    torch.manual_seed(seed)
    model = Seq2Seq(config, VOCABULARY_SIZE, VOCABULARY_SIZE).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    return model.eval()


def small_batch(lengths: Sequence[tuple[int, int]], seed: int = 0) -> Batch:
    """Random pairs of these source and target lengths (end symbols not counted)."""
    rng = np.random.default_rng(seed)
    pairs = [
        (rng.integers(1, END, j).tolist(), rng.integers(1, END, i).tolist()) for j, i in lengths
    ]
    return collate(pairs, END, END)


def load_model(directory: Path) -> tuple[Seq2Seq, Config]:
    """Open a model directory on the CPU; return its network and settings."""
    loader = ModelLoader.find([directory], "cpu")
    (network,) = loader.load().networks
    assert isinstance(network, Seq2Seq)
    return network, loader.descriptions[0].config
