"""The phrase table of a text against plain counting."""

from collections import Counter
from math import exp, log
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covnmt.phrase_based.bitext import concatenate_sentences
from covnmt.phrase_based.lexicon import NULL_WORD, count_links
from covnmt.phrase_based.phrase_table import (
    MIN_LEXICAL_PROBABILITY,
    ORIENTATION_PRIOR,
    PhraseTable,
    build_phrase_table,
)
from covnmt.phrase_based.phrases import Spans, extract_phrases, hash_spans

from .test_phrases import Key, Pair, corpus, keys, linked_pairs

ROWS = 8


def rows_of(table: PhraseTable, source: tuple[int, ...]) -> range:
    """The rows of one source phrase."""
    [value] = hash_spans(np.array(source), Spans(np.array([0]), np.array([len(source)])))
    at = int(np.searchsorted(table.sources, value))
    if at == len(table.sources) or table.sources[at] != value:
        return range(0)
    return range(int(table.bounds[at]), int(table.bounds[at + 1]))


def target_of(table: PhraseTable, row: int) -> tuple[int, ...]:
    return tuple(word for word in table.target_ids[row].tolist() if word)


@given(st.lists(linked_pairs(), min_size=1, max_size=6), st.integers(1, 3))
@settings(deadline=None)
def test_scores_are_relative_frequencies_of_the_best_pairs(pairs: list[Pair], options: int) -> None:
    bitext, links = corpus(pairs)
    occurrences = extract_phrases(bitext, links, 3)
    lexicon = count_links(bitext, links, ROWS, ROWS)
    counts = Counter(keys(bitext, occurrences))
    text = concatenate_sentences([pairs[0][0]])
    wanted = {tuple(pairs[0][0][a:b]) for a in range(7) for b in range(a + 1, a + 4)} - {()}
    table = build_phrase_table(bitext, occurrences, lexicon, text, 3, options)

    def shares(key: Key) -> tuple[float, float]:
        """p(target | source) and p(source | target)."""
        of_source = sum(n for (s, _), n in counts.items() if s == key[0])
        of_target = sum(n for (_, t), n in counts.items() if t == key[1])
        return counts[key] / of_source, counts[key] / of_target

    seen = 0
    for source in wanted:
        own = sorted(
            (a * b for a, b in (shares(k) for k in counts if k[0] == source)), reverse=True
        )
        rows = rows_of(table, source)
        seen += len(rows)
        pairs_in_table = [(source, target_of(table, row)) for row in rows]
        assert len(set(pairs_in_table)) == len(pairs_in_table)
        for key, row in zip(pairs_in_table, rows, strict=True):
            assert np.exp(table.scores[row, :2]).tolist() == pytest.approx(shares(key))
        kept = [a * b for a, b in map(shares, pairs_in_table)]
        assert kept == pytest.approx(own[:options])
    assert seen == len(table)


@given(st.lists(linked_pairs(), min_size=1, max_size=4))
@settings(deadline=None)
def test_lexical_weights_take_the_best_word_of_the_other_phrase(pairs: list[Pair]) -> None:
    bitext, links = corpus(pairs)
    lexicon = count_links(bitext, links, ROWS, ROWS)
    text = concatenate_sentences([pairs[0][0]])
    table = build_phrase_table(bitext, extract_phrases(bitext, links, 3), lexicon, text, 3, 99)

    def best(words: tuple[int, ...], others: tuple[int, ...], turned: bool) -> float:
        """The product of each word's best weight."""
        own = lexicon.swapped() if turned else lexicon
        entries = zip(own.source.tolist(), own.target.tolist(), strict=True)
        weights = dict(zip(entries, own.probabilities().tolist(), strict=True))
        value = [max(weights.get((o, w), 0.0) for o in (NULL_WORD, *others)) for w in words]
        return float(np.prod([max(p, MIN_LEXICAL_PROBABILITY) for p in value]))

    for source in {tuple(pairs[0][0][a:b]) for a in range(7) for b in range(a + 1, a + 4)} - {()}:
        for row in rows_of(table, source):
            target = target_of(table, row)
            expected = [best(target, source, False), best(source, target, True)]
            assert np.exp(table.scores[row, 2:]).tolist() == pytest.approx(expected)


def test_orientations_are_smoothed_with_the_overall_distribution() -> None:
    straight = ([2, 3], [4, 5], frozenset({(0, 0), (1, 1)}))
    crossed = ([3, 2], [4, 5], frozenset({(0, 1), (1, 0)}))
    bitext, links = corpus([straight, straight, crossed])
    occurrences = extract_phrases(bitext, links, 1)
    table = build_phrase_table(
        bitext,
        occurrences,
        count_links(bitext, links, ROWS, ROWS),
        concatenate_sentences([[3]]),
        1,
        9,
    )
    [row] = rows_of(table, (3,))
    # 3 follows 2 twice in order and once in a swap; all pairs of this table are that one
    overall = np.array([3, 2, 1]) / 6
    expected = (np.array([2, 1, 0]) + ORIENTATION_PRIOR * overall) / (3 + ORIENTATION_PRIOR)
    assert [exp(value) for value in table.orientation[row]] == pytest.approx(expected.tolist())


def test_table_survives_saving_and_loading(tmp_path: Path) -> None:
    bitext, links = corpus([([2, 3], [4, 5], frozenset({(0, 1), (1, 0)}))])
    lexicon = count_links(bitext, links, ROWS, ROWS)
    table = build_phrase_table(
        bitext, extract_phrases(bitext, links, 2), lexicon, concatenate_sentences([[2, 3]]), 2, 9
    )
    table.save(tmp_path / "table.npz")
    again = PhraseTable.load(tmp_path / "table.npz")
    assert len(again) == len(table) == 3
    assert all(np.array_equal(value, vars(again)[name]) for name, value in vars(table).items())
    [row] = rows_of(again, (2,))
    assert again.scores[row].tolist() == [log(1.0)] * 4


def test_text_without_known_phrases_has_an_empty_table() -> None:
    bitext, links = corpus([([2], [3], frozenset({(0, 0)}))])
    lexicon = count_links(bitext, links, ROWS, ROWS)
    assert (
        len(
            build_phrase_table(
                bitext,
                extract_phrases(bitext, links, 2),
                lexicon,
                concatenate_sentences([[5]]),
                2,
                9,
            )
        )
        == 0
    )
