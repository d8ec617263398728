"""Omitted and repeated words: cases by hand, and properties that hold for any text."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covnmt.metrics.adequacy import (
    drop_score,
    longest_common_subsequence,
    low_attention_rate,
    omission_rate,
    rep_score,
    repeated_ngram_rate,
    repetition_rate,
    source_word_errors,
    unmatched_positions,
)
from covnmt.metrics.alignment import parse_links

# Source of four words: 0 makes "a b", 1 makes "c", 2 makes nothing, 3 makes "a".
REFERENCE, LINKS, SOURCE_LENGTH = "a b c a", "0-0 0-1 1-2 3-3", 4

# output, omitted source words, repeated source words
EXACT: list[tuple[str, set[int], set[int]]] = [
    ("a b c a", set(), set()),
    ("a c b a", set(), set()),  # order does not matter
    ("a b a", {1}, set()),
    ("a b c", {3}, set()),  # of two "a" the one out of line is missing
    ("b c a", {0}, set()),
    ("", {0, 1, 3}, set()),
    ("a b c c a", set(), {1}),
    ("a b c c c c a", set(), {1}),  # a word counts as repeated once, however often
    ("a b c a a", set(), {0}),
    ("a b c a a a", set(), {0, 3}),
    ("a b a b c a", set(), {0}),  # both words of source word 0
    ("a b x a", {1}, set()),  # a wrong word is no repetition
    ("a b x x a", {1}, set()),
    ("a b b a", {1}, {0}),
]

token = st.sampled_from("abcd")
tokens = st.lists(token, max_size=9)


@pytest.mark.parametrize(("output", "omitted", "repeated"), EXACT)
def test_omitted_and_repeated_source_words(
    output: str, omitted: set[int], repeated: set[int]
) -> None:
    result = source_word_errors(
        output.split(), REFERENCE.split(), parse_links(LINKS), SOURCE_LENGTH
    )
    assert result.omitted == omitted
    assert result.repeated == repeated
    assert result.source_length == SOURCE_LENGTH


def test_possible_links_are_ignored() -> None:
    result = source_word_errors([], ["a"], parse_links("0p0"), 1)
    assert not result.omitted


def test_rates_are_pooled_over_the_corpus() -> None:
    gold = parse_links("0-0 1-1")
    rows = [
        source_word_errors(["a"], ["a", "b"], gold, 2),
        source_word_errors(["a", "b", "b"], ["a", "b"], gold, 8),
    ]
    assert omission_rate(rows) == 10
    assert repetition_rate(rows) == 10
    assert omission_rate([]) == 0


@given(tokens, tokens)
def test_matching_is_as_large_as_word_counts_allow(output: list[str], reference: list[str]) -> None:
    missing, surplus = unmatched_positions(output, reference)
    have, want = Counter(output), Counter(reference)
    assert Counter(reference[i] for i in missing) == want - have
    assert Counter(output[k] for k in surplus) == have - want


def longest(first: list[str], second: list[str]) -> int:
    """Return the length of a longest common subsequence by plain recursion."""
    if not first or not second:
        return 0
    if first[0] == second[0]:
        return 1 + longest(first[1:], second[1:])
    return max(longest(first[1:], second), longest(first, second[1:]))


@given(st.lists(token, max_size=7), st.lists(token, max_size=7))
def test_longest_common_subsequence_has_maximal_length(first: list[str], second: list[str]) -> None:
    pairs = longest_common_subsequence(first, second)
    assert len(pairs) == longest(first, second)
    assert all(first[a] == second[b] for a, b in pairs)
    assert all(p[0] < q[0] and p[1] < q[1] for p, q in pairwise(pairs))


def test_earliest_of_equally_long_subsequences_is_taken() -> None:
    assert longest_common_subsequence(["b", "a"], ["a", "b"]) == [(0, 1)]


# output, reference, REP counted by hand per 100 reference words
REP_CASES = [
    ("a b c d", "a b c d", 0.0),
    ("a b a b", "a b c d", 25.0),  # "a b" twice, once allowed: 1 of 4 words
    ("a b a b", "x x x x", 50.0),  # "a b" twice, never allowed: 2 of 4 words
    ("a a c d", "a b c d", 50.0),  # "a a" once: weight 2 of 4 words
    ("a a a d", "a b c d", 150.0),  # "a a" twice: 2 and 2 * 2 of 4 words
    ("a a", "a a", 0.0),
    ("a", "b", 0.0),
]


@pytest.mark.parametrize(("output", "reference", "expected"), REP_CASES)
def test_rep_by_hand(output: str, reference: str, expected: float) -> None:
    assert rep_score([output.split()], [reference.split()]) == pytest.approx(expected)


@given(tokens, st.lists(token, min_size=1, max_size=9))
def test_rep_is_never_negative_and_zero_on_the_reference(
    output: list[str], reference: list[str]
) -> None:
    assert rep_score([output], [reference]) >= 0
    assert rep_score([reference], [reference]) == 0


def test_drop_by_hand() -> None:
    with_reference = [parse_links("0-0 1-1 2-1").sure, parse_links("0-0").sure]
    with_output = [parse_links("0-5 3-0").sure, parse_links("0-0").sure]
    assert drop_score(with_output, with_reference) == pytest.approx(100 * 2 / 4)
    assert drop_score([frozenset()], [frozenset()]) == 0


def test_repeated_ngrams_by_hand() -> None:
    assert repeated_ngram_rate([list("ababa"), list("ab")], order=2) == pytest.approx(40)
    assert repeated_ngram_rate([["a"]], order=2) == 0


def test_low_attention_by_hand() -> None:
    soft = np.array([[0.1, 0.9, 0.0], [0.1, 0.8, 0.1]], dtype=np.float32)
    assert low_attention_rate([soft]) == pytest.approx(100 / 3)  # 0.2 in all is enough
    assert low_attention_rate([soft[:1]]) == pytest.approx(100 * 2 / 3)
    assert low_attention_rate([np.zeros((0, 4), np.float32)]) == 100
