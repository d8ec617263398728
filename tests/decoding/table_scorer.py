"""A scorer for searches whose answers are all known: a table for each sentence.

A hypothesis is hashed to a row of log-probabilities and a row of attention.
"""

import math
import random
from dataclasses import dataclass, field

import numpy as np

from covnmt.base.arrays import AnyArray, IntArray
from covnmt.decoding.beam_search import Proposal

UNK, A, B, END = 1, 2, 3, 4
V = 5
NEVER = -math.inf
PADDING = 7.0  # attention on padding: absurd, so that it shows wherever it leaks


@dataclass(frozen=True)
class Table:
    """One sentence: what follows a hypothesis is in row hash(hypothesis)."""

    log_probs: list[list[float]]  # [P][V]
    attention: list[list[float]]  # [P][J]
    factor: int = 7  # 0: only the last word matters

    def row(self, words: tuple[int, ...]) -> int:
        number = 0
        for word in words:
            number = (number * self.factor + word + 1) % len(self.log_probs)
        return number

    @property
    def J(self) -> int:
        return len(self.attention[0])


@dataclass(frozen=True)
class Rows:
    """Hashes of the hypotheses so far."""

    numbers: IntArray  # [R]

    def select(self, rows: IntArray) -> "Rows":
        return Rows(self.numbers[rows])


@dataclass(frozen=True)
class TableScorer:
    """Tables of the same number of rows, batched; notes how many rows each step scored."""

    log_probs: AnyArray  # [S, P, V]
    attention: AnyArray  # [S, P, J]
    factor: int
    end_id: int = END
    unk_id: int = UNK
    sizes: list[tuple[int, int]] = field(default_factory=list)  # (sentences, rows) of every step

    def step(self, state: Rows, words: IntArray | None, k: int) -> Proposal[Rows]:
        S, P, _ = self.log_probs.shape
        numbers = state.numbers
        assert S == 0 or len(numbers) % S == 0
        if words is not None:
            numbers = (numbers * self.factor + words + 1) % P
        self.sizes.append((S, len(numbers)))
        sentences = np.arange(S).repeat(len(numbers) // max(S, 1))
        log_probs = self.log_probs[sentences, numbers]
        best = (-log_probs).argsort(axis=1, kind="stable")[:, :k]
        chosen = np.take_along_axis(log_probs, best, axis=1)
        return Proposal(chosen, best, self.attention[sentences, numbers], Rows(numbers))

    def keep(self, sentences: IntArray) -> "TableScorer":
        log_probs, attention = self.log_probs[sentences], self.attention[sentences]
        return TableScorer(log_probs, attention, self.factor, self.end_id, self.unk_id, self.sizes)


def batch(tables: list[Table]) -> tuple[TableScorer, Rows, IntArray]:
    """What `search` takes: scorer, first state, source lengths."""
    widest = max(table.J for table in tables)
    padded = [[row + [PADDING] * (widest - table.J) for row in table.attention] for table in tables]
    scorer = TableScorer(
        np.array([table.log_probs for table in tables], dtype=np.float32),
        np.array(padded, dtype=np.float32),
        tables[0].factor,
    )
    state = Rows(np.zeros(len(tables), dtype=np.int64))
    return scorer, state, np.array([table.J for table in tables])


def random_table(seed: int, J: int, coarse: bool = True) -> Table:
    """Coarse: sums are exact, ties are common, some words have no probability at all."""
    draw = random.Random(seed)
    rows = range(23)
    if coarse:
        choices = [NEVER, -0.25, -0.5, -0.75, -1.0, -2.0, -3.0]
        log_probs = [[draw.choice(choices) for _ in range(V)] for _ in rows]
        # the end symbol is so rare at times that retries happen
        rare = draw.choice([0.0, 0.5, 0.9])
        log_probs = [[*row[:END], NEVER if draw.random() < rare else row[END]] for row in log_probs]
    else:
        log_probs = [[-3 * draw.random() for _ in range(V)] for _ in rows]
    attention = [[draw.randrange(9) / 16 for _ in range(J)] for _ in rows]
    return Table(log_probs, attention)


def markov(following: dict[int, dict[int, float]], J: int = 2) -> Table:
    """A table by last word (0: at the start); words not named have no probability."""
    rows = [following.get(last - 1 if last else 0, {}) for last in range(V + 1)]
    log_probs = [[row.get(word, NEVER) for word in range(V)] for row in rows]
    return Table(log_probs, [[1 / J] * J for _ in rows], factor=0)
