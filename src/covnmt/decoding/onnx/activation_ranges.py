"""How far the layers before the words reach, for their rounding to bytes.

All other layers that are rounded have a bound: states and annotations lie between -1 and 1,
contexts are means of them, and the vectors of words are in a table. The bound that follows from the
weights for maxout is twenty times what it ever is. So the model decodes random words, and what
exceeds by more than a quarter what they show is cut off: in real text something in less than one
vector of a hundred. Wider bounds round all the rest more coarsely, which costs more.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from covnmt.model.seq2seq import Seq2Seq

SENTENCES, WORDS = 48, 24
ROOM = 1.25  # for what random words did not show


class ActivationRanges(NamedTuple):
    """Bounds of the absolute values."""

    maxout: float
    features: float  # behind W_1, where there is one


@torch.inference_mode()
def measure_activation_ranges(model: Seq2Seq) -> ActivationRanges:
    """What random words show, and some room."""
    draw = np.random.default_rng(0)
    words = [
        draw.integers(len(side.E), size=(SENTENCES, WORDS)) for side in (model.source, model.target)
    ]
    source, target = map(torch.from_numpy, words)
    memory = model.encode(source, torch.ones_like(source, dtype=torch.bool))
    y = nn.functional.pad(model.target(target[:, :-1]), (0, 0, 1, 0))
    steps = model.decoder.unroll(memory, y)
    layers = (model.readout.maxout, model.readout)
    return ActivationRanges(*(_bound(layer(steps.t, steps.s, y)) for layer in layers))


def _bound(layer: Tensor) -> float:
    """Rounded, so that a model always gets the same, whatever computer adds up its numbers."""
    return float(f"{ROOM * float(layer.abs().max()):.1e}")
