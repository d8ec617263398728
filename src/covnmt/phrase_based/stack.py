"""Stack search for the best translations of a sentence, over hard coverage sets (Koehn, 2004).

A hypothesis has translated some source words, each exactly once: a 0/1 flag for every word, the
coverage that the paper softens (section 3). Stack n holds the best hypotheses with n words
covered. All of a stack grow together: every free span within reach, with every translation, is an
estimate; the best estimates get their exact language model score; of those that the rest of the
search cannot tell apart only the best lives on, and the others stay as arcs for n-best lists.

H hypotheses of a stack, S spans, L translations of a span at most, J source words.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from covnmt.base.arrays import BoolArray, DoubleArray, IntArray
from covnmt.phrase_based.features import DISTORTION, LANGUAGE_MODEL, ORIENTATION, PHRASE_FEATURES
from covnmt.phrase_based.language_model import LanguageModel
from covnmt.phrase_based.phrases import DISCONTINUOUS, MONOTONE, SWAP
from covnmt.phrase_based.translation_options import TranslationOptions, score_continuations

TRIES = 6  # exact scores for each hypothesis that a stack can hold
NEVER = -np.inf


class StackHypotheses(NamedTuple):
    """Row n of each array belongs to hypothesis n."""

    score: DoubleArray
    future: DoubleArray  # estimate of what is left
    covered: BoolArray  # [n, J]
    begin: IntArray  # the last span
    end: IntArray
    history: IntArray  # of the language model

    def take(self, rows: IntArray | slice) -> "StackHypotheses":
        """Some of them."""
        return StackHypotheses._make(each[rows] for each in self)


class Arcs(NamedTuple):
    """Steps of the search: hypothesis `parent` and an option make hypothesis `child`."""

    parent: IntArray
    child: IntArray
    option: IntArray
    score: DoubleArray  # of the best way that ends with this step
    language: DoubleArray  # log-probability of the option's words
    jump: IntArray
    orientation: IntArray


class Candidates(NamedTuple):
    """Hypotheses that may come to be: row n of each."""

    estimate: DoubleArray
    future: DoubleArray
    parent: IntArray
    option: IntArray
    jump: IntArray
    orientation: IntArray

    def best(self, number: int) -> "Candidates":
        """Those with the highest estimates, in no order."""
        if len(self.estimate) <= number:
            return self
        chosen = np.argpartition(-self.estimate, number)[:number]
        return Candidates._make(each[chosen] for each in self)


@dataclass(frozen=True)
class WeightedOptions:
    """The options of a sentence under certain weights."""

    options: TranslationOptions
    weights: DoubleArray
    rows: IntArray  # [S, L] options, -1 for none
    estimate: DoubleArray  # [3, S, L] for each orientation
    future: DoubleArray  # [J + 1, J + 1] of the best way through from place a to place b

    @classmethod
    def of(cls, options: TranslationOptions, weights: DoubleArray) -> "WeightedOptions":
        """Weigh them."""
        plain = (
            options.own @ weights[PHRASE_FEATURES] + weights[LANGUAGE_MODEL] * options.alone
        )  # [O]
        rows = _by_span(options.span, len(options.begin))
        best = np.where(rows >= 0, plain[rows], NEVER).max(axis=1)
        each = plain[:, None] + options.orientation * weights[ORIENTATION]  # [O, 3]
        estimate = np.where(rows >= 0, each.T[:, rows], NEVER)
        return cls(options, weights, rows, estimate, _ways_through(options, best))


def _by_span(span: IntArray, spans: int) -> IntArray:
    """The options of each span as a row."""
    numbers = np.bincount(span, minlength=spans)
    rows = np.full((spans, int(numbers.max())), -1)
    rows[np.arange(rows.shape[1]) < numbers[:, None]] = np.arange(len(span))
    return rows


def _ways_through(options: TranslationOptions, best: DoubleArray) -> DoubleArray:
    """The highest sum of estimates from every place to every later one."""
    future = np.full((options.length + 1, options.length + 1), NEVER)
    np.fill_diagonal(future, 0.0)
    future[options.begin, options.end] = best
    for width in range(2, options.length + 1):
        for a in range(options.length + 1 - width):
            b = a + width
            future[a, b] = max(future[a, b], (future[a, a + 1 : b] + future[a + 1 : b, b]).max())
    return future


class StackSearch:
    """The search for one sentence; afterwards `found`, `arcs` and `complete` tell its outcome."""

    def __init__(
        self,
        options: TranslationOptions,
        weights: DoubleArray,
        model: LanguageModel,
        reach: int,
        size: int,
    ) -> None:
        self.options, self.weights, self.model = options, weights, model
        self.weighted = WeightedOptions.of(options, weights)
        self.reach, self.size = reach, size
        self.scatter = np.random.default_rng(0).integers(2**62, size=options.length + 3)
        self.found = self._room(1 + options.length * size)
        self.arcs: list[Arcs] = []
        waiting: dict[int, list[Candidates]] = defaultdict(list)
        self.complete = slice(0, 1)  # of the last stack
        for covered in range(options.length):
            for length, grown in self._grow(self.complete):
                waiting[covered + length].append(grown)
            self._fill(waiting.pop(covered + 1))

    def endings(self) -> DoubleArray:
        """The language model's score of the end of the sentence after each complete hypothesis."""
        histories = self.found.history[self.complete]
        return self.model.step(histories, np.full(len(histories), self.model.end))[0]

    def _room(self, number: int) -> StackHypotheses:
        """Arrays for all hypotheses to come; the first has nothing covered."""
        integers = [np.zeros(number, dtype=np.int64) for _ in range(3)]
        covered = np.zeros((number, self.options.length), dtype=bool)
        found = StackHypotheses(np.zeros(number), np.zeros(number), covered, *integers)
        found.history[0], found.future[0] = self.model.beginning, self.weighted.future[0, -1]
        return found

    def _grow(self, stack: slice) -> Iterator[tuple[int, Candidates]]:
        """All that the hypotheses of a stack may become, by the number of words that they cover."""
        at = self.found.take(stack)
        gap_begin, gap_end = _gaps(at.covered)
        h, s = np.nonzero(self._allowed(at, gap_end))
        a, b = self.options.begin[s], self.options.end[s]
        left, right = gap_begin[h, a], gap_end[h, a]
        future = self.weighted.future
        rest = at.future[h] - future[left, right] + future[left, a] + future[b, right]
        jump = np.abs(a - at.end[h])
        moved = np.where(b == at.begin[h], SWAP, DISCONTINUOUS)
        orientation = np.where(a == at.end[h], MONOTONE, moved)
        known = at.score[h] - self.weights[DISTORTION] * jump + rest
        for length in np.unique(b - a).tolist():
            row = np.flatnonzero(b - a == length)
            estimate = known[row, None] + self.weighted.estimate[orientation[row], s[row]]
            pair, option = np.nonzero(estimate > NEVER)
            row = row[pair]
            parent, chosen = stack.start + h[row], self.weighted.rows[s[row], option]
            whole = (estimate[pair, option], rest[row], parent, chosen, jump[row], orientation[row])
            yield length, Candidates(*whole).best(TRIES * self.size)

    def _allowed(self, at: StackHypotheses, gap_end: IntArray) -> BoolArray:
        """Whether a hypothesis may go on with a span [H, S]: all free, and not too far away.

        A span that leaves an earlier gap open must end near enough to it.
        """
        begin, end = self.options.begin, self.options.end
        free = ~at.covered[:, begin] & (gap_end[:, begin] >= end)
        near = np.abs(begin - at.end[:, None]) <= self.reach
        gap = at.covered.argmin(axis=1)[:, None]
        back = (begin == gap) | (end - gap <= self.reach)
        return np.asarray(free & near & back)

    def _fill(self, waiting: Sequence[Candidates]) -> None:
        """Make the next stack of the best that wait for it."""
        rows = (np.concatenate(each) for each in zip(*waiting, strict=True))
        tried = Candidates(*rows).best(TRIES * self.size)
        grown, language = self._say(tried)
        order = np.argsort(-(grown.score + grown.future), kind="stable")
        child, heads = _recombined(self._keys(grown)[order])
        kept, alive = order[heads[: self.size]], order[child < self.size]
        first = self.complete.stop
        self.complete = slice(first, first + len(kept))
        for room, values in zip(self.found, grown, strict=True):
            room[self.complete] = values[kept]
        child = first + child[child < self.size]
        step = tried.parent[alive], child, tried.option[alive], grown.score[alive]
        self.arcs.append(Arcs(*step, language[alive], tried.jump[alive], tried.orientation[alive]))

    def _say(self, tried: Candidates) -> tuple[StackHypotheses, DoubleArray]:
        """The candidates as hypotheses, with the language model's score of their last words."""
        options, parents = self.options, self.found.take(tried.parent)
        language, history = score_continuations(
            options.words[tried.option], parents.history, self.model
        )
        exact = self.weights[LANGUAGE_MODEL] * (language - options.alone[tried.option])
        begin, end = (each[options.span[tried.option]] for each in (options.begin, options.end))
        place = np.arange(options.length)
        covered = (place >= begin[:, None]) & (place < end[:, None]) | parents.covered
        score = tried.estimate - tried.future + exact
        return StackHypotheses(score, tried.future, covered, begin, end, history), language

    def _keys(self, at: StackHypotheses) -> IntArray:
        """A number for all that the rest of the search depends on."""
        rest = np.column_stack([at.begin, at.end, at.history])
        return np.asarray(at.covered @ self.scatter[:-3] + rest @ self.scatter[-3:])


def _recombined(keys: IntArray) -> tuple[IntArray, IntArray]:
    """Of rows in order: which of the different keys each has, and the first row of each key."""
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    heads = np.sort(first)
    return np.searchsorted(heads, first)[which], heads


def _gaps(covered: BoolArray) -> tuple[IntArray, IntArray]:
    """For each place the begin and the end of the run of free words that it is in [H, J]."""
    place = np.arange(covered.shape[1])
    begin = np.maximum.accumulate(np.where(covered, place + 1, 0), axis=1)
    end = np.minimum.accumulate(np.where(covered, place, len(place))[:, ::-1], axis=1)[:, ::-1]
    return begin, end
