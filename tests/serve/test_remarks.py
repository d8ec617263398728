"""Remarks on source and target tokens."""

from dataclasses import replace

import numpy as np
import pytest

from covnmt.inference.omissions import Omission
from covnmt.inference.translate import Translation
from covnmt.serve.remarks import find_remarks, readable_tokens

# target words, attention [I, J], fertility, the remarks as (side, position, kind)
CASES = {
    "all well": ("x y", [[0.9, 0.1], [0.1, 0.9]], None, []),
    "left out": ("x", [[0.95, 0.05]], None, [("source", 1, "left out")]),
    "twice in a row": ("x x", [[0.9, 0.1], [0.8, 0.2]], None, [("target", 1, "said twice")]),
    "the same word from elsewhere": ("x x", [[0.9, 0.1], [0.1, 0.9]], None, []),
    "hardly attended to": ("x x", [[0.35, 0.3], [0.35, 0.3]], None, []),
    "more than expected": (
        "x y z",
        [[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]],
        [1.0, 1.0],
        [("source", 0, "too much")],
    ),
    "as much as expected": ("x y z", [[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]], [2.0, 1.0], []),
    "much, with nothing expected": ("v w x y", [[0.9, 0.1]] * 4, None, []),
    "too much, with nothing expected": (
        "v w x y z",
        [[0.9, 0.1]] * 5,
        None,
        [("source", 0, "too much")],
    ),
    "nothing said": ("", np.zeros((0, 2)), None, [("source", j, "left out") for j in (0, 1)]),
}


def translation(target: str, attention: object, fertility: list[float] | None) -> Translation:
    alignment = np.array(attention, dtype=np.float32)
    received = alignment.sum(axis=0)
    expected = None if fertility is None else np.array(fertility, dtype=np.float32)
    return Translation(
        source="a b",
        source_tokens=("a", "b"),
        text=target,
        tokens=tuple(target.split()),
        score=-1.0,
        blocks=(alignment,),
        coverage=received if expected is None else received / expected,
        fertility=expected,
    )


@pytest.mark.parametrize("case", CASES)
def test_remarks_follow_attention_and_fertility(case: str) -> None:
    target, attention, fertility, expected = CASES[case]
    found = find_remarks(translation(target, attention, fertility))
    assert [(each.side, each.position, each.kind) for each in found] == expected


def test_reasons_give_the_measured_attention() -> None:
    [twice] = find_remarks(translation("x x", [[0.9, 0.1], [0.8, 0.2]], None))
    assert twice.reason == "word 1 is the same and comes from “a” too"
    [much] = find_remarks(translation("x y z", [[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]], [1.0, 1.0]))
    assert much.reason == "attention 2.00 in all, 1.00 expected: more than its share"


def test_reasons_show_subwords_as_words() -> None:
    made = translation("x x", [[0.9, 0.1], [0.8, 0.2]], None)
    [space] = find_remarks(replace(made, source_tokens=("▁cat", "b")))
    assert "comes from “cat” too" in space.reason
    [byte] = find_remarks(replace(made, source_tokens=("<0x24>", "b")))
    assert "comes from “$” too" in byte.reason


def test_a_checked_translation_has_the_omissions_of_the_check_instead_of_low_attention() -> None:
    made = translation("x", [[0.95, 0.05]], None)
    assert find_remarks(replace(made, omissions=())) == []
    omission = Omission("a .", 0, 2, 3.0, 0.75, "phrase", 0, 3)
    found = find_remarks(replace(made, source_tokens=("a", "."), omissions=(omission,)))
    assert [(each.position, each.kind) for each in found] == [(0, "left out")]  # no mark
    assert "“a .”, with a probability of 0.75" in found[0].reason


def test_words_that_may_repeat_have_no_remark() -> None:
    made = translation("x x", [[0.9, 0.1], [0.8, 0.2]], None)
    assert find_remarks(replace(made, may_repeat=frozenset([0, 1]))) == []


def test_a_long_token_may_get_the_attention_of_several_words() -> None:
    made = translation("v w x y z", [[0.9, 0.1]] * 5, None)
    assert find_remarks(replace(made, source_tokens=("公布日施行", "b"))) == []


def test_readable_tokens_have_no_signs_of_subwords_and_bytes() -> None:
    tokens = ["▁", "▁cat", "s", "a▁b", "<0xE9>", "<0xA9>", "<0xAB>", "<0x24>", "<0xAB>"]
    expected = ["␣", "cat", "s", "a b", "驫₁", "驫₂", "驫₃", "$", "<0xAB>"]
    assert readable_tokens(tokens) == expected
    assert readable_tokens([]) == []


def test_an_empty_sentence_has_no_remarks() -> None:
    empty = Translation("", (), "", (), 0.0, (), np.zeros(0, dtype=np.float32), None)
    assert find_remarks(empty) == []
