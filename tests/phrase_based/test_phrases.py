"""Phrase extraction: vectorized code against the loops of the textbook."""

from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covnmt.data.corpus import SentenceIds
from covnmt.phrase_based import phrases
from covnmt.phrase_based.aligner import WordLinks
from covnmt.phrase_based.bitext import Bitext, concatenate_sentences
from covnmt.phrase_based.phrases import (
    DISCONTINUOUS,
    MONOTONE,
    SWAP,
    PhraseOccurrences,
    Spans,
    all_spans,
    extract_phrases,
    find_hashes,
    hash_spans,
)
from covnmt.text.vocabulary import UNK_ID

Pair = tuple[list[int], list[int], frozenset[tuple[int, int]]]
Key = tuple[tuple[int, ...], tuple[int, ...]]


def corpus(pairs: list[Pair]) -> tuple[Bitext, WordLinks]:
    bitext = Bitext(
        concatenate_sentences([s for s, _, _ in pairs]),
        concatenate_sentences([t for _, t, _ in pairs]),
    )
    flat = [link for _, _, links in pairs for link in sorted(links)]
    source, target = (np.array([link[k] for link in flat], dtype=np.int64) for k in (0, 1))
    return bitext, WordLinks(source, target, np.cumsum([0, *(len(p[2]) for p in pairs)]))


def orientation(links: frozenset[tuple[int, int]], a: int, b: int, c: int) -> int:
    """Classify source words [a, b) that became target words from c on; only linked words count."""
    before = [i for _, i in links if i < c]
    if not before:
        return DISCONTINUOUS if any(j < a for j, _ in links) else MONOTONE
    last = [j for j, i in links if i == max(before)]
    if max(last) == max((j for j, _ in links if j < a), default=None):
        return MONOTONE
    return (
        SWAP if min(last) == min((j for j, _ in links if j >= b), default=None) else DISCONTINUOUS
    )


def textbook(pair: Pair, longest: int) -> Counter[tuple[Key, int]]:
    """Count all pairs of spans with a link inside and none that leaves, with their orientation."""
    source, target, links = pair
    occurrences: Counter[tuple[Key, int]] = Counter()
    for a, c in product(range(len(source)), range(len(target))):
        for b, d in product(range(a + 1, a + longest + 1), range(c + 1, c + longest + 1)):
            if b > len(source) or d > len(target):
                continue
            inside = [(a <= j < b) and (c <= i < d) for j, i in links]
            leaves = [(a <= j < b) != (c <= i < d) for j, i in links]
            if any(inside) and not any(leaves):
                key = tuple(source[a:b]), tuple(target[c:d])
                if UNK_ID not in key[0] + key[1]:
                    occurrences[key, orientation(links, a, b, c)] += 1
    return occurrences


def keys(bitext: Bitext, occurrences: PhraseOccurrences) -> list[Key]:
    def ids(side: SentenceIds, spans: Spans, n: int) -> tuple[int, ...]:
        start = int(spans.starts[n])
        return tuple(side.ids[start : start + int(spans.lengths[n])].tolist())

    return [
        (ids(bitext.source, occurrences.source, n), ids(bitext.target, occurrences.target, n))
        for n in range(len(occurrences))
    ]


@st.composite
def linked_pairs(draw: st.DrawFn) -> Pair:
    source = draw(st.lists(st.integers(1, 6), min_size=1, max_size=7))
    target = draw(st.lists(st.integers(1, 6), min_size=1, max_size=7))
    places = st.tuples(st.integers(0, len(source) - 1), st.integers(0, len(target) - 1))
    return source, target, frozenset(draw(st.sets(places, max_size=8)))


@given(st.lists(linked_pairs(), min_size=1, max_size=5), st.integers(1, 4), st.integers(1, 3))
@settings(deadline=None)
def test_extraction_agrees_with_the_textbook_loops(
    pairs: list[Pair], longest: int, chunk: int
) -> None:
    bitext, links = corpus(pairs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phrases, "SENTENCES_AT_ONCE", chunk)
        occurrences = extract_phrases(bitext, links, longest)
    expected = sum((textbook(pair, longest) for pair in pairs), Counter[tuple[Key, int]]())
    assert (
        Counter(zip(keys(bitext, occurrences), occurrences.orientation.tolist(), strict=True))
        == expected
    )


@given(st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=6))
@settings(deadline=None)
def test_equal_spans_have_equal_hashes_anywhere_and_others_differ(rows: list[list[int]]) -> None:
    text = concatenate_sentences(rows)
    spans = all_spans(text, 4)
    values = hash_spans(text.ids, spans)
    words = [
        tuple(text.ids[start : start + length].tolist())
        for start, length in zip(spans.starts.tolist(), spans.lengths.tolist(), strict=True)
    ]
    expected = [
        tuple(row[a : a + n]) for n in range(1, 5) for row in rows for a in range(len(row) - n + 1)
    ]
    assert words == expected
    assert (
        len(set(zip(words, values.tolist(), strict=True)))
        == len(set(words))
        == len(set(values.tolist()))
    )


# small numbers share their first bits; the last is the largest of 64 bits
numbers = st.one_of(st.integers(0, 9), st.integers(0, 2**64 - 1), st.just(2**64 - 1))


@given(st.lists(numbers, max_size=30), st.sets(numbers, max_size=30), st.integers(1, 7))
@settings(deadline=None)
def test_hashes_are_found_in_a_sorted_array(values: list[int], among: set[int], block: int) -> None:
    values += list(among)[::2]
    ordered = sorted(among)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phrases, "PHRASES_AT_ONCE", block)
        occurrences = find_hashes(*(np.array(row, dtype=np.uint64) for row in (values, ordered)))
    assert occurrences.tolist() == [ordered.index(v) if v in among else -1 for v in values]


def test_occurrences_survive_saving_and_loading(tmp_path: Path) -> None:
    bitext, links = corpus([([2, 3], [4, 5], frozenset({(0, 1), (1, 0)}))])
    occurrences = extract_phrases(bitext, links, 7)
    occurrences.save(tmp_path / "phrases.npz")
    again = PhraseOccurrences.load(tmp_path / "phrases.npz")
    assert keys(bitext, again) == keys(bitext, occurrences)
    assert dict(zip(keys(bitext, occurrences), occurrences.orientation.tolist(), strict=True)) == {
        ((2,), (5,)): SWAP,
        ((3,), (4,)): DISCONTINUOUS,
        ((2, 3), (4, 5)): MONOTONE,
    }
