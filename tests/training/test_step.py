"""One update: padding, accumulation, and CUDA graphs that change nothing."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from covnmt.base.config import PAPER_SYSTEMS, TrainConfig
from covnmt.data.batching import Batch
from covnmt.model.initialize import initialize_weights
from covnmt.model.seq2seq import Seq2Seq
from covnmt.training.distributed import SINGLE_PROCESS, World
from covnmt.training.optimizer import build_optimizer, build_optimizer_step
from covnmt.training.step import CudaGraphCache, GradientReduction, TrainStep
from tests.model.small import VOCABULARY_SIZE, small_batch, small_config

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CONFIG = TrainConfig.model_validate(
    {"optimizer": "adamw", "learning_rate": 0.01, "loss": "token_mean", "fertility_weight": 0.1}
)


def train_step(
    config: TrainConfig = CONFIG,
    system: str = "gru1",
    world: World = SINGLE_PROCESS,
    reduction: GradientReduction | None = None,
) -> TrainStep:
    """The step of a small model."""
    torch.manual_seed(1)
    model = Seq2Seq(small_config(PAPER_SYSTEMS[system]), VOCABULARY_SIZE, VOCABULARY_SIZE)
    initialize_weights(model, "modern")
    model.to(DEVICE)
    optimizer_step = build_optimizer_step(model, build_optimizer(model, config), {}, config)
    return TrainStep(model, optimizer_step, config, world, reduction)


def weights(step: TrainStep) -> list[torch.Tensor]:
    return [parameter.detach() for parameter in step.model.parameters()]


def test_loss_is_summed_until_it_is_taken() -> None:
    step = train_step()
    batch = small_batch([(3, 4), (5, 2)]).to(DEVICE)
    step([batch], batch.target_tokens, 0)
    first = step.take_nll()
    assert first == pytest.approx(batch.target_tokens * math.log(VOCABULARY_SIZE), rel=0.2)
    assert step.take_nll() == 0
    step([batch], batch.target_tokens, 1)
    assert step.take_nll() < first


@pytest.mark.parametrize("system", ["gru1", "fertility"])
def test_padding_rows_and_positions_do_not_change_the_update(system: str) -> None:
    plain, padded = train_step(system=system), train_step(system=system)
    for number, lengths in enumerate(([(3, 4), (5, 2), (1, 1)], [(6, 3)])):
        batch = small_batch(lengths, seed=number).to(DEVICE)
        target_tokens = batch.target_tokens
        plain([batch], target_tokens, number)
        padded([batch.pad_to_multiples(4, 4)], target_tokens, number)
    assert padded.take_nll() == pytest.approx(plain.take_nll(), rel=1e-5)
    for a, b in zip(weights(plain), weights(padded), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_batches_are_padded_to_multiples() -> None:
    batch = small_batch([(3, 4), (5, 2), (1, 1)]).pad_to_multiples(4, 4)
    assert batch.source.shape == (4, 8)
    assert batch.target.shape == (4, 8)
    assert batch.source_mask[3].tolist() == [True] + [False] * 7
    assert not batch.target_mask[3].any()
    assert batch.target_tokens == 10


class FakeGraphs:
    """A graph cache whose captures are simulated, and fail on demand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        self.calls: list[str] = []
        monkeypatch.setattr(torch.cuda, "graph", self._capturing)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: self)
        self.graphs = CudaGraphCache(self._function, most)
        self.capturing = False
        self.fails = True

    def pool(self) -> None: ...

    def replay(self) -> None:
        self.calls.append("replay")

    def _function(self, batch: Batch) -> None:
        if self.capturing and self.fails:
            raise RuntimeError("not while capturing")
        self.calls.append("capture" if self.capturing else "plain")

    @contextmanager
    def _capturing(self, *_: object, **__: object) -> Iterator[None]:
        self.capturing = True
        try:
            yield
        finally:
            self.capturing = False


def test_first_batch_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeGraphs(monkeypatch, most=1)
    fake.fails = False
    for lengths in ([(3, 4)], [(5, 2)], [(5, 2)], [(7, 7)]):
        fake.graphs.run(small_batch(lengths))
    assert fake.calls == ["plain", "capture", "replay", "replay", "plain"]
    assert fake.graphs.statistics()["graphs"] == 1


def test_replay_reads_the_current_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph reads the batch it was captured with, which must hold the content of the new one."""
    seen: list[Batch] = []

    class Graph:
        """Its replay shows the batch that it reads."""

        held: Batch

        def __init__(self) -> None:
            seen.clear()

        def pool(self) -> None: ...

        def replay(self) -> None:
            seen[:] = [self.held]

    def keep(batch: Batch) -> None:
        seen.append(batch)

    @contextmanager
    def capturing(graph: Graph, **_: object) -> Iterator[None]:
        yield
        (graph.held,) = seen

    monkeypatch.setattr(torch.cuda, "graph", capturing)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    graphs = CudaGraphCache(keep, max_graphs=9)
    pairs = [(4, 4)], [(5, 2)], [(5, 3)], [(5, 2)], [(5, 3)], [(5, 2), (5, 2)]
    for seed, lengths in enumerate(pairs):
        batch = small_batch(lengths, seed)
        graphs.run(batch)
        for name in ("source", "source_mask", "target", "target_mask"):
            assert torch.equal(getattr(seen[-1], name), getattr(batch, name))
    assert graphs.statistics()["graphs"] == 3


def test_accumulated_gradients_are_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    step, plain = train_step(), train_step()
    batches = [small_batch([(3, 4), (5, 2)], seed=number).to(DEVICE) for number in range(2)]
    target_tokens = sum(batch.target_tokens for batch in batches)
    plain(batches, target_tokens, 0)
    captured: list[Batch] = []
    step.uses_graphs = True
    monkeypatch.setattr(step.graphs, "run", captured.append)
    step(batches, target_tokens, 0)
    assert not captured
    for a, b in zip(weights(step), weights(plain), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    step(batches[:1], batches[0].target_tokens, 1)
    assert captured == batches[:1]


def test_update_after_validation_uses_dropout() -> None:
    """Validation turns dropout off."""
    step = train_step()
    step.model.eval()
    batch = small_batch([(3, 4)]).to(DEVICE)
    step([batch], batch.target_tokens, 0)
    assert all(module.training for module in step.model.modules())


def test_failed_capture_is_tried_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeGraphs(monkeypatch, most=9)
    for lengths in ([(3, 4)], [(5, 2)]):
        fake.graphs.run(small_batch(lengths))
    fake.fails = False
    fake.graphs.run(small_batch([(5, 2)]))
    assert fake.calls == ["plain", "plain", "capture", "replay"]
    fake.fails = True
    for _ in range(3):
        fake.graphs.run(small_batch([(3, 4)]))
    assert fake.calls[4:] == ["plain"] * 3
    assert fake.graphs.max_graphs == 0


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU: CUDA graphs")
def test_replayed_updates_equal_eager_ones() -> None:
    captured, plain = train_step(), train_step()
    plain.graphs.max_graphs = 0
    for number in range(8):
        batch = small_batch([(3, 4), (5, 2)], seed=number).to(DEVICE).pad_to_multiples(4, 4)
        for step in (captured, plain):
            step([batch], batch.target_tokens, number)
    assert captured.graphs.statistics()["graphs"] == 1
    assert captured.take_nll() == pytest.approx(plain.take_nll(), rel=1e-6)
    for a, b in zip(weights(captured), weights(plain), strict=True):
        torch.testing.assert_close(a, b)
