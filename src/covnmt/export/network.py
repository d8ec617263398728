"""The network as two ONNX graphs: one reads the source, one makes a step of the search.

The equations are those of `ops.reference`, arranged for speed: matrices that meet the same vector
are stacked into one product, hypotheses of one sentence share its annotations, and a step begins
with picking the rows of its parents, so that states never leave the runtime. What the step needs
of the last context is its products, so these are carried instead of the context.

Letters as there: S sentences, K hypotheses of each, R = S K rows, J source positions, V words,
n hidden, m embedding, d coverage units, g gates of the coverage network.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from covnmt.config import ModelConfig
from covnmt.export.graph import BOOL, FLOAT, INT32, INT64, Graph, Precision

Array = NDArray[np.float32]
Weights = Mapping[str, Array]


def encoder_graph(weights: Weights, config: ModelConfig, precision: Precision) -> onnx.ModelProto:
    """words [S, J] and their lengths to all that the decoder needs of the source."""
    graph = Graph("encoder", precision)
    words = graph.input("words", INT64, ["S", "J"])
    lengths = graph.input("lengths", INT32, ["S"])
    x = graph.table(weights["source.E"] + weights["source.b"], words)  # [S, J, m]
    h = _read(graph, weights, config, x, lengths)  # [S, J, 2n]
    graph.output("h", h)
    keys = graph.product(h, weights["decoder.attention.U_a"])  # [S, J, n]
    graph.output("keys", graph.op("Unsqueeze", keys, graph.ints(1)))  # [S, 1, J, n]
    if knows_words(config):
        Phi = _prepare(graph, weights, config, h)
        graph.output("Phi", graph.op("Unsqueeze", Phi, graph.ints(1)))  # [S, 1, J, *]
    first = graph.op("Gather", h, graph.ints(0), axis=1)  # [S, 1, 2n]
    back = graph.split(graph.op("Squeeze", first, graph.ints(1)), config.hidden, config.hidden)[1]
    start = graph.product(back, weights["decoder.W_init.weight"], weights["decoder.W_init.bias"])
    graph.output("t", graph.op("Tanh", start))
    return graph.build()


def _read(graph: Graph, weights: Weights, config: ModelConfig, x: str, lengths: str) -> str:
    """Both directions by ONNX's own GRU, whose z is our 1 - z = sigmoid(-...)."""
    n = config.hidden
    parts: dict[str, list[str]] = {"W": [], "R": [], "b": []}
    for direction in ("ahead", "back"):
        W, b, gates, candidate = (
            weights[f"encoder.{direction}.{name}"] for name in ("W", "b", "gates", "candidate")
        )
        stacked = np.concatenate([-W[n : 2 * n], W[:n], W[2 * n :]])
        recurrent = np.concatenate([-gates[n:], gates[:n], candidate])
        zero = np.zeros(2 * n, dtype=np.float32)
        parts["W"].append(graph.op("Unsqueeze", graph.stored(stacked), graph.ints(0)))
        parts["R"].append(graph.op("Unsqueeze", graph.stored(recurrent), graph.ints(0)))
        parts["b"].append(graph.constant(np.concatenate([zero, b, zero, zero[:n]])[None]))
    both = [graph.op("Concat", *each, axis=0) for each in parts.values()]
    turned = graph.op("Transpose", x, perm=[1, 0, 2])  # [J, S, m]
    states = graph.ops(
        "GRU", 1, turned, *both, lengths,
        hidden_size=n, direction="bidirectional",
        linear_before_reset=int(config.cell == "reset_after"),
    )[0]  # [J, 2, S, n]  # fmt: skip
    return graph.reshape(graph.op("Transpose", states, perm=[2, 0, 1, 3]), 0, 0, 2 * n)


def _prepare(graph: Graph, weights: Weights, config: ModelConfig, h: str) -> str:
    """Phi(h) [S, J, *], what the coverage model knows of each word."""
    coverage = config.coverage
    if coverage.kind in ("tanh", "gru"):
        return graph.product(h, weights["decoder.coverage.Q"], weights.get("decoder.coverage.b"))
    U_f = graph.constant(weights["decoder.coverage.U_f"][:, None])
    share = graph.op("Sigmoid", graph.op("MatMul", h, U_f))
    return graph.op("Mul", share, graph.constant(np.array([coverage.max_fertility], np.float32)))


class Look(NamedTuple):
    """What one look at the source gives."""

    alpha: str  # [S, K, J]
    s: str  # [R, 2n]
    energies: str  # [S, K, J]


@dataclass(frozen=True)
class Source:
    """The inputs of a step that stay the same for a sentence."""

    h: str  # [S, J, 2n]
    keys: str  # [S, 1, J, n]
    Phi: str  # [S, 1, J, *], if there is one
    bias: str  # [S, 1, J] 0 on real positions, -inf on padding


class StepGraph:
    """A step, being written."""

    def __init__(self, weights: Weights, config: ModelConfig, precision: Precision) -> None:
        self.graph, self.weights, self.config = Graph("step", precision), weights, config
        self.n, self.d = config.hidden, coverage_size(weights)
        graph, n = self.graph, config.hidden
        self.source = Source(
            graph.input("h", FLOAT, ["S", "J", 2 * n]),
            graph.input("keys", FLOAT, ["S", 1, "J", n]),
            graph.input("Phi", FLOAT, ["S", 1, "J", "phi"]) if knows_words(config) else "",
            graph.input("bias", FLOAT, ["S", 1, "J"]),
        )
        self.S = graph.op("Shape", self.source.h, end=1)  # sizes that differ, as vectors of one
        self.J = graph.op("Shape", self.source.bias, start=2)

    def build(self) -> onnx.ModelProto:
        """words and parents [R], the state before and the source to the k best next words."""
        graph = self.graph
        words = graph.input("words", INT64, ["R"])
        parents = graph.input("parents", INT64, ["R"])
        y = graph.table(self._embeddings(), words)
        W = np.concatenate([self._of("decoder.cell.W"), halves(self._of("readout.V_o"))])
        zero = np.zeros(2 * self.n, dtype=np.float32)
        b = [zero, self._of("decoder.cell.b"), halves(self._of("readout.U_o.bias"))]
        word, shown = graph.split(graph.product(y, W, np.concatenate(b)), 3 * self.n, self.n)
        t = self._carried("t", ["R0", self.n], parents)
        C = self._carried("C", ["R0", "J", self.d], parents) if self.d else ""
        order = self._code_order if self.config.order == "code" else self._paper_order
        self._say(order(word, shown, t, C, parents))
        return graph.build()

    def _embeddings(self) -> Array:
        """E + b, and a row of zeros behind them: the word before the first."""
        return np.pad(self._of("target.E") + self._of("target.b"), ((0, 1), (0, 0)))

    def _code_order(self, word: str, shown: str, t: str, C: str, parents: str) -> str:
        """The layer before maxout; the state absorbs the last word before it looks."""
        graph, n = self.graph, self.n
        first = graph.input("first", BOOL, [])
        extra = self._extra()
        before = self._carried("s", ["R0", 3 * n + len(extra)], parents)
        s, context = graph.split(before, 3 * n, len(extra)) if len(extra) else (before, "")
        recurrent = graph.product(t, self._recurrent())
        updated = self._advance(graph.op("Add", word, s), t, recurrent)
        t = graph.op("Where", first, t, updated)
        W = np.concatenate(
            [self._of("decoder.attention.W_a"), halves(self._of("readout.U_o.weight"))]
        )
        query, own, state = self._stacked(t, W, "decoder.coverage.S", n, n)
        look = self._look(query, C)
        W = np.concatenate([halves(self._of("readout.C_o")), self._of("decoder.Cx"), extra])
        read, rest = graph.split(graph.product(look.s, W), n, 3 * n + len(extra))
        graph.output("t.next", t)
        graph.output("s.next", rest)
        self._cover(C, look, state, context)
        return graph.op("Sum", read, own, shown)

    def _paper_order(self, word: str, shown: str, t: str, C: str, parents: str) -> str:
        """The layer before maxout; the state absorbs the last word after it looked."""
        graph, n = self.graph, self.n
        extra = self._extra()
        context = self._carried("s", ["R0", len(extra)], parents) if len(extra) else ""
        W = np.concatenate([self._of("decoder.attention.W_a"), self._recurrent()])
        query, recurrent, state = self._stacked(t, W, "decoder.coverage.S", n, len(W) - n)
        look = self._look(query, C)
        W = np.concatenate([self._of("decoder.Cx"), halves(self._of("readout.C_o")), extra])
        parts = graph.split(graph.product(look.s, W), 3 * n, n, *[len(extra)] * bool(len(extra)))
        t = self._advance(graph.op("Add", word, parts[0]), t, recurrent)
        graph.output("t.next", t)
        if len(extra):
            graph.output("s.next", parts[2])
        self._cover(C, look, state, context)
        own = graph.product(t, halves(self._of("readout.U_o.weight")))
        return graph.op("Sum", parts[1], own, shown)

    def _stacked(self, t: str, W: Array, also: str, *sizes: int) -> tuple[str, str, str]:
        """W t in two parts, and the coverage network's product with t where there is one."""
        more = self.weights.get(also)
        if more is None:
            first, second = self.graph.split(self.graph.product(t, W), *sizes)
            return first, second, ""
        stacked = self.graph.product(t, np.concatenate([W, more]))
        first, second, third = self.graph.split(stacked, *sizes, len(more))
        return first, second, third

    def _look(self, query: str, C: str) -> Look:
        """e = v . tanh(query + keys + V_a C), alpha = softmax, s = sum_j alpha_j h_j."""
        graph, n, source = self.graph, self.n, self.source
        seen = self._by_sentence(query, graph.ints(1), n)  # [S, K, 1, n]
        total = graph.op("Add", seen, source.keys)  # [S, K, J, n]
        if C:
            V_a = graph.constant(self._of("decoder.attention.V_a").T)
            covered = self._by_sentence(graph.op("MatMul", C, V_a), self.J, n)
            total = graph.op("Add", total, covered)
        v = graph.constant(self._of("decoder.attention.v"))
        e = graph.op("MatMul", graph.op("Tanh", total), v)  # [S, K, J]
        alpha = graph.op("Softmax", graph.op("Add", e, source.bias), axis=-1)
        s = graph.reshape(graph.op("MatMul", alpha, source.h), -1, 2 * n)
        graph.output("alpha", self._by_row(alpha, self.J))
        return Look(alpha, s, e)

    def _cover(self, C: str, look: Look, state: str, context: str) -> None:
        """C_i from C_{i-1}, alpha_i and what else the coverage model looks at."""
        graph, kind = self.graph, self.config.coverage.kind
        if not C:
            return
        C = self._by_sentence(C, self.J, self.d)  # [S, K, J, d]
        alpha = graph.op("Unsqueeze", look.alpha, graph.ints(3))  # [S, K, J, 1]
        if kind in ("linguistic", "fertility"):
            change = graph.op("Div", alpha, self.source.Phi) if self.source.Phi else alpha
            add = self.config.coverage.accumulate == "add"
            after = graph.op("Add" if add else "Sub", C, change)
        else:
            after = self._neural(C, self._inputs(alpha, look.energies, state, context))
        graph.output("C.next", self._by_row(after, self.J, graph.ints(self.d)))

    def _inputs(self, alpha: str, energies: str, state: str, context: str) -> str:
        """What the coverage network sees besides the coverage [S, K, J, gd]."""
        graph, P = self.graph, self._of("decoder.coverage.P")
        shared = graph.op("Add", state, context) if context else state
        shared = self._by_sentence(shared, graph.ints(1), len(P))  # [S, K, 1, gd]
        inputs = graph.op("Add", graph.op("Mul", alpha, graph.constant(P)), shared)
        inputs = graph.op("Add", inputs, self.source.Phi)
        if "decoder.coverage.from_energies" in self.weights:
            e = graph.op("Unsqueeze", energies, graph.ints(3))
            weight = graph.constant(self._of("decoder.coverage.from_energies"))
            inputs = graph.op("Add", inputs, graph.op("Mul", e, weight))
        return inputs

    def _neural(self, C: str, inputs: str) -> str:
        """The coverage network, with gates or without."""
        graph, d = self.graph, self.d
        candidate = graph.constant(self._of("decoder.coverage.candidate").T)
        if self.config.coverage.kind == "tanh":
            return graph.op("Tanh", graph.op("Add", graph.op("MatMul", C, candidate), inputs))
        gates = graph.op("MatMul", C, graph.constant(self._of("decoder.coverage.gates").T))
        return self._gru(inputs, C, gates, d, lambda reset: graph.op("MatMul", reset, candidate))

    def _advance(self, x: str, t: str, recurrent: str) -> str:
        """The decoder's cell: inputs x [R, 3n], state t [R, n], its product with the gates."""
        graph, n = self.graph, self.n
        candidate = self._of("decoder.cell.candidate")
        if self.config.cell == "exact":
            return self._gru(x, t, recurrent, n, lambda reset: graph.product(reset, candidate))
        gates, own = graph.split(recurrent, 2 * n, n)
        r, z, c = self._gates(x, gates, n)
        c = graph.op("Tanh", graph.op("Add", c, graph.op("Mul", r, own)))
        return self._between(t, c, z)

    def _gru(self, x: str, h: str, gates: str, n: int, U: Callable[[str], str]) -> str:
        """The exact cell: the reset gate acts before the product U."""
        graph = self.graph
        r, z, c = self._gates(x, gates, n)
        c = graph.op("Tanh", graph.op("Add", c, U(graph.op("Mul", r, h))))
        return self._between(h, c, z)

    def _gates(self, x: str, gates: str, n: int) -> tuple[str, str, str]:
        """r and z, and the input's share of c."""
        graph = self.graph
        inputs, c = graph.split(x, 2 * n, n)
        r, z = graph.split(graph.op("Sigmoid", graph.op("Add", inputs, gates)), n, n)
        return r, z, c

    def _between(self, h: str, c: str, z: str) -> str:
        """h + z (c - h)."""
        graph = self.graph
        return graph.op("Add", h, graph.op("Mul", z, graph.op("Sub", c, h)))

    def _say(self, o: str) -> None:
        """Maxout, words, and the best of them; also how likely the words asked for are."""
        graph = self.graph
        p = graph.op("Max", *graph.split(o, self.n // 2, self.n // 2))
        if "readout.W_1" in self.weights:
            p = graph.product(p, self._of("readout.W_1"))
        logits = graph.product(p, self._of("readout.W_2"), self._of("readout.b"))
        log_probs = graph.op("LogSoftmax", logits, axis=-1)
        best, numbers = graph.ops("TopK", 2, log_probs, graph.input("k", INT64, [1]), axis=-1)
        graph.output("best", best)
        graph.output("numbers", numbers, INT64)
        graph.output("log_probs", log_probs)

    def _recurrent(self) -> Array:
        """What the state meets at once: the gates, and the candidate too if it is reset after."""
        gates, candidate = self._of("decoder.cell.gates"), self._of("decoder.cell.candidate")
        return gates if self.config.cell == "exact" else np.concatenate([gates, candidate])

    def _extra(self) -> Array:
        """What the coverage network asks of the previous context; often nothing."""
        nothing = np.zeros((0, 2 * self.n), dtype=np.float32)
        return self.weights.get("decoder.coverage.from_context", nothing)

    def _carried(self, name: str, shape: list[int | str], parents: str) -> str:
        """A part of the state, by rows of the new hypotheses."""
        return self.graph.op("Gather", self.graph.input(name, FLOAT, shape), parents)

    def _by_sentence(self, value: str, words: str, size: int) -> str:
        """[R, words, size] as [S, K, words, size]; `words` is a vector of one number."""
        graph = self.graph
        shape = graph.op("Concat", self.S, graph.ints(-1), words, graph.ints(size), axis=0)
        return graph.op("Reshape", value, shape)

    def _by_row(self, value: str, *rest: str) -> str:
        """[S, K, ...] as [R, ...]."""
        graph = self.graph
        return graph.op("Reshape", value, graph.op("Concat", graph.ints(-1), *rest, axis=0))

    def _of(self, name: str) -> Array:
        return self.weights[name]


def halves(W: Array) -> Array:
    """Rows 0, 2, 4, ... and then 1, 3, 5, ...: maxout then compares two halves."""
    return np.concatenate([W[0::2], W[1::2]])


def coverage_size(weights: Weights) -> int:
    """d, the coverage units of a source word; 0 without coverage."""
    V_a = weights.get("decoder.attention.V_a")
    return 0 if V_a is None else V_a.shape[1]


def knows_words(config: ModelConfig) -> bool:
    """Whether the coverage model knows something of each source word, Phi."""
    return config.coverage.kind in ("fertility", "tanh", "gru")
