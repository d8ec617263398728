"""The graph that reads the source: annotations, and all that steps need of them.

A context is a mean of annotations and is needed only in products. For a beam these are taken of the
annotations, once, and a context is then a mean of products; without a beam that is more work than
the products of the contexts themselves, and the annotations are given as they are (`narrow`). In
bytes the two are rounded differently, and a sentence must not depend on how many others there are:
there it is always the first.

Letters: S sentences, J source positions, m embedding, n hidden.
"""

import numpy as np
import onnx

from covnmt.base.arrays import FloatArray
from covnmt.base.config import ModelConfig
from covnmt.decoding.onnx.builder import BOOL, FLOAT, INT64, GraphBuilder, WeightStore
from covnmt.decoding.onnx.cells import NamedWeights, OnnxCell
from covnmt.decoding.onnx.format import Precision

DIRECTIONS = ("ahead", "back")


def build_encoder_graph(
    weights: NamedWeights, config: ModelConfig, precision: Precision, store: WeightStore
) -> onnx.ModelProto:
    """Words [S, J] and where they are real to all that steps need of the source."""
    graph, n = GraphBuilder("encoder", precision, store), config.hidden
    words = graph.input("words", INT64, ["S", "J"])
    mask = graph.input("mask", BOOL, ["S", "J"])
    h = _read(graph, weights, config, words, mask)  # [S, J, 2n]
    graph.output("keys", graph.product(h, weights["decoder.attention.U_a"]), ["S", "J", n])
    graph.output("values", _values(graph, context_weights(weights, config), h), ["S", "J", "*"])
    if has_source_features(config):
        graph.output("Phi", _prepare(graph, weights, config, h), ["S", "J", "phi"])
    first = graph.op("Gather", h, graph.constant(np.array(0)), axis=1)  # [S, 2n]
    back = graph.split(first, n, n)[1]
    start = graph.product(back, weights["decoder.W_init.weight"], weights["decoder.W_init.bias"])
    graph.output("t", graph.op("Tanh", start), ["S", n])
    return graph.build()


def _values(graph: GraphBuilder, W: FloatArray, h: str) -> str:
    """What attention takes the mean of: annotations, or their products."""
    if graph.precision == "int8":
        return graph.product(h, W)
    narrow = graph.input("narrow", BOOL, [])
    annotations, products = graph.inner("annotations"), graph.inner("products")
    annotations.output("annotations.values", annotations.op("Identity", h), ["S", "J", W.shape[1]])
    products.output("products.values", products.product(h, W), ["S", "J", len(W)])
    return graph.choose(narrow, annotations, products)[0]


def _read(
    graph: GraphBuilder, weights: NamedWeights, config: ModelConfig, words: str, mask: str
) -> str:
    """Annotations [S, J, 2n]: both directions walk over the source at once."""
    n = config.hidden
    E = weights["source.E"] + weights["source.b"]
    # positions first, as the walk wants them: words are cheaper to turn than vectors
    x = graph.table(E, graph.op("Transpose", words, perm=[1, 0]))  # [J, S, m]
    real = graph.op("Unsqueeze", graph.op("Transpose", mask, perm=[1, 0]), graph.ints(2))
    inputs = [each for name in DIRECTIONS for each in (*_projected(graph, weights, name, x), real)]
    zeros = graph.op("Expand", graph.constant(np.zeros((1, n), np.float32)), _rows(graph, mask))
    *_, ahead, back = graph.ops(
        "Scan", 4, zeros, zeros, *inputs,
        body=_position(graph, weights, config).graph(), num_scan_inputs=6,
        scan_input_directions=[0, 0, 0, 1, 1, 1],
        scan_output_axes=[1, 1], scan_output_directions=[0, 1],
    )  # fmt: skip
    return graph.op("Concat", ahead, back, axis=2)


def _position(graph: GraphBuilder, weights: NamedWeights, config: ModelConfig) -> GraphBuilder:
    """What both directions do at a position."""
    n = config.hidden
    body = graph.inner("position")
    states = [body.input(name, FLOAT, ["S", n]) for name in DIRECTIONS]
    reached = []
    for name, h in zip(DIRECTIONS, states, strict=True):
        rz = body.input(f"{name}.rz", FLOAT, ["S", 2 * n])
        c = body.input(f"{name}.c", FLOAT, ["S", n])
        real = body.input(f"{name}.real", BOOL, ["S", 1])
        cell = OnnxCell.of(weights, f"encoder.{name}", config.cell)
        # padding copies the state, so nothing depends on how far a batch is padded
        reached.append(body.op("Where", real, cell.advance(body, rz, c, h), h))
    for name, after in zip(DIRECTIONS, reached, strict=True):
        body.output(f"{name}.next", after, ["S", n])
    for name, after in zip(DIRECTIONS, reached, strict=True):
        body.output(f"{name}.h", body.op("Identity", after), ["S", n])
    return body


def _projected(
    graph: GraphBuilder, weights: NamedWeights, direction: str, x: str
) -> tuple[str, str]:
    """The words' share of r and z, and of c, for all positions at once."""
    W, b = weights[f"encoder.{direction}.W"], weights[f"encoder.{direction}.b"]
    gates, bound = 2 * len(b), max_embedding_value(weights, "source")
    return graph.product(x, W[:gates], None, bound), graph.product(x, W[gates:], b, bound)


def max_embedding_value(weights: NamedWeights, side: str) -> float:
    """The largest number of a word's vector on this side."""
    return float(np.abs(weights[f"{side}.E"] + weights[f"{side}.b"]).max())


def _rows(graph: GraphBuilder, value: str) -> str:
    """The shape [S, 1] for a value [S, ...]."""
    return graph.op("Concat", graph.op("Shape", value, end=1), graph.ints(1), axis=0)


def _prepare(graph: GraphBuilder, weights: NamedWeights, config: ModelConfig, h: str) -> str:
    """Phi(h) [S, J, *], what the coverage model knows of each word."""
    coverage = config.coverage
    if coverage.kind in ("tanh", "gru"):
        return graph.product(h, weights["decoder.coverage.Q"], weights.get("decoder.coverage.b"))
    U_f = graph.constant(weights["decoder.coverage.U_f"][:, None])
    share = graph.op("Sigmoid", graph.op("MatMul", h, U_f))
    return graph.op("Mul", share, graph.constant(np.array([coverage.max_fertility], np.float32)))


def deinterleave_rows(W: FloatArray) -> FloatArray:
    """Rows 0, 2, 4, ... and then 1, 3, 5, ...: maxout then compares two halves."""
    return np.concatenate([W[0::2], W[1::2]])


def context_weights(weights: NamedWeights, config: ModelConfig) -> FloatArray:
    """All that a context is ever multiplied with: C_o, Cx, and for coverage, next and now."""
    nothing = np.zeros((0, 2 * config.hidden), dtype=np.float32)
    names = ("decoder.coverage.from_context", "decoder.coverage.from_current")
    extra = [weights.get(name, nothing) for name in names]
    return np.concatenate(
        [deinterleave_rows(weights["readout.C_o"]), weights["decoder.Cx"], *extra]
    )


def has_source_features(config: ModelConfig) -> bool:
    """Whether the coverage model knows something of each source word, Phi."""
    return config.coverage.kind in ("fertility", "tanh", "gru")
