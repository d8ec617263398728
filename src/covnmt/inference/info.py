"""What a recipe or a model directory amounts to: its settings, and its parameters by block."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covnmt.base.config import Config, flatten_keys
from covnmt.base.errors import UserError
from covnmt.base.recipe import find_recipe, load_recipe
from covnmt.data.corpus import Corpus
from covnmt.decoding.onnx.format import is_exported, read_manifest
from covnmt.model.directory import find_model, load_config
from covnmt.text.codec import Side


@dataclass(frozen=True)
class ModelInfo:
    """Settings, vocabulary sizes and parameter counts."""

    config: Config
    vocabulary_sizes: dict[Side, int]
    parameters: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        total = {"total": sum(self.parameters.values())}
        settings = self.config.model_dump(mode="json")
        return {
            "settings": settings,
            "words": self.vocabulary_sizes,
            "parameters": total | self.parameters,
        }

    def settings_rows(self) -> list[tuple[str, str]]:
        """Every key and its value."""
        flat = flatten_keys(self.config.model_dump(mode="json"))
        words = [(f"words.{side}", f"{count:,}") for side, count in self.vocabulary_sizes.items()]
        return [(key, json.dumps(value)) for key, value in flat.items()] + words

    def parameter_rows(self) -> list[tuple[str, str]]:
        """Every block, and their sum."""
        blocks = [(block, f"{count:,}") for block, count in self.parameters.items()]
        return [*blocks, ("total", f"{sum(self.parameters.values()):,}")]


def model_info(target: str, words: int) -> ModelInfo:
    """Look at a model directory, or at a recipe with the vocabulary of its data if it is there."""
    path = find_model(target)
    if path.is_dir():
        known = load_config(path)
        config, sizes = known.config, known.vocabulary_sizes
    else:
        config = load_recipe(_recipe(target))
        sizes = _vocabulary(config, words)
    counts = read_manifest(path).parameters if is_exported(path) else _count(config, sizes)
    return ModelInfo(config, sizes, counts)


def _recipe(target: str) -> Path:
    try:
        return find_recipe(target)
    except UserError:
        known = "`covnmt models` and `covnmt recipe list` name those that come along"
        raise UserError(f"{target}: neither a model nor a recipe; {known}") from None


def _count(config: Config, words: dict[Side, int]) -> dict[str, int]:
    """Parameters by block, of a model that is never filled with numbers."""
    import torch

    from covnmt.model.seq2seq import Seq2Seq, count_parameters

    with torch.device("meta"):
        return count_parameters(Seq2Seq(config.model, words["source"], words["target"]))


def _vocabulary(config: Config, words: int) -> dict[Side, int]:
    if not (config.data.directory / "corpus.json").exists():
        return {"source": words, "target": words}
    return Corpus.open(config.data.directory).report.vocabulary_sizes
