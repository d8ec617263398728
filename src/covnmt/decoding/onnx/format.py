"""The files of an exported model, and how its matrices are read.

Notation: V vocabulary size, q width of the layer before the output layer.
"""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from covnmt.base.arrays import FloatArray, IntArray
from covnmt.base.errors import UserError
from covnmt.base.files import file_digest, read_json

MANIFEST_FILE = "onnx.json"
ENCODER_FILE, STEP_FILE, WEIGHTS_FILE = "encoder.onnx", "step.onnx", "weights.bin"
GRAPH_FILES = (ENCODER_FILE, STEP_FILE, WEIGHTS_FILE)
SHORTLIST_FILE = "shortlist.json"  # only where the model has one
EXPORT_FORMAT = 2
REEXPORT_HINT = "copy it again, or export the model anew"

Precision = Literal["fp32", "int8"]
StrictCount = Annotated[int, Field(ge=0, strict=True)]


class Manifest(BaseModel):
    """The content of onnx.json; offsets are bytes in weights.bin."""

    model_config = ConfigDict(frozen=True, extra="allow")

    format: int = EXPORT_FORMAT
    precision: Precision
    parameters: dict[str, StrictCount]  # by block
    files: dict[str, str]  # SHA-256 digests
    matrices: dict[str, dict[str, StrictCount]]  # int8 matrices: rows, columns, offset, scale
    output: dict[str, StrictCount]  # the output layer, where a shortlist selects rows of it
    settings: dict[str, Any] | None = None  # the signature of the model it was made from


def is_exported(directory: Path) -> bool:
    """Return whether `covnmt export` made this directory."""
    return any((directory / name).exists() for name in (MANIFEST_FILE, *GRAPH_FILES))


def refuse_exported(target: Path) -> None:
    """Raise an error for an exported model: weights written beside it would never be read."""
    if is_exported(target):
        raise UserError(f"{target}: holds an exported model; choose another directory")


def read_manifest(directory: Path) -> Manifest:
    """Read onnx.json."""
    path = directory / MANIFEST_FILE
    tree: Any = read_json(path)
    version = tree.get("format") if isinstance(tree, dict) else None
    if not isinstance(version, int):
        raise UserError(f"{path}: not made by `covnmt export`; {REEXPORT_HINT}")
    if version > EXPORT_FORMAT:
        raise UserError(f"{path}: made by a newer covnmt (format {version}); please upgrade")
    if version < EXPORT_FORMAT:
        raise UserError(
            f"{path}: made by an older covnmt (format {version}); export the model anew"
        )
    try:
        return Manifest.model_validate(tree)
    except ValidationError:
        raise UserError(f"{path}: damaged; {REEXPORT_HINT}") from None


def verify_manifest(directory: Path) -> Manifest:
    """Read onnx.json; raise an error unless all files are there as they were written."""
    manifest = read_manifest(directory)
    for path in (directory / name for name in {*GRAPH_FILES, *manifest.files}):
        if file_digest(path) != manifest.files.get(path.name):
            raise UserError(f"{path}: damaged; {REEXPORT_HINT}")
    return manifest


@dataclass(frozen=True)
class OutputLayer:
    """The output weights, given to the graph in parts where a shortlist selects tokens."""

    W: NDArray[Any]  # [V, q], int8 or float32
    vectors: Mapping[str, FloatArray]  # [V] each: b, and scale where W is int8

    @classmethod
    def load(cls, directory: Path, manifest: Manifest) -> "OutputLayer":
        """Map it into memory; with 7 bits where this CPU's int8 products could overflow."""
        place = manifest.output
        is_int8 = "scale" in place
        dtype = np.int8 if is_int8 else np.float32
        W = _map_array(directory, dtype, place, "W", "rows", "columns")
        vectors = {
            name: _map_array(directory, np.float32, place, name, "rows")
            for name in (["b", "scale"] if is_int8 else ["b"])
        }
        if is_int8 and not has_exact_int8_products():
            return cls(reduce_to_seven_bits(W), {**vectors, "scale": 2 * vectors["scale"]})
        return cls(W, vectors)

    def inputs(self, token_ids: IntArray | None) -> dict[str, NDArray[Any]]:
        """Return the graph's inputs for these tokens, or for all of them (None)."""
        rows = slice(None) if token_ids is None else token_ids
        vectors = {f"output.{name}": vector[rows] for name, vector in self.vectors.items()}
        return {"output.W": np.asarray(self.W[rows].T, order="C"), **vectors}


def has_exact_int8_products() -> bool:
    """Return whether this processor multiplies int8 matrices exactly.

    Older x86 processors add two products in 16 bits, which overflow for large values; those with
    VNNI add in 32 bits.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return True
    try:
        flags = Path("/proc/cpuinfo").read_text("utf-8").split()
    except OSError:
        return False  # unknown: seven bits cost a little precision and no time
    return "avx512_vnni" in flags or "avx_vnni" in flags


def matrices_for_this_cpu(directory: Path, manifest: Manifest) -> dict[str, NDArray[Any]]:
    """Return replacements of int8 matrices by name; none where this CPU multiplies exactly."""
    return {} if has_exact_int8_products() else seven_bit_matrices(directory, manifest)


def seven_bit_matrices(directory: Path, manifest: Manifest) -> dict[str, NDArray[Any]]:
    """Return all int8 matrices with 7 bits, so that the sum of two products fits 16 bits."""
    replacements: dict[str, NDArray[Any]] = {}
    for name, place in manifest.matrices.items():
        matrix = _map_array(directory, np.int8, place, "offset", "rows", "columns")
        scale = _map_array(directory, np.float32, place, "scale", "columns")
        replacements[name] = reduce_to_seven_bits(matrix)
        replacements[f"{name}.scale"] = np.float32(2) * scale
    return replacements


def _map_array(
    directory: Path, dtype: type[np.generic], place: Mapping[str, int], start: str, *sizes: str
) -> NDArray[Any]:
    """Map an array of weights.bin; an impossible place means that the manifest is damaged."""
    try:
        shape = tuple(place[size] for size in sizes)
        return np.memmap(directory / WEIGHTS_FILE, dtype, "r", place[start], shape)
    except (KeyError, ValueError):
        raise UserError(f"{directory / MANIFEST_FILE}: damaged; {REEXPORT_HINT}") from None


def reduce_to_seven_bits(matrix: NDArray[np.int8]) -> NDArray[np.int8]:
    """Halve int8 values to -64 .. 64; their scale doubles."""
    return np.rint(matrix / np.float32(2)).astype(np.int8)
