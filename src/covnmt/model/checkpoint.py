"""The weights in a model directory: read, check, average and write them.

    config.json         settings, sizes and fingerprint of the vocabularies, format version
    source.*, target.*  tokenizer and vocabulary of each side
    model.safetensors   the best weights so far
    last.safetensors    the last checkpoint: all that training resumes from
    recent/             the weights of the last few checkpoints, kept for averaging on request
    log.jsonl           one line per report and validation

Weights are safetensors, so opening a directory from elsewhere never runs code. Every file is
replaced as a whole, so a crash or a full disk leaves the previous one.
"""

import hashlib
import json
import struct
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from covnmt.base.config import Config
from covnmt.base.errors import UserError
from covnmt.base.files import PARSE_ERRORS, atomic_write, lock_directory
from covnmt.model.directory import BEST_WEIGHTS as BEST_WEIGHTS
from covnmt.model.directory import (
    ModelDescription,
    check_model_signature,
    load_config,
    model_signature,
    save_config,
)
from covnmt.model.initialize import initialize_weights
from covnmt.model.seq2seq import Seq2Seq
from covnmt.text.codec import copy_codecs

LAST_CHECKPOINT = "last.safetensors"
DIGEST_KEY = "sha256"  # of tensors and the rest of the metadata
HASHING_THREADS = 4
SIGNATURE_KEY = "settings"  # of the model signature in the metadata of weights
# how the names of weights and of their EMA begin in the last checkpoint
WEIGHTS_PREFIX, EMA_PREFIX = "model.", "average."


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> None:
    """Write named tensors with metadata, which safetensors keep as one JSON string."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = metadata | {DIGEST_KEY: content_digest(tensors, metadata)}
    data = save(tensors, metadata={"about": json.dumps(metadata)})
    with atomic_write(path) as stream:
        stream.write(data)


def content_digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> str:
    """Hash names, types, shapes and values of tensors, several at a time, and their metadata."""

    def digest(name: str) -> bytes:
        tensor = tensors[name]
        result = hashlib.sha256(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        result.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
        return result.digest()

    with ThreadPoolExecutor(HASHING_THREADS) as pool:
        digests = pool.map(digest, sorted(tensors))
    about = json.dumps(metadata, sort_keys=True).encode()
    return hashlib.sha256(b"".join([about, *digests])).hexdigest()


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read named tensors and their metadata; refuse a damaged or foreign file.

    Files of older versions have no digest.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; is this a model directory made by `covnmt train`?")
    try:
        with safe_open(path, framework="pt") as stream:
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
            metadata = json.loads((stream.metadata() or {}).get("about", "{}"))
        if not isinstance(metadata, dict):
            raise ValueError("its metadata are not those of covnmt")
        digest = metadata.pop(DIGEST_KEY, None)
        if digest is not None and digest != content_digest(tensors, metadata):
            raise ValueError("its checksum has changed")
    except (SafetensorError, OSError, struct.error, *PARSE_ERRORS) as error:
        raise UserError(
            f"{path}: damaged or not a safetensors file ({error}); "
            "restore it from a copy, or train again"
        ) from None
    for name, tensor in tensors.items():
        # a finite sum has finite terms, and is quicker to tell
        if (
            tensor.is_floating_point()
            and not tensor.float().sum().isfinite()
            and not tensor.double().isfinite().all()
        ):
            raise UserError(
                f"{path}: {name} has values that are infinite or NaN; restore it from a copy, or "
                "train again with a lower train.learning_rate"
            )
    return tensors, metadata


def strip_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return only the tensors whose names have the prefix, by their names without it."""
    return {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}


def new_model(config: Config, source_size: int, target_size: int) -> Seq2Seq:
    """Initialize a model, which depends on nothing but settings, vocabulary sizes and seed."""
    torch.manual_seed(config.train.seed)
    model = Seq2Seq(config.model, source_size, target_size)
    initialize_weights(model, config.model.init)
    return model


def named_weights(model: Seq2Seq) -> dict[str, Tensor]:
    """Return the weights by name; a matrix that two layers share appears once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def load_weights(model: Seq2Seq, weights: dict[str, Tensor], where: Path) -> None:
    """Copy weights into the model; refuse those that have other names or shapes."""
    expected = named_weights(model)
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
    for name, tensor in expected.items():
        tensor.copy_(weights[name])


def check_weights(
    weights: dict[str, Tensor], metadata: dict[str, Any], description: ModelDescription, where: Path
) -> None:
    """Refuse weights of another model than config.json describes."""
    check_model_signature(metadata.get(SIGNATURE_KEY), description, where)
    with torch.device("meta"):  # takes no memory, however large config.json says the model is
        load_weights(build_network(description), weights, where)


def build_network(description: ModelDescription) -> Seq2Seq:
    """Build the network that config.json describes, without its weights."""
    sizes = description.vocabulary_sizes
    return Seq2Seq(description.config.model, sizes["source"], sizes["target"])


def load_network(directory: Path, description: ModelDescription, device: torch.device) -> Seq2Seq:
    """Return the best model of a directory whose config.json has been read already."""
    path = directory / BEST_WEIGHTS
    weights, metadata = load_tensors(path)
    check_weights(weights, metadata, description, path)
    model = build_network(description)
    load_weights(model, weights, path)
    return model.to(device).eval()


def average_checkpoints(run: Path, target: Path, last: int) -> list[str]:
    """Write a model directory with the mean of the last kept weights; return their names."""
    if last < 1:
        raise UserError(f"cannot average {last} checkpoints; ask for one or more")
    kept = sorted((run / "recent").glob("*.safetensors"))[-last:]
    if len(kept) < last:
        hint = f"average fewer (--last {len(kept)}), or " if kept else ""
        raise UserError(
            f"{run}: has {len(kept)} kept checkpoints, not {last}; {hint}"
            f"train with train.keep={last} or more"
        )
    description = load_config(run)
    mean: dict[str, Tensor] = {}
    for path in kept:
        weights, metadata = load_tensors(path)
        check_weights(weights, metadata, description, path)
        mean = {k: mean.get(k, 0) + w.double() / last for k, w in weights.items()}
    names = [path.stem for path in kept]
    average = {name: weight.float() for name, weight in mean.items()}
    write_model_directory(run, target, average, {"averaged": names})
    return names


def write_last_weights(run: Path, target: Path) -> None:
    """Write a model directory with the weights of the last checkpoint, not averaged."""
    tensors, metadata = load_tensors(run / LAST_CHECKPOINT)
    weights = strip_prefix(WEIGHTS_PREFIX, tensors)
    check_weights(weights, metadata, load_config(run), run / LAST_CHECKPOINT)
    write_model_directory(run, target, weights, {"update": metadata["counters"]["update"]})


def write_model_directory(
    run: Path, target: Path, weights: dict[str, Tensor], metadata: dict[str, Any]
) -> None:
    """Write a model directory with the settings and vocabularies of a run and other weights."""
    refuse_run_directory(target)
    description = load_config(run)
    with lock_directory(target):
        copy_codecs(run, target)
        metadata = metadata | {SIGNATURE_KEY: model_signature(description)}
        save_tensors(target / BEST_WEIGHTS, weights, metadata)
        save_config(target, description)


def refuse_run_directory(target: Path) -> None:
    """Refuse to write over a run in training."""
    if (target / LAST_CHECKPOINT).exists():
        raise UserError(f"{target}: is a training run directory; choose another directory")
