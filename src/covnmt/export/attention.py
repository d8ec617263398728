"""Looking at the source and covering it, as operations of a graph (paper, sections 2 and 3).

This is written for a group of c sentences with K hypotheses each, and a step walks over its groups:
the largest arrays of a step are those of the energies [c, K, J, n], and small ones stay in the
processor's cache. The equations are those of `ops.reference`.

Letters: J source positions, n hidden, d coverage units, g gates of the coverage network.
"""

from dataclasses import dataclass, fields

from covnmt.config import ModelConfig
from covnmt.export.cells import Array, Weights, gru
from covnmt.export.graph import FLOAT, Graph


@dataclass(frozen=True)
class Given:
    """What a look needs, by the names that values have in the graph; what a model lacks is empty.

    Everything has one axis more in the graph of a step, over groups.
    """

    query: str  # [c, K, n] W_a t
    state: str  # [c, K, gd] the coverage network's product with t
    context: str  # [c, K, gd] its product with the last context
    C: str  # [c, K, J, d]
    keys: str  # [c, 1, J, n] U_a h
    values: str  # [c, J, *] what the mean is taken of
    Phi: str  # [c, 1, J, *]
    bias: str  # [c, 1, J] 0 on real positions, -inf on padding


class Attention:
    """Energies, attention and coverage of one model."""

    def __init__(self, weights: Weights, config: ModelConfig) -> None:
        self.weights, self.coverage = weights, config.coverage
        V_a = weights.get("decoder.attention.V_a")
        self.d = 0 if V_a is None else V_a.shape[1]

    def write(self, graph: Graph, given: Given) -> tuple[str, str, str]:
        """Attention alpha [G, c, K, J], means of the values, and the coverage after it."""
        body = graph.inner("attention")
        names = [field.name for field in fields(given) if getattr(given, field.name)]
        inside = {name: body.input(f"{name}.here", FLOAT, None) for name in names}
        here = Given(**{field.name: inside.get(field.name, "") for field in fields(given)})
        energies = self._energies(body, here)
        alpha = body.op("Softmax", body.op("Add", energies, here.bias), axis=-1)
        body.output("alpha.here", alpha, None)
        body.output("mean.here", body.op("MatMul", alpha, here.values), None)
        if here.C:
            body.output("C.after", self._cover(body, here, alpha, energies), None)
        outer = [getattr(given, name) for name in names]
        results = graph.ops(
            "Scan", 3 if here.C else 2, *outer, body=body.graph(), num_scan_inputs=len(outer)
        )
        alpha, means, *after = results
        return alpha, means, after[0] if after else ""

    def _energies(self, graph: Graph, here: Given) -> str:
        """e = v . tanh(query + keys + V_a C) [c, K, J]."""
        seen = graph.op("Unsqueeze", here.query, graph.ints(-2))  # [c, K, 1, n]
        total = graph.op("Add", seen, here.keys)  # [c, K, J, n]
        if here.C:
            V_a = graph.constant(self._of("decoder.attention.V_a").T)
            total = graph.op("Add", total, graph.op("MatMul", here.C, V_a))
        # v as a row times a transposed matrix is by far the fastest form of this product
        flat = graph.op("Flatten", graph.op("Tanh", total), axis=-1)  # [c K J, n]
        v = graph.constant(self._of("decoder.attention.v")[None])
        e = graph.op("Gemm", v, flat, transB=1)  # [1, c K J]
        return graph.op("Reshape", e, graph.op("Shape", total, end=-1))

    def _cover(self, graph: Graph, here: Given, alpha: str, energies: str) -> str:
        """C_i from C_{i-1}, alpha_i and what else the coverage model looks at."""
        alpha = graph.op("Unsqueeze", alpha, graph.ints(-1))  # [c, K, J, 1]
        if self.coverage.kind in ("linguistic", "fertility"):
            change = graph.op("Div", alpha, here.Phi) if here.Phi else alpha
            add = self.coverage.accumulate == "add"
            return graph.op("Add" if add else "Sub", here.C, change)
        return self._neural(graph, here.C, self._inputs(graph, here, alpha, energies))

    def _inputs(self, graph: Graph, here: Given, alpha: str, energies: str) -> str:
        """What the coverage network sees besides the coverage [c, K, J, gd]."""
        shared = graph.op("Add", here.state, here.context) if here.context else here.state
        shared = graph.op("Unsqueeze", shared, graph.ints(-2))  # [c, K, 1, gd]
        P = graph.constant(self._of("decoder.coverage.P"))
        inputs = graph.op("Add", graph.op("Mul", alpha, P), shared)
        inputs = graph.op("Add", inputs, here.Phi)
        if "decoder.coverage.from_energies" in self.weights:
            e = graph.op("Unsqueeze", energies, graph.ints(-1))
            weight = graph.constant(self._of("decoder.coverage.from_energies"))
            inputs = graph.op("Add", inputs, graph.op("Mul", e, weight))
        return inputs

    def _neural(self, graph: Graph, C: str, inputs: str) -> str:
        """The coverage network, with gates or without."""
        candidate = graph.constant(self._of("decoder.coverage.candidate").T)
        if self.coverage.kind == "tanh":
            return graph.op("Tanh", graph.op("Add", graph.op("MatMul", C, candidate), inputs))
        gates = graph.op("MatMul", C, graph.constant(self._of("decoder.coverage.gates").T))
        rz, c = graph.split(inputs, 2 * self.d, self.d)
        return gru(graph, rz, c, C, gates, self.d, lambda r: graph.op("MatMul", r, candidate))

    def _of(self, name: str) -> Array:
        return self.weights[name]
