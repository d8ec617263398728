"""Minimum error rate training: weights that maximise BLEU over n-best lists (Och, 2003).

Each hypothesis has features f and a score w.f; moving the weights along a direction makes the
score a line in the step size. In each sentence the best hypothesis changes only where lines cross
on their upper envelope, so BLEU is constant between crossings and its best value on the whole line
is found exactly. Lists are padded to one array: S sentences, N hypotheses, F features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covnmt.base.arrays import DoubleArray, IntArray
from covnmt.base.processes import map_in_order
from covnmt.metrics.bleu import corpus_bleu

MARGIN = 1.0  # how far beyond the outermost crossing a step goes
PASSES = 20  # over all directions, at most
GAIN = 1e-3  # BLEU; what a pass must gain to be followed by another


@dataclass(frozen=True)
class NBestLists:
    """The n-best lists of a dev set."""

    features: DoubleArray  # [S, N, F]
    statistics: IntArray  # [S, N, 10] BLEU counts
    real: NDArray[np.bool_]  # [S, N] not padding

    @classmethod
    def of(cls, features: Sequence[DoubleArray], statistics: Sequence[IntArray]) -> "NBestLists":
        """From one array [n, F] and one [n, 10] for each sentence."""
        longest = max(map(len, features))
        real = np.arange(longest) < np.array([[len(rows)] for rows in features])
        return cls(_padded(features, real), _padded(statistics, real), real)

    def best(self, weights: DoubleArray) -> IntArray:
        """The hypothesis with the highest score in each list; the first of equals."""
        scores = np.where(self.real, self.features @ weights, -np.inf)
        return np.asarray(scores.argmax(axis=1))

    def bleu(self, weights: DoubleArray) -> float:
        """Of the best hypotheses."""
        rows = np.arange(len(self.real))
        return float(corpus_bleu(self.statistics[rows, self.best(weights)].sum(axis=0)))


def _padded(rows: Sequence[NDArray[Any]], real: NDArray[np.bool_]) -> NDArray[Any]:
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
    """The best weights found from `start` and from random ones, none below `lower`; their BLEU.

    Weights are scaled to a sum of 1 in absolute value: only their ratios matter.
    """
    climb = partial(_climb, lists, start, lower, seed)
    reached = map_in_order(climb, range(restarts + 1), processes)
    weights, score = max(reached, key=lambda each: each[1])  # of equal ones the first
    return weights / np.abs(weights).sum(), score


def _climb(
    lists: NBestLists, start: DoubleArray, lower: DoubleArray, seed: int, number: int
) -> tuple[DoubleArray, float]:
    """Line searches along each weight and along random directions, while they gain.

    The first climb is from `start`; each has random numbers of its own.
    """
    draw = np.random.default_rng([seed, number])
    weights = _random_start(draw, lower) if number else start
    score = lists.bleu(weights)
    for _ in range(PASSES):
        before = score
        size = len(weights)
        for direction in (*np.eye(size), *draw.normal(size=(size, size))):
            step, reached = line_search(lists, weights, direction, lower)
            if reached > score:
                weights, score = weights + step * direction, reached
        if score < before + GAIN:
            break
    return weights, score


def _random_start(draw: np.random.Generator, lower: DoubleArray) -> DoubleArray:
    free = draw.normal(size=len(lower))
    return np.where(np.isfinite(lower), np.abs(free), free)


def line_search(
    lists: NBestLists, weights: DoubleArray, direction: DoubleArray, lower: DoubleArray
) -> tuple[float, float]:
    """The step along a direction that gives the best BLEU, and that BLEU.

    Among the best intervals it takes the middle of the widest, the safest place.
    """
    least, most = step_limits(weights, direction, lower)
    sentence, where, before, after, first = envelope(lists, weights, direction, least)
    order = np.argsort(where, kind="stable")
    inside = order[where[order] < most]
    rows = np.arange(len(first))
    start = lists.statistics[rows, first].sum(axis=0)
    change = lists.statistics[sentence, after] - lists.statistics[sentence, before]
    totals = np.concatenate([start[None], start + np.cumsum(change[inside], axis=0)])
    bounds = _bounds(where[inside], least, most)
    scores = corpus_bleu(totals)
    width = np.diff(bounds)
    scores = np.where(width > 0, scores, -1.0)  # crossings at one place leave nothing between
    best = np.flatnonzero(scores >= scores.max() - 1e-12)
    chosen = best[width[best].argmax()]
    return float(bounds[chosen] + width[chosen] / 2), float(scores[chosen])


def step_limits(
    weights: DoubleArray, direction: DoubleArray, lower: DoubleArray
) -> tuple[float, float]:
    """The steps for which no weight falls below its lower limit."""
    moving = np.isfinite(lower) & (direction != 0)
    room = (lower[moving] - weights[moving]) / direction[moving]
    up = direction[moving] > 0
    return max(room[up], default=-np.inf), min(room[~up], default=np.inf)


def _bounds(where: DoubleArray, least: float, most: float) -> DoubleArray:
    """The ends of the intervals; where there is no limit, a little beyond the last crossing."""
    inner = where if len(where) else np.array([0.0])
    low = least if np.isfinite(least) else min(inner[0], most) - MARGIN
    high = most if np.isfinite(most) else max(inner[-1], low) + MARGIN
    return np.concatenate([[low], where, [high]])


def envelope(
    lists: NBestLists, weights: DoubleArray, direction: DoubleArray, least: float
) -> tuple[IntArray, DoubleArray, IntArray, IntArray, IntArray]:
    """Where the best hypothesis changes, walking from step `least` upwards, all sentences abreast.

    Gives for each change its sentence, its step, the hypothesis before and the one after; and the
    first hypothesis of every sentence.
    """
    height = np.where(lists.real, lists.features @ weights, -np.inf)  # [S, N]
    slope = np.where(lists.real, lists.features @ direction, -np.inf)
    now = first = _best_at(height, slope, least)
    at, moving = np.full(len(now), least), np.arange(len(now))
    changes = []
    while len(moving):
        rows = np.arange(len(now))
        rise = slope - slope[rows, now][:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            cross = (height[rows, now][:, None] - height) / rise
        cross = np.where(rise > 0, np.maximum(cross, at[:, None]), np.inf)
        nearest = cross.min(axis=1)
        # of lines that cross at one place the steepest is the best from there on
        then = np.where(cross <= nearest[:, None], slope, -np.inf).argmax(axis=1)
        on = np.isfinite(nearest)
        changes.append((moving[on], nearest[on], now[on], then[on]))
        moving, now, at = moving[on], then[on], nearest[on]
        height, slope = height[on], slope[on]
    sentence, where, before, after = (np.concatenate(part) for part in zip(*changes, strict=True))
    return sentence, where, before, after, first


def _best_at(height: DoubleArray, slope: DoubleArray, step: float) -> IntArray:
    """The best hypothesis at a step; infinitely far back it is the flattest, then the highest."""
    if np.isfinite(step):
        value = height + np.where(np.isfinite(slope), slope, 0.0) * step
        top = np.where(value >= value.max(axis=1, keepdims=True), slope, -np.inf)
        return np.asarray(top.argmax(axis=1))
    flattest = np.where(np.isfinite(slope), slope, np.inf).min(axis=1, keepdims=True)
    return np.asarray(np.where(slope == flattest, height, -np.inf).argmax(axis=1))
