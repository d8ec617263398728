"""The graph of one step of beam search.

The equations are those of `kernels.reference`, arranged for speed: matrices that multiply the same
vector are stacked into one product, hypotheses of one sentence share its annotations, and a step
begins with picking the rows of its parents, so that states never leave the runtime.

Notation: K hypotheses of each sentence, c sentences of a group (see `layers`), G groups; J source
positions, V vocabulary size, n hidden, d coverage units.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import onnx

from covnmt.base.arrays import FloatArray
from covnmt.base.config import ModelConfig
from covnmt.decoding.onnx.builder import BOOL, FLOAT, INT64, GraphBuilder, WeightStore
from covnmt.decoding.onnx.encoder import (
    context_weights,
    deinterleave_rows,
    has_source_features,
    max_embedding_value,
)
from covnmt.decoding.onnx.format import Precision
from covnmt.decoding.onnx.layers import AttentionInputs, NamedWeights, OnnxAttentionStep, OnnxCell

ROWS = ("G", "c", "K")  # the axes of all that hypotheses have of their own
ROWS_BEFORE = ("G before", "c before", "K before")
BLOCK = 64  # tokens whose best is found first


class ActivationRanges(NamedTuple):
    """The largest absolute values of layers that have no natural bound."""

    maxout: float
    features: float  # the product with W_1, where there is one


class StepGraph:
    """Builds the graph of a step; with a shortlist, rows of the output layer are inputs."""

    def __init__(
        self,
        weights: NamedWeights,
        config: ModelConfig,
        precision: Precision,
        store: WeightStore,
        ranges: ActivationRanges,
        has_shortlist: bool,
    ) -> None:
        self.graph = GraphBuilder("step", precision, store)
        self.weights, self.config, self.n = weights, config, config.hidden
        self.ranges, self.has_shortlist = ranges, has_shortlist
        # embeddings that are also output weights are stored once
        self.is_tied = config.tie_target and precision == "int8" and not has_shortlist
        self.cell = OnnxCell.named(weights, "decoder.cell", config.cell)
        self.attention = OnnxAttentionStep(weights, config)
        # products of a context for the coverage network of the next step, and of this one
        self.from_context = len(weights.get("decoder.coverage.from_context", ()))
        self.from_current = len(weights.get("decoder.coverage.from_current", ()))

    def build(self) -> onnx.ModelProto:
        """Build the graph from last tokens, parents, carried state and source to the k best."""
        graph, weights = self.graph, self.weights
        token_ids = graph.input("words", INT64, ROWS)
        self.parents = graph.input("parents", INT64, ROWS)
        y = self._last_embedding(token_ids)
        W = np.concatenate([weights["decoder.cell.W"], deinterleave_rows(weights["readout.V_o"])])
        zero = np.zeros(2 * self.n, dtype=np.float32)
        b_o = deinterleave_rows(weights["readout.U_o.bias"])
        b = np.concatenate([zero, weights["decoder.cell.b"], b_o])
        from_y = graph.product(y, W, b, max_embedding_value(weights, "target"))
        cell_input, readout_input = graph.split(from_y, 3 * self.n, self.n)
        t = self._carried("t", self.n)
        order = self._code_order if self.config.order == "code" else self._paper_order
        self._predict(order(cell_input, readout_input, t))
        return graph.build()

    def _last_embedding(self, token_ids: str) -> str:
        """Append nodes that look up E + b of the last token; the first step reads zeros.

        They are a row after the table, or chosen by `Where` if the table is a product's matrix.
        """
        graph, E, b = self.graph, self.weights["target.E"], self.weights["target.b"]
        if not self.is_tied:
            return graph.embed(np.pad(E + b, ((0, 1), (0, 0))), token_ids)
        last_id = graph.constant(np.array(len(E) - 1))
        is_token = graph.op("LessOrEqual", token_ids, last_id)
        y = graph.embed_from_product(self._output()[1], graph.op("Min", token_ids, last_id))
        y = graph.op("Add", y, graph.constant(b))
        is_token = graph.op("Unsqueeze", is_token, graph.ints(-1))
        return graph.op("Where", is_token, y, graph.constant(np.zeros(1, np.float32)))

    def _code_order(self, cell_input: str, readout_input: str, t: str) -> str:
        """Append nodes that compute the layer before maxout: attend after the state's update.

        As in the paper's code, the state reads the last token before it attends.
        """
        graph, n = self.graph, self.n
        first = graph.input("first", BOOL, [])
        before = self._carried("s", 3 * n + self.from_context)
        s, context = before, ""
        if self.from_context:
            s, context = graph.split(before, 3 * n, self.from_context)
        updated = self.cell.advance(graph, *self._gate_inputs(cell_input, s), t)
        t = graph.op("Where", first, t, updated)
        U_o = deinterleave_rows(self.weights["readout.U_o.weight"])
        W = np.concatenate([self.weights["decoder.attention.W_a"], U_o])
        query, from_state, state = self._state_products(t, W, n, n)
        from_read, carried = self._attend(query, state, context)
        self._carry("t", t, n)
        self._carry("s", carried, 3 * n + self.from_context)
        return graph.op("Sum", from_read, from_state, readout_input)

    def _paper_order(self, cell_input: str, readout_input: str, t: str) -> str:
        """Append nodes that compute the layer before maxout: attend before the state's update.

        As in the paper, the state reads the last token after it attended.
        """
        graph, n = self.graph, self.n
        context = self._carried("s", self.from_context) if self.from_context else ""
        recurrent_weights = self.cell.recurrent_weights()
        W = np.concatenate([self.weights["decoder.attention.W_a"], recurrent_weights])
        query, recurrent, state = self._state_products(t, W, n, len(W) - n)
        from_read, s = self._attend(query, state, context)
        if self.from_context:
            s, carried = graph.split(s, 3 * n, self.from_context)
            self._carry("s", carried, self.from_context)
        t = self.cell.advance(graph, *self._gate_inputs(cell_input, s), t, recurrent)
        self._carry("t", t, n)
        from_state = graph.product(t, deinterleave_rows(self.weights["readout.U_o.weight"]))
        return graph.op("Sum", from_read, from_state, readout_input)

    def _gate_inputs(self, cell_input: str, s: str) -> tuple[str, str]:
        """Append nodes that compute what token and context add to gates, and to the candidate."""
        rz, c = self.graph.split(self.graph.op("Add", cell_input, s), 2 * self.n, self.n)
        return rz, c

    def _state_products(self, t: str, W: FloatArray, *sizes: int) -> tuple[str, str, str]:
        """Append nodes that compute W t in two parts, and S t for a coverage network (else "")."""
        S = self.weights.get("decoder.coverage.S")
        if S is None:
            first, second = self.graph.split(self.graph.product(t, W), *sizes)
            return first, second, ""
        product = self.graph.product(t, np.concatenate([W, S]))
        first, second, third = self.graph.split(product, *sizes, len(S))
        return first, second, third

    def _attend(self, query: str, state: str, context: str) -> tuple[str, str]:
        """Append nodes of attention and coverage; return C_o s, and the other products of s."""
        graph, n, d = self.graph, self.n, self.attention.d
        C = graph.reshape(self._carried("C", "J", d), 0, 0, 0, -1, d) if d else ""
        has_phi = has_source_features(self.config)
        inputs = AttentionInputs(
            query=query,
            state=state,
            context=context,
            C=C,
            keys=graph.input("keys", FLOAT, ["G", "c", 1, "J", n]),
            values=graph.input("values", FLOAT, ["G", "c", "J", "*"]),
            Phi=graph.input("Phi", FLOAT, ["G", "c", 1, "J", "phi"]) if has_phi else "",
            bias=graph.input("bias", FLOAT, ["G", "c", 1, "J"]),
        )
        outputs = self.attention.attend(graph, inputs)
        graph.output("alpha", outputs.alpha, [*ROWS, "J"])
        from_read, others = self._context_products(outputs.means)
        if self.from_current:
            others, current = graph.split(others, 3 * n + self.from_context, self.from_current)
            both = graph.op("Add", context, current) if context else current
            inputs = replace(inputs, context=both)
        if d:
            self._carry("C", self.attention.cover(graph, inputs, outputs), "J", d)
        return from_read, others

    def _context_products(self, means: str) -> tuple[str, str]:
        """Append nodes that multiply the means by all weights of a context.

        Where the encoder projected the annotations, the means are these products already.
        """
        graph, n = self.graph, self.n
        W = context_weights(self.weights, self.config)
        if graph.precision == "int8":
            from_read, others = graph.split(means, n, len(W) - n)
            return from_read, others
        here, before = graph.subgraph("taken"), graph.subgraph("known")
        for branch, products in ((here, here.product(means, W)), (before, means)):
            for number, part in enumerate(branch.split(products, n, len(W) - n)):
                branch.output(f"{branch.name}.{number}", part, None)
        width = graph.op("Shape", means, start=-1)
        are_annotations = graph.op("Equal", width, graph.ints(2 * n))
        from_read, others = graph.branch(are_annotations, here, before)
        return from_read, others

    def _predict(self, o: str) -> None:
        """Append nodes that compute maxout, log-probabilities, and the k best of them."""
        graph, k = self.graph, self.graph.input("k", INT64, [1])
        p = graph.op("Max", *graph.split(o, self.n // 2, self.n // 2))
        W_1, W_2, b = self._output()
        bound = self.ranges.maxout
        if W_1 is not None:
            p, bound = graph.product(p, W_1, None, bound), self.ranges.features
        product = graph.product_with_input if self.has_shortlist else graph.product
        log_probs = graph.op("LogSoftmax", product(p, W_2, b, bound), axis=-1)
        if self.has_shortlist:
            best, token_ids = graph.ops("TopK", 2, log_probs, k)
        else:
            best, token_ids = add_top_k(graph, log_probs, k, len(b))
        graph.output("best", best, [*ROWS, "best"])
        graph.output("numbers", token_ids, [*ROWS, "best"], INT64)
        graph.output("log_probs", log_probs, [*ROWS, "V"])

    def _output(self) -> tuple[FloatArray | None, FloatArray, FloatArray]:
        """Return W_1, W_2 and b, or W_2 W_1 in one where that is no larger."""
        W_1, W_2 = self.weights.get("readout.W_1"), self.weights["readout.W_2"]
        b = self.weights["readout.b"]
        if W_1 is not None and len(W_1) >= W_1.shape[1] and not self.is_tied:
            W_2, W_1 = W_2 @ W_1, None
        return (W_1, W_2, b) if self.has_shortlist else (W_1, *pad_output_layer(W_2, b))

    def _carried(self, name: str, *sizes: int | str) -> str:
        """Append nodes that select the rows [G, c, K, size] of this state that the parents left."""
        before = self.graph.input(name, FLOAT, [*ROWS_BEFORE, *sizes])
        return self.graph.op("Gather", self.graph.op("Flatten", before, axis=3), self.parents)

    def _carry(self, name: str, value: str, *sizes: int | str) -> None:
        """Make this state, a row for each hypothesis, an output that the next step reads."""
        self.graph.output(f"{name}.next", value, [*ROWS, *sizes])


def pad_output_layer(W: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Pad the output layer [V, q], [V] to whole blocks with tokens of probability 0."""
    missing = -len(b) % BLOCK
    W = np.pad(W, ((0, missing), (0, 0)), mode="edge")
    return W, np.pad(b, (0, missing), constant_values=-np.inf)


def add_top_k(graph: GraphBuilder, scores: str, k: str, V: int) -> tuple[str, str]:
    """Append nodes that find the k highest scores [G, c, K, k], best first, and their ids.

    V is a multiple of the block size.

    Of equal ones the lower id comes first. The runtime's own choice compares one value after the
    other; here, as in `array_functions.top_k`, the highest of every block is found first, several
    values at once, and only the k best blocks are sorted.
    """
    blocks = graph.reshape(scores, 0, 0, 0, -1, BLOCK)
    maxima = graph.op("ReduceMax", blocks, graph.ints(-1), keepdims=0)
    few = graph.op("Min", k, graph.ints(V // BLOCK))
    best_blocks = graph.ops("TopK", 2, maxima, few)[1]  # [G, c, K, k]
    best_blocks = graph.ops("TopK", 2, best_blocks, few, largest=0)[0]  # so that ids ascend
    indices = graph.op("Unsqueeze", best_blocks, graph.ints(-1))
    candidates = graph.op("GatherND", blocks, indices, batch_dims=3)  # [G, c, K, k, BLOCK]
    best, positions = graph.ops("TopK", 2, graph.reshape(candidates, 0, 0, 0, -1), k)
    size = graph.constant(np.array(BLOCK))
    block = graph.op("Div", positions, size)  # among the best blocks
    skipped = graph.op("GatherElements", best_blocks, block, axis=-1)
    skipped = graph.op("Sub", skipped, block)  # blocks that were left out before
    return best, graph.op("Add", positions, graph.op("Mul", skipped, size))
