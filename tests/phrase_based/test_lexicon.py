"""The lexicon: counts of links, and word translation probabilities."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covnmt.phrase_based.bitext import Bitext, concatenate_sentences
from covnmt.phrase_based.lexicon import NULL_WORD, LinkCounts, count_links

from .test_phrases import Pair, corpus, linked_pairs

ROWS = 8


def entries(lexicon: LinkCounts) -> dict[tuple[int, int], int]:
    keys = zip(lexicon.source.tolist(), lexicon.target.tolist(), strict=True)
    return dict(zip(keys, lexicon.count.tolist(), strict=True))


@given(st.lists(linked_pairs(), min_size=1, max_size=4))
@settings(deadline=None)
def test_links_and_unlinked_words_are_counted(pairs: list[Pair]) -> None:
    expected: Counter[tuple[int, int]] = Counter()
    for source, target, links in pairs:
        expected.update((source[j], target[i]) for j, i in links)
        expected.update(
            (w, NULL_WORD) for j, w in enumerate(source) if j not in {a for a, _ in links}
        )
        expected.update(
            (NULL_WORD, w) for i, w in enumerate(target) if i not in {b for _, b in links}
        )
    lexicon = count_links(*corpus(pairs), ROWS, ROWS)
    assert entries(lexicon) == expected
    assert entries(lexicon.swapped()) == {(t, s): count for (s, t), count in expected.items()}
    for direction in (lexicon, lexicon.swapped()):
        sums = np.bincount(direction.source, weights=direction.probabilities())
        linked = {s for (s, t) in entries(direction) if t != NULL_WORD}
        assert [sums[s] for s in sorted(linked)] == pytest.approx([1.0] * len(linked))


def test_weights_are_link_counts_over_word_counts() -> None:
    pairs: list[Pair] = [
        ([2, 3], [4, 5, 6], frozenset({(0, 0), (1, 1), (1, 2)})),
        ([2, 3], [5, 4, 6], frozenset({(0, 0)})),
    ]
    lexicon = count_links(*corpus(pairs), ROWS, ROWS)
    expected_weights = {(2, 4): 0.5, (2, 5): 0.5, (3, 5): 0.5, (3, 6): 0.5, (NULL_WORD, 4): 0.5}
    cells = np.array([(s, t) for s in range(ROWS) for t in range(1, ROWS)])
    weights = lexicon.weight(cells[:, 0], cells[:, 1]).tolist()
    expected = [
        expected_weights.get((s, t), 0.5 if (s, t) == (NULL_WORD, 6) else 0.0) for s, t in cells
    ]
    assert weights == expected


def test_lexicon_survives_saving_and_loading(tmp_path: Path) -> None:
    lexicon = count_links(*corpus([([2], [3], frozenset({(0, 0)}))]), ROWS, ROWS)
    lexicon.save(tmp_path / "lexicon.npz")
    assert entries(LinkCounts.load(tmp_path / "lexicon.npz")) == {(2, 3): 1}


def test_words_without_links_count_as_linked_to_null() -> None:
    bitext = Bitext(concatenate_sentences([[2]]), concatenate_sentences([[3]]))
    lexicon = count_links(bitext, corpus([([2], [3], frozenset())])[1], ROWS, ROWS)
    assert entries(lexicon) == {(2, NULL_WORD): 1, (NULL_WORD, 3): 1}
