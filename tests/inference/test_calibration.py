"""Logistic regression on evidence of omissions, and the file it is kept in."""

import json
from pathlib import Path

import numpy as np
import pytest

from covnmt.base.errors import UserError
from covnmt.inference.calibration import Calibration, Logistic
from covnmt.inference.domain import DomainStatistics


def noisy_examples(count: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """Return two features, of which the first decides with a known probability."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(count, 2)) * [2.0, 0.1] + [1.0, 5.0]
    labels = rng.random(count) < 1 / (1 + np.exp(-(1.5 * x[:, 0] - 2)))
    return x, labels


def test_probabilities_are_those_that_made_the_examples() -> None:
    x, labels = noisy_examples()
    logistic = Logistic.fit(("a", "b"), x.tolist(), labels.tolist())
    found = logistic.probabilities([[2.0, 5.0], [0.0, 5.0]])
    np.testing.assert_allclose(found, 1 / (1 + np.exp([-1.0, 2.0])), atol=0.04)
    assert logistic.examples == (int((~labels).sum()), int(labels.sum()))


def test_prior_odds_replace_those_of_the_examples() -> None:
    """Omissions are rarer than in the examples, so probabilities fall; their order stays."""
    x, labels = noisy_examples()
    rows = x[:50].tolist()
    common, rare = (
        Logistic.fit(("a", "b"), x.tolist(), labels.tolist(), odds).probabilities(rows)
        for odds in (None, 0.01)
    )
    assert (rare < common).all()
    assert (np.argsort(rare) == np.argsort(common)).all()
    odds = labels.mean() / (1 - labels.mean())
    shift = np.log(common / (1 - common)) - np.log(rare / (1 - rare))
    np.testing.assert_allclose(shift, np.log(odds / 0.01), atol=0.01)


def test_an_example_counts_as_often_as_its_importance_says() -> None:
    rows, labels = [[0.0], [1.0], [2.0], [3.0]], [False, True, False, True]
    once = Logistic.fit(("a",), [*rows, [1.0]], [*labels, True])
    weighted = Logistic.fit(("a",), rows, labels, importance=[1, 2, 1, 1])
    low, high = (each.probabilities([[0.0], [3.0]]) for each in (once, weighted))
    np.testing.assert_allclose(low, high, atol=0.02)  # mean and scale differ
    assert (high > Logistic.fit(("a",), rows, labels).probabilities([[0.0], [3.0]])).all()


def test_a_constant_feature_has_no_effect() -> None:
    logistic = Logistic.fit(
        ("a", "b"), [[0, 3], [1, 3], [2, 3], [3, 3]], [False, False, True, True]
    )
    low, high = logistic.probabilities([[0, 3], [3, 3]])
    assert low < 0.5 < high
    assert logistic.probabilities([]).size == 0


def test_a_calibration_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert Calibration.load(tmp_path) is None
    logistic = Logistic.fit(("a",), [[0], [1], [2]], [False, True, True])
    usual = DomainStatistics(name="laws", source_scripts=("HAN",))
    calibration = Calibration(
        lexical=logistic,
        parts=logistic,
        words=logistic,
        unrelated=logistic,
        length_mean=0.1,
        length_deviation=0.2,
        domain=usual,
    )
    calibration.save(tmp_path)
    loaded = Calibration.load(tmp_path)
    assert loaded is not None
    assert loaded.model_copy(update={"checksum": ""}) == calibration
    tree = json.loads((tmp_path / "check.json").read_text())
    assert tree.pop("lines") is None  # as before there was a judgment of lines
    (tmp_path / "check.json").write_text(json.dumps(tree))
    assert Calibration.load(tmp_path) == loaded
    changed = (tmp_path / "check.json").read_text().replace("0.2,", "0.3,")
    (tmp_path / "check.json").write_text(changed)
    with pytest.raises(UserError, match=r"check\.json: damaged: its checksum"):
        Calibration.load(tmp_path)
    (tmp_path / "check.json").write_text('{"format": 1}')
    with pytest.raises(UserError, match=r"check\.json: "):
        Calibration.load(tmp_path)
