"""What `covnmt export` leaves in a directory, and how its matrices are read.

Letters: V words, q the layer before them.
"""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covnmt.base.arrays import FloatArray, IntArray
from covnmt.base.errors import UserError
from covnmt.base.files import file_digest, read_json

MANIFEST_FILE = "onnx.json"
ENCODER_FILE, STEP_FILE, WEIGHTS_FILE = "encoder.onnx", "step.onnx", "weights.bin"
SHORTLIST_FILE = "shortlist.json"  # only where the model has one
EXPORT_FORMAT = 2
MANIFEST_TABLES = ("parameters", "files", "matrices", "output")
REEXPORT_HINT = "copy it again, or export the model anew"


def is_exported(directory: Path) -> bool:
    """Whether this is a directory that `covnmt export` made."""
    return any(
        (directory / name).exists()
        for name in (MANIFEST_FILE, ENCODER_FILE, STEP_FILE, WEIGHTS_FILE)
    )


def refuse_exported(target: Path) -> None:
    """Weights that are put beside an exported model would never be read."""
    if is_exported(target):
        raise UserError(f"{target}: holds an exported model; choose another directory")


def read_manifest(directory: Path) -> dict[str, Any]:
    """What the export says of itself: precision, parameters by block, digests of its files."""
    path = directory / MANIFEST_FILE
    about: Any = read_json(path)
    found = about.get("format") if isinstance(about, dict) else None
    if not isinstance(found, int):
        raise UserError(f"{path}: not made by `covnmt export`; {REEXPORT_HINT}")
    if found > EXPORT_FORMAT:
        raise UserError(f"{path}: made by a newer covnmt (format {found}); please upgrade")
    if found < EXPORT_FORMAT:
        raise UserError(f"{path}: made by an older covnmt (format {found}); export the model anew")
    if not all(isinstance(about.get(key), dict) for key in MANIFEST_TABLES) or not _are_counts(
        about
    ):
        raise UserError(f"{path}: damaged; {REEXPORT_HINT}")
    return dict(about)


def _are_counts(about: dict[str, Any]) -> bool:
    """Whether all numbers are: of parameters, and of rows, columns and bytes before a matrix."""
    places = [about["parameters"], about["output"], *about["matrices"].values()]
    return all(
        isinstance(place, dict) and all(type(n) is int and n >= 0 for n in place.values())
        for place in places
    )


def check_digests(directory: Path) -> None:
    """All files are there, and are what was written."""
    files = read_manifest(directory)["files"]
    for path in (directory / name for name in {ENCODER_FILE, STEP_FILE, WEIGHTS_FILE, *files}):
        if file_digest(path) != files.get(path.name):
            raise UserError(f"{path}: damaged; {REEXPORT_HINT}")


@dataclass(frozen=True)
class OutputLayer:
    """The weights between features and words, where a model does not always use all."""

    W: NDArray[Any]  # [V, q], bytes or numbers
    vectors: Mapping[str, FloatArray]  # [V] each: b, and scale where W is in bytes

    @classmethod
    def load(cls, directory: Path) -> "OutputLayer":
        """Look at it where it lies; with a bit less where products of bytes could overflow."""
        place = read_manifest(directory)["output"]
        in_bytes = "scale" in place
        kind = np.int8 if in_bytes else np.float32
        W = _look(directory, kind, place, "W", "rows", "columns")
        vectors = {
            name: _look(directory, np.float32, place, name, "rows")
            for name in (["b", "scale"] if in_bytes else ["b"])
        }
        if in_bytes and not has_exact_int8_products():
            return cls(reduce_to_seven_bits(W), {**vectors, "scale": 2 * vectors["scale"]})
        return cls(W, vectors)

    def part(self, words: IntArray | None) -> dict[str, NDArray[Any]]:
        """As the graph wants it, of these words; None: of all."""
        chosen = slice(None) if words is None else words
        vectors = {f"output.{name}": each[chosen] for name, each in self.vectors.items()}
        return {"output.W": np.asarray(self.W[chosen].T, order="C"), **vectors}


def has_exact_int8_products() -> bool:
    """Whether products of bytes are exact on this processor.

    Older x86 processors add two products in 16 bits, which overflow where the bytes are large;
    those with VNNI add in 32 bits.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return True
    try:
        flags = Path("/proc/cpuinfo").read_text("utf-8").split()
    except OSError:
        return False  # it does not say; that costs a little precision and no time
    return "avx512_vnni" in flags or "avx_vnni" in flags


def matrices_for_this_cpu(directory: Path) -> dict[str, NDArray[Any]]:
    """What stands in for matrices of bytes on this processor, by name; nothing if it needs none."""
    return {} if has_exact_int8_products() else seven_bit_matrices(directory)


def seven_bit_matrices(directory: Path) -> dict[str, NDArray[Any]]:
    """The matrices of bytes with one bit less, so that the sum of two products fits 16 bits."""
    made: dict[str, NDArray[Any]] = {}
    for name, place in read_manifest(directory)["matrices"].items():
        matrix = _look(directory, np.int8, place, "offset", "rows", "columns")
        scale = _look(directory, np.float32, place, "scale", "columns")
        made[name], made[f"{name}.scale"] = reduce_to_seven_bits(matrix), np.float32(2) * scale
    return made


def _look(
    directory: Path, kind: type[np.generic], place: Mapping[str, int], start: str, *sizes: str
) -> NDArray[Any]:
    """An array where it lies; one that cannot lie there is not described as it was written."""
    try:
        shape = tuple(place[size] for size in sizes)
        return np.memmap(directory / WEIGHTS_FILE, kind, "r", place[start], shape)
    except (KeyError, ValueError):
        raise UserError(f"{directory / MANIFEST_FILE}: damaged; {REEXPORT_HINT}") from None


def reduce_to_seven_bits(matrix: NDArray[np.int8]) -> NDArray[np.int8]:
    """Bytes from -64 to 64; their scale doubles."""
    return np.rint(matrix / np.float32(2)).astype(np.int8)
