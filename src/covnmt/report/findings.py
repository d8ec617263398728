"""Which sentences are worth reading: where systems differ, and where words got lost or doubled.

With a gold alignment of the only right translation the losses are exact. Otherwise they are
proxies: source words with little attention, words repeated beyond the reference. Proxies hint;
the report always says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covnmt.evaluate import Comparison, Evaluation
from covnmt.metrics.adequacy import LITTLE_ATTENTION, rep
from covnmt.metrics.bleu import MATCHED, TOTAL, Counts, brevity
from covnmt.metrics.inputs import EvaluationSet
from covnmt.report.outputs import Output

LEFT_OUT = "source words left out (exact)"
SAID_TWICE = "source words said twice (exact)"
LITTLE = f"proxy: source words with less than {LITTLE_ATTENTION:g} attention in all"
SHORT = "proxy: words fewer than the reference has"
REPEATED = "proxy: REP, words and word pairs repeated beyond the reference"


@dataclass(frozen=True)
class Finding:
    """One sentence of one system: its number, how bad it is, and the source words concerned."""

    system: str
    sentence: int
    amount: float
    words: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Ranking:
    """Findings, the worst first, and what was counted."""

    measure: str
    findings: tuple[Finding, ...]


def sentence_bleu(statistics: Counts) -> NDArray[np.float64]:
    """BLEU of single sentences [N] from their counts, one added to 2-grams and longer."""
    matched, total = (statistics[:, part].astype(np.float64) for part in (MATCHED, TOTAL))
    matched[:, 1:] += 1
    total[:, 1:] += 1
    precision = np.divide(matched, total, out=np.zeros_like(matched), where=total > 0)
    logs = np.log(precision, out=np.full_like(precision, -np.inf), where=precision > 0)
    return np.asarray(100 * np.exp(logs.mean(axis=1)) * brevity(statistics.astype(np.float64)))


def most_different(comparison: Comparison, count: int) -> list[int]:
    """Numbers of the sentences whose BLEU differs most between systems; none for one system."""
    scores = np.stack([sentence_bleu(e.statistics) for e in comparison.systems.values()])  # [S, N]
    spread = scores.max(axis=0) - scores.min(axis=0)
    order = np.argsort(-spread, kind="stable")[:count]
    return [int(k) for k in order if spread[k] > 0]


def under_translated(
    comparison: Comparison, outputs: Mapping[str, Sequence[Output]], on: EvaluationSet, count: int
) -> Ranking:
    """Sentences that lost most: exactly known, by attention, or else by length."""
    if any(system.words for system in comparison.systems.values()):
        return _exact(comparison, LEFT_OUT, lambda e, k: e.words[k].left_out, count)
    if all(o.alignment is not None for rows in outputs.values() for o in rows):
        return _ranking(LITTLE, outputs, _hardly_seen, count)

    def shorter(output: Output, k: int) -> tuple[float, frozenset[int]]:
        missing = len(on.references[0][k].split()) - len(output.text.split())
        return float(missing), frozenset()

    return _ranking(SHORT, outputs, shorter, count)


def over_translated(
    comparison: Comparison, outputs: Mapping[str, Sequence[Output]], on: EvaluationSet, count: int
) -> Ranking:
    """Sentences that say most twice: exactly known, or by repetitions."""
    if any(system.words for system in comparison.systems.values()):
        return _exact(comparison, SAID_TWICE, lambda e, k: e.words[k].said_twice, count)

    def repeated(output: Output, k: int) -> tuple[float, frozenset[int]]:
        reference = on.references[0][k].split()
        # REP is a percentage of the reference words; here their number
        return rep([output.text.split()], [reference]) * len(reference) / 100, frozenset()

    return _ranking(REPEATED, outputs, repeated, count)


def _hardly_seen(output: Output, _: int) -> tuple[float, frozenset[int]]:
    assert output.alignment is not None
    received = output.alignment.sum(axis=0)  # [J]
    words = frozenset(np.flatnonzero(received < LITTLE_ATTENTION).tolist())
    return float(len(words)), words


def _exact(
    comparison: Comparison,
    measure: str,
    pick: Callable[[Evaluation, int], frozenset[int]],
    count: int,
) -> Ranking:
    findings = [
        Finding(name, k, float(len(words)), words)
        for name, evaluation in comparison.systems.items()
        for k in range(evaluation.sentences)
        if (words := pick(evaluation, k))
    ]
    return Ranking(measure, _worst(findings, count))


def _ranking(
    measure: str,
    outputs: Mapping[str, Sequence[Output]],
    judge: Callable[[Output, int], tuple[float, frozenset[int]]],
    count: int,
) -> Ranking:
    findings = [
        Finding(name, k, *judge(output, k))
        for name, rows in outputs.items()
        for k, output in enumerate(rows)
    ]
    return Ranking(measure, _worst(findings, count))


def _worst(findings: Sequence[Finding], count: int) -> tuple[Finding, ...]:
    """The worst `count` that are bad at all; ties in the order of the file."""
    bad = [finding for finding in findings if finding.amount > 0]
    return tuple(sorted(bad, key=lambda finding: -finding.amount)[:count])
