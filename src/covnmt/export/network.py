"""The network as two ONNX graphs: one reads the source, one makes a step of the search.

The equations are those of `ops.reference`, arranged for speed: matrices that meet the same vector
are stacked into one product, hypotheses of one sentence share its annotations, and a step begins
with picking the rows of its parents, so that states never leave the runtime. A context is needed
only in products; these are taken of the annotations when the source is read, and a context is then
a mean of products.

Letters as there: S sentences, K hypotheses of each, R rows of the step before, J source positions,
V words, n hidden, m embedding, d coverage units, g gates of the coverage network.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from covnmt.config import ModelConfig
from covnmt.export.graph import BOOL, FLOAT, INT64, Graph, Precision, Store

Array = NDArray[np.float32]
Weights = Mapping[str, Array]
DIRECTIONS = ("ahead", "back")


def encoder_graph(
    weights: Weights, config: ModelConfig, precision: Precision, store: Store
) -> onnx.ModelProto:
    """Words [S, J] and where they are real to all that steps need of the source."""
    graph, n = Graph("encoder", precision, store), config.hidden
    words = graph.input("words", INT64, ["S", "J"])
    mask = graph.input("mask", BOOL, ["S", "J"])
    h = _read(graph, weights, config, words, mask)  # [S, J, 2n]
    keys = graph.product(h, weights["decoder.attention.U_a"])  # [S, J, n]
    graph.output("keys", graph.op("Unsqueeze", keys, graph.ints(1)), ["S", 1, "J", n])
    W = context_products(weights, config)
    graph.output("values", graph.product(h, W), ["S", "J", len(W)])
    if knows_words(config):
        Phi = _prepare(graph, weights, config, h)
        graph.output("Phi", graph.op("Unsqueeze", Phi, graph.ints(1)), ["S", 1, "J", "phi"])
    first = graph.op("Gather", h, graph.constant(np.array(0)), axis=1)  # [S, 2n]
    back = graph.split(first, n, n)[1]
    start = graph.product(back, weights["decoder.W_init.weight"], weights["decoder.W_init.bias"])
    graph.output("t", graph.op("Tanh", start), ["S", n])
    return graph.build()


def _read(graph: Graph, weights: Weights, config: ModelConfig, words: str, mask: str) -> str:
    """Annotations [S, J, 2n]: both directions walk over the source at once."""
    n = config.hidden
    E = weights["source.E"] + weights["source.b"]
    # positions first, as the walk wants them: words are cheaper to turn than vectors
    x = graph.table(E, graph.op("Transpose", words, perm=[1, 0]))  # [J, S, m]
    real = graph.op("Unsqueeze", graph.op("Transpose", mask, perm=[1, 0]), graph.ints(2))
    inputs = {name: [_projected(graph, weights, name, x), real] for name in DIRECTIONS}
    zeros = graph.op("Expand", graph.constant(np.zeros((1, n), np.float32)), _rows(graph, mask))
    body = _position(graph, weights, config)
    return graph.op("Concat", *graph.scan(body, [zeros, zeros], *inputs.values()), axis=2)


def _position(graph: Graph, weights: Weights, config: ModelConfig) -> Graph:
    """What both directions do at a position."""
    n = config.hidden
    body = Graph("position", graph.precision, graph.store, outer=graph)
    states = [body.input(name, FLOAT, ["S", n]) for name in DIRECTIONS]
    reached = []
    for name, h in zip(DIRECTIONS, states, strict=True):
        word = body.input(f"{name}.x", FLOAT, ["S", 3 * n])
        real = body.input(f"{name}.real", BOOL, ["S", 1])
        cell = Cell.of(weights, f"encoder.{name}", config.cell)
        # padding copies the state, so nothing depends on how far a batch is padded
        reached.append(body.op("Where", real, cell.advance(body, word, h), h))
    for name, after in zip(DIRECTIONS, reached, strict=True):
        body.output(f"{name}.next", after, ["S", n])
    for name, after in zip(DIRECTIONS, reached, strict=True):
        body.output(f"{name}.h", body.op("Identity", after), ["S", n])
    return body


def _projected(graph: Graph, weights: Weights, direction: str, x: str) -> str:
    """The words' share of r, z and c, for all positions at once."""
    W, b = weights[f"encoder.{direction}.W"], weights[f"encoder.{direction}.b"]
    return graph.product(x, W, np.pad(b, (2 * len(b), 0)))


def _rows(graph: Graph, value: str) -> str:
    """The shape [S, 1] for a value [S, ...]."""
    return graph.op("Concat", graph.op("Shape", value, end=1), graph.ints(1), axis=0)


def _prepare(graph: Graph, weights: Weights, config: ModelConfig, h: str) -> str:
    """Phi(h) [S, J, *], what the coverage model knows of each word."""
    coverage = config.coverage
    if coverage.kind in ("tanh", "gru"):
        return graph.product(h, weights["decoder.coverage.Q"], weights.get("decoder.coverage.b"))
    U_f = graph.constant(weights["decoder.coverage.U_f"][:, None])
    share = graph.op("Sigmoid", graph.op("MatMul", h, U_f))
    return graph.op("Mul", share, graph.constant(np.array([coverage.max_fertility], np.float32)))


@dataclass(frozen=True)
class Cell:
    """The recurrent weights of one GRU."""

    gates: Array  # [2n, n] R, G
    candidate: Array  # [n, n] U
    kind: Literal["exact", "reset_after"]

    @classmethod
    def of(cls, weights: Weights, name: str, kind: Literal["exact", "reset_after"]) -> "Cell":
        """The cell that has this name."""
        return cls(weights[f"{name}.gates"], weights[f"{name}.candidate"], kind)

    def recurrent(self) -> Array:
        """What the state meets at once: the gates, and the candidate too if it is reset after."""
        exact = self.kind == "exact"
        return self.gates if exact else np.concatenate([self.gates, self.candidate])

    def advance(self, graph: Graph, x: str, h: str, recurrent: str | None = None) -> str:
        """One step on inputs x [..., 3n]; the product of h with `recurrent` may be known."""
        recurrent = recurrent or graph.product(h, self.recurrent())
        n = len(self.candidate)
        if self.kind == "exact":
            return gru(graph, x, h, recurrent, n, lambda r: graph.product(r, self.candidate))
        gates, own = graph.split(recurrent, 2 * n, n)
        r, z, c = _gates(graph, x, gates, n)
        return _between(graph, h, graph.op("Tanh", graph.op("Add", c, graph.op("Mul", r, own))), z)


def gru(graph: Graph, x: str, h: str, gates: str, n: int, U: Callable[[str], str]) -> str:
    """The exact GRU: the reset gate acts before the product U."""
    r, z, c = _gates(graph, x, gates, n)
    c = graph.op("Tanh", graph.op("Add", c, U(graph.op("Mul", r, h))))
    return _between(graph, h, c, z)


def _gates(graph: Graph, x: str, gates: str, n: int) -> tuple[str, str, str]:
    """r and z, and the input's share of c."""
    inputs, c = graph.split(x, 2 * n, n)
    r, z = graph.split(graph.op("Sigmoid", graph.op("Add", inputs, gates)), n, n)
    return r, z, c


def _between(graph: Graph, h: str, c: str, z: str) -> str:
    """h + z (c - h)."""
    return graph.op("Add", h, graph.op("Mul", z, graph.op("Sub", c, h)))


class Look(NamedTuple):
    """What one look at the source gives."""

    alpha: str  # [S, K, J]
    s: str  # [S, K, *] all products of the context
    energies: str  # [S, K, J]


@dataclass(frozen=True)
class Source:
    """The inputs of a step that stay the same for a sentence."""

    values: str  # [S, J, *] all products of the annotations
    keys: str  # [S, 1, J, n]
    Phi: str  # [S, 1, J, *], if there is one
    bias: str  # [S, 1, J] 0 on real positions, -inf on padding


class StepGraph:
    """A step, being written."""

    def __init__(
        self,
        weights: Weights,
        config: ModelConfig,
        precision: Precision,
        store: Store,
        listed: bool,
    ) -> None:
        self.listed = listed  # whether words come from a short list
        self.graph, self.weights, self.config = Graph("step", precision, store), weights, config
        self.n, self.d = config.hidden, coverage_size(weights)
        self.cell = Cell.of(weights, "decoder.cell", config.cell)
        self.extra = len(weights.get("decoder.coverage.from_context", ()))
        graph, n = self.graph, config.hidden
        self.source = Source(
            graph.input("values", FLOAT, ["S", "J", len(context_products(weights, config))]),
            graph.input("keys", FLOAT, ["S", 1, "J", n]),
            graph.input("Phi", FLOAT, ["S", 1, "J", "phi"]) if knows_words(config) else "",
            graph.input("bias", FLOAT, ["S", 1, "J"]),
        )

    def build(self) -> onnx.ModelProto:
        """Words and parents [S, K], what was carried and the source to the k best next words."""
        graph = self.graph
        words = graph.input("words", INT64, ["S", "K"])
        parents = graph.input("parents", INT64, ["S", "K"])
        y = self._last(words)
        W = np.concatenate([self._of("decoder.cell.W"), halves(self._of("readout.V_o"))])
        zero = np.zeros(2 * self.n, dtype=np.float32)
        b = [zero, self._of("decoder.cell.b"), halves(self._of("readout.U_o.bias"))]
        word, shown = graph.split(graph.product(y, W, np.concatenate(b)), 3 * self.n, self.n)
        t = self._carried("t", self.n, parents)
        C = ""
        if self.d:
            C = self._carried("C", "Jd", parents)
            C = graph.reshape(C, 0, 0, -1, self.d)  # [S, K, J, d]
        order = self._code_order if self.config.order == "code" else self._paper_order
        self._say(order(word, shown, t, C, parents))
        return graph.build()

    def _last(self, words: str) -> str:
        """The last word's E + b [S, K, m]; behind the table is the word before the first: zeros."""
        graph, E, b = self.graph, self._of("target.E"), self._of("target.b")
        shared = self.config.tie_target and graph.precision == "int8" and not self.listed
        if not shared:
            return graph.table(np.pad(E + b, ((0, 1), (0, 0))), words)
        last = graph.constant(np.array(len(E) - 1))
        real = graph.op("LessOrEqual", words, last)
        y = graph.columns(self._of("readout.W_2"), graph.op("Min", words, last))
        y = graph.op("Add", y, graph.constant(b))
        real = graph.op("Unsqueeze", real, graph.ints(-1))
        return graph.op("Where", real, y, graph.constant(np.zeros(1, np.float32)))

    def _code_order(self, word: str, shown: str, t: str, C: str, parents: str) -> str:
        """The layer before maxout; the state absorbs the last word before it looks."""
        graph, n = self.graph, self.n
        first = graph.input("first", BOOL, [])
        before = self._carried("s", 3 * n + self.extra, parents)
        s, context = graph.split(before, 3 * n, self.extra) if self.extra else (before, "")
        updated = self.cell.advance(graph, graph.op("Add", word, s), t)
        t = graph.op("Where", first, t, updated)
        W = [self._of("decoder.attention.W_a"), halves(self._of("readout.U_o.weight"))]
        query, own, state = self._with_coverage(t, np.concatenate(W), n, n)
        look = self._look(query, C)
        read, rest = graph.split(look.s, n, 3 * n + self.extra)
        self._carry("t", t)
        self._carry("s", rest)
        self._cover(C, look, state, context)
        return graph.op("Sum", read, own, shown)

    def _paper_order(self, word: str, shown: str, t: str, C: str, parents: str) -> str:
        """The layer before maxout; the state absorbs the last word after it looked."""
        graph, n = self.graph, self.n
        context = self._carried("s", self.extra, parents) if self.extra else ""
        W = np.concatenate([self._of("decoder.attention.W_a"), self.cell.recurrent()])
        query, recurrent, state = self._with_coverage(t, W, n, len(W) - n)
        look = self._look(query, C)
        read, s, *rest = graph.split(look.s, n, 3 * n, *[self.extra] * bool(self.extra))
        t = self.cell.advance(graph, graph.op("Add", word, s), t, recurrent)
        self._carry("t", t)
        if self.extra:
            self._carry("s", rest[0])
        self._cover(C, look, state, context)
        own = graph.product(t, halves(self._of("readout.U_o.weight")))
        return graph.op("Sum", read, own, shown)

    def _with_coverage(self, t: str, W: Array, *sizes: int) -> tuple[str, str, str]:
        """W t in two parts, and the coverage network's product with t where there is one."""
        S = self.weights.get("decoder.coverage.S")
        if S is None:
            first, second = self.graph.split(self.graph.product(t, W), *sizes)
            return first, second, ""
        stacked = self.graph.product(t, np.concatenate([W, S]))
        first, second, third = self.graph.split(stacked, *sizes, len(S))
        return first, second, third

    def _look(self, query: str, C: str) -> Look:
        """e = v . tanh(query + keys + V_a C), alpha = softmax, s = sum_j alpha_j value_j."""
        graph, source = self.graph, self.source
        seen = graph.op("Unsqueeze", query, graph.ints(2))  # [S, K, 1, n]
        total = graph.op("Add", seen, source.keys)  # [S, K, J, n]
        if C:
            V_a = graph.constant(self._of("decoder.attention.V_a").T)
            total = graph.op("Add", total, graph.op("MatMul", C, V_a))
        # v as a row times a transposed matrix is by far the fastest form of this product
        flat = graph.op("Flatten", graph.op("Tanh", total), axis=3)  # [S K J, n]
        v = graph.constant(self._of("decoder.attention.v")[None])
        e = graph.op("Gemm", v, flat, transB=1)  # [1, S K J]
        e = graph.op("Reshape", e, graph.op("Shape", total, end=3))  # [S, K, J]
        alpha = graph.op("Softmax", graph.op("Add", e, source.bias), axis=-1)
        graph.output("alpha", alpha, ["S", "K", "J"])
        return Look(alpha, graph.op("MatMul", alpha, source.values), e)

    def _cover(self, C: str, look: Look, state: str, context: str) -> None:
        """C_i from C_{i-1}, alpha_i and what else the coverage model looks at."""
        graph, kind = self.graph, self.config.coverage.kind
        if not C:
            return
        alpha = graph.op("Unsqueeze", look.alpha, graph.ints(3))  # [S, K, J, 1]
        if kind in ("linguistic", "fertility"):
            change = graph.op("Div", alpha, self.source.Phi) if self.source.Phi else alpha
            add = self.config.coverage.accumulate == "add"
            after = graph.op("Add" if add else "Sub", C, change)
        else:
            after = self._neural(C, self._inputs(alpha, look.energies, state, context))
        self._carry("C", after)

    def _inputs(self, alpha: str, energies: str, state: str, context: str) -> str:
        """What the coverage network sees besides the coverage [S, K, J, gd]."""
        graph, P = self.graph, self._of("decoder.coverage.P")
        shared = graph.op("Add", state, context) if context else state
        shared = graph.op("Unsqueeze", shared, graph.ints(2))  # [S, K, 1, gd]
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
        return gru(graph, inputs, C, gates, d, lambda r: graph.op("MatMul", r, candidate))

    def _say(self, o: str) -> None:
        """Maxout, words, and the best of them; of all words for whoever asks."""
        graph = self.graph
        p = graph.op("Max", *graph.split(o, self.n // 2, self.n // 2))
        if "readout.W_1" in self.weights:
            p = graph.product(p, self._of("readout.W_1"))
        product = graph.given_product if self.listed else graph.product
        logits = product(p, self._of("readout.W_2"), self._of("readout.b"))
        log_probs = graph.op("LogSoftmax", logits, axis=-1)
        best, numbers = graph.ops("TopK", 2, log_probs, graph.input("k", INT64, [1]), axis=-1)
        graph.output("best", best, ["S", "K", "best"])
        graph.output("numbers", numbers, ["S", "K", "best"], INT64)
        graph.output("log_probs", log_probs, ["S", "K", "V"])

    def _carried(self, name: str, size: int | str, parents: str) -> str:
        """What the step before left for these hypotheses [S, K, size]."""
        return self.graph.op("Gather", self.graph.input(name, FLOAT, ["R", size]), parents)

    def _carry(self, name: str, value: str) -> None:
        """Leave a row for each hypothesis to the next step."""
        self.graph.output(f"{name}.next", self.graph.op("Flatten", value, axis=2), ["SK", name])

    def _of(self, name: str) -> Array:
        return self.weights[name]


def halves(W: Array) -> Array:
    """Rows 0, 2, 4, ... and then 1, 3, 5, ...: maxout then compares two halves."""
    return np.concatenate([W[0::2], W[1::2]])


def context_products(weights: Weights, config: ModelConfig) -> Array:
    """All that a context is ever multiplied with, in the order C_o, Cx, and for the coverage.

    A context is a mean of annotations, so these products can be taken of the annotations, once.
    """
    n = config.hidden
    nothing = np.zeros((0, 2 * n), dtype=np.float32)
    extra = weights.get("decoder.coverage.from_context", nothing)
    return np.concatenate([halves(weights["readout.C_o"]), weights["decoder.Cx"], extra])


def coverage_size(weights: Weights) -> int:
    """d, the coverage units of a source word; 0 without coverage."""
    V_a = weights.get("decoder.attention.V_a")
    return 0 if V_a is None else V_a.shape[1]


def knows_words(config: ModelConfig) -> bool:
    """Whether the coverage model knows something of each source word, Phi."""
    return config.coverage.kind in ("fertility", "tanh", "gru")
