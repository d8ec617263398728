"""Find the sentences worth reading: where systems differ most, omit most, repeat most.

With a deterministic test set omissions and repetitions are exact. Otherwise they are proxies:
source words with low attention, words repeated beyond the reference; the report says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from covnmt.base.arrays import IntArray
from covnmt.evaluation.evaluate import Comparison
from covnmt.evaluation.system_output import OutputLine
from covnmt.evaluation.test_set import EvaluationSet
from covnmt.metrics.adequacy import LOW_ATTENTION, SourceWordErrors, rep_score
from covnmt.metrics.bleu import MATCHED_NGRAMS, OUTPUT_NGRAMS, brevity_penalty

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


def sentence_bleu(statistics: IntArray) -> NDArray[np.float64]:
    """Return the BLEU of each sentence [N] from statistics [N, 10], smoothed by adding one."""
    matched, total = (
        statistics[:, columns].astype(np.float64) for columns in (MATCHED_NGRAMS, OUTPUT_NGRAMS)
    )
    matched[:, 1:] += 1
    total[:, 1:] += 1
    precision = np.divide(matched, total, out=np.zeros_like(matched), where=total > 0)
    logs = np.log(precision, out=np.full_like(precision, -np.inf), where=precision > 0)
    return np.asarray(
        100 * np.exp(logs.mean(axis=1)) * brevity_penalty(statistics.astype(np.float64))
    )


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
    if all(system.word_errors for system in comparison.systems.values()):
        return _rank_exact(OMITTED, comparison, test_set, lambda e: e.omitted, count)
    if all(line.alignment is not None for lines in outputs.values() for line in lines):
        return _rank(LOW_ATTENTION_PROXY, _judge_all(outputs, _judge_attention), count)

    def judge_length(system: str, k: int, line: OutputLine) -> RankedSentence:
        missing = len(test_set.references[0][k].split()) - len(line.text.split())
        return RankedSentence(system, k, _source_words(test_set, k), missing)

    return _rank(LENGTH_PROXY, _judge_all(outputs, judge_length), count)


def over_translated(
    comparison: Comparison,
    outputs: Mapping[str, Sequence[OutputLine]],
    test_set: EvaluationSet,
    count: int,
) -> SentenceRanking:
    """Rank sentences by repeated words: exact, else by REP."""
    if all(system.word_errors for system in comparison.systems.values()):
        return _rank_exact(REPEATED, comparison, test_set, lambda e: e.repeated, count)

    def judge_repetitions(system: str, k: int, line: OutputLine) -> RankedSentence:
        reference = test_set.references[0][k].split()
        # REP is per 100 reference words; here it is their number
        repeated = rep_score([line.text.split()], [reference]) * len(reference) / 100
        return RankedSentence(system, k, _source_words(test_set, k), repeated)

    return _rank(REP_PROXY, _judge_all(outputs, judge_repetitions), count)


def repeated_bigram_positions(words: Sequence[str]) -> frozenset[int]:
    """Return the positions of words in bigrams that occurred before in the sentence."""
    seen: set[tuple[str, str]] = set()
    positions: set[int] = set()
    for k, bigram in enumerate(pairwise(words)):
        if bigram in seen:
            positions |= {k, k + 1}
        seen.add(bigram)
    return frozenset(positions)


def _source_words(test_set: EvaluationSet, k: int) -> list[str]:
    return test_set.source[k].split() if test_set.source is not None else []


def _judge_attention(system: str, k: int, line: OutputLine) -> RankedSentence:
    assert line.alignment is not None
    received = line.alignment.sum(axis=0)  # [J]
    low = frozenset(np.flatnonzero(received < LOW_ATTENTION).tolist())
    return RankedSentence(system, k, line.source_tokens, len(low), low)


def _rank_exact(
    measure: str,
    comparison: Comparison,
    test_set: EvaluationSet,
    positions: Callable[[SourceWordErrors], frozenset[int]],
    count: int,
) -> SentenceRanking:
    sentences = [
        RankedSentence(
            system, k, _source_words(test_set, k), len(positions(errors)), positions(errors)
        )
        for system, evaluation in comparison.systems.items()
        for k, errors in enumerate(evaluation.word_errors)
    ]
    return _rank(measure, sentences, count)


def _judge_all(
    outputs: Mapping[str, Sequence[OutputLine]],
    judge: Callable[[str, int, OutputLine], RankedSentence],
) -> list[RankedSentence]:
    return [
        judge(system, k, line) for system, lines in outputs.items() for k, line in enumerate(lines)
    ]


def _rank(measure: str, sentences: Sequence[RankedSentence], count: int) -> SentenceRanking:
    """Keep the worst `count` of those with errors; ties stay in the order of the file."""
    bad = [sentence for sentence in sentences if sentence.amount > 0]
    return SentenceRanking(measure, tuple(sorted(bad, key=lambda s: -s.amount)[:count]))
