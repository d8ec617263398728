"""N-best translations from the search graph, best first.

Each hypothesis knows the score of the best path to it. So a path that is followed backwards from
its end has, at every step, exactly the score of the best complete path it can become (A* search).
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import NamedTuple

import numpy as np

from covnmt.phrase_based.stack import (
    DISTORTION,
    FEATURES,
    LANGUAGE_MODEL,
    ORIENTATION,
    PHRASE_FEATURES,
    Arcs,
    StackSearch,
)

PATHS_PER_TRANSLATION = 20  # explored at most: many paths give the same words


class PhraseSpan(NamedTuple):
    """Source words [source, source_end) became target words [target, target_end)."""

    source: int
    source_end: int
    target: int
    target_end: int


@dataclass(frozen=True)
class PhraseHypothesis:
    """One translation of a sentence; a copied word has the id of the unknown word."""

    target_ids: tuple[int, ...]
    phrases: tuple[PhraseSpan, ...]
    features: tuple[float, ...]


def best_translations(search: StackSearch, number: int) -> list[PhraseHypothesis]:
    """Return the best different translations, each by its best path."""
    arcs = Arcs(*(np.concatenate(column) for column in zip(*search.arcs, strict=True)))
    translations: dict[tuple[int, ...], PhraseHypothesis] = {}
    for end_score, path in islice(_best_paths(search, arcs), PATHS_PER_TRANSLATION * number):
        hypothesis = _read_path(search, arcs, end_score, path)
        translations.setdefault(hypothesis.target_ids, hypothesis)
        if len(translations) == number:
            break
    return list(translations.values())


def _best_paths(search: StackSearch, arcs: Arcs) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Yield paths, best first: the language model's score of the sentence end, and the arcs."""
    incoming = defaultdict(list)
    for number, child in enumerate(arcs.child.tolist()):
        incoming[child].append(number)
    parent, score = arcs.parent.tolist(), arcs.score.tolist()
    best = search.hypotheses.score.tolist()
    nodes = range(search.current_stack.start, search.current_stack.stop)
    end_scores = search.end_scores().tolist()
    weight = float(search.weights[LANGUAGE_MODEL])
    tie = count()
    heap: list[tuple[float, int, int, float, tuple[int, ...]]] = [
        (-(best[node] + weight * end), next(tie), node, end, ())
        for node, end in zip(nodes, end_scores, strict=True)
    ]
    heapq.heapify(heap)
    while heap:
        cost, _, node, end, path = heapq.heappop(heap)
        if node == 0:
            yield end, path
        for arc in incoming[node]:
            cost_before = cost + best[node] - score[arc]
            heapq.heappush(heap, (cost_before, next(tie), parent[arc], end, (arc, *path)))


def _read_path(
    search: StackSearch, arcs: Arcs, end_score: float, path: tuple[int, ...]
) -> PhraseHypothesis:
    options, steps = search.options, Arcs._make(column[list(path)] for column in arcs)
    features = np.zeros(len(FEATURES))
    features[LANGUAGE_MODEL] = steps.language.sum() + end_score
    features[DISTORTION] = -steps.jump.sum()
    orientation = options.orientation[steps.option, steps.orientation]
    features[ORIENTATION] = np.bincount(steps.orientation, weights=orientation, minlength=3)
    features[PHRASE_FEATURES] = options.features[steps.option].sum(axis=0)
    target_ids: list[int] = []
    phrases = []
    for option in steps.option.tolist():
        span, begin = options.span[option], len(target_ids)
        target_ids += [i for i in options.target_ids[option].tolist() if i]
        source = int(options.begin[span]), int(options.end[span])
        phrases.append(PhraseSpan(*source, begin, len(target_ids)))
    return PhraseHypothesis(tuple(target_ids), tuple(phrases), tuple(features.tolist()))
