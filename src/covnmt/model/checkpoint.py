"""A model directory: everything `translate` needs, and everything training needs to go on.

    config.json         settings, sizes and fingerprint of the vocabularies, format version
    source.*, target.*  tokenisation and vocabulary of each side
    model.safetensors   the best weights so far
    last.safetensors    weights, optimiser, averages, random state and counters of the last save
    recent/             the last few weights, where the recipe keeps them for averaging
    log.jsonl           one line per report and validation

Weights are safetensors, so opening a directory from elsewhere never runs code. Every file is
replaced as a whole, so a crash or a full disk leaves the previous one.
"""

import fcntl
import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from covnmt.base.config import Config
from covnmt.base.errors import UserError
from covnmt.base.files import PARSE_ERRORS, atomic_write
from covnmt.model.directory import (
    ModelDescription,
    check_model_signature,
    check_vocabularies,
    load_config,
    model_signature,
    save_config,
)
from covnmt.model.initialize import initialize_weights
from covnmt.model.seq2seq import Seq2Seq
from covnmt.text.codec import copy_codecs

BEST_WEIGHTS = "model.safetensors"
LAST_CHECKPOINT = "last.safetensors"
SIGNATURE_KEY = "settings"  # of the model signature, in the metadata of weights
# how the names of weights and of their moving average begin in the last checkpoint
WEIGHTS_PREFIX, AVERAGE_PREFIX = "model.", "average."


def save_tensors(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write named tensors with a small JSON note about them."""
    data = save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
        metadata={"about": json.dumps(about)},
    )
    with atomic_write(path) as stream:
        stream.write(data)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read them back; a truncated or foreign file is an error."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; is this a model directory made by `covnmt train`?")
    try:
        with safe_open(path, framework="pt") as stream:
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
            about = json.loads((stream.metadata() or {}).get("about", "{}"))
            if not isinstance(about, dict):
                raise ValueError("its note is none of ours")
    except (SafetensorError, OSError, struct.error, *PARSE_ERRORS) as error:
        raise UserError(
            f"{path}: damaged or not a safetensors file ({error}); "
            "restore it from a copy, or train again"
        ) from None
    return tensors, about


def new_model(config: Config, source_words: int, target_words: int) -> Seq2Seq:
    """A freshly initialised model; depends on nothing but the settings and the seed."""
    torch.manual_seed(config.train.seed)
    model = Seq2Seq(config.model, source_words, target_words)
    initialize_weights(model, config.model.init)
    return model


def named_weights(model: Seq2Seq) -> dict[str, Tensor]:
    """The model's weights by name; a matrix that two layers share appears once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def load_weights(model: Seq2Seq, weights: dict[str, Tensor], where: Path) -> None:
    """Put the weights into the model; anything that does not fit is an error."""
    expected = named_weights(model)
    check_weight_shapes(weights, expected, where)
    for name, tensor in expected.items():
        tensor.copy_(weights[name])


def check_weight_shapes(
    weights: dict[str, Tensor], expected: dict[str, Tensor], where: Path
) -> None:
    """Refuse weights that have other names or shapes."""
    problems = [f"{name} is missing" for name in expected.keys() - weights.keys()]
    problems += [f"{name} is unknown" for name in weights.keys() - expected.keys()]
    problems += [
        f"{name} is {list(weights[name].shape)}, not {list(tensor.shape)}"
        for name, tensor in expected.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    if problems:
        shown = "; ".join(sorted(problems)[:3])
        raise UserError(f"{where}: these weights are of another model: {shown}")


def check_weights(
    weights: dict[str, Tensor], about: dict[str, Any], known: ModelDescription, where: Path
) -> None:
    """Refuse weights that are not of the model that config.json describes."""
    check_model_signature(about.get(SIGNATURE_KEY), known, where)
    with torch.device("meta"):  # takes no memory, however large it is said to be
        model = Seq2Seq(
            known.config.model, known.vocabulary_sizes["source"], known.vocabulary_sizes["target"]
        )
    check_weight_shapes(weights, named_weights(model), where)


def load_model(directory: Path, device: torch.device) -> tuple[Seq2Seq, Config]:
    """Open a model directory and return its best model, ready to translate, with its settings."""
    known = load_config(directory)
    check_vocabularies(directory, known)
    return load_network(directory, known, device), known.config


def load_network(directory: Path, known: ModelDescription, device: torch.device) -> Seq2Seq:
    """Return the best model of a directory whose config.json has been read already."""
    weights, about = load_tensors(directory / BEST_WEIGHTS)
    check_weights(weights, about, known, directory / BEST_WEIGHTS)
    model = Seq2Seq(
        known.config.model, known.vocabulary_sizes["source"], known.vocabulary_sizes["target"]
    )
    load_weights(model, weights, directory / BEST_WEIGHTS)
    return model.to(device).eval()


def average_checkpoints(run: Path, target: Path, last: int) -> list[str]:
    """Write a model directory with the mean of the last kept weights; gives their names."""
    if last < 1:
        raise UserError(f"the mean of {last} weights cannot be taken; ask for one or more")
    kept = sorted((run / "recent").glob("*.safetensors"))[-last:]
    if len(kept) < last:
        raise UserError(
            f"{run}: {len(kept)} kept weights, not {last}; train with train.keep={last} or more"
        )
    names, known = [path.stem for path in kept], load_config(run)
    write_model_directory(run, target, average_weights(kept, known), {"averaged": names})
    return names


def write_last_weights(run: Path, target: Path) -> None:
    """Write a model directory with the weights of the last save as they are, not averaged."""
    tensors, about = load_tensors(run / LAST_CHECKPOINT)
    weights = {
        name.removeprefix(WEIGHTS_PREFIX): tensor
        for name, tensor in tensors.items()
        if name.startswith(WEIGHTS_PREFIX)
    }
    check_weights(weights, about, load_config(run), run / LAST_CHECKPOINT)
    write_model_directory(run, target, weights, {"update": about["counters"]["update"]})


def write_model_directory(
    run: Path, target: Path, weights: dict[str, Tensor], about: dict[str, Any]
) -> None:
    """Write a model directory that is a run's in all but the weights."""
    refuse_run_directory(target)
    known = load_config(run)
    with lock_directory(target):
        copy_codecs(run, target)
        metadata = about | {SIGNATURE_KEY: model_signature(known)}
        save_tensors(target / BEST_WEIGHTS, weights, metadata)
        save_config(target, known)


def refuse_run_directory(target: Path) -> None:
    """A model that is made from another must not take the place of one in training."""
    if (target / LAST_CHECKPOINT).exists():
        raise UserError(f"{target}: holds a run of `covnmt train`; choose another directory")


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Keep others from writing a model to this directory meanwhile; it is made where there is none.

    The lock lies on the directory itself. It goes with the process, however that ends, and leaves
    no file behind. Where the file system has no locks, as some networks', there is none.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        place = os.open(directory, os.O_RDONLY)
    except OSError as error:
        raise UserError(
            f"{directory}: cannot be written ({error.strerror}); choose another directory"
        ) from None
    try:
        if not _lock(place):
            raise UserError(
                f"{directory}: another train, average or export is at work in it; wait for its "
                "end, stop it, or choose another directory"
            )
        yield
    finally:
        os.close(place)


def _lock(place: int) -> bool:
    """Whether nobody else has the lock; nobody has it where the file system knows none."""
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def average_weights(paths: list[Path], known: ModelDescription) -> dict[str, Tensor]:
    """The mean of several saved weights of one model."""
    mean: dict[str, Tensor] = {}
    for path in paths:
        weights, about = load_tensors(path)
        check_weights(weights, about, known, path)
        mean = {k: mean.get(k, 0) + w.double() / len(paths) for k, w in weights.items()}
    return {name: tensor.float() for name, tensor in mean.items()}


def remove_partial_files(directory: Path) -> None:
    """Delete the half-written files that a killed run left behind."""
    for path in directory.rglob(".*.safetensors.*.tmp"):
        path.unlink(missing_ok=True)
