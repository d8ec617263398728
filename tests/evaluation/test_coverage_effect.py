"""Attention with the coverage and without, of opened models."""

from pathlib import Path

import numpy as np
import pytest

from covnmt.evaluation.coverage_effect import ablate_coverage, measure_coverage_effect
from covnmt.inference.model import Model

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
PAIRS = [("the small cat", "die katze"), ("", "die"), ("the", "die kleine katze"), ("cat", "")]


def test_matrices_are_those_of_the_pairs_without_end_symbols(translator: Model) -> None:
    """Empty lines are left out; a batch changes nothing."""
    full = [pair for pair in PAIRS if all(pair)]
    together = list(ablate_coverage(translator, PAIRS))
    aligned = {a.matrix.shape: a.matrix for a in translator.align(full)}
    assert {pair.attention.shape for pair in together} == set(aligned) == {(2, 3), (3, 1)}
    for pair in together:
        np.testing.assert_allclose(pair.attention, aligned[pair.attention.shape], atol=1e-6)
        assert pair.without_coverage.shape == pair.attention.shape
        np.testing.assert_allclose(pair.without_coverage[0], pair.attention[0], atol=1e-6)
    [alone] = ablate_coverage(translator, full[:1])
    same = next(pair for pair in together if pair.attention.shape == (2, 3))
    np.testing.assert_allclose(alone.without_coverage, same.without_coverage, atol=1e-6)


@pytest.mark.parametrize("name", ["ja-en", "zh-en"])
def test_bundled_models_attend_less_to_covered_words_with_their_coverage(
    name: str,
) -> None:
    """Their own translations of our example sentences; the published figures are of test sets."""
    model = Model.load(name)
    lines = (EXAMPLES / f"{name[:2]}.txt").read_text("utf-8").splitlines()[:6]
    sources = [line.replace(" ", "") for line in lines]
    texts = [t.text for t in model.translate(sources)]
    effect = measure_coverage_effect(model, zip(sources, texts, strict=True))
    assert effect.covered.words > 0
    assert effect.difference < 0
