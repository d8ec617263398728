"""Small models as ONNX graphs."""

from pathlib import Path

from covnmt.config import Config
from covnmt.directory import Description
from covnmt.engine.onnxruntime import OnnxModel
from covnmt.export import write_graphs
from covnmt.export.graph import Precision
from covnmt.model.seq2seq import Seq2Seq
from covnmt.shortlist import Shortlist


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
    known = Description(config, {"source": words, "target": words}, fingerprint="")
    return OnnxModel(directory, known, threads=1)
