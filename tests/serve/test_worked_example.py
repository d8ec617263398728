"""The example that the page opens with is what the bundled model answers."""

import numpy as np
import pytest

from covnmt.base.files import read_json

from .worked_example import GLOSS, PATH, TRANSLATION, worked_example


def test_the_example_of_the_page_is_the_output_of_the_model() -> None:
    """If the model or the check has changed: scripts/update-docs."""
    shown, expected = read_json(PATH), worked_example()
    assert shown["gloss"] == [list(piece) for piece in GLOSS]
    assert shown["translation"] == TRANSLATION
    assert shown["bounds"] == expected["bounds"]
    for key in ("source", "text", "source_tokens", "tokens"):
        assert shown["sentence"][key] == expected["sentence"][key]
    # sums differ in the last places between processors
    np.testing.assert_allclose(
        shown["sentence"]["alignment"], expected["sentence"]["alignment"], atol=0.02
    )
    [found], [again] = shown["check"]["left_out"], expected["check"]["left_out"]
    assert (found["text"], found["start"], found["end"]) == (
        again["text"],
        again["start"],
        again["end"],
    )
    assert any(found["text"] in piece for piece, _ in GLOSS), "the page marks one of the pieces"
    assert found["gain"] == pytest.approx(again["gain"], abs=0.3)
