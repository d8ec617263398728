"""A trained model as ONNX graphs, in a directory that opens without PyTorch.

It holds `config.json`, `source.*` and `target.*` as the model directory does, and

    encoder.onnx, step.onnx   the network (see `encoder` and `step`)
    weights.bin               its matrices, end to end
    onnx.json                 precision, parameters by block, SHA-256 of these files, where the
                              matrices of bytes lie, and the settings that all of it was made with
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from covnmt.base.config import DataConfig
from covnmt.base.errors import UserError
from covnmt.base.files import atomic_write, file_digest, write_json
from covnmt.decoding.onnx.activation_ranges import measure_activation_ranges
from covnmt.decoding.onnx.builder import Precision, WeightStore
from covnmt.decoding.onnx.encoder import build_encoder_graph
from covnmt.decoding.onnx.format import (
    ENCODER_FILE,
    EXPORT_FORMAT,
    MANIFEST_FILE,
    SHORTLIST_FILE,
    STEP_FILE,
    WEIGHTS_FILE,
    is_exported,
)
from covnmt.decoding.onnx.shortlist import AlignedText, Shortlist, build_shortlist
from covnmt.decoding.onnx.step import StepGraph
from covnmt.decoding.torch import pick_device
from covnmt.model.checkpoint import BEST_WEIGHTS, load_model, lock_directory
from covnmt.model.directory import (
    ModelDescription,
    find_model,
    load_config,
    model_signature,
    save_config,
)
from covnmt.model.seq2seq import Seq2Seq, count_parameters
from covnmt.text.codec import Codec, copy_codecs

__all__ = ["AlignedText", "export_model", "write_graphs"]


def export_model(
    directory: Path, target: Path, precision: Precision, linked: AlignedText | None = None
) -> dict[str, int]:
    """Write the best model of a directory as ONNX graphs; gives the bytes of each file.

    Linked text gives the model short lists of target words.
    """
    if is_exported(directory := find_model(directory)):
        raise UserError(
            f"{directory}: is exported already; name the model that `covnmt train` made"
        )
    if (target / BEST_WEIGHTS).exists():
        raise UserError(
            f"{target}: holds a model that would never be read again; choose another directory"
        )
    model, _ = load_model(directory, pick_device("cpu"))
    codecs = Codec.load(directory, "source"), Codec.load(directory, "target")
    shortlist = None if linked is None else build_shortlist(linked, codecs)
    known = load_config(directory)
    with lock_directory(target):
        copy_codecs(directory, target)
        save_config(target, drop_data_directory(known))
        return write_graphs(model, target, precision, shortlist, model_signature(known))


def drop_data_directory(known: ModelDescription) -> ModelDescription:
    """The same without the directory of the training data: it says nothing on other machines."""
    data = known.config.data.model_copy(update={"directory": DataConfig().directory})
    return replace(known, config=known.config.model_copy(update={"data": data}))


def write_graphs(
    model: Seq2Seq,
    target: Path,
    precision: Precision,
    shortlist: Shortlist | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, int]:
    """Write the network and what there is to say of it; gives the bytes of each file."""
    weights = {name: part.detach().numpy() for name, part in model.state_dict().items()}
    store = WeightStore(WEIGHTS_FILE)
    graphs = {
        ENCODER_FILE: build_encoder_graph(weights, model.config, precision, store),
        STEP_FILE: StepGraph(
            weights,
            model.config,
            precision,
            store,
            measure_activation_ranges(model),
            shortlist is not None,
        ).build(),
    }
    files = {name: [graph.SerializeToString()] for name, graph in graphs.items()}
    for name, parts in {**files, WEIGHTS_FILE: store.parts}.items():
        with atomic_write(target / name) as stream:
            stream.writelines(parts)
    names = (*files, WEIGHTS_FILE)
    about: dict[str, Any] = {
        "format": EXPORT_FORMAT,
        "precision": precision,
        "parameters": count_parameters(model),
        "files": {name: file_digest(target / name) for name in names},
        "matrices": store.matrices,
        "output": store.output,
        "settings": settings or {},
    }
    if shortlist is not None:
        shortlist.save(target / SHORTLIST_FILE)
        about["files"][SHORTLIST_FILE] = file_digest(target / SHORTLIST_FILE)
    write_json(target / MANIFEST_FILE, about)
    return {name: (target / name).stat().st_size for name in names}
