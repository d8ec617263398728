"""Stack decoding: beam search over hard coverage sets (Koehn, 2004).

A hypothesis has translated some source words, each exactly once: a 0/1 flag for every word, the
coverage that the paper softens (section 3). Stack n holds the best hypotheses with n words covered.
The hypotheses of a stack are expanded together: every free span within the distortion limit, with
every translation, gets an estimate; the best estimates get their exact language model score; of
those that the rest of the search cannot tell apart only the best survives (recombination), and the
others stay as arcs for n-best lists.

A translation scores the weighted sum of its features. H hypotheses of a stack, S spans, L
translations of a span at most, O options, J source words.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from covnmt.base.arrays import BoolArray, DoubleArray, IntArray
from covnmt.phrase_based.language_model import LanguageModel
from covnmt.phrase_based.phrases import DISCONTINUOUS, MONOTONE, SWAP
from covnmt.phrase_based.translation_options import TranslationOptions, score_continuations

# Name, weight before tuning (those of Moses), and smallest weight: a penalty may turn into a bonus,
# but a negative weight on a probability is noise. "jumps" is distortion, "other order" the
# discontinuous orientation: files of weights have these names.
_FEATURE_TABLE = (
    ("language model", 0.5, 0.0),
    ("jumps", 0.3, 0.0),
    ("monotone", 0.3, 0.0),
    ("swap", 0.3, 0.0),
    ("other order", 0.3, 0.0),
    ("p(target | source)", 0.2, 0.0),
    ("p(source | target)", 0.2, 0.0),
    ("lexicon, target | source", 0.2, 0.0),
    ("lexicon, source | target", 0.2, 0.0),
    ("phrases", 0.2, -np.inf),
    ("words", 1.0, -np.inf),
)
FEATURES = tuple(name for name, _, _ in _FEATURE_TABLE)
INITIAL_WEIGHTS = np.array([weight for _, weight, _ in _FEATURE_TABLE])
INITIAL_WEIGHTS /= INITIAL_WEIGHTS.sum()
MINIMUM_WEIGHTS = np.array([least for _, _, least in _FEATURE_TABLE])

LANGUAGE_MODEL, DISTORTION = 0, 1
ORIENTATION = slice(2, 5)  # a phrase has a value for one of these, the others are 0
PHRASE_FEATURES = slice(5, len(FEATURES))  # do not depend on the rest of the sentence

EXACT_SCORES_PER_SLOT = 6  # candidates that a stack scores exactly, per hypothesis it can hold
NEVER = -np.inf


class StackHypotheses(NamedTuple):
    """Row n of each array belongs to hypothesis n."""

    score: DoubleArray
    future: DoubleArray  # estimated score of the uncovered words
    covered: BoolArray  # [n, J]
    begin: IntArray  # the span that was translated last
    end: IntArray
    language_state: IntArray  # state of the language model

    def take(self, rows: IntArray | slice) -> "StackHypotheses":
        """Select rows."""
        return StackHypotheses._make(column[rows] for column in self)


class Arcs(NamedTuple):
    """Steps of the search: hypothesis `parent` and an option make hypothesis `child`."""

    parent: IntArray
    child: IntArray
    option: IntArray
    score: DoubleArray  # of the best path that ends with this step
    language: DoubleArray  # log-probability of the option's words
    jump: IntArray
    orientation: IntArray


class Candidates(NamedTuple):
    """Expansions that have an estimate only; row n of each array belongs to candidate n."""

    estimate: DoubleArray
    future: DoubleArray
    parent: IntArray
    option: IntArray
    jump: IntArray
    orientation: IntArray

    def best(self, number: int) -> "Candidates":
        """Select those with the highest estimates, in no particular order."""
        if len(self.estimate) <= number:
            return self
        rows = np.argpartition(-self.estimate, number)[:number]
        return Candidates._make(column[rows] for column in self)


@dataclass(frozen=True)
class WeightedOptions:
    """The options of a sentence under given weights."""

    rows: IntArray  # [S, L] options of each span, -1 for none
    estimate: DoubleArray  # [3, S, L] score of an option under each orientation
    future: DoubleArray  # [J + 1, J + 1] estimated score of the words from position a to b

    @classmethod
    def from_options(cls, options: TranslationOptions, weights: DoubleArray) -> "WeightedOptions":
        """Weigh the features that are known before the search."""
        phrase_scores = options.features @ weights[PHRASE_FEATURES]
        plain = phrase_scores + weights[LANGUAGE_MODEL] * options.language  # [O]
        counts = np.bincount(options.span, minlength=len(options.begin))
        rows = np.full((len(counts), int(counts.max())), -1)
        rows[np.arange(rows.shape[1]) < counts[:, None]] = np.arange(len(options.span))
        best = np.where(rows >= 0, plain[rows], NEVER).max(axis=1)
        oriented = plain[:, None] + options.orientation * weights[ORIENTATION]  # [O, 3]
        estimate = np.where(rows >= 0, oriented.T[:, rows], NEVER)
        return cls(rows, estimate, _future_scores(options, best))


def _future_scores(options: TranslationOptions, best: DoubleArray) -> DoubleArray:
    """Compute the highest sum of span scores from every position to every later one."""
    future = np.full((options.length + 1, options.length + 1), NEVER)
    np.fill_diagonal(future, 0.0)
    future[options.begin, options.end] = best
    for width in range(2, options.length + 1):
        for a in range(options.length + 1 - width):
            b = a + width
            future[a, b] = max(future[a, b], (future[a, a + 1 : b] + future[a + 1 : b, b]).max())
    return future


class StackSearch:
    """Search for one sentence, run by the constructor.

    The outcome is in `hypotheses`, `arcs` and `current_stack`, in the end the rows of the
    hypotheses with all words covered.
    """

    def __init__(
        self,
        options: TranslationOptions,
        weights: DoubleArray,
        model: LanguageModel,
        distortion_limit: int,
        stack_size: int,
    ) -> None:
        self.options, self.weights, self.model = options, weights, model
        self.weighted = WeightedOptions.from_options(options, weights)
        self.distortion_limit, self.stack_size = distortion_limit, stack_size
        self.hash_factors = np.random.default_rng(0).integers(2**62, size=options.length + 3)
        self.hypotheses = self._allocate(1 + options.length * stack_size)
        self.arcs: list[Arcs] = []
        waiting: dict[int, list[Candidates]] = defaultdict(list)  # by number of covered words
        self.current_stack = slice(0, 1)  # rows of the stack filled last
        for covered in range(options.length):
            for length, candidates in self._expand(self.current_stack):
                waiting[covered + length].append(candidates)
            self._fill_stack(waiting.pop(covered + 1))

    def end_scores(self) -> DoubleArray:
        """Compute the language model's score of the sentence end after each complete hypothesis."""
        states = self.hypotheses.language_state[self.current_stack]
        return self.model.step(states, np.full(len(states), self.model.end))[0]

    def _allocate(self, number: int) -> StackHypotheses:
        """Make the buffers of all hypotheses; the first one has nothing covered."""
        integers = [np.zeros(number, dtype=np.int64) for _ in range(3)]
        covered = np.zeros((number, self.options.length), dtype=bool)
        buffers = StackHypotheses(np.zeros(number), np.zeros(number), covered, *integers)
        buffers.language_state[0] = self.model.beginning
        buffers.future[0] = self.weighted.future[0, -1]
        return buffers

    def _expand(self, stack: slice) -> Iterator[tuple[int, Candidates]]:
        """Yield the expansions of a stack, by the number of words that they add."""
        parents = self.hypotheses.take(stack)
        gap_begin, gap_end = _gaps(parents.covered)
        h, s = np.nonzero(self._allowed(parents, gap_end))
        a, b = self.options.begin[s], self.options.end[s]
        left, right = gap_begin[h, a], gap_end[h, a]
        future = self.weighted.future
        future_after = parents.future[h] - future[left, right] + future[left, a] + future[b, right]
        jump = np.abs(a - parents.end[h])
        moved = np.where(b == parents.begin[h], SWAP, DISCONTINUOUS)
        orientation = np.where(a == parents.end[h], MONOTONE, moved)
        so_far = parents.score[h] - self.weights[DISTORTION] * jump + future_after
        for length in np.unique(b - a).tolist():
            row = np.flatnonzero(b - a == length)
            estimate = so_far[row, None] + self.weighted.estimate[orientation[row], s[row]]
            pair, column = np.nonzero(estimate > NEVER)
            row = row[pair]
            candidates = Candidates(
                estimate[pair, column],
                future_after[row],
                stack.start + h[row],
                self.weighted.rows[s[row], column],
                jump[row],
                orientation[row],
            )
            yield length, candidates.best(EXACT_SCORES_PER_SLOT * self.stack_size)

    def _allowed(self, parents: StackHypotheses, gap_end: IntArray) -> BoolArray:
        """Tell which spans may follow a hypothesis [H, S]: free ones within the distortion limit.

        If the first free word stays uncovered, the span must end within the limit of it, so that
        the decoder can return to it.
        """
        begin, end = self.options.begin, self.options.end
        free = ~parents.covered[:, begin] & (gap_end[:, begin] >= end)
        near = np.abs(begin - parents.end[:, None]) <= self.distortion_limit
        gap = parents.covered.argmin(axis=1)[:, None]
        can_return = (begin == gap) | (end - gap <= self.distortion_limit)
        return np.asarray(free & near & can_return)

    def _fill_stack(self, waiting: Sequence[Candidates]) -> None:
        """Score the best candidates exactly, recombine them, and keep the best as a stack."""
        columns = (np.concatenate(column) for column in zip(*waiting, strict=True))
        tried = Candidates(*columns).best(EXACT_SCORES_PER_SLOT * self.stack_size)
        expanded, language = self._score_exactly(tried)
        order = np.argsort(-(expanded.score + expanded.future), kind="stable")
        # all that the rest of the search depends on
        signature = np.column_stack([expanded.begin, expanded.end, expanded.language_state])
        factors = self.hash_factors
        hashes = expanded.covered @ factors[:-3] + signature @ factors[-3:]
        child, heads = _recombine(hashes[order])
        kept, alive = order[heads[: self.stack_size]], order[child < self.stack_size]
        first = self.current_stack.stop
        self.current_stack = slice(first, first + len(kept))
        for buffer, values in zip(self.hypotheses, expanded, strict=True):
            buffer[self.current_stack] = values[kept]
        child = first + child[child < self.stack_size]
        step = tried.parent[alive], child, tried.option[alive], expanded.score[alive]
        self.arcs.append(Arcs(*step, language[alive], tried.jump[alive], tried.orientation[alive]))

    def _score_exactly(self, tried: Candidates) -> tuple[StackHypotheses, DoubleArray]:
        """Make candidates hypotheses; also return the language model score of their last words."""
        options, parents = self.options, self.hypotheses.take(tried.parent)
        target_ids = options.target_ids[tried.option]
        language, state = score_continuations(target_ids, parents.language_state, self.model)
        correction = self.weights[LANGUAGE_MODEL] * (language - options.language[tried.option])
        begin, end = (bound[options.span[tried.option]] for bound in (options.begin, options.end))
        position = np.arange(options.length)
        covered = (position >= begin[:, None]) & (position < end[:, None]) | parents.covered
        score = tried.estimate - tried.future + correction
        return StackHypotheses(score, tried.future, covered, begin, end, state), language


def _recombine(keys: IntArray) -> tuple[IntArray, IntArray]:
    """Return the group of each row, rows with equal keys being one, and the groups' first rows.

    Groups are numbered in the order of their first rows.
    """
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    heads = np.sort(first)
    return np.searchsorted(heads, first)[inverse], heads


def _gaps(covered: BoolArray) -> tuple[IntArray, IntArray]:
    """Find, for each position, where the run of free words around it begins and ends [H, J]."""
    position = np.arange(covered.shape[1])
    begin = np.maximum.accumulate(np.where(covered, position + 1, 0), axis=1)
    before_next = np.where(covered, position, len(position))[:, ::-1]
    end = np.minimum.accumulate(before_next, axis=1)[:, ::-1]
    return begin, end
