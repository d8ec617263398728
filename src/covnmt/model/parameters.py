"""Parameter counts by block, from the sizes of weights; without PyTorch."""

import json
import math
from collections.abc import Iterable
from pathlib import Path

from covnmt.base.errors import UserError
from covnmt.base.files import PARSE_ERRORS

# The blocks of docs/paper-to-code.md, section 1.6, in its order, and how their parameters begin.
BLOCKS = {
    "source embedding": ("source.",),
    "encoder forward": ("encoder.ahead.",),
    "encoder backward": ("encoder.back.",),
    "target embedding": ("target.",),
    "decoder word inputs": ("decoder.cell.W", "decoder.cell.b"),
    "decoder recurrent": ("decoder.cell.gates", "decoder.cell.candidate"),
    "decoder context inputs": ("decoder.Cx",),
    "decoder start": ("decoder.W_init.",),
    "attention": ("decoder.attention.W_a", "decoder.attention.U_a", "decoder.attention.v"),
    "readout": ("readout.C_o", "readout.U_o", "readout.V_o"),
    "output": ("readout.W_1", "readout.W_2", "readout.b"),
    "coverage": ("decoder.attention.V_a", "decoder.coverage."),
}
LONGEST_HEADER = 100_000_000  # bytes; safetensors has the same limit


def count_by_block(sizes: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Sum the sizes of named weights by block."""
    counts = dict.fromkeys(BLOCKS, 0)
    for name, size in sizes:
        counts[_block(name)] += size
    return counts


def _block(name: str) -> str:
    for block, prefixes in BLOCKS.items():
        if name.startswith(prefixes):
            return block
    raise ValueError(f"unknown weight {name}")


def count_weights(path: Path) -> dict[str, int]:
    """Count the weights in a safetensors file by block; only its header is read."""
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > LONGEST_HEADER:
                raise ValueError("its header is too long")
            header = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        return count_by_block((name, math.prod(entry["shape"])) for name, entry in header.items())
    except (OSError, AttributeError, KeyError, TypeError, *PARSE_ERRORS) as error:
        raise UserError(
            f"{path}: damaged or not weights of covnmt ({error}); restore it from a copy"
        ) from None
