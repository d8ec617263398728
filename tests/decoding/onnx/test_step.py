"""Top-k in the graph of a step: what a full sort chooses, also of equal scores."""

from functools import lru_cache

import numpy as np
import onnxruntime as ort
import pytest

from covnmt.base.arrays import AnyArray, IntArray
from covnmt.decoding.onnx.builder import FLOAT, INT64, GraphBuilder, WeightStore
from covnmt.decoding.onnx.step import BLOCK, add_top_k, pad_output_layer


@lru_cache
def opened(words: int) -> ort.InferenceSession:
    graph = GraphBuilder("best", "fp32", WeightStore("weights.bin"))
    scores = graph.input("scores", FLOAT, ["G", "c", "K", words])
    best, numbers = add_top_k(graph, scores, graph.input("k", INT64, [1]), words)
    graph.output("best", best, ["G", "c", "K", "k"])
    graph.output("numbers", numbers, ["G", "c", "K", "k"], INT64)
    return ort.InferenceSession(graph.build().SerializeToString())


def chosen(scores: AnyArray, k: int) -> tuple[AnyArray, IntArray]:
    """What the graph says of rows [R, V] in full blocks."""
    inputs = {"scores": scores[:, None, None], "k": np.array([k])}
    best, numbers = opened(scores.shape[1]).run(None, inputs)
    return best[:, 0, 0], numbers[:, 0, 0]


@pytest.mark.parametrize(
    ("blocks", "k"), [(1, 1), (1, BLOCK), (3, 2), (3, 5), (3, 3 * BLOCK), (40, 13)]
)
@pytest.mark.parametrize("different", [1, 3, 100_000])  # few: many words are equal
def test_top_k_in_the_graph_equals_a_stable_sort(blocks: int, k: int, different: int) -> None:
    draw = np.random.default_rng(blocks + k)
    scores = draw.integers(0, different, (50, blocks * BLOCK)).astype(np.float32)
    scores[draw.random(scores.shape) < 0.2] = -np.inf
    best, numbers = chosen(scores, k)
    expected = (-scores).argsort(axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(numbers, expected)
    np.testing.assert_array_equal(best, np.take_along_axis(scores, expected, axis=1))


@pytest.mark.parametrize("words", [1, BLOCK, BLOCK + 1])
def test_padding_tokens_have_no_probability(words: int) -> None:
    W, b = pad_output_layer(np.ones((words, 2), np.float32), np.zeros(words, np.float32))
    assert len(W) == len(b) == -(-words // BLOCK) * BLOCK
    logits = W @ np.ones(2, np.float32) + b
    assert (logits[:words] == 2).all()
    assert (logits[words:] == -np.inf).all()
