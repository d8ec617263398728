"""Activation ranges measured on random tokens hold on other tokens and are not much too wide."""

import numpy as np
import pytest
import torch

from covnmt.base.config import PAPER_SYSTEMS
from covnmt.decoding.onnx.export import RANGE_MARGIN, measure_activation_ranges
from tests.model.small import END, small_config, small_model


@pytest.mark.parametrize("changes", [{"rank": 2}, {"output": "full"}])
def test_activation_ranges_hold_on_other_tokens(changes: dict[str, object]) -> None:
    model = small_model(small_config(PAPER_SYSTEMS["gru1"], **changes)).float()
    seen: dict[str, list[float]] = {"maxout": [], "features": []}
    draw = np.random.default_rng(1)
    with torch.inference_mode():
        for _ in range(30):
            source = torch.from_numpy(draw.integers(1, END, (20, 9)))
            memory = model.encode(source, torch.ones_like(source, dtype=torch.bool))
            state = model.decoder.initial_state(memory)
            words = torch.from_numpy(draw.integers(1, END, 20))
            features, _, state = model.step_features(memory, state, words)
            p = model.readout.maxout(state.t, state.s, model.target(words))
            seen["maxout"].append(float(p.abs().max()))
            seen["features"].append(float(features.abs().max()))
    for bound, found in zip(measure_activation_ranges(model), seen.values(), strict=True):
        assert max(found) < bound < 2 * RANGE_MARGIN * max(found)


def test_activation_ranges_are_deterministic() -> None:
    model = small_model(small_config(PAPER_SYSTEMS["fertility"])).float()
    assert measure_activation_ranges(model) == measure_activation_ranges(model)
