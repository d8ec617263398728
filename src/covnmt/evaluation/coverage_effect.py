"""Intervene in a trained model: attend with the coverage and, at the same step, without it.

This shows what coverage does inside a model (paper, section 3.2), which no statistic of its
attention can: attention moves on without coverage too.
"""

from collections.abc import Iterable

from covnmt.inference.model import Model
from covnmt.metrics.attention_statistics import AttendedPair, CoverageEffect, coverage_effect


def measure_coverage_effect(model: Model, pairs: Iterable[tuple[str, str]]) -> CoverageEffect:
    """Force-decode pairs of lines with the coverage and without; empty lines do not count."""
    return coverage_effect(ablate_coverage(model, pairs))


def ablate_coverage(model: Model, pairs: Iterable[tuple[str, str]]) -> list[AttendedPair]:
    """Return the attention of each pair, by the model's tokens and without end symbols."""
    encoded = [
        (model.source.encode(source), model.target.encode(target)) for source, target in pairs
    ]
    return model.forced_decoder.ablate_coverage([pair for pair in encoded if all(pair)])
