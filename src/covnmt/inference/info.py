"""Describe a recipe or a model directory: its settings, and its parameters by block."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covnmt.base.config import Config, flatten_keys
from covnmt.base.errors import UserError
from covnmt.base.recipe import bundled_recipes, find_recipe, load_recipe
from covnmt.data.corpus import Corpus
from covnmt.decoding.onnx.format import is_exported, read_manifest
from covnmt.model.directory import BEST_WEIGHTS, find_model, load_config
from covnmt.model.parameters import count_weights
from covnmt.text.codec import Side


@dataclass(frozen=True)
class ModelInfo:
    """Settings, vocabulary sizes and parameter counts."""

    config: Config
    vocabulary_sizes: dict[Side, int]
    parameters: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        total = {"total": sum(self.parameters.values())}
        settings = self.config.model_dump(mode="json")
        return {
            "settings": settings,
            "words": self.vocabulary_sizes,
            "parameters": total | self.parameters,
        }

    def settings_rows(self) -> list[tuple[str, str]]:
        """Return every key with its value, and the vocabulary sizes."""
        flat = flatten_keys(self.config.model_dump(mode="json"))
        sizes = [(f"words.{side}", f"{size:,}") for side, size in self.vocabulary_sizes.items()]
        return [(key, json.dumps(value)) for key, value in flat.items()] + sizes

    def parameter_rows(self) -> list[tuple[str, str]]:
        """Return the parameter count of every block, and their sum."""
        blocks = [(block, f"{count:,}") for block, count in self.parameters.items()]
        return [*blocks, ("total", f"{sum(self.parameters.values()):,}")]


def model_info(name: str, vocabulary_size: int) -> ModelInfo:
    """Describe a model directory, a bundled model or a recipe.

    `vocabulary_size` is for a recipe whose data are not prepared yet.
    """
    # the name of a recipe looks like that of a model on the hub
    path = Path(name) if name in bundled_recipes() else find_model(name)
    if path.is_dir():
        description = load_config(path)
        config, sizes = description.config, description.vocabulary_sizes
    else:
        config = load_recipe(_find_recipe(name))
        sizes = {"source": vocabulary_size, "target": vocabulary_size}
        if (config.data.directory / "corpus.json").exists():
            sizes = Corpus.open(config.data.directory).report.vocabulary_sizes
    if is_exported(path):
        return ModelInfo(config, sizes, read_manifest(path).parameters)
    weights = path / BEST_WEIGHTS
    if weights.is_file():
        return ModelInfo(config, sizes, count_weights(weights))
    return ModelInfo(config, sizes, _count_parameters(config, sizes))


def _find_recipe(name: str) -> Path:
    try:
        return find_recipe(name)
    except UserError:
        raise UserError(
            f"{name}: neither a model nor a recipe; `covnmt models` and `covnmt recipe list` "
            "list the bundled ones"
        ) from None


def _count_parameters(config: Config, sizes: dict[Side, int]) -> dict[str, int]:
    """Count parameters by block, without allocating them."""
    import torch

    from covnmt.model.seq2seq import Seq2Seq, count_parameters

    with torch.device("meta"):
        return count_parameters(Seq2Seq(config.model, sizes["source"], sizes["target"]))
