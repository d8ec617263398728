"""The recurrent cell, attention and coverage as operations of a graph (paper, sections 2 and 3).

The equations are those of `kernels.reference`. The largest arrays of a step are those of the
energies, so these are computed group by group: the arrays [c, K, J, n] of a few sentences stay in
the processor's cache. All else is small, and is done for all groups at once.

Notation: G groups of c sentences with K hypotheses each, J source positions, n hidden, d coverage
units, g gates of the coverage network.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from covnmt.base.arrays import FloatArray
from covnmt.base.config import CellKind, ModelConfig
from covnmt.decoding.onnx.builder import FLOAT, GraphBuilder

NamedWeights = Mapping[str, FloatArray]


@dataclass(frozen=True)
class OnnxCell:
    """The recurrent weights of one GRU."""

    gates: FloatArray  # [2n, n] R, G
    candidate: FloatArray  # [n, n] U
    kind: CellKind

    @classmethod
    def named(cls, weights: NamedWeights, name: str, kind: CellKind) -> "OnnxCell":
        """Take the weights of the cell of this name."""
        return cls(weights[f"{name}.gates"], weights[f"{name}.candidate"], kind)

    def recurrent_weights(self) -> FloatArray:
        """Return the weights that multiply the state: the candidate's too if r acts after them."""
        is_exact = self.kind == "exact"
        return self.gates if is_exact else np.concatenate([self.gates, self.candidate])

    def advance(
        self, graph: GraphBuilder, rz: str, c: str, h: str, recurrent: str | None = None
    ) -> str:
        """Append nodes of a step on the inputs of gates [..., 2n] and candidate [..., n].

        `recurrent` is the product of h with `recurrent_weights`, where it has been computed.
        """
        recurrent = recurrent or graph.product(h, self.recurrent_weights())
        n = len(self.candidate)
        if self.kind == "exact":
            gates = graph.op("Add", rz, recurrent)
            return gru_cell(graph, gates, c, h, n, lambda r: graph.product(r, self.candidate))
        gates, from_state = graph.split(recurrent, 2 * n, n)
        r, z = _split_gates(graph, graph.op("Add", rz, gates), n)
        c = graph.op("Tanh", graph.op("Add", c, graph.op("Mul", r, from_state)))
        return _interpolate(graph, h, c, z)


def gru_cell(
    graph: GraphBuilder, gates: str, c: str, h: str, n: int, U: Callable[[str], str]
) -> str:
    """Append nodes of the exact GRU on its gates' sums: r acts before the product with U."""
    r, z = _split_gates(graph, gates, n)
    c = graph.op("Tanh", graph.op("Add", c, U(graph.op("Mul", r, h))))
    return _interpolate(graph, h, c, z)


def _split_gates(graph: GraphBuilder, gates: str, n: int) -> tuple[str, str]:
    r, z = graph.split(graph.op("Sigmoid", gates), n, n)
    return r, z


def _interpolate(graph: GraphBuilder, h: str, c: str, z: str) -> str:
    """Append nodes that compute h + z (c - h)."""
    return graph.op("Add", h, graph.op("Mul", z, graph.op("Sub", c, h)))


@dataclass(frozen=True)
class AttentionInputs:
    """Names of values in the graph; what a model lacks is empty."""

    query: str  # [G, c, K, n] W_a t
    state: str  # [G, c, K, gd] the coverage network's product with t
    context: str  # [G, c, K, gd] its product with contexts
    C: str  # [G, c, K, J, d]
    keys: str  # [G, c, 1, J, n] U_a h
    values: str  # [G, c, J, *] what the mean is taken of
    Phi: str  # [G, c, 1, J, *]
    bias: str  # [G, c, 1, J] 0 on real positions, -inf on padding


class AttentionOutputs(NamedTuple):
    """Names of values in the graph."""

    energies: str  # [G, c, K, J]
    alpha: str  # [G, c, K, J] attention
    means: str  # [G, c, K, *] of the values


class OnnxAttentionStep:
    """Energies, attention and coverage of one model."""

    def __init__(self, weights: NamedWeights, config: ModelConfig) -> None:
        self.weights, self.coverage = weights, config.coverage
        V_a = weights.get("decoder.attention.V_a")
        self.d = 0 if V_a is None else V_a.shape[1]

    def attend(self, graph: GraphBuilder, inputs: AttentionInputs) -> AttentionOutputs:
        """Append nodes that compute energies, attention and means."""
        energies = self._energies(graph, inputs)
        alpha = graph.op("Softmax", graph.op("Add", energies, inputs.bias), axis=-1)
        return AttentionOutputs(energies, alpha, graph.op("MatMul", alpha, inputs.values))

    def _energies(self, graph: GraphBuilder, inputs: AttentionInputs) -> str:
        """Append a loop over groups: e = v . tanh(query + keys + V_a C) [G, c, K, J]."""
        body = graph.subgraph("energies")
        scanned = [graph.op("Unsqueeze", inputs.query, graph.ints(-2)), inputs.keys]
        of_group = [body.input(name, FLOAT, None) for name in ("query.here", "keys.here")]
        total = body.op("Flatten", body.op("Add", *of_group), axis=-1)  # [c K J, n]
        if inputs.C:
            scanned.append(graph.reshape(inputs.C, 0, -1, self.d))  # [G, c K J, d]
            V_a = graph.constant(self.weights["decoder.attention.V_a"].T)
            total = body.op("Gemm", body.input("C.here", FLOAT, None), V_a, total)
        # v as a row times a transposed matrix is by far the fastest form of this product
        v = graph.constant(self.weights["decoder.attention.v"][None])
        body.output("e.here", body.op("Gemm", v, body.op("Tanh", total), transB=1), None)
        scan = {"body": body.build_graph(), "num_scan_inputs": len(scanned)}
        e = graph.op("Scan", *scanned, **scan)  # [G, 1, c K J]
        shape = graph.op("Concat", graph.op("Shape", inputs.query, end=-1), graph.ints(-1), axis=0)
        return graph.op("Reshape", e, shape)

    def cover(self, graph: GraphBuilder, inputs: AttentionInputs, outputs: AttentionOutputs) -> str:
        """Append nodes that compute C_i from C_{i-1}, alpha_i and what else the model reads."""
        alpha = graph.op("Unsqueeze", outputs.alpha, graph.ints(-1))  # [G, c, K, J, 1]
        if self.coverage.kind in ("linguistic", "fertility"):
            change = graph.op("Div", alpha, inputs.Phi) if inputs.Phi else alpha
            add = self.coverage.accumulate == "add"
            return graph.op("Add" if add else "Sub", inputs.C, change)
        return self._neural_coverage(graph, inputs, alpha, outputs.energies)

    def _neural_coverage(
        self, graph: GraphBuilder, inputs: AttentionInputs, alpha: str, energies: str
    ) -> str:
        """Append nodes of the coverage network, with gates or without."""
        U = self.weights["decoder.coverage.candidate"].T
        if self.coverage.kind == "tanh":
            return graph.op("Tanh", self._coverage_sums(graph, inputs, alpha, energies, U))
        # the candidate reads the coverage only after its gate
        recurrent = np.pad(self.weights["decoder.coverage.gates"].T, ((0, 0), (0, self.d)))
        sums = self._coverage_sums(graph, inputs, alpha, energies, recurrent)
        gates, c = graph.split(sums, 2 * self.d, self.d)
        candidate = graph.constant(U)
        return gru_cell(
            graph, gates, c, inputs.C, self.d, lambda r: graph.op("MatMul", r, candidate)
        )

    def _coverage_sums(
        self,
        graph: GraphBuilder,
        inputs: AttentionInputs,
        alpha: str,
        energies: str,
        recurrent: FloatArray,
    ) -> str:
        """Append nodes that compute the coverage network's pre-activations [G, c, K, J, gd].

        `recurrent` multiplies C.
        """
        by_position, W = [inputs.C, alpha], [recurrent, self.weights["decoder.coverage.P"][None]]
        if "decoder.coverage.from_energies" in self.weights:
            by_position.append(graph.op("Unsqueeze", energies, graph.ints(-1)))
            W.append(self.weights["decoder.coverage.from_energies"][None])
        joined = graph.op("Concat", *by_position, axis=-1)
        product = graph.op("MatMul", joined, graph.constant(np.concatenate(W)))
        shared = inputs.state
        if inputs.context:
            shared = graph.op("Add", shared, inputs.context)
        shared = graph.op("Unsqueeze", shared, graph.ints(-2))  # [G, c, K, 1, gd]
        return graph.op("Add", graph.op("Add", product, shared), inputs.Phi)
