"""A trained model as ONNX graphs, in a directory that opens without PyTorch.

config.json, source.*, target.*   as in the model directory
encoder.onnx, step.onnx           the network (see `network`), weights included
onnx.json                         precision, parameters by block, SHA-256 of the graphs
"""

from pathlib import Path
from typing import Any

from covnmt.checkpoint import load_model
from covnmt.directory import load_config, save_config
from covnmt.engine.onnxruntime import DESCRIPTION, ENCODER, FORMAT, STEP, file_digest
from covnmt.engine.pytorch import pick_device
from covnmt.export.graph import Precision
from covnmt.export.network import StepGraph, encoder_graph
from covnmt.files import atomic_write, write_json
from covnmt.model.seq2seq import Seq2Seq, count_parameters
from covnmt.text.codec import copy_codecs


def export_model(directory: Path, target: Path, precision: Precision) -> dict[str, int]:
    """Write the best model of a directory as ONNX graphs; gives the bytes of each file."""
    model, _ = load_model(directory, pick_device("cpu"))
    copy_codecs(directory, target)
    sizes = write_graphs(model, target, precision)
    save_config(target, load_config(directory))
    about: dict[str, Any] = {
        "format": FORMAT,
        "precision": precision,
        "parameters": count_parameters(model),
        "files": {name: file_digest(target / name) for name in sizes},
    }
    write_json(target / DESCRIPTION, about)
    return sizes


def write_graphs(model: Seq2Seq, target: Path, precision: Precision) -> dict[str, int]:
    """Write both graphs; gives the bytes of each."""
    weights = {name: part.detach().numpy() for name, part in model.state_dict().items()}
    graphs = {
        ENCODER: encoder_graph(weights, model.config, precision),
        STEP: StepGraph(weights, model.config, precision).build(),
    }
    sizes = {}
    for name, graph in graphs.items():
        with atomic_write(target / name) as stream:
            sizes[name] = stream.write(graph.SerializeToString())
    return sizes
