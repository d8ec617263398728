"""The best of many words, by blocks.

The runtime's own choice of the k best looks at one number after the other. Here the highest number
of every block is found first, several numbers at once; the k best words are in the k blocks with
the highest ones, and only these are looked at closely.

Letters: G, c, K the axes of hypotheses (see `step`), V words, k of them the best.
"""

import numpy as np

from covnmt.base.arrays import FloatArray
from covnmt.decoding.onnx.builder import GraphBuilder

BLOCK = 64  # words


def pad_output_layer(W: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The output layer [V, q], [V] with words behind its last that nobody ever says."""
    missing = -len(b) % BLOCK
    W = np.pad(W, ((0, missing), (0, 0)), mode="edge")
    return W, np.pad(b, (0, missing), constant_values=-np.inf)


def top_k_ids(graph: GraphBuilder, scores: str, k: str, words: int) -> tuple[str, str]:
    """The k highest scores [G, c, K, k] of the words of full blocks, best first, and their numbers.

    Of equal ones the lower number comes first.
    """
    blocks = graph.reshape(scores, 0, 0, 0, -1, BLOCK)
    highest = graph.op("ReduceMax", blocks, graph.ints(-1), keepdims=0)
    few = graph.op("Min", k, graph.ints(words // BLOCK))
    chosen = graph.ops("TopK", 2, highest, few)[1]  # [G, c, K, k]
    chosen = graph.ops("TopK", 2, chosen, few, largest=0)[0]  # as words are numbered
    places = graph.op("Unsqueeze", chosen, graph.ints(-1))
    near = graph.op("GatherND", blocks, places, batch_dims=3)  # [G, c, K, k, BLOCK]
    best, numbers = graph.ops("TopK", 2, graph.reshape(near, 0, 0, 0, -1), k)
    size = graph.constant(np.array(BLOCK))
    block = graph.op("Div", numbers, size)  # among the chosen
    skipped = graph.op("Sub", graph.op("GatherElements", chosen, block, axis=-1), block)
    return best, graph.op("Add", numbers, graph.op("Mul", skipped, size))
