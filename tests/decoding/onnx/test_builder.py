"""Building graphs: int8 rounding, and the order of units that maxout compares."""

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from covnmt.decoding.onnx.builder import FLOAT, GraphBuilder, WeightStore, quantize
from covnmt.decoding.onnx.encoder import deinterleave_rows
from covnmt.decoding.onnx.format import Precision


@given(arrays(np.float32, (4, 5), elements=st.floats(-1e3, 1e3, width=32)))
def test_int8_rounding_is_within_half_a_step(W: NDArray[np.float32]) -> None:
    whole, scale = quantize(W)
    assert whole.dtype == np.int8
    assert np.abs(whole.astype(int)).max() <= 127
    step = scale[:, None].astype(np.float64)
    assert (np.abs(whole * step - W) <= step * 0.501 + 1e-30).all()


def test_quantized_rows_of_zeros_stay_zero() -> None:
    whole, scale = quantize(np.zeros((2, 3), np.float32))
    assert not (whole * scale[:, None]).any()


@pytest.mark.parametrize("n", [2, 6])
def test_deinterleaved_rows_put_maxout_pairs_into_two_halves(n: int) -> None:
    o = np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)
    one, other = np.split(deinterleave_rows(o), 2)
    np.testing.assert_array_equal(np.maximum(one, other), o.reshape(n // 2, 2, 3).max(axis=1))


PRECISIONS: tuple[Precision, ...] = ("fp32", "int8")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_built_graph_is_valid(precision: Precision) -> None:
    graph = GraphBuilder("small", precision, WeightStore("weights.bin"))
    x = graph.input("x", FLOAT, ["R", 3])
    first, second = graph.split(graph.product(x, np.ones((4, 3), np.float32)), 1, 3)
    graph.output("y", graph.op("Mul", first, second), ["R", 3])
    made = graph.build()
    if precision == "fp32":  # the other one names a file, which is not there
        onnx.checker.check_model(made)
    assert [value.name for value in made.graph.output] == ["y"]


def test_equal_matrices_are_stored_once() -> None:
    store = WeightStore("weights.bin")
    one, other = np.ones((40, 10), np.float32), np.zeros((40, 10), np.float32)
    places = [store.put(matrix) for matrix in (one, other, one.copy())]
    assert places[0] == places[2] != places[1]
    assert all(place % 64 == 0 for place in places)
    content = b"".join(store.parts)
    assert len(content) == store.size == 2 * one.nbytes
    assert content[places[1] :] == other.tobytes()
