"""Several workers: whose rows are whose, what all of them know, and gradients added up.

tests/system/test_workers.py starts the real command with several workers.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.parallel import DistributedDataParallel

from covnmt.base.config import PAPER_SYSTEMS
from covnmt.data.batching import empty_batch
from covnmt.kernels import dispatch
from covnmt.training.distributed import SINGLE_PROCESS, World, interleave, process_group
from covnmt.training.step import GradientBucket, TrainStep
from tests.model.small import small_batch
from tests.training.test_step import CONFIG, DEVICE, updater, weights

lengths = st.lists(st.integers(2, 160), max_size=90).map(np.array)
sizes = st.integers(1, 9)


def workers(size: int) -> list[World]:
    return [World(rank, size) for rank in range(size)]


@given(lengths, sizes)
def test_every_row_has_one_worker(rows: np.ndarray, size: int) -> None:
    shares = [world.rows_of_rank(rows).tolist() for world in workers(size)]
    assert sorted(place for share in shares for place in share) == list(range(len(rows)))
    assert all(share == sorted(share) for share in shares)


@given(lengths, sizes)
def test_workers_finish_together(rows: np.ndarray, size: int) -> None:
    shares = [world.rows_of_rank(rows) for world in workers(size)]
    numbers = [len(share) for share in shares]
    words = [int(rows[share].sum()) for share in shares]
    assert max(numbers) - min(numbers) <= 1
    assert max(words) - min(words) <= max(rows, default=0)


def test_shares_of_a_batch() -> None:
    """The longest go to 0, 1, 2, the next ones to 2, 1, 0, and so on."""
    rows = np.array([5, 9, 7, 3, 4, 8, 6, 2])
    assert [world.rows_of_rank(rows).tolist() for world in workers(3)] == [
        [1, 3, 4],
        [0, 5, 7],
        [2, 6],
    ]


@given(st.lists(st.integers(), max_size=20), sizes)
def test_items_are_dealt_and_put_together(items: list[int], size: int) -> None:
    assert interleave([world.shard(items) for world in workers(size)]) == items


def test_alone_nothing_changes() -> None:
    assert SINGLE_PROCESS.rows_of_rank(np.array([3, 9, 3])).tolist() == [0, 1, 2]
    assert SINGLE_PROCESS.all_gather("x") == ["x"]
    assert SINGLE_PROCESS.all_reduce_max(1.5, 2) == [1.5, 2]
    with process_group(DEVICE) as (world, device):
        assert (world, device) == (SINGLE_PROCESS, DEVICE)


def test_random_numbers_are_a_function_of_worker_and_update() -> None:
    def drawn(rank: int, update: int) -> float:
        World(rank, 3).reseed(7, update)
        return float(torch.rand(()))

    torch.manual_seed(5)
    undisturbed = float(torch.rand(()))
    torch.manual_seed(5)
    assert drawn(0, 1) == undisturbed
    assert drawn(1, 4) == drawn(1, 4)
    assert len({drawn(rank, update) for rank in (1, 2) for update in (1, 2)}) == 4


@pytest.mark.parametrize("system", PAPER_SYSTEMS)
def test_a_worker_without_rows_adds_nothing(system: str) -> None:
    """Its gradient is there, or the others would wait for it, and it is zero."""
    one = updater(system=system)
    one._gradients([empty_batch().to(DEVICE)])
    assert one.take_loss() == 0
    for name, parameter in one.model.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


@pytest.fixture
def group_of_one(tmp_path: Path) -> Iterator[None]:
    """As torchrun's workers have it: gloo on the host, NCCL where there is a GPU."""
    address = f"file://{tmp_path / 'store'}"
    backend = "cpu:gloo,cuda:nccl" if DEVICE.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=address, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group_of_one")
def test_the_only_worker_of_a_group_updates_as_one_alone() -> None:
    """On a GPU over NCCL, with captured backward passes; elsewhere by DistributedDataParallel."""
    exact = CONFIG.model_copy(update={"precision": "fp32"})
    alone, joined = updater(exact), updater(exact, world=World(connected=True))
    for number in range(4):
        batch = small_batch([(3, 4), (5, 2)], seed=number).to(DEVICE)
        for one in (alone, joined):
            one([batch], batch.target_tokens, number)
    assert_same(alone, joined)
    assert joined.take_loss() == pytest.approx(alone.take_loss(), rel=1e-6)
    if dispatch.uses_triton(DEVICE):
        assert joined.row is not None
        assert joined.graphs.warm_up()["graphs"] == 1
    else:
        assert isinstance(joined.objective, DistributedDataParallel)


@pytest.mark.usefixtures("group_of_one")
def test_gradients_travel_in_one_row() -> None:
    """What a captured backward pass leaves is what the step takes."""
    plain, by_row = updater(), updater()
    by_row.row = GradientBucket(by_row.model.parameters(), torch.float32)
    for number in range(3):
        batch = small_batch([(3, 4), (5, 2)], seed=number).to(DEVICE)
        for one in (plain, by_row):
            one([batch], batch.target_tokens, number)
    assert_same(plain, by_row)
    assert by_row.take_loss() == pytest.approx(plain.take_loss(), rel=1e-6)


@pytest.mark.usefixtures("group_of_one")
def test_gradients_in_bf16_are_close() -> None:
    one = updater()
    row = GradientBucket(one.model.parameters(), torch.bfloat16)
    batch = small_batch([(3, 4), (5, 2)]).to(DEVICE)
    one._gradients([batch])
    exact = [parameter.grad.clone() for parameter in row.parameters if parameter.grad is not None]
    row.fill()
    row.add_up()
    for parameter, gradient in zip(row.parameters, exact, strict=True):
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
        torch.testing.assert_close(parameter.grad, gradient, rtol=2**-8, atol=1e-30)


@pytest.mark.usefixtures("group_of_one")
def test_accumulated_gradients_travel_once() -> None:
    plain, wrapped = updater(), updater()
    module = wrapped.objective = DistributedDataParallel(wrapped.objective)
    sent = []

    def pass_on(
        state: None,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        sent.append(bucket.index())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(
            devices=["cuda:0"] if DEVICE.type == "cuda" else None
        )
        future.set_result(bucket.buffer())
        return future

    module.register_comm_hook(None, pass_on)
    batches = [small_batch([(3, 4), (5, 2)], seed=number).to(DEVICE) for number in range(3)]
    words = sum(batch.target_tokens for batch in batches)
    for one in (plain, wrapped):
        one(batches, words, 0)
    assert sent == [0]
    assert_same(plain, wrapped)


def assert_same(one: TrainStep, two: TrainStep) -> None:
    """To the bit; on a GPU sums may be made in another order."""
    allowed = 1e-5 if DEVICE.type == "cuda" else 0
    for a, b in zip(weights(one), weights(two), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=allowed)
