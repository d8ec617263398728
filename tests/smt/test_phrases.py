"""Phrases: the vectorised extraction against the textbook's loops, tables against counting."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covnmt.smt import phrases
from covnmt.smt.aligner import WordLinks
from covnmt.smt.bitext import Bitext, lay_out
from covnmt.smt.phrases import Occurrences, Spans, extract, hashes, make_table, runs
from covnmt.text.corpus import Sentences
from covnmt.text.vocab import UNK

Pair = tuple[list[int], list[int], frozenset[tuple[int, int]]]
Key = tuple[tuple[int, ...], tuple[int, ...]]


def corpus(pairs: list[Pair]) -> tuple[Bitext, WordLinks]:
    bitext = Bitext(lay_out([s for s, _, _ in pairs]), lay_out([t for _, t, _ in pairs]))
    flat = [link for _, _, links in pairs for link in sorted(links)]
    source, target = (np.array([link[k] for link in flat], dtype=np.int64) for k in (0, 1))
    return bitext, WordLinks(source, target, np.cumsum([0, *(len(p[2]) for p in pairs)]))


def textbook(pair: Pair, longest: int) -> Counter[Key]:
    """Every pair of runs with a link inside and none that leaves."""
    source, target, links = pair
    found: Counter[Key] = Counter()
    for a, c in product(range(len(source)), range(len(target))):
        for b, d in product(range(a + 1, a + longest + 1), range(c + 1, c + longest + 1)):
            if b > len(source) or d > len(target):
                continue
            inside = [(a <= j < b) and (c <= i < d) for j, i in links]
            leaves = [(a <= j < b) != (c <= i < d) for j, i in links]
            if any(inside) and not any(leaves):
                key = tuple(source[a:b]), tuple(target[c:d])
                if UNK not in key[0] + key[1]:
                    found[key] += 1
    return found


def keys(bitext: Bitext, found: Occurrences) -> list[Key]:
    def run(side: Sentences, spans: Spans, n: int) -> tuple[int, ...]:
        start = int(spans.starts[n])
        return tuple(side.ids[start : start + int(spans.lengths[n])].tolist())

    return [
        (run(bitext.source, found.source, n), run(bitext.target, found.target, n))
        for n in range(len(found))
    ]


@st.composite
def linked_pairs(draw: st.DrawFn) -> Pair:
    source = draw(st.lists(st.integers(1, 6), min_size=1, max_size=7))
    target = draw(st.lists(st.integers(1, 6), min_size=1, max_size=7))
    places = st.tuples(st.integers(0, len(source) - 1), st.integers(0, len(target) - 1))
    return source, target, frozenset(draw(st.sets(places, max_size=8)))


@given(st.lists(linked_pairs(), min_size=1, max_size=5), st.integers(1, 4), st.integers(1, 3))
@settings(deadline=None)
def test_extraction_is_the_textbooks(pairs: list[Pair], longest: int, chunk: int) -> None:
    bitext, links = corpus(pairs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phrases, "CHUNK", chunk)
        found = extract(bitext, links, longest)
    expected = sum((textbook(pair, longest) for pair in pairs), Counter[Key]())
    assert Counter(keys(bitext, found)) == expected


@given(st.lists(linked_pairs(), min_size=1, max_size=6), st.integers(1, 3))
@settings(deadline=None)
def test_table_counts(pairs: list[Pair], options: int) -> None:
    bitext, links = corpus(pairs)
    found = extract(bitext, links, 3)
    counts = Counter(keys(bitext, found))
    text = lay_out([pairs[0][0]])
    wanted = {tuple(pairs[0][0][a:b]) for a in range(7) for b in range(a + 1, a + 4)}
    table = make_table(bitext, found, text, 3, options)
    made = keys(bitext, table.pairs)
    assert len(set(made)) == len(made)
    for key, joint, total in zip(made, table.joint, table.target_count, strict=True):
        assert joint == counts[key]
        assert total == sum(count for (_, t), count in counts.items() if t == key[1])
    for source in {s for s, _ in counts} & wanted:
        all_of_it = sorted((n for (s, _), n in counts.items() if s == source), reverse=True)
        kept = sorted((counts[key] for key in made if key[0] == source), reverse=True)
        assert kept == all_of_it[:options]
    assert {s for s, _ in made} <= wanted


@given(st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=6))
@settings(deadline=None)
def test_hashes_tell_runs_apart_wherever_they_stand(rows: list[list[int]]) -> None:
    text = lay_out(rows)
    spans = runs(text, 4)
    values = hashes(text.ids, spans)
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


def test_occurrences_survive_a_file() -> None:
    bitext, links = corpus([([2, 3], [4, 5], frozenset({(0, 1), (1, 0)}))])
    found = extract(bitext, links, 7)
    assert keys(bitext, Occurrences.of(found.arrays())) == keys(bitext, found)
    assert set(keys(bitext, found)) == {((2,), (5,)), ((3,), (4,)), ((2, 3), (4, 5))}
