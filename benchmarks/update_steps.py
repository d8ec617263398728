"""Train steps and timing for `update.py`."""

import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from train import Setup, random_model

from covnmt.base.config import PAPER_SYSTEMS, TrainConfig
from covnmt.training.optimizer import TritonOptimizerStep, build_optimizer
from covnmt.training.step import TrainStep

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {
        "optimizer": "adamw",
        "learning_rate": 1e-4,
        "epsilon": 1e-8,
        "loss": "token_mean",
    },
    "adadelta": {"optimizer": "adadelta"},
}
WARM_UP = 3 if torch.cuda.is_available() else 1  # updates: compile, capture, replay


def build(setup: Setup, kind: str) -> TrainStep:
    """Return the train step of a random model with this optimizer."""
    model = random_model(setup.model_config(PAPER_SYSTEMS["gru10"]), setup.device, setup.size.words)
    config = TrainConfig.model_validate({**OPTIMIZERS[kind], "precision": setup.precision})
    optimizer_step = TritonOptimizerStep(model, build_optimizer(model, config), {}, config)
    return TrainStep(model, optimizer_step, config)


def interleaved(versions: dict[str, Callable[[], object]], setup: Setup) -> dict[str, list[float]]:
    """Return milliseconds of a call, one for each round; in each round the versions take turns."""
    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(setup.repeats):
        for name, call in versions.items():
            times[name].append(milliseconds(call, setup.updates, setup.device))
    return times


def milliseconds(call: Callable[[], object], calls: int, device: torch.device) -> float:
    """Measure a call, as the mean of some, on the GPU's own clock."""
    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(calls):
            call()
        return 1000 * (time.perf_counter() - began) / calls
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / calls


class BrokenDeviceError(Exception):
    """A version has left the GPU unusable for this process."""


def check_device(device: torch.device, version: str) -> None:
    """Raise an error with the version's name if nothing runs on the device any more."""
    try:
        torch.zeros(1, device=device).item()
    except Exception as error:
        raise BrokenDeviceError(version) from error


def describe(error: Exception) -> str:
    return "".join(traceback.format_exception(error))[-2000:]
