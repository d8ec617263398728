"""Find the sentences worth reading: where systems differ most, omit most, repeat most.

With a deterministic test set omissions and repetitions are exact. Otherwise they are proxies:
source words with low attention, words repeated beyond the reference; the report says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from covnmt.evaluation.evaluate import Comparison
from covnmt.evaluation.system_output import OutputLine
from covnmt.evaluation.test_set import EvaluationSet
from covnmt.metrics.adequacy import LOW_ATTENTION, SourceWordErrors, count_repetitions
from covnmt.metrics.bleu import sentence_bleu

OMITTED = "source words omitted (exact)"
REPEATED = "source words repeated (exact)"
LOW_ATTENTION_PROXY = f"proxy: source words with less than {LOW_ATTENTION:g} total attention"
LENGTH_PROXY = "proxy: words fewer than in the reference"
REP_PROXY = "proxy: REP, words and word pairs repeated beyond the reference"


@dataclass(frozen=True)
class RankedSentence:
    """One sentence of one system, from 0, and how bad its translation is by some measure."""

    system: str
    sentence: int
    source: Sequence[str]
    amount: float
    marked: frozenset[int] = frozenset()  # positions of the source words concerned


@dataclass(frozen=True)
class SentenceRanking:
    """Sentences, the worst first, and what was counted."""

    measure: str
    sentences: tuple[RankedSentence, ...]


def most_different(comparison: Comparison, count: int) -> list[int]:
    """Return the sentences whose BLEU differs most between systems; none for one system."""
    scores = np.stack([sentence_bleu(e.statistics) for e in comparison.systems.values()])  # [S, N]
    spread = scores.max(axis=0) - scores.min(axis=0)
    order = np.argsort(-spread, kind="stable")[:count]
    return [int(k) for k in order if spread[k] > 0]


def under_translated(
    comparison: Comparison,
    outputs: Mapping[str, Sequence[OutputLine]],
    test_set: EvaluationSet,
    count: int,
) -> SentenceRanking:
    """Rank sentences by omitted words: exact, else by attention, else by length."""
    if _has_exact_counts(comparison):
        return _rank_exact(OMITTED, comparison, test_set, lambda e: e.omitted, count)
    if not all(line.alignment is not None for lines in outputs.values() for line in lines):

        def count_missing(words: Sequence[str], reference: Sequence[str]) -> int:
            return len(reference) - len(words)

        return _rank_by_words(LENGTH_PROXY, outputs, test_set, count_missing, count)
    sentences = []
    for system, lines in outputs.items():
        for k, line in enumerate(lines):
            assert line.alignment is not None
            received = line.alignment.sum(axis=0)  # [J]
            low = frozenset(np.flatnonzero(received < LOW_ATTENTION).tolist())
            sentences.append(RankedSentence(system, k, line.source_tokens, len(low), low))
    return _rank(LOW_ATTENTION_PROXY, sentences, count)


def over_translated(
    comparison: Comparison,
    outputs: Mapping[str, Sequence[OutputLine]],
    test_set: EvaluationSet,
    count: int,
) -> SentenceRanking:
    """Rank sentences by repeated words: exact, else by REP."""
    if _has_exact_counts(comparison):
        return _rank_exact(REPEATED, comparison, test_set, lambda e: e.repeated, count)
    return _rank_by_words(REP_PROXY, outputs, test_set, count_repetitions, count)


def repeated_bigram_positions(words: Sequence[str]) -> frozenset[int]:
    """Return the positions of words in bigrams that occurred before in the sentence."""
    seen: set[tuple[str, str]] = set()
    positions: set[int] = set()
    for k, bigram in enumerate(pairwise(words)):
        if bigram in seen:
            positions |= {k, k + 1}
        seen.add(bigram)
    return frozenset(positions)


def _has_exact_counts(comparison: Comparison) -> bool:
    return all(system.word_errors for system in comparison.systems.values())


def _rank_exact(
    measure: str,
    comparison: Comparison,
    test_set: EvaluationSet,
    positions: Callable[[SourceWordErrors], frozenset[int]],
    count: int,
) -> SentenceRanking:
    assert test_set.source is not None
    sentences = [
        RankedSentence(
            system, k, test_set.source[k].split(), len(positions(errors)), positions(errors)
        )
        for system, evaluation in comparison.systems.items()
        for k, errors in enumerate(evaluation.word_errors)
    ]
    return _rank(measure, sentences, count)


def _rank_by_words(
    measure: str,
    outputs: Mapping[str, Sequence[OutputLine]],
    test_set: EvaluationSet,
    count_errors: Callable[[Sequence[str], Sequence[str]], int],
    count: int,
) -> SentenceRanking:
    """Rank sentences by a function of their output words and reference words."""
    assert test_set.source is not None
    sentences = []
    for system, lines in outputs.items():
        for k, line in enumerate(lines):
            errors = count_errors(line.text.split(), test_set.references[0][k].split())
            sentences.append(RankedSentence(system, k, test_set.source[k].split(), errors))
    return _rank(measure, sentences, count)


def _rank(measure: str, sentences: Sequence[RankedSentence], count: int) -> SentenceRanking:
    """Keep the worst `count` of those with errors; ties stay in the order of the file."""
    bad = [sentence for sentence in sentences if sentence.amount > 0]
    return SentenceRanking(measure, tuple(sorted(bad, key=lambda s: -s.amount)[:count]))
