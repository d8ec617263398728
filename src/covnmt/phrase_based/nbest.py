"""The best ways through a search, best first.

Each hypothesis knows the score of the best way to it, so a way followed backwards from its end is
worth, at any point, exactly the best that can still become of it.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import NamedTuple

import numpy as np

from covnmt.phrase_based.features import (
    DISTORTION,
    FEATURES,
    LANGUAGE_MODEL,
    ORIENTATION,
    PHRASE_FEATURES,
)
from covnmt.phrase_based.stack import Arcs, StackSearch

PATHS_PER_TRANSLATION = 20  # looked at for each translation asked for: many ways say the same


class PhraseSpan(NamedTuple):
    """Source words [source, source_end) became target words [target, target_end)."""

    source: int
    source_end: int
    target: int
    target_end: int


@dataclass(frozen=True)
class PhraseHypothesis:
    """One translation of a sentence, in ids; a copied word is the unknown one."""

    words: tuple[int, ...]
    phrases: tuple[PhraseSpan, ...]
    features: tuple[float, ...]


def best_translations(search: StackSearch, number: int) -> list[PhraseHypothesis]:
    """Different translations, the best way of each."""
    arcs = Arcs(*(np.concatenate(each) for each in zip(*search.arcs, strict=True)))
    found: dict[tuple[int, ...], PhraseHypothesis] = {}
    for last, way in islice(_ways(search, arcs), PATHS_PER_TRANSLATION * number):
        each = _hypothesis(search, arcs, last, way)
        found.setdefault(each.words, each)
        if len(found) == number:
            break
    return list(found.values())


def _ways(search: StackSearch, arcs: Arcs) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Arcs from beginning to end, the best ways first, with the end's language model score."""
    into = defaultdict(list)
    for number, child in enumerate(arcs.child.tolist()):
        into[child].append(number)
    parent, score, best = arcs.parent.tolist(), arcs.score.tolist(), search.found.score.tolist()
    ends = range(search.complete.start, search.complete.stop)
    last = search.endings().tolist()
    weight = float(search.weights[LANGUAGE_MODEL])
    tie = count()
    heap: list[tuple[float, int, int, float, tuple[int, ...]]] = [
        (-(best[node] + weight * end), next(tie), node, end, ())
        for node, end in zip(ends, last, strict=True)
    ]
    heapq.heapify(heap)
    while heap:
        cost, _, node, end, way = heapq.heappop(heap)
        if node == 0:
            yield end, way
        for arc in into[node]:
            worth = cost + best[node] - score[arc]
            heapq.heappush(heap, (worth, next(tie), parent[arc], end, (arc, *way)))


def _hypothesis(
    search: StackSearch, arcs: Arcs, last: float, way: tuple[int, ...]
) -> PhraseHypothesis:
    options, steps = search.options, Arcs._make(each[list(way)] for each in arcs)
    features = np.zeros(len(FEATURES))
    features[LANGUAGE_MODEL] = steps.language.sum() + last
    features[DISTORTION] = -steps.jump.sum()
    order = options.orientation[steps.option, steps.orientation]
    features[ORIENTATION] = np.bincount(steps.orientation, weights=order, minlength=3)
    features[PHRASE_FEATURES] = options.own[steps.option].sum(axis=0)
    words: list[int] = []
    phrases = []
    for option in steps.option.tolist():
        said = [word for word in options.words[option].tolist() if word]
        span, begin = options.span[option], len(words)
        words += said
        source = int(options.begin[span]), int(options.end[span])
        phrases.append(PhraseSpan(*source, begin, len(words)))
    return PhraseHypothesis(tuple(words), tuple(phrases), tuple(features.tolist()))
