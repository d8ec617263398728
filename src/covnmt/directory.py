"""The torch-free part of a model directory: config.json, and whose vocabularies it was made with.

`checkpoint` has the weights that training leaves, `export` those that ONNX Runtime reads.
"""

from dataclasses import dataclass
from pathlib import Path

from covnmt.config import Config
from covnmt.errors import UserError
from covnmt.files import read_json, write_json
from covnmt.recipe import build
from covnmt.text.codec import SIDES, Side, fingerprint

FORMAT = 1


@dataclass(frozen=True)
class Description:
    """What config.json says about a model."""

    config: Config
    words: dict[Side, int]  # vocabulary rows of each side
    fingerprint: str  # of the vocabularies and tokenizers it was trained with


def save_config(directory: Path, description: Description) -> None:
    """Write config.json."""
    settings = description.config.model_dump(mode="json")
    head = {"format": FORMAT, "words": description.words, "fingerprint": description.fingerprint}
    write_json(directory / "config.json", head | settings)


def load_config(directory: Path) -> Description:
    """Read config.json; what is not ours or not whole is an error."""
    path = directory / "config.json"
    if not path.is_file():
        raise UserError(
            f"{directory}: not a model directory (it has no config.json); "
            "name one that `covnmt train` made"
        )
    tree = read_json(path)
    found = tree.pop("format", None) if isinstance(tree, dict) else None
    if not isinstance(found, int):
        raise UserError(f"{path}: not made by `covnmt train`; name a directory that is")
    if found > FORMAT:
        raise UserError(f"{path}: made by a newer covnmt (format {found}); please upgrade")
    words, mark = tree.pop("words", None), tree.pop("fingerprint", None)
    if not isinstance(words, dict) or not all(isinstance(words.get(s), int) for s in SIDES):
        raise UserError(
            f"{path}: damaged: words must give the size of both vocabularies; "
            "restore it from a copy, or train again"
        )
    return Description(build(tree, where=str(path)), words, str(mark))


def check_vocabularies(directory: Path, known: Description) -> None:
    """Refuse a directory whose words are not those of its model."""
    if fingerprint(directory) != known.fingerprint:
        raise UserError(
            f"{directory}: its vocabularies or tokenizers are not those it was trained with; "
            "copy source.* and target.* from the data directory of its training"
        )
