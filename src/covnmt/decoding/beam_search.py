"""Batched beam search (SPEC 1.5; the paper decodes with a beam of 10); a beam of 1 is greedy.

The search knows nothing of the architecture nor of what computes it: it sees a `Scorer`, which
turns the words chosen last into the best next ones of every hypothesis, and a `State`, whose rows
it picks and repeats. All it handles are small arrays on the host.

The score of a hypothesis is its summed log-probability. A hypothesis that chooses the end symbol
leaves the beam, which shrinks by one; a sentence is done when its beam is empty or its steps are
used up. Nothing is pruned for being worse than a finished hypothesis, so the penalties, which
need not fall as a hypothesis grows, can wait for the final ranking and need no stop criterion.

Every candidate that entered a beam becomes a node of a trellis that names its parent; hypotheses
are read off backwards when the search is over. Letters: S sentences, K slots of a beam, R rows
(hypotheses of all sentences), k words proposed for each, J source positions with the end symbol,
N nodes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from covnmt.base.arrays import AnyArray, BoolArray, IntArray
from covnmt.base.config import DecodeConfig
from covnmt.decoding.penalties import penalized_score, search_attempts, step_limits
from covnmt.text.vocabulary import PAD_ID

ROOT = -1  # the parent of first words
MAX_FORBIDDEN = 3  # words that may be forbidden: the reserved, the unknown and the end symbol

NOTHING: tuple[float, tuple[int, ...]] = (-math.inf, ())  # no hypothesis, and its words

# Told after every step: which sentence, and the words of its best hypothesis so far.
StepCallback = Callable[[int, tuple[int, ...]], None]


class ScorerState(Protocol):
    """What a scorer remembers of its rows; never changed in place."""

    def select(self, rows: IntArray) -> Self:
        """The state with these rows, in this order; rows may repeat."""


StateT = TypeVar("StateT", bound=ScorerState)


class Proposal(NamedTuple, Generic[StateT]):
    """What a scorer says about R rows."""

    log_probs: AnyArray  # [R, k] the best words of each row, best first
    token_ids: IntArray  # [R, k]; of equally likely tokens the lower id comes first
    attention: AnyArray  # [R, J]
    state: StateT


class Scorer(Protocol[StateT]):
    """Models with S source sentences in them, ready to generate.

    A state has one row per sentence at the first step and K rows per sentence later: row s K + k
    is slot k of sentence s. J stays the same for all steps, whichever sentences are kept.
    """

    @property
    def end(self) -> int:
        """The number of the end symbol, which is the last word."""

    @property
    def unk(self) -> int:
        """The number of the unknown word."""

    def step(self, state: StateT, words: IntArray | None, k: int) -> Proposal[StateT]:
        """The k best next words of every row, given the word chosen last (None at the start)."""

    def keep(self, sentences: IntArray) -> "Scorer[StateT]":
        """A scorer for only these of the S sentences, in this order."""


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """One translation; the attention has a row per symbol, the end symbol's too if finished."""

    token_ids: tuple[int, ...]  # without the end symbol
    score: float  # after penalties
    log_prob: float
    attention: AnyArray  # [I + 1, J]
    finished: bool


class SearchResult(NamedTuple):
    """What a search found for S sentences."""

    hypotheses: list[list[Hypothesis]]  # the n best of each, best first
    fertility: AnyArray | None  # [S, J], where the models predict it


def beam_search(
    scorer: Scorer[StateT],
    state: StateT,
    source_lengths: IntArray,
    config: DecodeConfig,
    watch: StepCallback | None = None,
) -> list[list[Hypothesis]]:
    """The n best translations of every sentence, best first; always at least one.

    `source_lengths` [S] count the end symbol. Sentences without any finished hypothesis are tried
    again (see `attempts`), in parts so that the wider beams take no more memory; where nothing
    helps their hypotheses come back unfinished.
    """
    found: list[list[Hypothesis]] = [[] for _ in source_lengths]
    pending = np.arange(len(found))
    rows = len(pending) * config.beam
    for attempt in search_attempts(config):
        size = max(1, rows // attempt.beam)
        for part in (pending[n : n + size] for n in range(0, len(pending), size)):
            lengths = source_lengths[part]
            told = None if watch is None else _Told(watch, part.tolist())
            nodes = _explore(scorer.keep(part), state.select(part), lengths, attempt, told)
            results = _read(nodes, lengths.tolist(), attempt)
            for sentence, hypotheses in zip(part.tolist(), results, strict=True):
                found[sentence] = hypotheses
        pending = np.array([s for s in pending.tolist() if not found[s][0].finished], dtype=int)
        if not len(pending):
            break
    return found


def empty_hypothesis(J: int) -> Hypothesis:
    """What is left where the model gives every continuation no probability."""
    empty = np.zeros((0, J), dtype=np.float32)
    return Hypothesis((), -math.inf, -math.inf, empty, finished=False)


class _Beam(NamedTuple):
    """The open hypotheses of the sentences still at work, best first; empty slots have -inf."""

    sentences: IntArray  # [S] their numbers
    without_end: IntArray  # [S] steps during which the end symbol is forbidden
    most: IntArray  # [S] steps in all
    widths: IntArray  # [S] hypotheses that may be open: the beam less the finished ones
    log_probs: AnyArray  # [S, K]
    nodes: IntArray  # [S, K] where each ends in the trellis


class _Nodes(NamedTuple):
    """A trellis or the part of it that one step adds."""

    sentences: IntArray  # [N]
    parents: IntArray  # [N]
    words: IntArray  # [N]
    log_probs: AnyArray  # [N] of the whole hypothesis
    attention: AnyArray  # [N, J]
    finished: BoolArray  # [N] chose the end symbol
    cut: BoolArray  # [N] open when the steps are used up


class _Candidates(NamedTuple):
    """The best continuations of a beam, best first, and what becomes of each."""

    log_probs: AnyArray  # [S, K]
    rows: IntArray  # [S, K] of the state each continues
    words: IntArray  # [S, K]
    finished: BoolArray  # [S, K] chose the end symbol
    cut: BoolArray  # [S, K] open when the steps are used up
    live: BoolArray  # [S, K] goes on


def _explore(
    scorer: Scorer[StateT],
    state: StateT,
    lengths: IntArray,
    config: DecodeConfig,
    told: "_Told | None",
) -> _Nodes:
    """Search until every beam is empty or out of steps; the whole trellis."""
    beam = _first(lengths, config)
    words: IntArray | None = None
    trellis: list[_Nodes] = []
    size = 0
    for step in count():
        widest = int(beam.widths.max(initial=0))
        proposal = scorer.step(state, words, min(widest + MAX_FORBIDDEN, scorer.end + 1))
        scores = _allowed(beam, proposal, step, scorer, config)
        candidates = _judge(beam, scores, proposal.token_ids, step, widest, scorer.end)
        trellis.append(_record(beam, candidates, proposal.attention))
        if told is not None:
            told.step(trellis[-1])
        rows, words = candidates.rows, candidates.words
        nodes = np.arange(size, size := size + words.size).reshape(words.shape)
        if candidates.live.all():  # so it is at most steps
            beam = beam._replace(log_probs=candidates.log_probs, nodes=nodes)
        else:
            kept, slots = _survivors(candidates.live)
            if not len(kept):
                break
            if len(kept) < len(beam.sentences):
                scorer = scorer.keep(kept)
            rows, words = _take(rows, kept, slots), _take(words, kept, slots)
            beam = _next(beam, candidates, nodes, kept, slots)
        state, words = proposal.state.select(rows.ravel()), words.ravel()
    return _Nodes(*map(np.concatenate, zip(*trellis, strict=True)))


def _first(lengths: IntArray, config: DecodeConfig) -> _Beam:
    S = len(lengths)
    without_end, most = step_limits(lengths, config)
    widths = np.full(S, config.beam)
    return _Beam(
        np.arange(S), without_end, most, widths, np.zeros((S, 1), np.float32), np.full((S, 1), ROOT)
    )


def _allowed(
    beam: _Beam, proposal: Proposal[StateT], step: int, scorer: Scorer[StateT], config: DecodeConfig
) -> AnyArray:
    """Log-probabilities of the proposed continuations [S, K k]; forbidden ones have -inf."""
    S = len(beam.sentences)
    words = proposal.token_ids.reshape(S, -1)  # [S, K k]
    forbidden = words == PAD_ID
    if config.forbid_unk:
        forbidden |= words == scorer.unk
    early = step < beam.without_end
    if early.any():
        forbidden |= (words == scorer.end) & early[:, None]
    scores = (beam.log_probs.reshape(-1, 1) + proposal.log_probs).reshape(S, -1)
    scores[forbidden] = -math.inf
    return scores


def _judge(
    beam: _Beam, scores: AnyArray, words: IntArray, step: int, widest: int, end: int
) -> _Candidates:
    """Choose as many continuations as each beam is wide, and see which end."""
    S, K = beam.log_probs.shape
    # equal scores go to the better slot, and there to the likelier word
    best = (-scores).argsort(axis=1, kind="stable")[:, :widest]  # [S, widest]
    best += np.arange(0, scores.size, scores.shape[1])[:, None]
    log_probs, words = scores.ravel()[best], words.ravel()[best]
    chosen = log_probs > -math.inf
    chosen &= np.arange(best.shape[1]) < beam.widths[:, None]
    finished = chosen & (words == end)
    is_last = (step + 1 >= beam.most)[:, None]
    open_ = chosen & ~finished
    rows = best // (scores.size // (S * K))
    return _Candidates(log_probs, rows, words, finished, open_ & is_last, open_ & ~is_last)


def _record(beam: _Beam, candidates: _Candidates, attention: AnyArray) -> _Nodes:
    rows = candidates.rows.ravel()
    return _Nodes(
        sentences=beam.sentences.repeat(candidates.rows.shape[1]),
        parents=beam.nodes.ravel()[rows],
        words=candidates.words.ravel(),
        log_probs=candidates.log_probs.ravel(),
        attention=attention[rows],
        finished=candidates.finished.ravel(),
        cut=candidates.cut.ravel(),
    )


def _survivors(live: BoolArray) -> tuple[IntArray, IntArray]:
    """Sentences that go on, and their live candidates' slots, best first [S, K]."""
    remaining = live.sum(axis=1)
    (kept,) = remaining.nonzero()
    slots = (~live[kept]).argsort(axis=1, kind="stable")[:, : remaining.max(initial=0)]
    return kept, slots


def _take(table: AnyArray, kept: IntArray, slots: IntArray) -> AnyArray:
    return table[kept[:, None], slots]


def _next(
    beam: _Beam, candidates: _Candidates, nodes: IntArray, kept: IntArray, slots: IntArray
) -> _Beam:
    log_probs = np.where(candidates.live, candidates.log_probs, -math.inf)
    return _Beam(
        sentences=beam.sentences[kept],
        without_end=beam.without_end[kept],
        most=beam.most[kept],
        widths=(beam.widths - candidates.finished.sum(axis=1))[kept],
        log_probs=_take(log_probs, kept, slots),
        nodes=_take(nodes, kept, slots),
    )


class _Told:
    """Somebody who watches a search, and what has to be remembered for them.

    The best hypothesis is the likeliest one, open or finished; of equal ones, that found first.
    """

    def __init__(self, watch: StepCallback, numbers: list[int]) -> None:
        self.watch, self.numbers = watch, numbers
        self.words: list[tuple[int, ...]] = []  # of every node so far, without end symbols
        self.finished: dict[int, tuple[float, tuple[int, ...]]] = {}  # the best of each sentence

    def step(self, nodes: _Nodes) -> None:
        """Tell of the sentences in this step."""
        best = dict(self.finished)
        columns = (nodes.sentences, nodes.parents, nodes.words, nodes.log_probs, nodes.finished)
        said = []
        for sentence, parent, word, log_prob, finished in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            before = () if parent == ROOT else self.words[parent]
            said.append(before if finished else (*before, word))
            for known in [best, self.finished] if finished else [best]:
                if log_prob > known.get(sentence, NOTHING)[0]:
                    known[sentence] = (log_prob, said[-1])
        self.words += said
        for sentence in dict.fromkeys(nodes.sentences.tolist()):
            self.watch(self.numbers[sentence], best.get(sentence, NOTHING)[1])


def _read(nodes: _Nodes, lengths: list[int], config: DecodeConfig) -> list[list[Hypothesis]]:
    """The n best hypotheses of every sentence in a trellis."""
    found: list[list[Hypothesis]] = [[] for _ in lengths]
    (leaves,) = (nodes.finished | nodes.cut).nonzero()
    sentences = nodes.sentences[leaves].tolist()
    for sentence, path in zip(sentences, _paths(nodes.parents, leaves), strict=True):
        found[sentence].append(_hypothesis(nodes, path, lengths[sentence], config))
    return [
        _ranked(hypotheses, config) or [empty_hypothesis(length)]
        for hypotheses, length in zip(found, lengths, strict=True)
    ]


def _paths(parents: IntArray, leaves: IntArray) -> list[IntArray]:
    """The nodes from the first word to each leaf; all leaves walk up together."""
    steps = [leaves]
    while (leaves != ROOT).any():
        leaves = np.where(leaves == ROOT, ROOT, parents[leaves])
        steps.append(leaves)
    return [path[path != ROOT] for path in np.stack(steps[::-1], axis=1)]


def _hypothesis(nodes: _Nodes, path: IntArray, J: int, config: DecodeConfig) -> Hypothesis:
    leaf = path[-1]
    finished = bool(nodes.finished[leaf])
    words = nodes.words[path].tolist()
    log_prob = float(nodes.log_probs[leaf])
    attention = nodes.attention[path, :J]
    score = penalized_score(log_prob, attention, config)
    return Hypothesis(
        tuple(words[:-1] if finished else words), score, log_prob, attention, finished
    )


def _ranked(hypotheses: list[Hypothesis], config: DecodeConfig) -> list[Hypothesis]:
    """The best of the finished ones, or of all where none is; equal scores: found first, first."""
    pool = [hypothesis for hypothesis in hypotheses if hypothesis.finished] or hypotheses
    return sorted(pool, key=lambda hypothesis: -hypothesis.score)[: config.nbest]
