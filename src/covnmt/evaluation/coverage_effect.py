"""Intervene in a trained model: attend with the coverage and, at the same step, without it.

This shows what coverage does inside a model (paper, section 3.2), which no statistic of its
attention can: attention moves on without coverage too.
"""

from collections.abc import Iterable, Iterator

from covnmt.data.padding import length_sorted_batches, pad_ids
from covnmt.inference.model import Model
from covnmt.metrics.attention_statistics import AttendedPair, CoverageEffect, coverage_effect

BATCH_SIZE = 64


def measure_coverage_effect(model: Model, pairs: Iterable[tuple[str, str]]) -> CoverageEffect:
    """Force-decode pairs of lines with the coverage and without; empty lines do not count."""
    return coverage_effect(attend_twice(model, pairs))


def attend_twice(model: Model, pairs: Iterable[tuple[str, str]]) -> Iterator[AttendedPair]:
    """Yield the attention of each pair, by the model's tokens and without end symbols."""
    encoded = [
        [
            codec.vocabulary.encode(codec.tokenize(line))
            for codec, line in zip((model.source, model.target), pair, strict=True)
        ]
        for pair in pairs
    ]
    encoded = [pair for pair in encoded if all(pair)]
    lengths = [len(source) + len(target) for source, target in encoded]
    for batch in length_sorted_batches(lengths, BATCH_SIZE):
        source = pad_ids([encoded[k][0] for k in batch], model.source.vocabulary.end_id)
        target = pad_ids([encoded[k][1] for k in batch], model.target.vocabulary.end_id)
        alpha, without, fertility = model.engine.attend_twice(source, target)
        for row, k in enumerate(batch):
            J, I = map(len, encoded[k])
            Phi = None if fertility is None else fertility[row, :J]
            yield AttendedPair(alpha[row, :I, :J], without[row, :I, :J], Phi)
