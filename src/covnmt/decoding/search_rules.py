"""The rules that every search shares (docs/paper-to-code.md, section 1.5).

What a search tries again, how long it may take, which tokens are forbidden, when a hypothesis
ends, and the penalties that rank hypotheses. The searches on CPU and GPU and the tuning of
penalties all call these functions, with NumPy arrays or torch tensors.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple

import numpy as np

from covnmt.base.arrays import AnyArray, BoolArray, IntArray
from covnmt.base.config import DecodeConfig
from covnmt.decoding.array_functions import ArrayT
from covnmt.text.vocabulary import PAD_ID

# Two limits end the doubling of the beam: the paper's code does not double one of 100 or more, and
# no retry has a beam wider than `config.max_retry_beam`.
MAX_RETRY_BEAM = 100
# A wider beam is tried only if it has at most this many hypotheses in all its steps together: of
# 7,059 test sentences of the bundled models 13 needed a retry; every retry that helped had fewer.
MAX_RETRY_HYPOTHESES = 5000
# A hypothesis loops if its last tokens, as many as one of these, have at most a third as many
# different bigrams. The second finds loops of whole phrases, which the first is too short for: of
# 70 translations of test sets that have 64 tokens, none has fewer than half.
LOOP_TOKENS, PHRASE_LOOP_TOKENS = 32, 64
MAX_LOOP_SHARE = 1 / 3


def search_attempts(config: DecodeConfig) -> Iterator[DecodeConfig]:
    """Yield what to try while no hypothesis finishes: first allow UNK, then double the beam."""
    yield config
    if not config.retry:
        return
    if config.forbid_unk:
        config = config.model_copy(update={"forbid_unk": False})
        yield config
    while config.beam < MAX_RETRY_BEAM and 2 * config.beam <= config.max_retry_beam:
        config = config.model_copy(update={"beam": 2 * config.beam})
        yield config


def step_limits(source_lengths: IntArray, config: DecodeConfig) -> tuple[IntArray, IntArray]:
    """Return the steps in which the end symbol is forbidden, and the most steps, per sentence."""
    if config.length_rules:
        return source_lengths // 2, 3 * source_lengths
    return np.zeros_like(source_lengths), np.full_like(source_lengths, config.max_length)


def are_loops(token_ids: IntArray) -> BoolArray:
    """Tell which of these ends of hypotheses [R, T] only repeat a few tokens, or phrases."""
    T = token_ids.shape[1]
    last = _have_few_bigrams(token_ids[:, -LOOP_TOKENS:])
    return last if T < PHRASE_LOOP_TOKENS else last | _have_few_bigrams(token_ids)


def _have_few_bigrams(token_ids: IntArray) -> BoolArray:
    R, T = token_ids.shape
    if T < 2:
        return np.zeros(R, dtype=bool)
    wide = token_ids.astype(np.int64)
    bigrams = np.sort((wide[:, :-1] << 32) + wide[:, 1:], axis=1)
    different = 1 + (bigrams[:, 1:] != bigrams[:, :-1]).sum(axis=1)
    loops: BoolArray = different <= T * MAX_LOOP_SHARE
    return loops


def forbidden_ids(config: DecodeConfig, unk_id: int) -> tuple[int, int]:
    """Return the ids that are never generated: padding, and UNK or else padding again."""
    return PAD_ID, unk_id if config.forbid_unk else PAD_ID


class Outcome(NamedTuple, Generic[ArrayT]):
    """What becomes of the best continuations [S, K]."""

    finished: ArrayT  # chose the end symbol
    ended: ArrayT  # finished, or open when the steps are used up
    live: ArrayT  # continued by the next step


def judge_continuations(
    log_probs: ArrayT,
    token_ids: ArrayT,
    ranks: ArrayT,
    widths: ArrayT,
    max_steps: ArrayT,
    step: Any,
    end_id: int,
) -> Outcome[ArrayT]:
    """Decide which continuations [S, K], best first, enter the beam and which of them end.

    A beam has room for `widths` [S] hypotheses: its size less those that finished. `ranks` are
    0 .. K - 1, and `step` counts the steps before this one.
    """
    chosen = (ranks < widths[:, None]) & (log_probs > -math.inf)
    finished = chosen & (token_ids == end_id)
    stops = finished | (max_steps <= step + 1)[:, None]
    return Outcome(finished, chosen & stops, chosen & ~stops)


def penalized_score(
    log_prob: Any, length: Any, received: Callable[[], AnyArray], config: DecodeConfig
) -> Any:
    """Return the score that ranks hypotheses; numbers for one, or arrays [L] for several.

    The length counts the end symbol. `received` returns the attention that every source token got
    in all [..., J - 1], without the source end symbol, which needs no covering; it is called only
    if a penalty needs it.
    """
    score = log_prob / length**config.length_penalty
    if config.coverage_penalty:
        score = score + config.coverage_penalty * coverage_log_sum(received())
    return score


def coverage_log_sum(received: AnyArray) -> Any:
    """Return sum_j log(min(received_j, 1)) (GNMT), 0 where all source tokens are covered.

    A token without any attention counts as the smallest positive number, so that the sum stays
    finite.
    """
    logs = np.log(received.clip(np.finfo(received.dtype).tiny, 1))
    return logs.sum(axis=-1).astype(np.float64)
