"""What a beam search at fixed shapes leaves behind, read backwards on the host.

Every step has a row with a node for each slot of each sentence: a node says which word was chosen
and which slot of the step before it continues. A leaf is a node at which a hypothesis ends; the
hypothesis is the path to it. Rows come in segments, since the sentences at work become fewer.

Letters: S places for sentences in a segment, K slots, V words, J source positions, N sentences,
T steps, L leaves.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from covnmt.base.arrays import DoubleArray, FloatArray, IntArray
from covnmt.base.config import DecodeConfig
from covnmt.decoding.beam_search import Hypothesis, empty_hypothesis


class HistorySegment(NamedTuple):
    """Some rows with the same sentences in the same places."""

    first: int  # the step of its first row
    numbers: Sequence[int]  # of the sentences in its first places; other places are empty
    choices: IntArray  # [rows, S, K] slot of the parent * V + word
    ended: FloatArray  # [rows, S, K] log-probability of hypotheses that end here; -inf for others
    alpha: FloatArray  # [rows, S, K, J] attention, by slot of the parent


class EndedHypotheses(NamedTuple):
    """Hypotheses by where they end, [L] each."""

    sentences: IntArray
    steps: IntArray
    slots: IntArray
    log_probs: FloatArray

    def take(self, chosen: IntArray) -> "EndedHypotheses":
        """Only these."""
        return EndedHypotheses._make(part[chosen] for part in self)


@dataclass(frozen=True)
class SearchHistory:
    """All segments as one: slot k of sentence n at step i is node first[i, n] + k."""

    first: IntArray  # [T, N]
    choices: IntArray  # [nodes]
    alpha: FloatArray  # [nodes, J]
    leaves: EndedHypotheses  # by step, then slot
    lengths: IntArray  # [N] source positions
    V: int
    end: int

    @classmethod
    def of(
        cls, segments: Sequence[HistorySegment], lengths: IntArray, V: int, end: int
    ) -> "SearchHistory":
        """Put the segments together; they follow each other in time."""
        T = segments[-1].first + len(segments[-1].choices)
        first, size = np.zeros((T, len(lengths)), dtype=np.int64), 0
        for part in segments:
            rows, S, K = part.choices.shape
            nodes = size + np.arange(rows * S * K, step=K).reshape(rows, S)
            first[part.first : part.first + rows, part.numbers] = nodes[:, : len(part.numbers)]
            size += rows * S * K
        choices = np.concatenate([part.choices.ravel() for part in segments])
        J = segments[0].alpha.shape[-1]
        alphas = [part.alpha.reshape(-1, J) for part in segments]
        alpha = alphas[0] if len(alphas) == 1 else np.concatenate(alphas)
        found = [_leaves(part) for part in segments]
        leaves = EndedHypotheses(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
        return cls(first, choices, alpha, leaves, lengths, V, end)

    def hypotheses(self, config: DecodeConfig) -> list[list[Hypothesis]]:
        """The n best of every sentence, best first; an empty one where there is none."""
        scores = self._scores(config)
        chosen = self._ranked(scores, config.nbest)
        best = self.leaves.take(chosen)
        words, looks = self._paths(best)
        lengths: list[int] = self.lengths.tolist()
        found: list[list[Hypothesis]] = [[] for _ in lengths]
        for path, look, n, last, log_prob, score in zip(
            words.tolist(), self.alpha[looks], *(part.tolist() for part in best[:2]),
            best.log_probs.tolist(), scores[chosen].tolist(), strict=True
        ):  # fmt: skip
            finished = path[last] == self.end
            attention = look[: last + 1, : lengths[n]]
            symbols = tuple(path[: last if finished else last + 1])
            found[n].append(Hypothesis(symbols, score, log_prob, attention, finished))
        pairs = zip(found, lengths, strict=True)
        return [hypotheses or [empty_hypothesis(length)] for hypotheses, length in pairs]

    def _scores(self, config: DecodeConfig) -> DoubleArray:
        """Log-probabilities with the penalties of `rules.penalised` [L]."""
        divisors = (self.leaves.steps + 1.0) ** config.length_penalty
        scores: DoubleArray = self.leaves.log_probs.astype(np.float64) / divisors
        if config.coverage_penalty:
            scores += config.coverage_penalty * self._uncovered()
        return scores

    def _uncovered(self) -> FloatArray:
        """sum_j log(min(sum_i alpha_ij, 1)) of every leaf [L], the end symbol left out."""
        total = np.zeros((len(self.leaves.steps), self.alpha.shape[1]), dtype=np.float32)
        for i, looks in enumerate(self._paths(self.leaves)[1].T):
            total += np.where((i <= self.leaves.steps)[:, None], self.alpha[looks], 0)
        covered = np.log(np.clip(total, np.finfo(np.float32).tiny, 1))
        words = np.arange(total.shape[1]) < self.lengths[self.leaves.sentences, None] - 1
        uncovered: FloatArray = np.where(words, covered, 0).sum(axis=1)
        return uncovered

    def _ranked(self, scores: DoubleArray, nbest: int) -> IntArray:
        """The best leaves of each sentence; unfinished ones only where none is finished."""
        sentences, steps, slots, _ = self.leaves
        unfinished = self.choices[self.first[steps, sentences] + slots] % self.V != self.end
        # equal scores: found first, first
        order = np.lexsort((-scores, unfinished, sentences))
        of, missing = sentences[order], unfinished[order]
        begin = np.searchsorted(of, of)  # where the leaves of the same sentence begin
        near = np.arange(len(order)) - begin < nbest
        chosen: IntArray = order[near & (missing == missing[begin])]
        return chosen

    def _paths(self, leaves: EndedHypotheses) -> tuple[IntArray, IntArray]:
        """Words and nodes with the attention, [L, T] each; all leaves walk back together."""
        T = int(leaves.steps.max(initial=-1)) + 1
        words, looks = np.zeros((2, len(leaves.steps), T), dtype=np.int64)
        slots = leaves.slots
        for i in reversed(range(T)):
            nodes = self.first[i, leaves.sentences]
            parents, words[:, i] = np.divmod(self.choices[nodes + slots], self.V)
            looks[:, i] = nodes + parents
            slots = np.where(i <= leaves.steps, parents, slots)
        return words, looks


def _leaves(part: HistorySegment) -> EndedHypotheses:
    steps, places, slots = np.nonzero(part.ended > -math.inf)
    sentences = np.asarray(part.numbers, dtype=np.int64)[places]
    return EndedHypotheses(sentences, part.first + steps, slots, part.ended[steps, places, slots])
