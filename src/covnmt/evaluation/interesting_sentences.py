"""Find the sentences worth reading: where systems differ most, omit most, repeat most.

With a unique reference (the only right translation) omissions and repetitions are exact. Otherwise
they are proxies: source words with low attention, words repeated beyond the reference; the report
says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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


@dataclass(frozen=True)
class SentenceRanker:
    """Finds the sentences with most errors, of all systems together."""

    comparison: Comparison
    outputs: Mapping[str, Sequence[OutputLine]]
    test_set: EvaluationSet

    def under_translated(self, count: int) -> SentenceRanking:
        """Rank sentences by omitted words: exact, else by attention, else by length."""
        if self._has_exact_counts:
            return self._rank(OMITTED, partial(self._exact, lambda e: e.omitted), count)
        if all(line.alignment is not None for lines in self.outputs.values() for line in lines):
            return self._rank(LOW_ATTENTION_PROXY, self._by_attention, count)
        return self._rank(LENGTH_PROXY, partial(self._by_words, count_missing_words), count)

    def over_translated(self, count: int) -> SentenceRanking:
        """Rank sentences by repeated words: exact, else by REP."""
        if self._has_exact_counts:
            return self._rank(REPEATED, partial(self._exact, lambda e: e.repeated), count)
        return self._rank(REP_PROXY, partial(self._by_words, count_repetitions), count)

    @property
    def _has_exact_counts(self) -> bool:
        return all(system.word_errors for system in self.comparison.systems.values())

    def _exact(
        self, select: Callable[[SourceWordErrors], frozenset[int]], system: str, k: int
    ) -> RankedSentence:
        positions = select(self.comparison.systems[system].word_errors[k])
        return RankedSentence(system, k, self._source(k), len(positions), positions)

    def _by_attention(self, system: str, k: int) -> RankedSentence:
        line = self.outputs[system][k]
        assert line.alignment is not None
        received = line.alignment.sum(axis=0)  # [J]
        low = frozenset(np.flatnonzero(received < LOW_ATTENTION).tolist())
        return RankedSentence(system, k, line.source_tokens, len(low), low)

    def _by_words(
        self, count_errors: Callable[[Sequence[str], Sequence[str]], int], system: str, k: int
    ) -> RankedSentence:
        """Count errors from the words of the output and of the reference."""
        words, reference = self.outputs[system][k].text.split(), self.test_set.references[0][k]
        errors = count_errors(words, reference.split())
        return RankedSentence(system, k, self._source(k), errors)

    def _source(self, k: int) -> list[str]:
        assert self.test_set.source is not None
        return self.test_set.source[k].split()

    def _rank(
        self, measure: str, judge: Callable[[str, int], RankedSentence], count: int
    ) -> SentenceRanking:
        """Keep the worst `count` of those with errors; ties stay in the order of the files."""
        sentences = (judge(name, k) for name, o in self.outputs.items() for k in range(len(o)))
        bad = [sentence for sentence in sentences if sentence.amount > 0]
        return SentenceRanking(measure, tuple(sorted(bad, key=lambda s: -s.amount)[:count]))


def count_missing_words(words: Sequence[str], reference: Sequence[str]) -> int:
    return len(reference) - len(words)


def repeated_bigram_positions(words: Sequence[str]) -> frozenset[int]:
    """Return the positions of words in bigrams that occurred before in the sentence."""
    seen: set[tuple[str, str]] = set()
    positions: set[int] = set()
    for k, bigram in enumerate(pairwise(words)):
        if bigram in seen:
            positions |= {k, k + 1}
        seen.add(bigram)
    return frozenset(positions)
