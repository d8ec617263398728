"""Links, AER and SAER: cases by hand, slow rewrites, and invariances."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covnmt.base.arrays import FloatArray
from covnmt.metrics.alignment import (
    GoldAlignment,
    LinkExtraction,
    Links,
    Symmetrization,
    aer,
    alignment_quality,
    fold_subwords,
    format_links,
    link_matrix,
    links_from_attention,
    parse_links,
    saer,
    symmetrize,
)

WORDS = 5
link = st.tuples(st.integers(0, WORDS - 1), st.integers(0, WORDS - 1))
links = st.frozensets(link, max_size=8)
gold = st.builds(GoldAlignment, links, links)
pairs = st.lists(st.tuples(links, gold), min_size=1, max_size=5)


def matrix(*rows: list[float]) -> FloatArray:
    return np.array(rows, dtype=np.float32)


# Och and Ney's four figures by hand: links, sure, possible, (AER, precision, recall)
BY_HAND = [
    ({(0, 0), (1, 1)}, {(0, 0), (1, 1)}, set(), (0.0, 1.0, 1.0)),
    ({(0, 0)}, {(1, 1)}, set(), (1.0, 0.0, 0.0)),
    # |A and S| = 1, |A and P| = 2, |A| = 3, |S| = 2
    ({(0, 0), (1, 1), (2, 2)}, {(0, 0), (3, 3)}, {(1, 1)}, (1 - 3 / 5, 2 / 3, 1 / 2)),
    # only possible links hit: no recall, full precision
    ({(1, 1)}, {(0, 0)}, {(1, 1)}, (1 - 1 / 2, 1.0, 0.0)),
    (set(), {(0, 0)}, set(), (1.0, 0.0, 0.0)),
]


@pytest.mark.parametrize(("links", "sure", "possible", "expected"), BY_HAND)
def test_quality_by_hand(
    links: set[tuple[int, int]],
    sure: set[tuple[int, int]],
    possible: set[tuple[int, int]],
    expected: tuple[float, float, float],
) -> None:
    result = alignment_quality(
        [frozenset(links)], [GoldAlignment(frozenset(sure), frozenset(possible))]
    )
    assert (result.aer, result.precision, result.recall) == pytest.approx(expected)


def test_counts_are_pooled_over_the_corpus() -> None:
    one = GoldAlignment(frozenset({(0, 0)}), frozenset())
    many = GoldAlignment(frozenset((k, k) for k in range(9)), frozenset())
    wrong, right = frozenset({(0, 1)}), many.sure
    assert aer([wrong, right], [one, many]) == pytest.approx(1 - 18 / 20)
    assert alignment_quality([wrong, right], [one, many]).f1 == pytest.approx(0.9)


def test_saer_by_hand() -> None:
    attention = matrix([0.7, 0.2], [0.1, 0.6])  # the rest is on the end symbol
    alignment = GoldAlignment(frozenset({(0, 0)}), frozenset({(1, 1)}))
    # A*S = 0.7, A*P = 0.7 + 0.6, |A| = 1.6, |S| = 1
    assert saer([attention], [alignment]) == pytest.approx(1 - (0.7 + 1.3) / 2.6)
    scaled = 0.7 / 0.9, 0.6 / 0.7
    expected = 1 - (2 * scaled[0] + scaled[1]) / 3
    assert saer([attention], [alignment], renormalize=True) == pytest.approx(expected)


@given(pairs)
def test_saer_equals_aer_on_zeros_and_ones(rows: list[tuple[Links, GoldAlignment]]) -> None:
    links, golds = [list(column) for column in zip(*rows, strict=True)]
    hard = [link_matrix(row, (WORDS, WORDS)) for row in links]
    assert saer(hard, golds) == pytest.approx(aer(links, golds))


@given(pairs, st.randoms(use_true_random=False), st.integers(0, 3), st.integers(0, 3))
def test_order_and_padding_do_not_matter(
    rows: list[tuple[Links, GoldAlignment]], random: Random, below: int, beside: int
) -> None:
    soft = [np.random.default_rng(k).random((WORDS, WORDS), np.float32) for k in range(len(rows))]
    golds = [row[1] for row in rows]
    order = random.sample(range(len(rows)), len(rows))
    padded = [np.pad(soft[k], ((0, below), (0, beside))) for k in order]
    assert saer(padded, [golds[k] for k in order]) == pytest.approx(saer(soft, golds))
    links = [row[0] for row in rows]
    assert aer([links[k] for k in order], [golds[k] for k in order]) == aer(links, golds)


# line, first word, sure, possible beyond the sure
PHARAOH: list[tuple[str, int, set[tuple[int, int]], set[tuple[int, int]]]] = [
    ("0-0 1-2", 0, {(0, 0), (1, 2)}, set()),
    ("0-0 1p2", 0, {(0, 0)}, {(1, 2)}),
    ("1-1 2p3", 1, {(0, 0)}, {(1, 2)}),
    ("0-0\t0-0  ", 0, {(0, 0)}, set()),
    ("0-0 0p0", 0, {(0, 0)}, set()),
    ("", 0, set(), set()),
]


@pytest.mark.parametrize(("line", "base", "sure", "possible"), PHARAOH)
def test_parse_links_from_either_base(
    line: str, base: int, sure: set[tuple[int, int]], possible: set[tuple[int, int]]
) -> None:
    result = parse_links(line, 1 if base else 0)
    assert result.sure == sure
    assert result.possible == sure | possible


@given(gold)
def test_parsing_reverses_formatting(alignment: GoldAlignment) -> None:
    links = alignment.possible
    assert parse_links(format_links(links)) == GoldAlignment(links, links)


ATTENTION = matrix([0.1, 0.6, 0.1], [0.3, 0.3, 0.2], [0.1, 0.2, 0.1], [0.0, 0.0, 0.0])
EXTRACTED: list[tuple[LinkExtraction, float, set[tuple[int, int]]]] = [
    ("argmax", 0.5, {(1, 0), (0, 1), (1, 2)}),
    ("argmax_with_end", 0.5, {(1, 0), (0, 1)}),
    ("threshold", 0.5, {(1, 0)}),
    ("threshold", 0.3, {(1, 0), (0, 1), (1, 1)}),
]


@pytest.mark.parametrize(("method", "threshold", "expected"), EXTRACTED)
def test_links_from_attention(
    method: LinkExtraction, threshold: float, expected: set[tuple[int, int]]
) -> None:
    assert links_from_attention(ATTENTION, method, threshold) == expected


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_empty_matrices_have_no_links(shape: tuple[int, int]) -> None:
    assert links_from_attention(np.zeros(shape, np.float32)) == frozenset()


SYMMETRISED: list[tuple[Symmetrization, str]] = [
    ("union", "0-0 0-1 1-1 2-2 3-3 4-0"),
    ("intersection", "0-0 2-2"),
    # 0-1 and 1-1 touch 0-0; 3-3 touches 2-2; 4-0 touches nothing but links word 4
    ("grow-diag-final", "0-0 0-1 1-1 2-2 3-3 4-0"),
]


@pytest.mark.parametrize(("method", "expected"), SYMMETRISED)
def test_symmetrization_by_hand(method: Symmetrization, expected: str) -> None:
    forward = parse_links("0-0 0-1 2-2 3-3").sure
    backward = parse_links("0-0 1-1 2-2 4-0").sure
    assert format_links(symmetrize(forward, backward, method)) == expected


def test_grow_diag_final_rejects_links_between_linked_words() -> None:
    forward = parse_links("0-0 1-1 0-1").sure
    backward = parse_links("0-0 1-1 1-0").sure
    assert symmetrize(forward, backward, "grow-diag-final") == parse_links("0-0 1-1").sure


def grow_diag_final_oracle(forward: Links, backward: Links) -> Links:
    """Follow the published pseudo-code over the full grid line by line."""
    links = forward & backward
    grew = True

    def bare(j: int, i: int) -> bool:
        return j not in {a for a, _ in links} or i not in {b for _, b in links}

    while grew:
        grew = False
        for i in range(WORDS):
            for j in range(WORDS):
                if (j, i) not in links:
                    continue
                for di, dj in (
                    (-1, 0),
                    (0, -1),
                    (1, 0),
                    (0, 1),
                    (-1, -1),
                    (-1, 1),
                    (1, -1),
                    (1, 1),
                ):
                    new = (j + dj, i + di)
                    if new in forward | backward and new not in links and bare(*new):
                        links |= {new}
                        grew = True
    for direction in (forward, backward):
        for i in range(WORDS):
            for j in range(WORDS):
                if (j, i) in direction and bare(j, i):
                    links |= {(j, i)}
    return links


@given(links, links)
def test_grow_diag_final_equals_its_pseudo_code(forward: Links, backward: Links) -> None:
    result = symmetrize(forward, backward, "grow-diag-final")
    assert result == grow_diag_final_oracle(forward, backward)
    assert forward & backward <= result <= forward | backward


def test_fold_subwords_by_hand() -> None:
    pieces = matrix([0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.5, 0.5, 0.0])
    # source pieces 0 and 1 are word 0; target pieces 1 and 2 are word 1
    folded = fold_subwords(pieces, [0, 0, 1], [0, 1, 1])
    np.testing.assert_allclose(folded, [[0.3, 0.7], [0.8, 0.2]], rtol=1e-6)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.lists(st.integers(1, 3), max_size=4))
def test_folding_keeps_rows_summing_to_one(source: list[int], target: list[int]) -> None:
    source_words = [word for word, pieces in enumerate(source) for _ in range(pieces)]
    target_words = [word for word, pieces in enumerate(target) for _ in range(pieces)]
    soft = np.random.default_rng(0).dirichlet(np.ones(len(source_words)), len(target_words))
    folded = fold_subwords(soft.astype(np.float32), source_words, target_words)
    assert folded.shape == (len(target), len(source))
    np.testing.assert_allclose(folded.sum(axis=1), 1, rtol=1e-5)
