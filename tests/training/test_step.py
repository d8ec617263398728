"""Updates one by one and replayed: the same weights either way."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from covnmt.base.config import PAPER_SYSTEMS, TrainConfig
from covnmt.data.batching import Batch
from covnmt.kernels import dispatch
from covnmt.model.initialize import initialize_weights
from covnmt.model.seq2seq import Seq2Seq
from covnmt.training.distributed import SINGLE_PROCESS, World
from covnmt.training.optimizer import build_optimizer, build_optimizer_step
from covnmt.training.step import CudaGraphCache, TrainStep
from tests.model.small import WORDS, small_batch, small_config

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CONFIG = TrainConfig.model_validate(
    {"optimizer": "adamw", "learning_rate": 0.01, "loss": "token_mean", "fertility_weight": 0.1}
)


def updater(
    config: TrainConfig = CONFIG, system: str = "gru1", world: World = SINGLE_PROCESS
) -> TrainStep:
    torch.manual_seed(1)
    model = Seq2Seq(small_config(PAPER_SYSTEMS[system]), WORDS, WORDS)
    initialize_weights(model, "modern")
    model.to(DEVICE)
    step = build_optimizer_step(model, build_optimizer(model, config), {}, config)
    return TrainStep(model, step, config, world)


def weights(one: TrainStep) -> list[torch.Tensor]:
    return [parameter.detach() for parameter in one.model.parameters()]


def test_the_loss_is_summed_until_it_is_taken() -> None:
    one = updater()
    batch = small_batch([(3, 4), (5, 2)]).to(DEVICE)
    one([batch], batch.target_tokens, 0)
    first = one.take_loss()
    assert first == pytest.approx(batch.target_tokens * math.log(WORDS), rel=0.2)
    assert one.take_loss() == 0
    one([batch], batch.target_tokens, 1)
    assert one.take_loss() < first


@pytest.mark.parametrize("system", ["gru1", "fertility"])
def test_rounding_up_changes_nothing(system: str) -> None:
    """Rows and positions that only fill up a shape leave loss and weights as they were."""
    plain, padded = updater(system=system), updater(system=system)
    for number, lengths in enumerate(([(3, 4), (5, 2), (1, 1)], [(6, 3)])):
        batch = small_batch(lengths, seed=number).to(DEVICE)
        words = batch.target_tokens
        plain([batch], words, number)
        padded([batch.pad_to_multiples(4, 4)], words, number)
    assert padded.take_loss() == pytest.approx(plain.take_loss(), rel=1e-5)
    for a, b in zip(weights(plain), weights(padded), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_rounded_shapes() -> None:
    batch = small_batch([(3, 4), (5, 2), (1, 1)]).pad_to_multiples(4, 4)
    assert batch.source.shape == (4, 8)
    assert batch.target.shape == (4, 8)
    assert batch.source_mask[3].tolist() == [True] + [False] * 7
    assert not batch.target_mask[3].any()
    assert batch.target_tokens == 10


class StandIn:
    """Graphs whose captures are played: they succeed for shapes that were run as they are."""

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


def test_graphs_capture_all_but_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    played = StandIn(monkeypatch, most=1)
    played.fails = False
    for lengths in ([(3, 4)], [(5, 2)], [(5, 2)], [(7, 7)]):
        played.graphs.run(small_batch(lengths))
    assert played.calls == ["plain", "capture", "replay", "replay", "plain"]
    assert played.graphs.warm_up()["graphs"] == 1


def test_every_shape_is_replayed_on_the_batch_that_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph reads the batch it was captured with, which must be of its shape and hold the new."""
    seen: list[Batch] = []

    class Graph:
        """Replays what was done since it was made."""

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
    graphs = CudaGraphCache(keep, most=9)
    pairs = [(4, 4)], [(5, 2)], [(5, 3)], [(5, 2)], [(5, 3)], [(5, 2), (5, 2)]
    for seed, lengths in enumerate(pairs):
        batch = small_batch(lengths, seed)
        graphs.run(batch)
        for name in ("source", "source_mask", "target", "target_mask"):
            assert torch.equal(getattr(seen[-1], name), getattr(batch, name))
    assert graphs.warm_up()["graphs"] == 3


def test_accumulated_gradients_are_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph holds a whole update of one batch."""
    one, plain = updater(), updater()
    batches = [small_batch([(3, 4), (5, 2)], seed=number).to(DEVICE) for number in range(2)]
    words = sum(batch.target_tokens for batch in batches)
    plain(batches, words, 0)
    captured: list[Batch] = []
    monkeypatch.setattr(dispatch, "uses_triton", lambda _: True)
    monkeypatch.setattr(one.graphs, "run", captured.append)
    one(batches, words, 0)
    assert not captured
    for a, b in zip(weights(one), weights(plain), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    one(batches[:1], batches[0].target_tokens, 1)
    assert captured == batches[:1]


def test_an_update_after_a_validation_trains() -> None:
    """Validation turns dropout off."""
    one = updater()
    one.model.eval()
    batch = small_batch([(3, 4)]).to(DEVICE)
    one([batch], batch.target_tokens, 0)
    assert all(module.training for module in one.model.modules())


def test_a_shape_that_cannot_be_captured_is_tried_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = StandIn(monkeypatch, most=9)
    for lengths in ([(3, 4)], [(5, 2)]):
        played.graphs.run(small_batch(lengths))
    played.fails = False
    played.graphs.run(small_batch([(5, 2)]))
    assert played.calls == ["plain", "plain", "capture", "replay"]
    played.fails = True
    for _ in range(3):
        played.graphs.run(small_batch([(3, 4)]))
    assert played.calls[4:] == ["plain"] * 3
    assert played.graphs.most == 0


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU: CUDA graphs")
def test_replayed_updates_equal_plain_ones() -> None:
    captured, plain = updater(), updater()
    plain.graphs.most = 0
    for number in range(8):
        batch = small_batch([(3, 4), (5, 2)], seed=number).to(DEVICE).pad_to_multiples(4, 4)
        for one in (captured, plain):
            one([batch], batch.target_tokens, number)
    assert captured.graphs.warm_up()["graphs"] == 1
    assert captured.take_loss() == pytest.approx(plain.take_loss(), rel=1e-6)
    for a, b in zip(weights(captured), weights(plain), strict=True):
        torch.testing.assert_close(a, b)
