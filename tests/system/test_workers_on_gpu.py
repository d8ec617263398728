"""Ranks on a GPU: captured updates, all-reduce outside the graphs, and a killed worker.

One GPU is enough. NCCL allows one rank on it; two ranks share it over gloo, which tests ranks with
batches of different shapes and separate graphs.
"""

import os
import signal
from pathlib import Path

import pytest
import torch
from torch import Tensor

from covnmt.base.config import Config
from covnmt.data.corpus import Corpus
from covnmt.model.checkpoint import LAST_CHECKPOINT, load_tensors, named_weights, new_model
from covnmt.training.loop import train
from tests.system.workers import children_of, recipe, torchrun, training, until
from tests.training.runs import changed, log_of

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: skipped")

UPDATES = 60
# As a share of the distance that the weights moved; one update less is more than that.
TOLERANCE = 0.01

SHARING = f"""
import sys
from pathlib import Path
import torch
import torch.distributed as dist
from covnmt.training.distributed import World
from covnmt.base.recipe import load_recipe
from covnmt.training.loop import train
dist.init_process_group("gloo")
world = World(dist.get_rank(), dist.get_world_size(), has_process_group=True)
train(load_recipe(Path(sys.argv[1])), Path(sys.argv[2]), torch.device("{DEVICE}", 0), world)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def config(tiny_config: Config) -> Config:
    return changed(
        tiny_config,
        data__batch_tokens=100,
        train__updates=UPDATES,
        train__precision="fp32",
        train__checkpoint_every=10,
        train__validate_every=30,
        train__learning_rate=0.005,
        train__keep=0,
    )


@pytest.fixture(scope="module")
def alone(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a single process without torchrun."""
    directory = tmp_path_factory.mktemp("alone")
    train(config, directory, torch.device(DEVICE))
    return directory


def weights(run: Path) -> Tensor:
    tensors, _ = load_tensors(run / LAST_CHECKPOINT)
    names = sorted(name for name in tensors if name.startswith("model."))
    return torch.cat([tensors[name].flatten() for name in names])


def assert_went_together(config: Config, first: Path, second: Path) -> None:
    rows = Corpus.open(config.data.directory).report.vocabulary_sizes
    model = named_weights(new_model(config, rows["source"], rows["target"]))
    start = torch.cat([model[name].flatten() for name in sorted(model)])
    one, two = weights(first), weights(second)
    assert torch.dist(one, two) <= TOLERANCE * torch.dist(one, start)


def captured(run: Path) -> int:
    """Return the number of graphs that the main process had captured."""
    return max((entry.get("graphs", 0) for entry in log_of(run)), default=0)


def test_one_rank_over_nccl_trains_like_a_single_process(
    config: Config, alone: Path, tmp_path: Path
) -> None:
    assert torchrun(1, *training(config, tmp_path / "run", DEVICE)).wait(300) == 0
    assert_went_together(config, alone, tmp_path / "run")
    assert captured(tmp_path / "run") > 1


def test_two_ranks_sharing_a_gpu_train_like_one(
    config: Config, alone: Path, tmp_path: Path
) -> None:
    (tmp_path / "sharing.py").write_text(SHARING)
    run = tmp_path / "run"
    assert torchrun(2, tmp_path / "sharing.py", recipe(config, run), run).wait(300) == 0
    assert_went_together(config, alone, run)
    assert captured(run) > 1


def test_killed_worker_on_gpu_is_restarted(config: Config, alone: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = torchrun(1, "--max-restarts", 1, *training(config, run, DEVICE))
    until(lambda: (run / LAST_CHECKPOINT).exists(), process)
    os.kill(children_of(process)[0], signal.SIGKILL)
    assert process.wait(300) == 0
    assert_went_together(config, alone, run)
