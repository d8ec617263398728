"""Read the hypotheses of a finished search from its history, backwards.

A node is one token of a hypothesis that was in a beam, and has the node of the token before as its
parent; a hypothesis is the path from a first token to the node where it ended. All searches leave
such a history.

Notation: N nodes, S sentences, I target and J source positions, both with the end symbol; T steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from covnmt.base.arrays import AnyArray, BoolArray, IntArray
from covnmt.base.config import DecodeConfig
from covnmt.decoding.search_rules import penalized_score

ROOT = -1  # the parent of first tokens


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """One translation; if it is finished, the attention has a row for the end symbol too."""

    token_ids: tuple[int, ...]  # without the end symbol
    score: float  # after penalties
    log_prob: float
    attention: AnyArray  # [I, J]
    finished: bool


def empty_hypothesis(J: int) -> Hypothesis:
    """Return the result where the model gives no continuation any probability."""
    attention = np.zeros((0, J), dtype=np.float32)
    return Hypothesis((), -math.inf, -math.inf, attention, finished=False)


class _EndedHypothesis(NamedTuple):
    """A hypothesis that ended, before its tokens and attention are looked up."""

    path: IntArray  # [I] nodes
    score: float
    log_prob: float
    finished: bool


class SearchHistory(NamedTuple):
    """The nodes of a search, or of one step; those of a sentence are in the order it made them."""

    sentences: IntArray  # [N]
    parents: IntArray  # [N] node of the step before, or ROOT
    token_ids: IntArray  # [N]
    log_probs: AnyArray  # [N] of the tokens up to here; read only where the hypothesis ended
    ended: BoolArray  # [N] finished, or still open at the last step allowed
    attention: AnyArray  # [., J] one row for each index in `attention_rows`
    attention_rows: IntArray  # [N]

    def hypotheses(
        self, source_lengths: Sequence[int], end_id: int, config: DecodeConfig
    ) -> list[list[Hypothesis]]:
        """Return the n best of every sentence, best first; an empty one where there is none.

        Source lengths [S] count the end symbol.
        """
        ended: list[list[_EndedHypothesis]] = [[] for _ in source_lengths]
        leaves = np.flatnonzero(self.ended)
        finished = self.token_ids[leaves] == end_id
        columns = (self.sentences[leaves], self.log_probs[leaves], finished)
        for path, sentence, log_prob, is_finished in zip(
            self._paths(leaves), *(column.tolist() for column in columns), strict=True
        ):
            received = partial(self._received, path, source_lengths[sentence] - 1)
            score = float(penalized_score(log_prob, len(path), received, config))
            ended[sentence].append(_EndedHypothesis(path, score, log_prob, is_finished))
        return [
            self._n_best(of_sentence, J, config.nbest) or [empty_hypothesis(J)]
            for of_sentence, J in zip(ended, source_lengths, strict=True)
        ]

    def _paths(self, leaves: IntArray) -> list[IntArray]:
        """Return the nodes from the first token to each leaf; all leaves walk up together."""
        steps = [leaves]
        while (leaves != ROOT).any():
            leaves = np.where(leaves == ROOT, ROOT, self.parents[leaves])
            steps.append(leaves)
        paths = np.stack(steps[::-1], axis=1)
        begins = (paths == ROOT).sum(axis=1).tolist()
        return [path[begin:] for path, begin in zip(paths, begins, strict=True)]

    def _received(self, path: IntArray, J: int) -> AnyArray:
        received: AnyArray = self.attention[self.attention_rows[path], :J].sum(axis=0)
        return received

    def _n_best(self, ended: list[_EndedHypothesis], J: int, nbest: int) -> list[Hypothesis]:
        """Rank the finished ones, or all where none is; of equal scores the first found wins."""
        ranked = [hypothesis for hypothesis in ended if hypothesis.finished] or ended
        hypotheses = []
        for path, score, log_prob, finished in sorted(ranked, key=lambda h: -h.score)[:nbest]:
            token_ids = tuple(self.token_ids[path].tolist())
            token_ids = token_ids[:-1] if finished else token_ids
            attention = self.attention[self.attention_rows[path], :J]
            hypotheses.append(Hypothesis(token_ids, score, log_prob, attention, finished))
        return hypotheses
