"""Which sentences are worth reading: where systems differ, and where words got lost or doubled.

With a gold alignment of the only right translation the losses are exact. Otherwise they are
proxies: source words with little attention, words repeated beyond the reference. Proxies hint;
the report always says so.
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

LEFT_OUT = "source words omitted (exact)"
SAID_TWICE = "source words repeated (exact)"
LITTLE = f"proxy: source words with less than {LOW_ATTENTION:g} total attention"
SHORT = "proxy: words fewer than in the reference"
REPEATED = "proxy: REP, words and word pairs repeated beyond the reference"


@dataclass(frozen=True)
class RankedSentence:
    """One sentence of one system: its number, its source words, how bad it is, and where."""

    system: str
    sentence: int
    source: Sequence[str]
    amount: float
    marked: frozenset[int] = frozenset()  # positions of the source words concerned


@dataclass(frozen=True)
class SentenceRanking:
    """Findings, the worst first, and what was counted."""

    measure: str
    findings: tuple[RankedSentence, ...]


def sentence_bleu(statistics: IntArray) -> NDArray[np.float64]:
    """BLEU of single sentences [N] from their counts, one added to 2-grams and longer."""
    matched, total = (
        statistics[:, part].astype(np.float64) for part in (MATCHED_NGRAMS, OUTPUT_NGRAMS)
    )
    matched[:, 1:] += 1
    total[:, 1:] += 1
    precision = np.divide(matched, total, out=np.zeros_like(matched), where=total > 0)
    logs = np.log(precision, out=np.full_like(precision, -np.inf), where=precision > 0)
    return np.asarray(
        100 * np.exp(logs.mean(axis=1)) * brevity_penalty(statistics.astype(np.float64))
    )


def most_different(comparison: Comparison, count: int) -> list[int]:
    """Numbers of the sentences whose BLEU differs most between systems; none for one system."""
    scores = np.stack([sentence_bleu(e.statistics) for e in comparison.systems.values()])  # [S, N]
    spread = scores.max(axis=0) - scores.min(axis=0)
    order = np.argsort(-spread, kind="stable")[:count]
    return [int(k) for k in order if spread[k] > 0]


def under_translated(
    comparison: Comparison,
    outputs: Mapping[str, Sequence[OutputLine]],
    on: EvaluationSet,
    count: int,
) -> SentenceRanking:
    """Sentences that lost most: exactly known, by attention, or else by length."""
    if all(system.word_errors for system in comparison.systems.values()):
        return _exact(LEFT_OUT, comparison, on, lambda words: words.omitted, count)
    if all(output.alignment is not None for rows in outputs.values() for output in rows):
        return _worst(LITTLE, _each(outputs, _hardly_seen), count)

    def shorter(name: str, k: int, output: OutputLine) -> RankedSentence:
        missing = len(on.references[0][k].split()) - len(output.text.split())
        return RankedSentence(name, k, _source(on, k), missing)

    return _worst(SHORT, _each(outputs, shorter), count)


def over_translated(
    comparison: Comparison,
    outputs: Mapping[str, Sequence[OutputLine]],
    on: EvaluationSet,
    count: int,
) -> SentenceRanking:
    """Sentences that say most twice: exactly known, or by repetitions."""
    if all(system.word_errors for system in comparison.systems.values()):
        return _exact(SAID_TWICE, comparison, on, lambda words: words.repeated, count)

    def repeated(name: str, k: int, output: OutputLine) -> RankedSentence:
        reference = on.references[0][k].split()
        # REP is a percentage of the reference words; here their number
        amount = rep_score([output.text.split()], [reference]) * len(reference) / 100
        return RankedSentence(name, k, _source(on, k), amount)

    return _worst(REPEATED, _each(outputs, repeated), count)


def repeated_bigram_positions(words: Sequence[str]) -> frozenset[int]:
    """Positions of words in pairs that already occurred in the sentence."""
    seen: set[tuple[str, str]] = set()
    found: set[int] = set()
    for k, pair in enumerate(pairwise(words)):
        if pair in seen:
            found |= {k, k + 1}
        seen.add(pair)
    return frozenset(found)


def _source(on: EvaluationSet, k: int) -> list[str]:
    return on.source[k].split() if on.source is not None else []


def _hardly_seen(name: str, k: int, output: OutputLine) -> RankedSentence:
    assert output.alignment is not None
    received = output.alignment.sum(axis=0)  # [J]
    marked = frozenset(np.flatnonzero(received < LOW_ATTENTION).tolist())
    return RankedSentence(name, k, output.source_tokens, len(marked), marked)


def _exact(
    measure: str,
    comparison: Comparison,
    on: EvaluationSet,
    pick: Callable[[SourceWordErrors], frozenset[int]],
    count: int,
) -> SentenceRanking:
    findings = [
        RankedSentence(name, k, _source(on, k), len(pick(words)), pick(words))
        for name, evaluation in comparison.systems.items()
        for k, words in enumerate(evaluation.word_errors)
    ]
    return _worst(measure, findings, count)


def _each(
    outputs: Mapping[str, Sequence[OutputLine]],
    judge: Callable[[str, int, OutputLine], RankedSentence],
) -> list[RankedSentence]:
    return [
        judge(name, k, output) for name, rows in outputs.items() for k, output in enumerate(rows)
    ]


def _worst(measure: str, findings: Sequence[RankedSentence], count: int) -> SentenceRanking:
    """The worst `count` that are bad at all; ties in the order of the file."""
    bad = [finding for finding in findings if finding.amount > 0]
    return SentenceRanking(measure, tuple(sorted(bad, key=lambda finding: -finding.amount)[:count]))
