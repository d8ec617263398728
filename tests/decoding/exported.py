"""Small models as ONNX graphs."""

from pathlib import Path

from covnmt.base.config import Config
from covnmt.decoding.onnx.export import write_graphs
from covnmt.decoding.onnx.format import Precision
from covnmt.decoding.onnx.runtime import OnnxModel
from covnmt.decoding.onnx.shortlist import Shortlist
from covnmt.model.directory import ModelDescription
from covnmt.model.seq2seq import Seq2Seq


def exported(
    model: Seq2Seq,
    directory: Path,
    precision: Precision = "fp32",
    shortlist: Shortlist | None = None,
) -> OnnxModel:
    """The same network in the other engine."""
    write_graphs(model, directory, precision, shortlist)
    words = len(model.readout.b)
    config = Config(model=model.config)
    known = ModelDescription(config, {"source": words, "target": words}, fingerprint="")
    return OnnxModel(directory, known, threads=1)
