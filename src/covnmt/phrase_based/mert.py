"""Minimum error rate training: weights that maximize BLEU over n-best lists (Och, 2003).

Each hypothesis has features f and a score w.f. When the weights move along a direction, the score
is a linear function of the step. In each sentence the best hypothesis changes only where lines meet
on their upper envelope, so BLEU is constant between crossings and its maximum along the direction
can be found exactly. Lists are padded to one array: S sentences, N hypotheses, F features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from covnmt.base.arrays import AnyArray, BoolArray, DoubleArray, IntArray
from covnmt.base.processes import map_in_order
from covnmt.metrics.bleu import bleu_from_totals

MARGIN = 1.0  # distance that a step goes beyond the outermost crossing
PASSES = 20  # over all directions, at most
MIN_PASS_GAIN = 1e-3  # BLEU that a pass must gain to be followed by another


@dataclass(frozen=True)
class NBestLists:
    """The n-best lists of a dev set."""

    features: DoubleArray  # [S, N, F]
    statistics: IntArray  # [S, N, 10] BLEU counts
    real: BoolArray  # [S, N] not padding

    @classmethod
    def from_lists(
        cls, features: Sequence[DoubleArray], statistics: Sequence[IntArray]
    ) -> "NBestLists":
        """Pad one array [n, F] and one [n, 10] for each sentence."""
        list_size = max(map(len, features))
        real = np.arange(list_size) < np.array([[len(rows)] for rows in features])
        return cls(_padded(features, real), _padded(statistics, real), real)

    def best(self, weights: DoubleArray) -> IntArray:
        """Choose the hypothesis with the highest score in each list; the first of equals."""
        scores = np.where(self.real, self.features @ weights, -np.inf)
        return np.asarray(scores.argmax(axis=1))

    def bleu(self, weights: DoubleArray) -> float:
        """Compute the corpus BLEU of the best hypotheses."""
        rows = np.arange(len(self.real))
        return float(bleu_from_totals(self.statistics[rows, self.best(weights)].sum(axis=0)))


def _padded(rows: Sequence[AnyArray], real: BoolArray) -> AnyArray:
    padded = np.zeros((*real.shape, rows[0].shape[1]), dtype=rows[0].dtype)
    padded[real] = np.concatenate(rows)
    return padded


def optimize_weights(
    lists: NBestLists,
    start: DoubleArray,
    lower: DoubleArray,
    restarts: int,
    seed: int,
    processes: int = 1,
) -> tuple[DoubleArray, float]:
    """Search for the best weights from `start` and random points, none below `lower`.

    Returns the weights and their BLEU.
    Weights are scaled to a sum of 1 in absolute value: only their ratios matter.
    """
    climb = partial(_climb, lists, start, lower, seed)
    climbs = map_in_order(climb, range(restarts + 1), processes)
    weights, score = max(climbs, key=lambda pair: pair[1])  # the first of equals
    return weights / np.abs(weights).sum(), score


def _climb(
    lists: NBestLists, start: DoubleArray, lower: DoubleArray, seed: int, number: int
) -> tuple[DoubleArray, float]:
    """Search along each weight and along random directions, while BLEU rises.

    Climb 0 begins at `start`, the others at random weights. Each has a random seed of its own.
    """
    rng = np.random.default_rng([seed, number])
    weights = start
    if number:
        weights = rng.normal(size=len(lower))
        weights = np.where(np.isfinite(lower), np.abs(weights), weights)
    score = lists.bleu(weights)
    for _ in range(PASSES):
        before = score
        size = len(weights)
        for direction in (*np.eye(size), *rng.normal(size=(size, size))):
            step, reached = line_search(lists, weights, direction, lower)
            if reached > score:
                weights, score = weights + step * direction, reached
        if score < before + MIN_PASS_GAIN:
            break
    return weights, score


def line_search(
    lists: NBestLists, weights: DoubleArray, direction: DoubleArray, lower: DoubleArray
) -> tuple[float, float]:
    """Find the step along a direction that gives the best BLEU, and that BLEU.

    Of several best intervals it takes the middle of the widest, the most robust one.
    """
    least, most = step_range(weights, direction, lower)
    changes = envelope(lists, weights, direction, least)
    order = np.argsort(changes.step, kind="stable")
    inside = order[changes.step[order] < most]
    rows = np.arange(len(changes.first))
    start = lists.statistics[rows, changes.first].sum(axis=0)
    after = lists.statistics[changes.sentence, changes.after]
    difference = after - lists.statistics[changes.sentence, changes.before]
    totals = np.concatenate([start[None], start + np.cumsum(difference[inside], axis=0)])
    bounds = _bounds(changes.step[inside], least, most)
    scores = bleu_from_totals(totals)
    width = np.diff(bounds)
    scores = np.where(width > 0, scores, -1.0)  # no interval between equal steps
    best = np.flatnonzero(scores >= scores.max() - 1e-12)
    chosen = best[width[best].argmax()]
    return float(bounds[chosen] + width[chosen] / 2), float(scores[chosen])


def step_range(
    weights: DoubleArray, direction: DoubleArray, lower: DoubleArray
) -> tuple[float, float]:
    """Compute the range of steps in which no weight falls below its lower limit."""
    moving = np.isfinite(lower) & (direction != 0)
    limits = (lower[moving] - weights[moving]) / direction[moving]
    up = direction[moving] > 0
    return max(limits[up], default=-np.inf), min(limits[~up], default=np.inf)


def _bounds(where: DoubleArray, least: float, most: float) -> DoubleArray:
    """Compute the ends of the intervals; without a limit, MARGIN beyond the last crossing."""
    inner = where if len(where) else np.array([0.0])
    low = least if np.isfinite(least) else min(inner[0], most) - MARGIN
    high = most if np.isfinite(most) else max(inner[-1], low) + MARGIN
    return np.concatenate([[low], where, [high]])


class EnvelopeChanges(NamedTuple):
    """Where the best hypotheses change along a direction; row n of all but `first` is change n."""

    sentence: IntArray
    step: DoubleArray
    before: IntArray  # hypothesis
    after: IntArray
    first: IntArray  # [S] the best hypothesis before the first change


def envelope(
    lists: NBestLists, weights: DoubleArray, direction: DoubleArray, least: float
) -> EnvelopeChanges:
    """Find where the best hypothesis changes, from step `least` upwards, in every sentence."""
    height = np.where(lists.real, lists.features @ weights, -np.inf)  # [S, N]
    slope = np.where(lists.real, lists.features @ direction, -np.inf)
    best = first = _best_at(height, slope, least)
    step, sentence = np.full(len(best), least), np.arange(len(best))
    changes = []
    while len(sentence):
        rows = np.arange(len(best))
        rise = slope - slope[rows, best][:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            cross = (height[rows, best][:, None] - height) / rise
        cross = np.where(rise > 0, np.maximum(cross, step[:, None]), np.inf)
        nearest = cross.min(axis=1)
        # of several lines that cross at one step the steepest is the best after it
        after = np.where(cross <= nearest[:, None], slope, -np.inf).argmax(axis=1)
        more = np.isfinite(nearest)
        changes.append((sentence[more], nearest[more], best[more], after[more]))
        sentence, best, step = sentence[more], after[more], nearest[more]
        height, slope = height[more], slope[more]
    columns = [np.concatenate(column) for column in zip(*changes, strict=True)]
    return EnvelopeChanges._make([*columns, first])


def _best_at(height: DoubleArray, slope: DoubleArray, step: float) -> IntArray:
    """Choose the best hypothesis at a step; at minus infinity the flattest, then the highest."""
    if np.isfinite(step):
        value = height + np.where(np.isfinite(slope), slope, 0.0) * step
        top = np.where(value >= value.max(axis=1, keepdims=True), slope, -np.inf)
        return np.asarray(top.argmax(axis=1))
    flattest = np.where(np.isfinite(slope), slope, np.inf).min(axis=1, keepdims=True)
    return np.asarray(np.where(slope == flattest, height, -np.inf).argmax(axis=1))
