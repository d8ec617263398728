"""A trained model as ONNX graphs, in a directory that opens without PyTorch.

It holds `config.json`, `source.*` and `target.*` as the model directory does, and

    encoder.onnx, step.onnx   the network (see `encoder` and `step`)
    weights.bin               its matrices, end to end
    onnx.json                 precision, parameters by block, SHA-256 of these files, where the
                              int8 matrices are, and the model settings they belong to
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from covnmt.base.config import DataConfig
from covnmt.base.errors import UserError
from covnmt.base.files import (
    atomic_write,
    file_digest,
    lock_directory,
    read_bytes,
    write_bytes,
    write_json,
)
from covnmt.decoding.onnx.builder import WeightStore
from covnmt.decoding.onnx.encoder import build_encoder_graph
from covnmt.decoding.onnx.format import (
    ENCODER_FILE,
    GRAPH_FILES,
    MANIFEST_FILE,
    SHORTLIST_FILE,
    STEP_FILE,
    WEIGHTS_FILE,
    Manifest,
    Precision,
    is_exported,
)
from covnmt.decoding.onnx.shortlist import Shortlist, ShortlistText, build_shortlist
from covnmt.decoding.onnx.step import ActivationRanges, StepGraph
from covnmt.decoding.torch import pick_device
from covnmt.model.checkpoint import BEST_WEIGHTS, load_network
from covnmt.model.coverage import LinguisticCoverage, NeuralCoverage, NoCoverage
from covnmt.model.directory import (
    CHECK_FILES,
    check_vocabularies,
    find_model,
    load_config,
    model_signature,
    save_config,
)
from covnmt.model.seq2seq import Seq2Seq, count_parameters
from covnmt.text.codec import CodecPair, copy_codecs

__all__ = ["ShortlistText", "export_model", "write_graphs"]

EXPORTED_COVERAGE = (NoCoverage, LinguisticCoverage, NeuralCoverage)
RANGE_SENTENCES, RANGE_LENGTH = 48, 24  # random sentences that activation ranges are measured on
RANGE_MARGIN = 1.25  # real text exceeds this in less than one vector of a hundred


def export_model(
    directory: Path, target: Path, precision: Precision, aligned_text: ShortlistText | None = None
) -> dict[str, int]:
    """Write the best model of a directory as ONNX graphs; return the bytes of each file.

    Aligned text gives the model a shortlist of target tokens.
    """
    if is_exported(directory := find_model(directory)):
        raise UserError(
            f"{directory}: is exported already; name the model that `covnmt train` made"
        )
    if (target / BEST_WEIGHTS).exists():
        raise UserError(
            f"{target}: holds a trained model, which an export would hide; choose another directory"
        )
    description = load_config(directory)
    codecs = CodecPair.load(directory)
    check_vocabularies(directory, description, codecs)
    model = load_network(directory, description, pick_device("cpu"))
    shortlist = None if aligned_text is None else build_shortlist(aligned_text, codecs[:2])
    with lock_directory(target):
        copy_codecs(directory, target)
        for name in CHECK_FILES:
            if (directory / name).exists():
                write_bytes(target / name, read_bytes(directory / name))
        # the path of the training data means nothing on other machines
        config = description.config
        data = config.data.model_copy(update={"directory": DataConfig().directory})
        save_config(target, replace(description, config=config.model_copy(update={"data": data})))
        return write_graphs(model, target, precision, shortlist, model_signature(description))


def write_graphs(
    model: Seq2Seq,
    target: Path,
    precision: Precision,
    shortlist: Shortlist | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, int]:
    """Write the graphs, their weights and the manifest; return the bytes of each file."""
    if not isinstance(model.decoder.coverage, EXPORTED_COVERAGE):
        name = type(model.decoder.coverage).__name__
        raise UserError(f"{name} cannot be exported to ONNX; translate with the PyTorch model")
    weights = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    store = WeightStore(WEIGHTS_FILE)
    ranges = measure_activation_ranges(model)
    step = StepGraph(weights, model.config, precision, store, ranges, shortlist is not None)
    graphs = {
        ENCODER_FILE: build_encoder_graph(weights, model.config, precision, store),
        STEP_FILE: step.build(),
    }
    contents = {name: [graph.SerializeToString()] for name, graph in graphs.items()}
    for name, parts in {**contents, WEIGHTS_FILE: store.parts}.items():
        with atomic_write(target / name) as stream:
            stream.writelines(parts)
    if shortlist is not None:
        shortlist.save(target / SHORTLIST_FILE)
    names = [*GRAPH_FILES, *([] if shortlist is None else [SHORTLIST_FILE])]
    manifest = Manifest(
        precision=precision,
        parameters=count_parameters(model),
        files={name: file_digest(target / name) for name in names},
        matrices=store.matrices,
        output=store.output,
        settings=dict(settings or {}),
    )
    write_json(target / MANIFEST_FILE, manifest.model_dump())
    return {name: (target / name).stat().st_size for name in GRAPH_FILES}


@torch.inference_mode()
def measure_activation_ranges(model: Seq2Seq) -> ActivationRanges:
    """Measure on random tokens how large the layers before the output layer get, for int8.

    All other quantized layers have a bound: states and annotations lie between -1 and 1, contexts
    are means of them, and embeddings are in a table. For maxout, the bound that follows from the
    weights is about 20 times the largest value observed, and a wider range rounds more coarsely. So
    the range is measured, and values beyond 1.25 times it are clipped.
    """
    generator = np.random.default_rng(0)
    shape = (RANGE_SENTENCES, RANGE_LENGTH)
    token_ids = [
        generator.integers(len(side.E), size=shape) for side in (model.source, model.target)
    ]
    source, target = map(torch.from_numpy, token_ids)
    memory = model.encode(source, torch.ones_like(source, dtype=torch.bool))
    y = nn.functional.pad(model.target(target[:, :-1]), (0, 0, 1, 0))
    steps = model.decoder.decode_teacher_forced(memory, y)
    layers = (model.readout.maxout, model.readout)
    return ActivationRanges(*(_range_with_margin(layer(steps.t, steps.s, y)) for layer in layers))


def _range_with_margin(layer: Tensor) -> float:
    """Round to two digits, so that a model gets the same range on every computer."""
    return float(f"{RANGE_MARGIN * float(layer.abs().max()):.1e}")
