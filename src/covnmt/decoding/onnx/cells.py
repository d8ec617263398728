"""The recurrent cells as operations of a graph; the equations are those of `ops.reference`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from covnmt.base.arrays import FloatArray
from covnmt.base.config import CellKind
from covnmt.decoding.onnx.builder import GraphBuilder

NamedWeights = Mapping[str, FloatArray]


@dataclass(frozen=True)
class OnnxCell:
    """The recurrent weights of one GRU."""

    gates: FloatArray  # [2n, n] R, G
    candidate: FloatArray  # [n, n] U
    kind: CellKind

    @classmethod
    def of(cls, weights: NamedWeights, name: str, kind: CellKind) -> "OnnxCell":
        """The cell that has this name."""
        return cls(weights[f"{name}.gates"], weights[f"{name}.candidate"], kind)

    def recurrent(self) -> FloatArray:
        """What the state meets at once: the gates, and the candidate too if it is reset after."""
        exact = self.kind == "exact"
        return self.gates if exact else np.concatenate([self.gates, self.candidate])

    def advance(
        self, graph: GraphBuilder, rz: str, c: str, h: str, recurrent: str | None = None
    ) -> str:
        """One step on the inputs of the gates [..., 2n] and of the candidate [..., n].

        The product of h with `recurrent` may be known.
        """
        recurrent = recurrent or graph.product(h, self.recurrent())
        n = len(self.candidate)
        if self.kind == "exact":
            gates = graph.op("Add", rz, recurrent)
            return gru(graph, gates, c, h, n, lambda r: graph.product(r, self.candidate))
        gates, own = graph.split(recurrent, 2 * n, n)
        r, z = _opened(graph, graph.op("Add", rz, gates), n)
        return _between(graph, h, graph.op("Tanh", graph.op("Add", c, graph.op("Mul", r, own))), z)


def gru(graph: GraphBuilder, gates: str, c: str, h: str, n: int, U: Callable[[str], str]) -> str:
    """The exact GRU on the sums in its gates: the reset gate acts before the product U."""
    r, z = _opened(graph, gates, n)
    c = graph.op("Tanh", graph.op("Add", c, U(graph.op("Mul", r, h))))
    return _between(graph, h, c, z)


def _opened(graph: GraphBuilder, gates: str, n: int) -> tuple[str, str]:
    r, z = graph.split(graph.op("Sigmoid", gates), n, n)
    return r, z


def _between(graph: GraphBuilder, h: str, c: str, z: str) -> str:
    """h + z (c - h)."""
    return graph.op("Add", h, graph.op("Mul", z, graph.op("Sub", c, h)))
