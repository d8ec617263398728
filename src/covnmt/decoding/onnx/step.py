"""The graph that makes a step of the search.

The equations are those of `ops.reference`, arranged for speed: matrices that meet the same vector
are stacked into one product, hypotheses of one sentence share its annotations, and a step begins
with picking the rows of its parents, so that states never leave the runtime.

Letters: K hypotheses of each sentence, c sentences of a group (see `attention`), G groups; J source
positions, V words, n hidden, d coverage units.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import onnx

from covnmt.base.arrays import FloatArray
from covnmt.base.config import ModelConfig
from covnmt.decoding.onnx.attention import AttentionInputs, OnnxAttentionStep
from covnmt.decoding.onnx.builder import BOOL, FLOAT, INT64, GraphBuilder, WeightStore
from covnmt.decoding.onnx.cells import NamedWeights, OnnxCell
from covnmt.decoding.onnx.encoder import (
    context_weights,
    deinterleave_rows,
    has_source_features,
    max_embedding_value,
)
from covnmt.decoding.onnx.format import Precision
from covnmt.decoding.onnx.topk import pad_output_layer, top_k_ids

ROWS = ("G", "c", "K")  # the axes of all that hypotheses have of their own
BEFORE = ("G before", "c before", "K before")


class ActivationRanges(NamedTuple):
    """The largest absolute values of layers that have no natural bound."""

    maxout: float
    features: float  # behind W_1, where there is one


class StepGraph:
    """A step, being written."""

    def __init__(
        self,
        weights: NamedWeights,
        config: ModelConfig,
        precision: Precision,
        store: WeightStore,
        ranges: ActivationRanges,
        listed: bool,
    ) -> None:
        self.ranges, self.listed = ranges, listed  # whether words come from a short list
        self.graph, self.weights, self.config = (
            GraphBuilder("step", precision, store),
            weights,
            config,
        )
        self.n = config.hidden
        # words that are heard and said are stored once
        self.shared = config.tie_target and precision == "int8" and not listed
        self.cell = OnnxCell.of(weights, "decoder.cell", config.cell)
        self.attention = OnnxAttentionStep(weights, config)
        # what the coverage network has of a context at the next step, and at once
        self.extra = len(weights.get("decoder.coverage.from_context", ()))
        self.now = len(weights.get("decoder.coverage.from_current", ()))

    def build(self) -> onnx.ModelProto:
        """Words and parents, what was carried and the source to the k best next words."""
        graph = self.graph
        words = graph.input("words", INT64, ROWS)
        self.parents = graph.input("parents", INT64, ROWS)
        y = self._last(words)
        W = np.concatenate(
            [self.weights["decoder.cell.W"], deinterleave_rows(self.weights["readout.V_o"])]
        )
        zero = np.zeros(2 * self.n, dtype=np.float32)
        b = [
            zero,
            self.weights["decoder.cell.b"],
            deinterleave_rows(self.weights["readout.U_o.bias"]),
        ]
        known = graph.product(y, W, np.concatenate(b), max_embedding_value(self.weights, "target"))
        word, shown = graph.split(known, 3 * self.n, self.n)
        t = self._carried("t", self.n)
        order = self._code_order if self.config.order == "code" else self._paper_order
        self._say(order(word, shown, t))
        return graph.build()

    def _last(self, words: str) -> str:
        """The last word's E + b; behind the table is the word before the first: zeros."""
        graph, E, b = self.graph, self.weights["target.E"], self.weights["target.b"]
        if not self.shared:
            return graph.table(np.pad(E + b, ((0, 1), (0, 0))), words)
        last = graph.constant(np.array(len(E) - 1))
        real = graph.op("LessOrEqual", words, last)
        y = graph.columns(self._output()[1], graph.op("Min", words, last))
        y = graph.op("Add", y, graph.constant(b))
        real = graph.op("Unsqueeze", real, graph.ints(-1))
        return graph.op("Where", real, y, graph.constant(np.zeros(1, np.float32)))

    def _code_order(self, word: str, shown: str, t: str) -> str:
        """The layer before maxout; the state absorbs the last word before it looks."""
        graph, n = self.graph, self.n
        first = graph.input("first", BOOL, [])
        before = self._carried("s", 3 * n + self.extra)
        s, context = graph.split(before, 3 * n, self.extra) if self.extra else (before, "")
        updated = self.cell.advance(graph, *self._inputs(word, s), t)
        t = graph.op("Where", first, t, updated)
        W = [
            self.weights["decoder.attention.W_a"],
            deinterleave_rows(self.weights["readout.U_o.weight"]),
        ]
        query, own, state = self._with_coverage(t, np.concatenate(W), n, n)
        read, rest = self._look(query, state, context)
        self._carry("t", t, n)
        self._carry("s", rest, 3 * n + self.extra)
        return graph.op("Sum", read, own, shown)

    def _paper_order(self, word: str, shown: str, t: str) -> str:
        """The layer before maxout; the state absorbs the last word after it looked."""
        graph, n = self.graph, self.n
        context = self._carried("s", self.extra) if self.extra else ""
        W = np.concatenate([self.weights["decoder.attention.W_a"], self.cell.recurrent()])
        query, recurrent, state = self._with_coverage(t, W, n, len(W) - n)
        read, s = self._look(query, state, context)
        if self.extra:
            s, rest = graph.split(s, 3 * n, self.extra)
            self._carry("s", rest, self.extra)
        t = self.cell.advance(graph, *self._inputs(word, s), t, recurrent)
        self._carry("t", t, n)
        own = graph.product(t, deinterleave_rows(self.weights["readout.U_o.weight"]))
        return graph.op("Sum", read, own, shown)

    def _inputs(self, word: str, s: str) -> tuple[str, str]:
        """What word and context give to the gates, and to the candidate."""
        rz, c = self.graph.split(self.graph.op("Add", word, s), 2 * self.n, self.n)
        return rz, c

    def _with_coverage(self, t: str, W: FloatArray, *sizes: int) -> tuple[str, str, str]:
        """W t in two parts, and the coverage network's product with t where there is one."""
        S = self.weights.get("decoder.coverage.S")
        if S is None:
            first, second = self.graph.split(self.graph.product(t, W), *sizes)
            return first, second, ""
        stacked = self.graph.product(t, np.concatenate([W, S]))
        first, second, third = self.graph.split(stacked, *sizes, len(S))
        return first, second, third

    def _look(self, query: str, state: str, context: str) -> tuple[str, str]:
        """The products of the context, C_o s and the others; attention and coverage go out."""
        graph, n, d = self.graph, self.n, self.attention.d
        C = graph.reshape(self._carried("C", "J", d), 0, 0, 0, -1, d) if d else ""
        knows = has_source_features(self.config)
        given = AttentionInputs(
            query=query,
            state=state,
            context=context,
            C=C,
            keys=graph.input("keys", FLOAT, ["G", "c", 1, "J", n]),
            values=graph.input("values", FLOAT, ["G", "c", "J", "*"]),
            Phi=graph.input("Phi", FLOAT, ["G", "c", 1, "J", "phi"]) if knows else "",
            bias=graph.input("bias", FLOAT, ["G", "c", 1, "J"]),
        )
        look = self.attention.look(graph, given)
        graph.output("alpha", look.alpha, [*ROWS, "J"])
        read, rest = self._products(look.means)
        if self.now:
            rest, now = graph.split(rest, 3 * n + self.extra, self.now)
            given = replace(given, context=graph.op("Add", context, now) if context else now)
        if d:
            self._carry("C", self.attention.cover(graph, given, look), "J", d)
        return read, rest

    def _products(self, means: str) -> tuple[str, str]:
        """Of means of annotations their products, unless they are means of products."""
        graph, n = self.graph, self.n
        W = context_weights(self.weights, self.config)
        if graph.precision == "int8":
            read, rest = graph.split(means, n, len(W) - n)
            return read, rest
        taken, known = graph.inner("taken"), graph.inner("known")
        for branch, s in ((taken, taken.product(means, W)), (known, means)):
            for number, part in enumerate(branch.split(s, n, len(W) - n)):
                branch.output(f"{branch.name}.{number}", part, None)
        width = graph.op("Shape", means, start=-1)
        read, rest = graph.choose(graph.op("Equal", width, graph.ints(2 * n)), taken, known)
        return read, rest

    def _say(self, o: str) -> None:
        """Maxout, words, and the best of them; of all words for whoever asks."""
        graph, k = self.graph, self.graph.input("k", INT64, [1])
        p = graph.op("Max", *graph.split(o, self.n // 2, self.n // 2))
        W_1, W_2, b = self._output()
        bound = self.ranges.maxout
        if W_1 is not None:
            p, bound = graph.product(p, W_1, None, bound), self.ranges.features
        product = graph.given_product if self.listed else graph.product
        logits = product(p, W_2, b, bound)
        log_probs = graph.op("LogSoftmax", logits, axis=-1)
        if self.listed:
            best, numbers = graph.ops("TopK", 2, log_probs, k)
        else:
            best, numbers = top_k_ids(graph, log_probs, k, len(b))
        graph.output("best", best, [*ROWS, "best"])
        graph.output("numbers", numbers, [*ROWS, "best"], INT64)
        graph.output("log_probs", log_probs, [*ROWS, "V"])

    def _output(self) -> tuple[FloatArray | None, FloatArray, FloatArray]:
        """What is between maxout and words: W_1, W_2 and b, or W_2 W_1 where that is smaller."""
        W_1, W_2 = self.weights.get("readout.W_1"), self.weights["readout.W_2"]
        b = self.weights["readout.b"]
        if W_1 is not None and len(W_1) >= W_1.shape[1] and not self.shared:
            W_2, W_1 = W_2 @ W_1, None
        return (W_1, W_2, b) if self.listed else (W_1, *pad_output_layer(W_2, b))

    def _carried(self, name: str, *sizes: int | str) -> str:
        """What the step before left for these hypotheses [G, c, K, size]."""
        before = self.graph.input(name, FLOAT, [*BEFORE, *sizes])
        return self.graph.op("Gather", self.graph.op("Flatten", before, axis=3), self.parents)

    def _carry(self, name: str, value: str, *sizes: int | str) -> None:
        """Leave a row for each hypothesis to the next step."""
        self.graph.output(f"{name}.next", value, [*ROWS, *sizes])
