"""The torch-free part of a model directory: config.json, and whose vocabularies it was made with.

`checkpoint` has the weights that training leaves, `export` those that ONNX Runtime reads. Exported
models that come along lie in `bundled` and are known by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covnmt.base.config import Config, flatten_keys
from covnmt.base.errors import UserError
from covnmt.base.files import read_json, read_lines, write_json
from covnmt.base.recipe import build_config
from covnmt.text.codec import SIDES, Side, vocabulary_fingerprint
from covnmt.text.vocabulary import Vocabulary

CONFIG_FORMAT = 1
MAX_VOCABULARY_SIZE = 10**9
BUNDLED_MODELS = Path(__file__).parents[1] / "bundled"
TRAINING_ONLY = {"dropout", "init"}  # settings of a model that no translation depends on
MODEL_CARD = "README.md"  # of a model: what it is for, what it learnt from, how good it is


@dataclass(frozen=True)
class ModelDescription:
    """What config.json says about a model."""

    config: Config
    vocabulary_sizes: dict[Side, int]
    fingerprint: str  # of the vocabularies and tokenizers it was trained with


def bundled_models() -> list[str]:
    """The names of the models that come along, such as `ja-en`."""
    return sorted(path.parent.name for path in BUNDLED_MODELS.glob("*/config.json"))


def bundled_model_rows() -> list[tuple[str, str, str]]:
    """Of each model that comes along: its name, the title of its card, and where it lies."""
    rows = []
    for name in bundled_models():
        title = next(iter(read_lines(BUNDLED_MODELS / name / MODEL_CARD)))
        rows.append((name, title.lstrip("# "), str(BUNDLED_MODELS / name)))
    return rows


def find_model(name: Path | str) -> Path:
    """A directory as it is, or else the model that comes along under this name."""
    path = Path(name)
    return BUNDLED_MODELS / path if str(path) in bundled_models() and not path.exists() else path


def save_config(directory: Path, description: ModelDescription) -> None:
    """Write config.json."""
    settings = description.config.model_dump(mode="json")
    head = {
        "format": CONFIG_FORMAT,
        "words": description.vocabulary_sizes,
        "fingerprint": description.fingerprint,
    }
    write_json(directory / "config.json", head | settings)


def load_config(directory: Path) -> ModelDescription:
    """Read config.json; what is not ours or not whole is an error."""
    path = directory / "config.json"
    if not path.is_file():
        raise UserError(
            f"{directory}: not a model directory (it has no config.json){_remedy(directory)}"
        )
    tree = read_json(path)
    found = tree.pop("format", None) if isinstance(tree, dict) else None
    if not isinstance(found, int):
        raise UserError(f"{path}: not made by `covnmt train`; name a directory that is")
    if found > CONFIG_FORMAT:
        raise UserError(f"{path}: made by a newer covnmt (format {found}); please upgrade")
    words, mark = tree.pop("words", None), tree.pop("fingerprint", None)
    sizes = [words.get(side) for side in SIDES] if isinstance(words, dict) else [None]
    if not all(type(size) is int and 0 < size <= MAX_VOCABULARY_SIZE for size in sizes):
        raise UserError(
            f"{path}: damaged: words must give the size of both vocabularies; "
            "restore it from a copy, or train again"
        )
    return ModelDescription(build_config(tree, where=str(path)), words, str(mark))


def _remedy(directory: Path) -> str:
    """What to name in place of a directory that is no model."""
    along = bundled_models()
    if str(directory) in along:  # it is there, or else `find_model` had found the other
        return (
            ", and hides the model of this name that comes along; rename it, or give the "
            "directory that `covnmt models` shows"
        )
    others = f", or one that comes along: {', '.join(along)}" if along else ""
    return f"; name one that `covnmt train` made{others}"


def check_vocabularies(
    directory: Path, known: ModelDescription, sizes: Mapping[Side, int] | None = None
) -> None:
    """Refuse a directory whose vocabularies are not those that its model was trained with.

    `sizes` are those of vocabularies that are open already; without it the files are read.
    """
    if vocabulary_fingerprint(directory) != known.fingerprint:
        raise UserError(
            f"{directory}: its vocabularies or tokenizers are not those it was trained with; "
            "copy source.* and target.* from the data directory of its training"
        )
    for side, size in known.vocabulary_sizes.items():
        rows = sizes[side] if sizes else len(Vocabulary.load(directory / f"{side}.vocab"))
        if rows != size:
            raise UserError(
                f"{directory / 'config.json'}: damaged: words gives {size} for {side}, "
                f"the vocabulary has {rows}; restore it from a copy, or train again"
            )


def model_signature(known: ModelDescription) -> dict[str, Any]:
    """What weights are told to be made with: all that decides what is computed with them."""
    model = known.config.model.model_dump(mode="json", exclude=TRAINING_ONLY)
    return flatten_keys({"model": model, "vocabularies": known.fingerprint[:16]})


def check_model_signature(told: Any, known: ModelDescription, where: Path) -> None:
    """Refuse weights that were made with other settings, which their shapes need not tell.

    Those from before they were told anything, or before there was a setting, are taken as they are.
    """
    before = told if isinstance(told, dict) else {}
    wrong = [
        f"{key}: {before[key]!r} for them, {value!r} there"
        for key, value in model_signature(known).items()
        if before.get(key, value) != value
    ]
    if wrong:
        raise UserError(
            f"{where}: these weights are not those that config.json describes "
            f"({'; '.join(wrong)}); set config.json right, or take both from one model"
        )
