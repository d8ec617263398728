"""The graph that encodes the source: annotations, and all that steps need of them.

A context is a mean of annotations and is needed only in matrix products. With a beam the
annotations are projected once, and a context is then a mean of projections. In greedy search
projecting the contexts is less work, at least for many sentences, so the annotations are then
returned unprojected (input `narrow`).
In int8 the two round differently, and a translation must not depend on the size of its batch: int8
always projects annotations.

Notation: S sentences, J source positions, m embedding, n hidden.
"""

import numpy as np
import onnx

from covnmt.base.arrays import FloatArray
from covnmt.base.config import ModelConfig
from covnmt.decoding.onnx.builder import BOOL, FLOAT, INT64, GraphBuilder, WeightStore
from covnmt.decoding.onnx.format import Precision
from covnmt.decoding.onnx.layers import NamedWeights, OnnxCell

DIRECTIONS = ("ahead", "back")


def build_encoder_graph(
    weights: NamedWeights, config: ModelConfig, precision: Precision, store: WeightStore
) -> onnx.ModelProto:
    """Build the graph from source ids [S, J] and their mask to what steps need of the source."""
    graph, n = GraphBuilder("encoder", precision, store), config.hidden
    token_ids = graph.input("words", INT64, ["S", "J"])
    mask = graph.input("mask", BOOL, ["S", "J"])
    h = _annotations(graph, weights, config, token_ids, mask)  # [S, J, 2n]
    graph.output("keys", graph.product(h, weights["decoder.attention.U_a"]), ["S", "J", n])
    values = _attention_values(graph, context_weights(weights, config), h)
    graph.output("values", values, ["S", "J", "*"])
    if has_source_features(config):
        graph.output("Phi", _source_features(graph, weights, config, h), ["S", "J", "phi"])
    first = graph.op("Gather", h, graph.constant(np.array(0)), axis=1)  # [S, 2n]
    back = graph.split(first, n, n)[1]
    start = graph.product(back, weights["decoder.W_init.weight"], weights["decoder.W_init.bias"])
    graph.output("t", graph.op("Tanh", start), ["S", n])
    return graph.build()


def _attention_values(graph: GraphBuilder, W: FloatArray, h: str) -> str:
    """Append nodes that compute what attention takes the mean of: h, or W h."""
    if graph.precision == "int8":
        return graph.product(h, W)
    narrow = graph.input("narrow", BOOL, [])
    annotations, products = graph.subgraph("annotations"), graph.subgraph("products")
    annotations.output("annotations.values", annotations.op("Identity", h), ["S", "J", W.shape[1]])
    products.output("products.values", products.product(h, W), ["S", "J", len(W)])
    return graph.branch(narrow, annotations, products)[0]


def _annotations(
    graph: GraphBuilder, weights: NamedWeights, config: ModelConfig, token_ids: str, mask: str
) -> str:
    """Append one loop in which both directions read the source: annotations [S, J, 2n]."""
    n = config.hidden
    E = weights["source.E"] + weights["source.b"]
    # positions first, as the scan wants them: ids are cheaper to transpose than vectors
    x = graph.embed(E, graph.op("Transpose", token_ids, perm=[1, 0]))  # [J, S, m]
    real = graph.op("Unsqueeze", graph.op("Transpose", mask, perm=[1, 0]), graph.ints(2))
    inputs = [
        value
        for direction in DIRECTIONS
        for value in (*_cell_inputs(graph, weights, direction, x), real)
    ]
    zeros = graph.constant(np.zeros((1, n), np.float32))
    shape = graph.op("Concat", graph.op("Shape", mask, end=1), graph.ints(1), axis=0)  # [S, 1]
    zeros = graph.op("Expand", zeros, shape)
    *_, ahead, back = graph.ops(
        "Scan", 4, zeros, zeros, *inputs,
        body=_encode_position(graph, weights, config).build_graph(), num_scan_inputs=6,
        scan_input_directions=[0, 0, 0, 1, 1, 1],
        scan_output_axes=[1, 1], scan_output_directions=[0, 1],
    )  # fmt: skip
    return graph.op("Concat", ahead, back, axis=2)


def _encode_position(
    graph: GraphBuilder, weights: NamedWeights, config: ModelConfig
) -> GraphBuilder:
    """Build the loop's body: a step of both directions."""
    n = config.hidden
    body = graph.subgraph("position")
    states = [body.input(name, FLOAT, ["S", n]) for name in DIRECTIONS]
    next_states = []
    for name, h in zip(DIRECTIONS, states, strict=True):
        rz = body.input(f"{name}.rz", FLOAT, ["S", 2 * n])
        c = body.input(f"{name}.c", FLOAT, ["S", n])
        real = body.input(f"{name}.real", BOOL, ["S", 1])
        cell = OnnxCell.named(weights, f"encoder.{name}", config.cell)
        # padding copies the state, so nothing depends on how far a batch is padded
        next_states.append(body.op("Where", real, cell.advance(body, rz, c, h), h))
    for name, state in zip(DIRECTIONS, next_states, strict=True):
        body.output(f"{name}.next", state, ["S", n])
    for name, state in zip(DIRECTIONS, next_states, strict=True):
        body.output(f"{name}.h", body.op("Identity", state), ["S", n])
    return body


def _cell_inputs(
    graph: GraphBuilder, weights: NamedWeights, direction: str, x: str
) -> tuple[str, str]:
    """Append nodes that compute what embeddings add to r and z, and to c, at all positions."""
    W, b = weights[f"encoder.{direction}.W"], weights[f"encoder.{direction}.b"]
    gates, bound = 2 * len(b), max_embedding_value(weights, "source")
    return graph.product(x, W[:gates], None, bound), graph.product(x, W[gates:], b, bound)


def _source_features(
    graph: GraphBuilder, weights: NamedWeights, config: ModelConfig, h: str
) -> str:
    """Append nodes that compute Phi(h) [S, J, *], which coverage models read at every step."""
    coverage = config.coverage
    if coverage.kind in ("tanh", "gru"):
        return graph.product(h, weights["decoder.coverage.Q"], weights.get("decoder.coverage.b"))
    U_f = graph.constant(weights["decoder.coverage.U_f"][:, None])
    share = graph.op("Sigmoid", graph.op("MatMul", h, U_f))
    return graph.op("Mul", share, graph.constant(np.array([coverage.max_fertility], np.float32)))


def max_embedding_value(weights: NamedWeights, side: str) -> float:
    """Return the largest absolute value in the embeddings of this side."""
    return float(np.abs(weights[f"{side}.E"] + weights[f"{side}.b"]).max())


def deinterleave_rows(W: FloatArray) -> FloatArray:
    """Put rows 0, 2, 4, ... before 1, 3, 5, ...: maxout then compares two halves."""
    return np.concatenate([W[0::2], W[1::2]])


def context_weights(weights: NamedWeights, config: ModelConfig) -> FloatArray:
    """Stack all that multiplies a context: C_o, Cx, and for coverage from_context, from_current."""
    none = np.zeros((0, 2 * config.hidden), dtype=np.float32)
    names = ("decoder.coverage.from_context", "decoder.coverage.from_current")
    C_o = deinterleave_rows(weights["readout.C_o"])
    return np.concatenate(
        [C_o, weights["decoder.Cx"], *(weights.get(name, none) for name in names)]
    )


def has_source_features(config: ModelConfig) -> bool:
    """Return whether the coverage model precomputes Phi for each source token."""
    return config.coverage.kind in ("fertility", "tanh", "gru")
