"""The lexicon: counts of links, and that Thot reads the probabilities that we wrote."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covnmt.smt.aligner import thot_module
from covnmt.smt.bitext import Bitext, lay_out
from covnmt.smt.lexicon import NOTHING, Lexicon, count_links, write_ibm1

from .test_phrases import Pair, corpus, linked_pairs

ROWS = 8


def entries(lexicon: Lexicon) -> dict[tuple[int, int], int]:
    keys = zip(lexicon.source.tolist(), lexicon.target.tolist(), strict=True)
    return dict(zip(keys, lexicon.count.tolist(), strict=True))


@given(st.lists(linked_pairs(), min_size=1, max_size=4))
@settings(deadline=None)
def test_counts(pairs: list[Pair]) -> None:
    expected: Counter[tuple[int, int]] = Counter()
    for source, target, links in pairs:
        expected.update((source[j], target[i]) for j, i in links)
        expected.update(
            (w, NOTHING) for j, w in enumerate(source) if j not in {a for a, _ in links}
        )
        expected.update(
            (NOTHING, w) for i, w in enumerate(target) if i not in {b for _, b in links}
        )
    lexicon = count_links(*corpus(pairs), ROWS, ROWS)
    assert entries(lexicon) == expected
    assert entries(lexicon.turned()) == {(t, s): count for (s, t), count in expected.items()}
    for each in (lexicon, lexicon.turned()):
        sums = np.bincount(each.source, weights=each.probabilities())
        linked = {s for (s, t) in entries(each) if t != NOTHING}
        assert [sums[s] for s in sorted(linked)] == pytest.approx([1.0] * len(linked))


def test_thot_reads_the_same_probabilities(tmp_path: Path) -> None:
    links = frozenset({(0, 0), (1, 1), (1, 2)})
    pairs: list[Pair] = [([2, 3], [4, 5, 6], links), ([2, 3], [5, 4, 6], frozenset({(0, 0)}))]
    bitext, found = corpus(pairs)
    lexicon = count_links(bitext, found, ROWS, ROWS)
    write_ibm1(tmp_path / "m", lexicon, ("s", "t"), bitext.source, bitext.target)
    model = thot_module("alignment").Ibm1AlignmentModel()
    assert model.load(str(tmp_path / "m"))
    for (s, t), p in zip(entries(lexicon), lexicon.probabilities(), strict=True):
        if t != NOTHING:
            source = model.get_src_word_index(f"s{s}") if s != NOTHING else 0
            target = model.get_trg_word_index(f"t{t}")
            assert model.translation_prob(source, target) == pytest.approx(p, abs=1e-5)


def test_survives_a_file() -> None:
    lexicon = count_links(*corpus([([2], [3], frozenset({(0, 0)}))]), ROWS, ROWS)
    assert entries(Lexicon.of(lexicon.arrays())) == {(2, 3): 1}


def test_empty_sides_are_counted_as_nothing() -> None:
    bitext = Bitext(lay_out([[2]]), lay_out([[3]]))
    lexicon = count_links(bitext, corpus([([2], [3], frozenset())])[1], ROWS, ROWS)
    assert entries(lexicon) == {(2, NOTHING): 1, (NOTHING, 3): 1}
