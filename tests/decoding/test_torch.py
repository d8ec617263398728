"""The PyTorch engine: devices and ensembles."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from covnmt.base.config import PAPER_SYSTEMS, DecodeConfig
from covnmt.base.errors import UserError
from covnmt.decoding.torch import TorchEngine, TorchScorer, pick_device
from tests.model.small import END, small_batch, small_config, small_model


@torch.no_grad()
def test_ensemble_averages_probabilities_and_attention() -> None:
    models = [small_model(small_config(PAPER_SYSTEMS["gru10"]), seed) for seed in range(3)]
    batch = small_batch([(4, 1), (2, 1)])
    scorer, state = TorchScorer.encode(models, batch.source, batch.source_mask, END)
    found = scorer.step(state, None, END + 1)
    each = []
    for model in models:
        memory = model.encode(batch.source, batch.source_mask)
        each.append(model.step(memory, model.decoder.initial_state(memory), None))
    probabilities = np.mean([one.log_probs.exp().numpy() for one in each], axis=0)
    again = np.take_along_axis(probabilities, found.token_ids, axis=1)
    np.testing.assert_allclose(np.exp(found.log_probs), again, rtol=1e-5)
    attention = np.mean([one.alpha.numpy() for one in each], axis=0)
    np.testing.assert_allclose(found.attention, attention, rtol=1e-5)
    assert (np.sort(found.token_ids, axis=1) == np.arange(END + 1)).all()


def test_search_result_keeps_no_gradient() -> None:
    model = small_model(small_config(PAPER_SYSTEMS["gru1"]))
    batch = small_batch([(3, 1)])
    [(best, *_)] = (
        TorchEngine([model], END)
        .search_stepwise(batch.source, batch.source_mask, DecodeConfig(beam=2))
        .hypotheses
    )
    assert isinstance(best.attention, np.ndarray)


@pytest.mark.parametrize("name", ["cpu", "auto", "cpu:0"])
def test_pick_device_accepts_cpu_and_auto(name: str) -> None:
    assert pick_device(name).type in ("cpu", "cuda")


@pytest.mark.parametrize("name", ["gpu", "mps"])
def test_unknown_device_is_an_error(name: str) -> None:
    with pytest.raises(UserError, match=f"'{name}': no such device; use auto, cpu or cuda"):
        pick_device(name)


def test_numbered_gpu_becomes_the_current_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are launched there, wherever their arrays are."""
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    for name in ("auto", "cpu", "cuda", "cuda:1"):
        pick_device(name)
    assert current == [torch.device("cuda:1")]
    with pytest.raises(UserError, match="cuda:2: no such GPU; there are 2"):
        pick_device("cuda:2")


FORKED = """
import multiprocessing, sys, threading, covnmt
model = covnmt.load(sys.argv[1], device="cpu", threads=2)
lines = sys.argv[2:]
before = [translation.text for translation in model.translate(lines)]
def translate(queue):
    queue.put([translation.text for translation in model.translate(lines)])
context = multiprocessing.get_context("fork")
queue = context.SimpleQueue()
child = context.Process(target=translate, args=(queue,))
child.start()
child.join(10)
child.kill()
print(child.exitcode, not queue.empty() and queue.get() == before)
"""


def test_model_that_has_translated_works_in_forked_process(
    tiny_model: Path, lines: list[str]
) -> None:
    command = [sys.executable, "-c", FORKED, str(tiny_model), *lines]
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["0", "True"], done.stderr
