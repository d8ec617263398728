"""Model directories without PyTorch: config.json, its vocabularies, and the bundled models.

The weights of training are in `checkpoint`, exported ones in `decoding.onnx`.
"""

from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from covnmt.base.config import Config, flatten_keys, validate_settings
from covnmt.base.errors import UserError
from covnmt.base.files import read_json, read_lines, write_json
from covnmt.model.hub import download_model, install_hint, is_hub_name
from covnmt.text.codec import SIDES, CodecPair, Side

CONFIG_FORMAT = 1
MAX_VOCABULARY_SIZE = 10**9
BUNDLED_MODELS = Path(__file__).parents[1] / "bundled"
TRAINING_ONLY = {"dropout", "init"}  # model settings that translations do not depend on
BEST_WEIGHTS = "model.safetensors"
LEXICON_FILE, CALIBRATION_FILE = "lexicon.npz", "check.json"
CHECK_FILES = (LEXICON_FILE, CALIBRATION_FILE)  # of the omission check; models need not have them
MODEL_CARD = "README.md"  # intended use, training data and scores of a model


@dataclass(frozen=True)
class ModelDescription:
    """The content of config.json."""

    config: Config
    vocabulary_sizes: dict[Side, int]
    fingerprint: str  # of the vocabularies and tokenizers it was trained with


def bundled_models() -> list[str]:
    """Return the names of the bundled models, such as `ja-en`."""
    return sorted(path.parent.name for path in BUNDLED_MODELS.glob("*/config.json"))


@dataclass(frozen=True)
class BundledModel:
    """What the card of a bundled model says, and where the model is."""

    name: str
    title: str  # languages and domain
    bleu: str  # on the test set of its domain
    license: str
    mebibytes: float
    directory: Path


def describe_bundled_models() -> list[BundledModel]:
    """Return what the cards of the bundled models say."""
    return [describe_bundled_model(name) for name in bundled_models()]


def describe_bundled_model(name: str) -> BundledModel:
    """Read the head of a model card (`key: value` between lines of dashes), and its title."""
    directory = BUNDLED_MODELS / name
    lines = read_lines(directory / MODEL_CARD)
    above_title = takewhile(lambda line: not line.startswith("# "), lines)
    head = dict(line.split(": ", 1) for line in above_title if ": " in line)
    size = sum(path.stat().st_size for path in directory.iterdir()) / 2**20
    return BundledModel(
        name,
        model_title(directory) or "",
        head.get("bleu", ""),
        head.get("license", ""),
        size,
        directory,
    )


def model_title(directory: Path) -> str | None:
    """Return what a model translates: the first heading of its card, if it has one."""
    with suppress(OSError, UnicodeDecodeError):
        lines = (directory / MODEL_CARD).read_text("utf-8").splitlines()
        return next((line[2:].strip() for line in lines if line.startswith("# ")), None)
    return None


def find_model(name: Path | str) -> Path:
    """Return the directory of a model: a path, a bundled model or OWNER/NAME on the hub."""
    path, bundled = Path(name), BUNDLED_MODELS / name
    if path.exists():
        return path
    if (bundled / "config.json").exists():
        return bundled
    return download_model(str(name)) if is_hub_name(name) else path


def find_own_model(name: Path | str, remedy: str) -> Path:
    """Return a model directory that may be changed: bundled and downloaded models may not."""
    directory = find_model(name)
    if directory != Path(name):
        raise UserError(f"{name}: a bundled model cannot be changed; copy {directory} and {remedy}")
    return directory


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
    """Read config.json; refuse one that covnmt did not write or that is incomplete."""
    path = directory / "config.json"
    if not path.is_file():
        raise UserError(
            f"{directory}: not a model directory (it has no config.json){_remedy(directory)}"
        )
    tree = read_json(path)
    version = tree.pop("format", None) if isinstance(tree, dict) else None
    if not isinstance(version, int):
        raise UserError(f"{path}: not made by `covnmt train`; name a directory that is")
    if version > CONFIG_FORMAT:
        raise UserError(f"{path}: made by a newer covnmt (format {version}); please upgrade")
    sizes, fingerprint = tree.pop("words", None), tree.pop("fingerprint", None)
    complete = isinstance(sizes, dict) and sizes.keys() == set(SIDES)
    if not complete or not all(
        type(size) is int and 0 < size <= MAX_VOCABULARY_SIZE for size in sizes.values()
    ):
        raise UserError(
            f'{path}: damaged: "words" must hold the sizes of both vocabularies; '
            "restore it from a copy, or train again"
        )
    config = validate_settings(Config, tree, lambda location: f"{path}: ")
    return ModelDescription(config, sizes, str(fingerprint))


def _remedy(directory: Path) -> str:
    """Return which model to name instead of this directory, which has no config.json."""
    bundled = bundled_models()
    if str(directory) in bundled:  # the directory exists, or `find_model` had found the model
        return (
            ", and hides the bundled model of this name; rename it, or give the "
            "directory that `covnmt models` shows"
        )
    others = f", or a bundled one: {', '.join(bundled)}" if bundled else ""
    return f"; name one that `covnmt train` made{others}{install_hint(directory)}"


def check_vocabularies(directory: Path, description: ModelDescription, codecs: CodecPair) -> None:
    """Refuse vocabularies with which the model of this directory was not trained."""
    if codecs.fingerprint != description.fingerprint:
        raise UserError(
            f"{directory}: its vocabularies or tokenizers are not those it was trained with; "
            "copy source.* and target.* from the data directory of its training"
        )
    for side, codec in zip(SIDES, codecs[:2], strict=True):
        size, actual = description.vocabulary_sizes[side], len(codec.vocabulary)
        if actual != size:
            raise UserError(
                f"{directory / 'config.json'}: damaged: words gives {size} for {side}, "
                f"the vocabulary has {actual}; restore it from a copy, or train again"
            )


def model_signature(description: ModelDescription) -> dict[str, Any]:
    """Return the settings that decide what is computed with the weights of a model."""
    model = description.config.model.model_dump(mode="json", exclude=TRAINING_ONLY)
    return flatten_keys({"model": model, "vocabularies": description.fingerprint[:16]})


def check_model_signature(signature: Any, description: ModelDescription, where: Path) -> None:
    """Refuse weights that were trained with other settings, which their shapes need not show.

    Settings that are missing, because the weights are older than they, are not compared.
    """
    stored = signature if isinstance(signature, dict) else {}
    differences = [
        f"{key}: weights {stored[key]!r}, config.json {value!r}"
        for key, value in model_signature(description).items()
        if stored.get(key, value) != value
    ]
    if differences:
        raise UserError(
            f"{where}: these weights are not those that config.json describes "
            f"({'; '.join(differences)}); correct config.json, or take both from one model"
        )
