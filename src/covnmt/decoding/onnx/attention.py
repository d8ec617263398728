"""Looking at the source and covering it, as operations of a graph (paper, sections 2 and 3).

The largest arrays of a step are those of the energies, so these are computed group by group: the
arrays [c, K, J, n] of a few sentences stay in the processor's cache. All else is small, and is
done for all groups at once. The equations are those of `ops.reference`.

Letters: G groups of c sentences with K hypotheses each, J source positions, n hidden, d coverage
units, g gates of the coverage network.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from covnmt.base.arrays import FloatArray
from covnmt.base.config import ModelConfig
from covnmt.decoding.onnx.builder import FLOAT, GraphBuilder
from covnmt.decoding.onnx.cells import NamedWeights, gru


@dataclass(frozen=True)
class AttentionInputs:
    """What a look needs, by the names of values in the graph; what a model lacks is empty."""

    query: str  # [G, c, K, n] W_a t
    state: str  # [G, c, K, gd] the coverage network's product with t
    context: str  # [G, c, K, gd] its product with contexts
    C: str  # [G, c, K, J, d]
    keys: str  # [G, c, 1, J, n] U_a h
    values: str  # [G, c, J, *] what the mean is taken of
    Phi: str  # [G, c, 1, J, *]
    bias: str  # [G, c, 1, J] 0 on real positions, -inf on padding


class AttentionOutputs(NamedTuple):
    """What a look at the source gives, by the names of values in the graph."""

    energies: str  # [G, c, K, J]
    alpha: str  # [G, c, K, J] attention
    means: str  # [G, c, K, *] of the values


class OnnxAttentionStep:
    """Energies, attention and coverage of one model."""

    def __init__(self, weights: NamedWeights, config: ModelConfig) -> None:
        self.weights, self.coverage = weights, config.coverage
        V_a = weights.get("decoder.attention.V_a")
        self.d = 0 if V_a is None else V_a.shape[1]

    def look(self, graph: GraphBuilder, given: AttentionInputs) -> AttentionOutputs:
        """Where the model looks, and what it sees there."""
        energies = self._energies(graph, given)
        alpha = graph.op("Softmax", graph.op("Add", energies, given.bias), axis=-1)
        return AttentionOutputs(energies, alpha, graph.op("MatMul", alpha, given.values))

    def _energies(self, graph: GraphBuilder, given: AttentionInputs) -> str:
        """e = v . tanh(query + keys + V_a C) [G, c, K, J], group by group."""
        body = graph.inner("energies")
        outer = [graph.op("Unsqueeze", given.query, graph.ints(-2)), given.keys]
        here = [body.input(name, FLOAT, None) for name in ("query.here", "keys.here")]
        total = body.op("Flatten", body.op("Add", *here), axis=-1)  # [c K J, n]
        if given.C:
            outer.append(graph.reshape(given.C, 0, -1, self.d))  # [G, c K J, d]
            V_a = graph.constant(self.weights["decoder.attention.V_a"].T)
            total = body.op("Gemm", body.input("C.here", FLOAT, None), V_a, total)
        # v as a row times a transposed matrix is by far the fastest form of this product
        v = graph.constant(self.weights["decoder.attention.v"][None])
        body.output("e.here", body.op("Gemm", v, body.op("Tanh", total), transB=1), None)
        e = graph.op("Scan", *outer, body=body.graph(), num_scan_inputs=len(outer))  # [G, 1, c K J]
        shape = graph.op("Concat", graph.op("Shape", given.query, end=-1), graph.ints(-1), axis=0)
        return graph.op("Reshape", e, shape)

    def cover(self, graph: GraphBuilder, given: AttentionInputs, look: AttentionOutputs) -> str:
        """C_i from C_{i-1}, alpha_i and what else the coverage model looks at."""
        alpha = graph.op("Unsqueeze", look.alpha, graph.ints(-1))  # [G, c, K, J, 1]
        if self.coverage.kind in ("linguistic", "fertility"):
            change = graph.op("Div", alpha, given.Phi) if given.Phi else alpha
            add = self.coverage.accumulate == "add"
            return graph.op("Add" if add else "Sub", given.C, change)
        return self._neural(graph, given, alpha, look.energies)

    def _neural(
        self, graph: GraphBuilder, given: AttentionInputs, alpha: str, energies: str
    ) -> str:
        """The coverage network, with gates or without."""
        U = self.weights["decoder.coverage.candidate"].T
        if self.coverage.kind == "tanh":
            return graph.op("Tanh", self._inputs(graph, given, alpha, energies, U))
        # the candidate sees the coverage only after its gate
        own = np.pad(self.weights["decoder.coverage.gates"].T, ((0, 0), (0, self.d)))
        gates, c = graph.split(self._inputs(graph, given, alpha, energies, own), 2 * self.d, self.d)
        candidate = graph.constant(U)
        return gru(graph, gates, c, given.C, self.d, lambda r: graph.op("MatMul", r, candidate))

    def _inputs(
        self,
        graph: GraphBuilder,
        given: AttentionInputs,
        alpha: str,
        energies: str,
        own: FloatArray,
    ) -> str:
        """What the coverage network is told [G, c, K, J, gd]; `own` is for the coverage itself."""
        seen, W = [given.C, alpha], [own, self.weights["decoder.coverage.P"][None]]
        if "decoder.coverage.from_energies" in self.weights:
            seen.append(graph.op("Unsqueeze", energies, graph.ints(-1)))
            W.append(self.weights["decoder.coverage.from_energies"][None])
        found = graph.op(
            "MatMul", graph.op("Concat", *seen, axis=-1), graph.constant(np.concatenate(W))
        )
        shared = graph.op("Add", given.state, given.context) if given.context else given.state
        shared = graph.op("Unsqueeze", shared, graph.ints(-2))  # [G, c, K, 1, gd]
        return graph.op("Add", graph.op("Add", found, shared), given.Phi)
