"""Ranks: sharding rows and items, random numbers, and all-reduced gradients.

tests/system/test_workers.py starts the real command with several processes.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from covnmt.base.config import PAPER_SYSTEMS
from covnmt.data.batching import empty_batch
from covnmt.kernels import dispatch
from covnmt.training.distributed import SINGLE_PROCESS, World, interleave, process_group
from covnmt.training.step import GradientBucket, TrainStep
from tests.model.small import small_batch
from tests.training.test_step import CONFIG, DEVICE, train_step, weights

lengths = st.lists(st.integers(2, 160), max_size=90).map(np.array)
sizes = st.integers(1, 9)


def worlds(size: int) -> list[World]:
    return [World(rank, size) for rank in range(size)]


@given(lengths, sizes)
def test_every_row_belongs_to_one_rank(rows: np.ndarray, size: int) -> None:
    shares = [world.pairs_of_rank(rows).tolist() for world in worlds(size)]
    assert sorted(place for share in shares for place in share) == list(range(len(rows)))
    assert all(share == sorted(share) for share in shares)


@given(lengths, sizes)
def test_ranks_get_similar_numbers_of_rows_and_tokens(rows: np.ndarray, size: int) -> None:
    shares = [world.pairs_of_rank(rows) for world in worlds(size)]
    sizes = [len(share) for share in shares]
    tokens = [int(rows[share].sum()) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert max(tokens) - min(tokens) <= max(rows, default=0)


def test_rows_are_dealt_by_length() -> None:
    """The longest go to ranks 0, 1, 2, the next ones to 2, 1, 0, and so on."""
    rows = np.array([5, 9, 7, 3, 4, 8, 6, 2])
    assert [world.pairs_of_rank(rows).tolist() for world in worlds(3)] == [
        [1, 3, 4],
        [0, 5, 7],
        [2, 6],
    ]


@given(st.lists(st.integers(), max_size=20), sizes)
def test_interleave_is_the_inverse_of_shard(items: list[int], size: int) -> None:
    assert interleave([world.shard(items) for world in worlds(size)]) == items


def test_single_process_keeps_everything() -> None:
    assert SINGLE_PROCESS.pairs_of_rank(np.array([3, 9, 3])).tolist() == [0, 1, 2]
    assert SINGLE_PROCESS.all_gather("x") == ["x"]
    assert SINGLE_PROCESS.all_reduce_max(1.5, 2) == [1.5, 2]
    with process_group(DEVICE) as (world, device):
        assert (world, device) == (SINGLE_PROCESS, DEVICE)


def test_random_numbers_are_a_function_of_rank_and_update() -> None:
    def drawn(rank: int, update: int) -> float:
        World(rank, 3).reseed(7, update)
        return float(torch.rand(()))

    torch.manual_seed(5)
    main_process = float(torch.rand(()))
    torch.manual_seed(5)
    assert drawn(0, 1) == main_process
    assert drawn(1, 4) == drawn(1, 4)
    assert len({drawn(rank, update) for rank in (1, 2) for update in (1, 2)}) == 4


@pytest.mark.parametrize("system", PAPER_SYSTEMS)
def test_rank_without_rows_has_zero_gradients(system: str) -> None:
    """They must exist, or the other ranks would wait for them."""
    step = train_step(system=system)
    step.backward([empty_batch().to(DEVICE)])
    assert step.take_nll() == 0
    for name, parameter in step.model.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


@pytest.fixture
def group_of_one(tmp_path: Path) -> Iterator[None]:
    """A process group as torchrun makes it: gloo on the CPU, NCCL if there is a GPU."""
    address = f"file://{tmp_path / 'store'}"
    backend = "cpu:gloo,cuda:nccl" if DEVICE.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=address, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group_of_one")
def test_group_of_one_process_updates_like_a_single_process() -> None:
    """On a GPU over NCCL, with captured backward passes; elsewhere by DistributedDataParallel."""
    exact = CONFIG.model_copy(update={"precision": "fp32"})
    single, connected = train_step(exact), train_step(exact, world=World(has_process_group=True))
    for number in range(4):
        batch = small_batch([(3, 4), (5, 2)], seed=number).to(DEVICE)
        for step in (single, connected):
            step([batch], batch.target_tokens, number)
    assert_same_weights(single, connected)
    assert connected.take_nll() == pytest.approx(single.take_nll(), rel=1e-6)
    if dispatch.uses_triton(DEVICE):
        assert connected.bucket is not None
        assert connected.graphs.statistics()["graphs"] == 1
    else:
        assert connected.data_parallel is not None


@pytest.mark.usefixtures("group_of_one")
def test_bucket_step_updates_like_plain_step() -> None:
    plain, bucket = (
        train_step(),
        train_step(world=World(has_process_group=True), reduction="bucket"),
    )
    for number in range(3):
        batch = small_batch([(3, 4), (5, 2)], seed=number).to(DEVICE)
        for step in (plain, bucket):
            step([batch], batch.target_tokens, number)
    assert_same_weights(plain, bucket)
    assert bucket.take_nll() == pytest.approx(plain.take_nll(), rel=1e-6)


@pytest.mark.usefixtures("group_of_one")
def test_bf16_bucket_gives_float32_gradients_within_bf16_rounding() -> None:
    step = train_step()
    bucket = GradientBucket(step.model.parameters(), torch.bfloat16)
    batch = small_batch([(3, 4), (5, 2)]).to(DEVICE)
    step.backward([batch])
    exact = [p.grad.clone() for p in bucket.parameters if p.grad is not None]
    bucket.fill()
    bucket.all_reduce()
    for parameter, gradient in zip(bucket.parameters, exact, strict=True):
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
        torch.testing.assert_close(parameter.grad, gradient, rtol=2**-8, atol=1e-30)


@pytest.mark.usefixtures("group_of_one")
def test_accumulated_gradients_are_all_reduced_once() -> None:
    plain = train_step()
    parallel = train_step(world=World(has_process_group=True), reduction="overlapped")
    assert parallel.data_parallel is not None
    reduced = []

    def hook(
        state: None,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        reduced.append(bucket.index())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(
            devices=["cuda:0"] if DEVICE.type == "cuda" else None
        )
        future.set_result(bucket.buffer())
        return future

    parallel.data_parallel.register_comm_hook(None, hook)
    batches = [small_batch([(3, 4), (5, 2)], seed=number).to(DEVICE) for number in range(3)]
    target_tokens = sum(batch.target_tokens for batch in batches)
    for step in (plain, parallel):
        step(batches, target_tokens, 0)
    assert reduced == [0]
    assert_same_weights(plain, parallel)


def assert_same_weights(one: TrainStep, other: TrainStep) -> None:
    """Bit-identical; on a GPU the order of sums may differ."""
    tolerance = 1e-5 if DEVICE.type == "cuda" else 0
    for a, b in zip(weights(one), weights(other), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)
