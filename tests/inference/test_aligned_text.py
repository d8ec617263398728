"""Where tokens are in a text, and which words belong to a span of the source."""

from itertools import pairwise

import numpy as np
import pytest

from covnmt.inference.aligned_text import (
    AlignedText,
    Replacement,
    best_range,
    is_one_word,
    token_spans,
)

# tokens, the text, what each token stands for
SPANS = [
    (["▁Kin", "kaku", "-", "ji", "."], "Kinkaku-ji.", ["Kin", "kaku", "-", "ji", "."]),
    (["a", "b", "▁", "c"], "ab  c", ["a", "b", "", "c"]),
    (["12", "条"], "１２條", ["１２", "條"]),
    (["It", "'s"], "It&'s", ["It", "'s"]),
    (["<0xE9>", "<0xA9>", "<0xAB>", "x"], "驫x", ["驫", "", "", "x"]),
    (["hello"], "Hello!", ["Hello"]),
    ([], "text", []),
    (["a"], "", [""]),
]


@pytest.mark.parametrize(("tokens", "text", "expected"), SPANS)
def test_tokens_are_found_in_a_text(tokens: list[str], text: str, expected: list[str]) -> None:
    assert [text[start:end] for start, end in token_spans(tokens, text)] == expected


def test_tokens_of_another_text_have_ordered_spans_inside_it() -> None:
    spans = token_spans([f"x{k}" for k in range(50)], "y" * 20)
    assert all(0 <= a <= b <= c <= d <= 20 for (a, b), (c, d) in pairwise(spans))


def test_the_best_range_has_the_largest_sum() -> None:
    weights = np.array([-1, 2, -1, 3, -5, 4], dtype=np.float32)
    assert best_range(weights) == (1, 4, 4.0)
    assert best_range(-np.ones(3, dtype=np.float32)) == (0, 1, -1.0)


def test_words_are_replaced_without_joining_their_neighbors() -> None:
    ones = np.ones((3, 2), dtype=np.float32)
    aligned = AlignedText("a b c", ((0, 1), (2, 3), (4, 5)), ((0, 1), (1, 2)), ones)
    replaced, spans = aligned.replace_words(
        [Replacement((4, 5), "xyz", (0, 1)), Replacement((2, 2), "new", (1, 2))]
    )
    assert replaced.text == "a new b xyz"
    assert [replaced.text[start:end] for start, end in spans] == ["xyz", "new"]
    assert [replaced.text[start:end] for start, end in replaced.words] == ["a", "new", "b", "xyz"]
    assert replaced.attention[[1, 3]].tolist() == [[0, 1], [1, 0]]


def test_letters_of_scripts_with_spaces_join_to_words() -> None:
    assert is_one_word("a", "é")
    assert not any(
        is_one_word(before, after) for before, after in ("a ", "は京", "Xは", ".a", "가a")
    )
    assert not is_one_word("", "a")
