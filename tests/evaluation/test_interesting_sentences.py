"""Sentences are ranked by exact counts, or else by proxies."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covnmt.evaluation.evaluate import Comparison, EvaluationOptions, evaluate
from covnmt.evaluation.interesting_sentences import (
    LENGTH_PROXY,
    LOW_ATTENTION_PROXY,
    OMITTED,
    REP_PROXY,
    REPEATED,
    SentenceRanker,
    most_different,
    repeated_bigram_positions,
)
from covnmt.evaluation.system_output import OutputLine, combine_output_lines
from covnmt.evaluation.test_set import EvaluationSet
from covnmt.metrics.alignment import GoldAlignment
from covnmt.metrics.bleu import sentence_bleu, sentence_bleu_statistics

SOURCE = ["ka mo ti su", "ka ka mo", "ti su ka"]
REFERENCE = ["big house now here", "big big house", "now here big"]
LINKS = [frozenset((k, k) for k in range(len(line.split()))) for line in SOURCE]
GOLD = [GoldAlignment(links, links) for links in LINKS]
PERFECT = list(REFERENCE)
# the first loses two words, the second none; the third says one too often
LOSSY = ["big now", "big big house", "now here here big"]

EXACT = EvaluationSet([REFERENCE], SOURCE, GOLD, unique_reference=True)
PLAIN = EvaluationSet([REFERENCE], SOURCE)


def plain(lines: list[str]) -> list[OutputLine]:
    return [OutputLine(text=line) for line in lines]


def with_attention(lines: list[str]) -> list[OutputLine]:
    """Let each output word attend to the source word at its position."""
    outputs = []
    for source, line in zip(SOURCE, lines, strict=True):
        matrix = np.eye(len(line.split()), len(source.split()), dtype=np.float32)
        outputs.append(
            OutputLine(line, tuple(source.split()), tuple(line.split()), 0.0, matrix, matrix.sum(0))
        )
    return outputs


def comparison(systems: dict[str, list[OutputLine]], test_set: EvaluationSet) -> Comparison:
    options = EvaluationOptions(samples=2, ter=False)
    scored = {
        name: evaluate(combine_output_lines(rows), test_set, options)
        for name, rows in systems.items()
    }
    return Comparison(scored, (), {}, (), ())


SYSTEMS = {"perfect": plain(PERFECT), "lossy": plain(LOSSY)}


def test_most_different_sentences_come_first_and_equal_ones_never() -> None:
    chosen = most_different(comparison(SYSTEMS, PLAIN), 10)
    assert chosen == [0, 2]
    assert most_different(comparison(SYSTEMS, PLAIN), 1) == [0]
    assert most_different(comparison({"only": plain(LOSSY)}, PLAIN), 10) == []


def test_exact_counts_are_preferred() -> None:
    scored = comparison(SYSTEMS, EXACT)
    under = SentenceRanker(scored, SYSTEMS, EXACT).under_translated(10)
    assert under.measure == OMITTED
    (ranked,) = under.sentences
    assert (ranked.system, ranked.sentence, ranked.amount) == ("lossy", 0, 2)
    assert {ranked.source[j] for j in ranked.marked} == {"mo", "su"}
    over = SentenceRanker(scored, SYSTEMS, EXACT).over_translated(10)
    assert over.measure == REPEATED
    (ranked,) = over.sentences
    assert (ranked.sentence, [ranked.source[j] for j in ranked.marked]) == (2, ["su"])


def test_attention_is_the_proxy_without_exact_counts() -> None:
    systems = {"lossy": with_attention(LOSSY)}
    under = SentenceRanker(comparison(systems, PLAIN), systems, PLAIN).under_translated(10)
    assert under.measure == LOW_ATTENTION_PROXY
    assert [(f.sentence, f.amount, sorted(f.marked)) for f in under.sentences] == [(0, 2, [2, 3])]


def test_length_is_the_proxy_if_one_system_has_no_attention() -> None:
    systems = {"soft": with_attention(PERFECT), "plain": plain(LOSSY)}
    under = SentenceRanker(comparison(systems, PLAIN), systems, PLAIN).under_translated(10)
    assert under.measure == LENGTH_PROXY
    assert [(f.system, f.sentence, f.amount) for f in under.sentences] == [("plain", 0, 2)]


def test_rep_is_the_proxy_for_repetitions() -> None:
    lines = ["big house big house now here", "big big big house", "now here big"]
    systems = {"loop": plain(lines)}
    ranker = SentenceRanker(comparison(systems, PLAIN), systems, PLAIN)
    over = ranker.over_translated(10)
    assert over.measure == REP_PROXY
    # one bigram too many that is also a word at once (1 + 2), then one bigram (1)
    assert [(f.sentence, f.amount) for f in over.sentences] == [(1, 3), (0, 1)]
    assert len(ranker.over_translated(1).sentences) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", ""), ("a b c", ""), ("a b a b", "23"), ("a a a", "12"), ("x a b y a b", "45")],
)
def test_positions_of_repeated_bigrams(text: str, expected: str) -> None:
    assert repeated_bigram_positions(text.split()) == set(map(int, expected))


WORDS = st.lists(st.sampled_from("abc"), min_size=1, max_size=8)


@given(st.lists(st.sampled_from("abc"), max_size=8), WORDS)
def test_sentence_bleu_is_smoothed_by_adding_one(
    hypothesis: list[str], reference: list[str]
) -> None:
    counts = sentence_bleu_statistics(hypothesis, [reference])
    matched, total = counts[2:6], counts[6:]
    value = 0.0
    if matched[0]:
        smoothed = [matched[0] / total[0]]
        smoothed += [(m + 1) / (t + 1) for m, t in zip(matched[1:], total[1:], strict=True)]
        penalty = min(1.0, math.exp(1 - len(reference) / len(hypothesis)))
        value = 100 * penalty * math.prod(smoothed) ** 0.25
    assert sentence_bleu(np.array([counts]))[0] == pytest.approx(value)
    if hypothesis == reference:
        assert value == pytest.approx(100)
