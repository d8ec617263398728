"""Batched beam search on the host; a beam of 1 is greedy (docs/paper-to-code.md, section 1.5).

The search knows nothing of the architecture nor of what computes it: it sees a `Scorer`, which
turns the tokens chosen last into the best next ones of every hypothesis, and a `ScorerState`,
whose rows it picks and repeats. All it handles are small arrays on the host.

The score of a hypothesis is its summed log-probability. A hypothesis that chooses the end symbol
leaves the beam, which shrinks by one; a sentence is done when its beam is empty or its steps are
used up. There is no early stopping: scores with penalties may rise as a hypothesis grows, so they
are computed only for the final ranking.

Notation: S sentences, K slots of a beam, R rows (hypotheses of all sentences), k tokens proposed
for each, J source positions with the end symbol.
"""

import math
from collections.abc import Callable, Sequence
from itertools import count, islice
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from covnmt.base.arrays import AnyArray, BoolArray, IntArray
from covnmt.base.config import DecodeConfig
from covnmt.decoding.array_functions import sort_descending
from covnmt.decoding.backtrace import ROOT, Hypothesis, SearchHistory
from covnmt.decoding.engines import StepCallback, do_nothing
from covnmt.decoding.search_rules import (
    LOOP_TOKENS,
    MAX_RETRY_HYPOTHESES,
    PHRASE_LOOP_TOKENS,
    Outcome,
    are_loops,
    forbidden_ids,
    judge_continuations,
    search_attempts,
    step_limits,
)

LOOP_CHECK_STEPS = 8  # between two looks for loops
MAX_FORBIDDEN = 3  # padding, the unknown token and the end symbol

NO_TRANSLATION: tuple[float, tuple[int, ...]] = (-math.inf, ())  # log-probability and token ids


class ScorerState(Protocol):
    """What a scorer remembers of its rows; never changed in place."""

    def select(self, rows: IntArray) -> Self:
        """Return the state with these rows, in this order; rows may repeat."""


StateT = TypeVar("StateT", bound=ScorerState)


class Proposal(NamedTuple, Generic[StateT]):
    """The best next tokens of R rows."""

    log_probs: AnyArray  # [R, k] best first
    token_ids: IntArray  # [R, k]; of equally likely tokens the lower id comes first
    attention: AnyArray  # [R, J]
    state: StateT


class Scorer(Protocol[StateT]):
    """Models that have encoded S source sentences, ready to generate.

    A state has one row per sentence at the first step and K rows per sentence later: row s K + k
    is slot k of sentence s. J stays the same for all steps, whichever sentences are kept.
    """

    @property
    def end_id(self) -> int:
        """The id of the end symbol, which is the last one."""

    @property
    def unk_id(self) -> int:
        """The id of the unknown token."""

    def step(self, state: StateT, token_ids: IntArray | None, k: int) -> Proposal[StateT]:
        """Propose the k best next tokens of every row, after the ones chosen last (None: none)."""

    def keep(self, sentences: IntArray) -> "Scorer[StateT]":
        """Return a scorer for only these of the S sentences, in this order."""


def beam_search(
    scorer: Scorer[StateT],
    state: StateT,
    source_lengths: IntArray,
    config: DecodeConfig,
    on_step: StepCallback | None = None,
    before_step: Callable[[], None] = do_nothing,
    first_results: Sequence[list[Hypothesis]] = (),
) -> list[list[Hypothesis]]:
    """Return the n best translations of every sentence, best first; always at least one.

    `source_lengths` [S] count the end symbol. Sentences without any finished hypothesis are tried
    again (see `search_attempts`), in parts so that wider beams take no more memory; where nothing
    helps, their hypotheses come back unfinished. The work of a retry is bounded, and those that
    loop are not tried again. `before_step` may raise to interrupt the search.

    With `first_results`, those of a first attempt that finished none of the sentences, the search
    begins with the second attempt.
    """
    hypotheses: list[list[Hypothesis]] = list(first_results) or [[] for _ in source_lengths]
    first_attempt = 1 if first_results else 0
    pending = np.arange(len(hypotheses))
    rows = len(pending) * config.beam
    most_steps = step_limits(source_lengths, config)[1]
    for attempt in islice(search_attempts(config), first_attempt, None):
        if attempt.beam > config.beam:
            pending = pending[attempt.beam * most_steps[pending] <= MAX_RETRY_HYPOTHESES]
        size = max(1, rows // attempt.beam)
        for batch in (pending[n : n + size] for n in range(0, len(pending), size)):
            lengths = source_lengths[batch]
            reporter = None if on_step is None else _Reporter(on_step, batch.tolist())
            start = scorer.keep(batch), state.select(batch)
            history = _explore(*start, lengths, attempt, reporter, before_step)
            results = history.hypotheses(lengths.tolist(), scorer.end_id, attempt)
            for sentence, n_best in zip(batch.tolist(), results, strict=True):
                hypotheses[sentence] = n_best
        unfinished = [s for s in pending.tolist() if worth_retrying(hypotheses[s][0], config)]
        pending = np.array(unfinished, dtype=int)
        if not len(pending):
            break
    return hypotheses


def worth_retrying(best: Hypothesis, config: DecodeConfig) -> bool:
    """Tell whether a wider beam may finish a translation; one that loops hardly ever does."""
    if best.finished:
        return False
    if not config.stop_loops:
        return True
    return not are_loops(np.array([best.token_ids[-PHRASE_LOOP_TOKENS:]]))[0]


class _Beam(NamedTuple):
    """The open hypotheses of the sentences still at work, best first; empty slots have -inf."""

    sentences: IntArray  # [S] their numbers
    min_steps: IntArray  # [S] steps in which the end symbol is forbidden
    max_steps: IntArray  # [S]
    widths: IntArray  # [S] hypotheses that may be open: the beam less the finished ones
    log_probs: AnyArray  # [S, K]
    nodes: IntArray  # [S, K] where each ends in the history


class _Continuations(NamedTuple):
    """The best continuations of a beam, best first; all [S, K]."""

    log_probs: AnyArray
    rows: IntArray  # of the state that each continues
    token_ids: IntArray
    outcome: Outcome[AnyArray]


def _explore(
    scorer: Scorer[StateT],
    state: StateT,
    lengths: IntArray,
    config: DecodeConfig,
    reporter: "_Reporter | None",
    before_step: Callable[[], None],
) -> SearchHistory:
    """Search until every beam is empty or out of steps."""
    S = len(lengths)
    beam = _Beam(
        np.arange(S),
        *step_limits(lengths, config),
        widths=np.full(S, config.beam),
        log_probs=np.zeros((S, 1), np.float32),
        nodes=np.full((S, 1), ROOT),
    )
    token_ids: IntArray | None = None
    history: list[SearchHistory] = []  # what each step adds
    size = attention_rows = 0
    for step in count():
        before_step()
        k = min(int(beam.widths.max(initial=0)) + MAX_FORBIDDEN, scorer.end_id + 1)
        proposal = scorer.step(state, token_ids, k)
        continuations = _choose(beam, proposal, step, scorer, config)
        log_probs, rows, token_ids, outcome = continuations
        history.append(
            SearchHistory(
                sentences=beam.sentences.repeat(rows.shape[1]),
                parents=beam.nodes.ravel()[rows.ravel()],
                token_ids=token_ids.ravel(),
                log_probs=log_probs.ravel(),
                ended=outcome.ended.ravel(),
                attention=proposal.attention,
                attention_rows=attention_rows + rows.ravel(),
            )
        )
        if reporter is not None:
            reporter.report(history[-1], outcome.finished)
        nodes = np.arange(size, size := size + token_ids.size).reshape(token_ids.shape)
        attention_rows += len(proposal.attention)
        if outcome.live.all():  # the usual step: no hypothesis ends
            beam = beam._replace(log_probs=log_probs, nodes=nodes)
        else:
            kept, slots = _survivors(outcome.live)
            if not len(kept):
                break
            if len(kept) < len(beam.sentences):
                scorer = scorer.keep(kept)
            survivors = kept[:, None], slots
            rows, token_ids = rows[survivors], token_ids[survivors]
            beam = _Beam(
                beam.sentences[kept],
                beam.min_steps[kept],
                beam.max_steps[kept],
                widths=(beam.widths - outcome.finished.sum(axis=1))[kept],
                log_probs=np.where(outcome.live, log_probs, -math.inf)[survivors],
                nodes=nodes[survivors],
            )
        state, token_ids = proposal.state.select(rows.ravel()), token_ids.ravel()
        if config.stop_loops and len(history) % LOOP_CHECK_STEPS == 0:
            beam = _stop_loops(beam, history)
    return SearchHistory(*map(np.concatenate, zip(*history, strict=True)))


def _stop_loops(beam: _Beam, history: list[SearchHistory]) -> _Beam:
    """Let the next step be the last of sentences whose open hypotheses all loop.

    They are looked at once they are as long as a translation usually is.
    """
    steps = len(history)
    long_enough = beam.max_steps <= 3 * steps
    if steps < LOOP_TOKENS or not long_enough.any():
        return beam
    nodes, columns = beam.nodes.ravel(), []
    first = sum(len(added.token_ids) for added in history)
    for added in history[: -PHRASE_LOOP_TOKENS - 1 : -1]:
        first -= len(added.token_ids)
        columns.append(added.token_ids[nodes - first])
        nodes = added.parents[nodes - first]
    loops = are_loops(np.stack(columns[::-1], axis=1)).reshape(beam.nodes.shape)
    hopeless = long_enough & (loops | (beam.log_probs == -math.inf)).all(axis=1)
    return beam._replace(max_steps=np.where(hopeless, steps + 1, beam.max_steps))


def _choose(
    beam: _Beam, proposal: Proposal[StateT], step: int, scorer: Scorer[StateT], config: DecodeConfig
) -> _Continuations:
    """Choose as many continuations as each beam is wide, and see which end."""
    S, K = beam.log_probs.shape
    token_ids = proposal.token_ids.reshape(S, -1)  # [S, K k]
    pad_id, other_id = forbidden_ids(config, scorer.unk_id)
    forbidden = (token_ids == pad_id) | (token_ids == other_id)
    forbidden |= (token_ids == scorer.end_id) & (step < beam.min_steps)[:, None]
    scores = (beam.log_probs.reshape(-1, 1) + proposal.log_probs).reshape(S, -1)
    scores[forbidden] = -math.inf
    # equal scores go to the better slot, and there to the likelier token
    ranked, positions = sort_descending(scores)
    width = int(beam.widths.max(initial=0))
    log_probs, positions = ranked[:, :width], positions[:, :width]
    chosen_ids = token_ids[np.arange(S)[:, None], positions]
    outcome = judge_continuations(
        log_probs,
        chosen_ids,
        np.arange(positions.shape[1]),
        beam.widths,
        beam.max_steps,
        step,
        scorer.end_id,
    )
    first_rows = np.arange(0, S * K, K)[:, None]
    return _Continuations(
        log_probs, first_rows + positions // (scores.shape[1] // K), chosen_ids, outcome
    )


def _survivors(live: BoolArray) -> tuple[IntArray, IntArray]:
    """Return the unfinished sentences, and the slots [S, K] of their hypotheses, best first."""
    remaining = live.sum(axis=1)
    (kept,) = remaining.nonzero()
    slots = (~live[kept]).argsort(axis=1, kind="stable")[:, : remaining.max(initial=0)]
    return kept, slots


class _Reporter:
    """Calls back after every step with the best hypothesis of each sentence so far.

    That is the likeliest one, open or finished; of equal ones, the one found first.
    """

    def __init__(self, on_step: StepCallback, numbers: list[int]) -> None:
        self.on_step, self.numbers = on_step, numbers
        self.token_ids: list[tuple[int, ...]] = []  # of every node so far, without end symbols
        self.finished: dict[int, tuple[float, tuple[int, ...]]] = {}  # the best of each sentence

    def report(self, step: SearchHistory, finished: BoolArray) -> None:
        """Report the sentences in this step, whose nodes [S, K] may have finished."""
        best = dict(self.finished)
        columns = (step.sentences, step.parents, step.token_ids, step.log_probs, finished.ravel())
        added = []
        for sentence, parent, token_id, log_prob, is_finished in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            before = () if parent == ROOT else self.token_ids[parent]
            added.append(before if is_finished else (*before, token_id))
            for table in [best, self.finished] if is_finished else [best]:
                if log_prob > table.get(sentence, NO_TRANSLATION)[0]:
                    table[sentence] = (log_prob, added[-1])
        self.token_ids += added
        for sentence in dict.fromkeys(step.sentences.tolist()):
            self.on_step(self.numbers[sentence], best.get(sentence, NO_TRANSLATION)[1])
