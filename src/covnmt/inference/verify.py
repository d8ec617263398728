"""Verify every file of a prepared corpus or a model."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from covnmt.base.errors import UserError
from covnmt.data.corpus import REPORT_FILE, Corpus, check_digest, split_files
from covnmt.data.lexicon import Lexicon
from covnmt.data.settings import SplitName
from covnmt.decoding.onnx.format import is_exported, verify_manifest
from covnmt.inference.calibration import Calibration
from covnmt.model.directory import (
    CHECK_FILES,
    LEXICON_FILE,
    ModelDescription,
    bundled_models,
    check_vocabularies,
    find_model,
    load_config,
)
from covnmt.text.codec import SIDES, CodecPair

T = TypeVar("T")


@dataclass
class Verification:
    """Each file, or group of files, with "ok" or what is wrong with it."""

    rows: list[tuple[str, str]] = field(default_factory=list)
    damaged: int = 0

    def check(self, name: str, verify: Callable[[], T]) -> T | None:
        """Call a function that raises `UserError` if something is wrong; note what came out."""
        try:
            result = verify()
        except UserError as error:
            self.rows.append((name, str(error)))
            self.damaged += 1
            return None
        self.rows.append((name, "ok"))
        return result


def verify_directory(name: Path | str) -> Verification:
    """Read all files of a prepared corpus, or of a model with its checkpoints."""
    # a mistyped path may look like the name of a model on the hub, which is not looked up
    if not Path(name).exists() and str(name) not in bundled_models():
        raise UserError(f"{name}: no such directory")
    directory, result = find_model(name), Verification()
    if (directory / REPORT_FILE).exists():
        _verify_corpus(directory, result)
    elif (directory / "config.json").exists():
        _verify_model(directory, result)
    else:
        raise UserError(f"{directory}: neither a prepared corpus nor a model")
    return result


def _verify_corpus(directory: Path, result: Verification) -> None:
    corpus = result.check(REPORT_FILE, lambda: Corpus.open(directory))
    if corpus is None:
        return
    result.check("vocabularies", lambda: [corpus.codec(side) for side in SIDES])
    checksums = corpus.report.checksums
    for name in corpus.report.splits:
        for file in split_files(name) if checksums else ():
            result.check(file, partial(check_digest, directory / file, checksums))
        result.check(f"{name}: ids, offsets, order, lines", partial(_read_split, corpus, name))


def _read_split(corpus: Corpus, name: SplitName) -> None:
    split = corpus.split(name)
    for side in SIDES if name != "train" else ():
        split.text(side)


def _verify_model(directory: Path, result: Verification) -> None:
    description = result.check("config.json", lambda: load_config(directory))
    if description is None:
        return
    result.check(
        "vocabularies",
        lambda: check_vocabularies(directory, description, CodecPair.load(directory)),
    )
    if is_exported(directory):
        result.check("graphs and weights", lambda: verify_manifest(directory))
    if any((directory / name).exists() for name in CHECK_FILES):
        result.check("omission check", lambda: _load_check(directory))
    for path in sorted(directory.rglob("*.safetensors")):
        name = str(path.relative_to(directory))
        result.check(name, partial(_check_weights, path, description))


def _load_check(directory: Path) -> None:
    Calibration.load(directory)
    Lexicon.load(directory / LEXICON_FILE)


def _check_weights(path: Path, description: ModelDescription) -> None:
    from covnmt.model import checkpoint  # exported models are verified without PyTorch

    tensors, metadata = checkpoint.load_tensors(path)
    if path.name == checkpoint.LAST_CHECKPOINT:
        tensors = checkpoint.strip_prefix(checkpoint.WEIGHTS_PREFIX, tensors)
    checkpoint.check_weights(tensors, metadata, description, path)
