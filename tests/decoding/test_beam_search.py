"""Beam search against a slow search written from the rules, and against trying everything.

The scorers are tables of coarse fractions, so that sums are exact and ties are common.
"""

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covnmt.base.arrays import AnyArray
from covnmt.base.config import DecodeConfig
from covnmt.decoding.backtrace import Hypothesis
from covnmt.decoding.beam_search import beam_search
from covnmt.decoding.search_rules import MAX_RETRY_HYPOTHESES, are_loops

from .table_scorer import END, NEVER, UNK, A, B, Table, V, batch, markov, random_table


def run(tables: list[Table], config: DecodeConfig) -> list[list[Hypothesis]]:
    return beam_search(*batch(tables), config)


# --- the rules again, slowly -------------------------------------------------------------------

Found = tuple[tuple[int, ...], float, bool]  # symbols with the end symbol, log-probability, ended


def slow_steps(
    table: Table, beam: int, forbid_unk: bool, config: DecodeConfig
) -> Iterator[tuple[list[Found], list[Found]]]:
    """All finished and all open hypotheses after every step."""
    most = 3 * table.J if config.length_rules else config.max_length
    earliest = table.J // 2 if config.length_rules else 0
    finished: list[Found] = []
    live: list[Found] = [((), 0.0, False)]
    for step in range(most):
        banned = {0} | ({UNK} if forbid_unk else set()) | ({END} if step < earliest else set())
        options = sorted(
            (-(log_prob + more), slot, -more, word)
            for slot, (words, log_prob, _) in enumerate(live)
            for word, more in enumerate(table.log_probs[table.row(words)])
            if word not in banned and more > NEVER
        )
        before, live = live, []
        for cost, slot, _, word in options[: beam - len(finished)]:
            found = ((*before[slot][0], word), -cost, word == END)
            (finished if word == END else live).append(found)
        yield finished, live
        if not live:
            return


def slow_attempt(table: Table, beam: int, forbid_unk: bool, config: DecodeConfig) -> list[Found]:
    *_, (finished, live) = slow_steps(table, beam, forbid_unk, config)
    return finished or live


def slow_search(table: Table, config: DecodeConfig) -> list[Found]:
    beam, forbid_unk = config.beam, config.forbid_unk
    while True:
        found = slow_attempt(table, beam, forbid_unk, config)
        if any(ended for _, _, ended in found):
            break
        if forbid_unk:
            forbid_unk = False
        elif beam < 100:
            beam *= 2
        else:
            break
    divided = [log_prob / len(words) ** config.length_penalty for words, log_prob, _ in found]
    order = sorted(range(len(found)), key=lambda number: -divided[number])
    return [found[number] for number in order[: config.nbest]]


def everything(table: Table, most: int) -> list[tuple[int, ...]]:
    """All finished hypotheses of at most so many symbols."""
    complete = []
    open_: list[tuple[int, ...]] = [()]
    for _ in range(most):
        complete += [(*words, END) for words in open_]
        open_ = [(*words, word) for words in open_ for word in (UNK, A, B)]
    return complete


def symbols(hypothesis: Hypothesis) -> tuple[int, ...]:
    return hypothesis.token_ids + ((END,) if hypothesis.finished else ())


def as_found(hypothesis: Hypothesis) -> Found:
    return symbols(hypothesis), hypothesis.log_prob, hypothesis.finished


def same(one: Hypothesis, other: Hypothesis) -> bool:
    return (
        as_found(one) == as_found(other)
        and one.score == other.score
        and np.array_equal(one.attention, other.attention)
    )


def attention_of(table: Table, found: tuple[int, ...]) -> AnyArray:
    rows = [table.attention[table.row(found[:i])] for i in range(len(found))]
    return np.array(rows, dtype=np.float32).reshape(len(found), table.J)


# --- strategies --------------------------------------------------------------------------------


@st.composite
def tables(draw: st.DrawFn) -> list[Table]:
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    return [random_table(draw(st.integers(0, 10**6)), J) for J in lengths]


@st.composite
def configs(draw: st.DrawFn) -> DecodeConfig:
    beam = draw(st.integers(1, 8))
    return DecodeConfig(
        beam=beam,
        nbest=draw(st.integers(1, beam)),
        length_rules=draw(st.booleans()),
        max_length=draw(st.integers(1, 9)),
        length_penalty=draw(st.sampled_from([0.0, 0.6, 1.0])),
        forbid_unk=draw(st.booleans()),
    )


# --- whole searches ----------------------------------------------------------------------------


@settings(max_examples=150)
@given(tables(), configs())
def test_equals_the_slow_search(sentences: list[Table], config: DecodeConfig) -> None:
    for table, hypotheses in zip(sentences, run(sentences, config), strict=True):
        expected = slow_search(table, config) or [((), NEVER, False)]
        assert [as_found(hypothesis) for hypothesis in hypotheses] == expected
        for hypothesis in hypotheses:
            assert np.array_equal(hypothesis.attention, attention_of(table, symbols(hypothesis)))


@settings(max_examples=40)
@given(tables(), configs(), st.sampled_from([0.0, 0.2]))
def test_translation_does_not_depend_on_batch_composition(
    sentences: list[Table], config: DecodeConfig, beta: float
) -> None:
    config = config.model_copy(update={"coverage_penalty": beta})
    together = run(sentences, config)
    for table, hypotheses in zip(sentences, together, strict=True):
        (alone,) = run([table], config)
        assert len(alone) == len(hypotheses)
        assert all(map(same, alone, hypotheses))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (1.0, 0.0), (0.6, 0.2)])
def test_wide_beam_equals_trying_everything(seed: int, alpha: float, beta: float) -> None:
    table = random_table(seed, J=3, coarse=False)
    config = DecodeConfig(
        beam=500,
        nbest=50,
        length_rules=False,
        max_length=5,
        length_penalty=alpha,
        coverage_penalty=beta,
    )

    def score(words: tuple[int, ...]) -> float:
        rows = [table.row(words[:i]) for i in range(len(words))]
        log_prob = sum(table.log_probs[row][word] for row, word in zip(rows, words, strict=True))
        covered = [sum(table.attention[row][j] for row in rows) for j in range(table.J - 1)]
        tiny = float(np.finfo(np.float32).tiny)
        penalty = sum(math.log(min(max(total, tiny), 1.0)) for total in covered)
        return log_prob / float(len(words) ** alpha) + beta * penalty

    expected = sorted(everything(table, most=5), key=score, reverse=True)[:50]
    (hypotheses,) = run([table], config)
    assert [symbols(hypothesis) for hypothesis in hypotheses] == expected
    scores = [hypothesis.score for hypothesis in hypotheses]
    assert scores == pytest.approx([score(words) for words in expected], rel=1e-5)


@pytest.mark.parametrize("seed", range(20))
def test_greedy_takes_the_best_token_every_time(seed: int) -> None:
    table = random_table(seed, J=2, coarse=False)
    words: tuple[int, ...] = ()
    while len(words) < 6 and END not in words:
        following = table.log_probs[table.row(words)]
        allowed = [UNK, A, B, END] if words else [UNK, A, B]  # J = 2: no end at the first step
        words += (max(allowed, key=lambda word: following[word]),)
    ((hypothesis,),) = run([table], DecodeConfig(beam=1))
    if END in words:
        assert symbols(hypothesis) == words
    else:
        # greedy does not end: a wider beam was tried
        assert hypothesis.finished


def test_empty_batch_gives_an_empty_result() -> None:
    scorer, state, lengths = batch([random_table(1, J=2)])
    none = np.array([], dtype=np.int64)
    assert beam_search(scorer.keep(none), state.select(none), lengths[none], DecodeConfig()) == []


# --- single rules ------------------------------------------------------------------------------

ENDLESS = markov({0: {A: -0.5}, A: {A: -0.5}})
WANTS_TO_END = markov({0: {A: -1, END: -0.1}, A: {A: -1, END: -0.1}}, J=5)


@pytest.mark.parametrize(
    ("J", "length_rules", "symbols_expected"), [(1, True, 1), (5, True, 3), (5, False, 1)]
)
def test_end_waits_for_half_the_source(J: int, length_rules: bool, symbols_expected: int) -> None:
    table = Table(WANTS_TO_END.log_probs, [[1 / J] * J] * (V + 1), factor=0)
    ((hypothesis,),) = run([table], DecodeConfig(beam=1, length_rules=length_rules))
    assert len(symbols(hypothesis)) == len(hypothesis.attention) == symbols_expected


@pytest.mark.parametrize(
    ("config", "steps"),
    [
        (DecodeConfig(beam=100), 6),  # 3 J
        (DecodeConfig(beam=100, length_rules=False, max_length=4), 4),
    ],
)
def test_what_never_ends_comes_back_unfinished(config: DecodeConfig, steps: int) -> None:
    ((hypothesis,),) = run([ENDLESS], config)
    assert hypothesis.token_ids == (A,) * steps
    assert not hypothesis.finished
    assert hypothesis.log_prob == hypothesis.score == -0.5 * steps
    assert hypothesis.attention.shape == (steps, 2)


def test_reserved_word_is_never_generated() -> None:
    table = markov({0: {0: 0.0, A: -1}, A: {0: 0.0, END: -1}})
    ((hypothesis,),) = run([table], DecodeConfig(beam=1))
    assert hypothesis.token_ids == (A,)


def test_nothing_possible_gives_an_empty_hypothesis() -> None:
    ((hypothesis,),) = run([markov({})], DecodeConfig(beam=4))
    assert hypothesis.token_ids == ()
    assert not hypothesis.finished
    assert hypothesis.attention.shape == (0, 2)


def test_nan_is_no_candidate() -> None:
    table = markov({0: {A: -1, B: math.nan}, A: {END: -1}, B: {END: -1}})
    ((hypothesis,),) = run([table], DecodeConfig(beam=2))
    assert hypothesis.token_ids == (A,)


def test_beam_shrinks_with_every_finished_hypothesis() -> None:
    likes_ends = {END: -0.1, A: -1.0, B: -1.5}
    scorer, state, lengths = batch([markov({0: likes_ends, A: likes_ends, B: likes_ends}, J=1)])
    (hypotheses,) = beam_search(scorer, state, lengths, DecodeConfig(beam=3, nbest=3))
    # first step: the end, A and B; second: A and B both end; nothing is left for the third
    assert [hypothesis.token_ids for hypothesis in hypotheses] == [(), (A,), (B,)]
    assert scorer.sizes == [(1, 1), (1, 2)]


def test_finished_sentences_leave_the_batch() -> None:
    short = markov({0: {A: 0.0}, A: {END: 0.0}}, J=2)
    long = markov({0: {A: 0.0}, A: {B: 0.0}, B: {UNK: 0.0}, UNK: {END: 0.0}}, J=2)
    scorer, state, lengths = batch([short, long, short])
    found = beam_search(scorer, state, lengths, DecodeConfig(beam=1))
    assert [hypotheses[0].token_ids for hypotheses in found] == [(A,), (A, B, UNK), (A,)]
    assert [sentences for sentences, _ in scorer.sizes] == [3, 3, 1, 1]


NEEDS_UNK = markov({0: {A: -0.1, UNK: -1}, A: {A: -0.1}, UNK: {END: -1}})
# the worse first word is the only way to the end
NEEDS_BEAM_2 = markov({0: {A: -0.1, B: -1}, A: {A: -3}, B: {END: -1}})
ENDS = markov({0: {A: -0.1}, A: {END: -0.1}})


def test_unk_is_allowed_when_nothing_ends_without() -> None:
    config = DecodeConfig(beam=2, forbid_unk=True)
    ((ends,), (needs,)) = run([ENDS, NEEDS_UNK], config)
    assert ends.token_ids == (A,)
    assert needs.token_ids == (UNK,)
    assert needs.finished


def test_beam_doubles_only_for_sentences_that_do_not_end() -> None:
    scorer, state, lengths = batch([ENDS, NEEDS_BEAM_2, ENDS])
    found = beam_search(scorer, state, lengths, DecodeConfig(beam=1))
    assert [hypothesis.token_ids for (hypothesis,) in found] == [(A,), (B,), (A,)]
    together = 2  # steps until both others have ended; from then on one sentence is alone
    assert scorer.sizes[:together] == [(3, 3)] * together
    assert set(scorer.sizes[together:]) == {(1, 1), (1, 2)}


def test_wider_beams_take_no_more_rows_than_the_first() -> None:
    tables = [random_table(seed, J=3) for seed in range(8)]
    endless = [Table([[*r[:END], NEVER] for r in t.log_probs], t.attention) for t in tables]
    scorer, state, lengths = batch(endless)
    beam_search(scorer, state, lengths, DecodeConfig(beam=20))
    assert max(rows for _, rows in scorer.sizes) <= 8 * 20


# --- penalties ---------------------------------------------------------------------------------


def test_length_penalty_changes_the_winner() -> None:
    table = markov({0: {END: -1.0, A: -0.75}, A: {END: -0.75}}, J=1)
    ((plain,),) = run([table], DecodeConfig(beam=2))
    ((longer,),) = run([table], DecodeConfig(beam=2, length_penalty=1.0))
    assert (plain.token_ids, plain.score) == ((), -1.0)
    assert (longer.token_ids, longer.log_prob, longer.score) == ((A,), -1.5, -0.75)


# --- hypotheses that loop ----------------------------------------------------------------------

LOOPS = markov({last: {A: -0.5, B: -1.0} for last in (0, A, B)}, J=40)


def test_a_search_that_loops_is_stopped_early_and_not_retried() -> None:
    scorer, state, lengths = batch([LOOPS, markov({0: {A: -0.5}, A: {END: -0.1}}, J=40)])
    config = DecodeConfig(beam=2, length_rules=False, max_length=120, stop_loops=True)
    (looping, *_), (ending, *_) = beam_search(scorer, state, lengths, config)
    assert (looping.finished, ending.finished) == (False, True)
    assert 40 <= len(looping.token_ids) < 60
    assert len(scorer.sizes) < 60
    assert max(rows for _, rows in scorer.sizes) <= 4


def test_repeated_phrases_are_loops_too() -> None:
    phrase, no_phrase = np.arange(70) % 20, np.arange(70) % 30
    assert are_loops(np.stack([phrase, no_phrase])).tolist() == [True, False]
    assert not are_loops(phrase[None, :40])[0]  # too short to tell


def test_the_work_of_retries_is_bounded() -> None:
    scorer, state, lengths = batch([LOOPS])
    beam_search(scorer, state, lengths, DecodeConfig(beam=2))
    assert sum(rows for _, rows in scorer.sizes) < 2 * MAX_RETRY_HYPOTHESES
    assert max(rows for _, rows in scorer.sizes) == 32  # 64 times 3 * 40 steps would be too much


def test_a_search_can_be_interrupted_before_any_step() -> None:
    scorer, state, lengths = batch([LOOPS])

    def stop_before_step_6() -> None:
        if len(scorer.sizes) == 5:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        beam_search(scorer, state, lengths, DecodeConfig(beam=2), None, stop_before_step_6)
    assert len(scorer.sizes) == 5


# --- watching ----------------------------------------------------------------------------------


@settings(max_examples=60)
@given(tables(), configs())
def test_callback_reports_the_likeliest_hypothesis_after_every_step(
    sentences: list[Table], config: DecodeConfig
) -> None:
    """After every step the likeliest hypothesis is told, open or finished."""
    config = config.model_copy(update={"retry": False})
    told: list[list[tuple[int, ...]]] = [[] for _ in sentences]
    scorer, state, lengths = batch(sentences)
    watched = beam_search(scorer, state, lengths, config, lambda n, words: told[n].append(words))
    for ours, theirs in zip(watched, run(sentences, config), strict=True):
        assert all(map(same, ours, theirs))
    for table, steps in zip(sentences, told, strict=True):
        slow = slow_steps(table, config.beam, config.forbid_unk, config)
        for words, (finished, live) in zip(steps, slow, strict=True):
            every = [*finished, *live] or [((), NEVER, False)]
            likeliest = max(log_prob for _, log_prob, _ in every)
            assert words in [
                tuple(word for word in said if word != END)
                for said, log_prob, _ in every
                if log_prob == likeliest
            ]


def test_callback_keeps_the_index_of_a_sentence_that_is_retried() -> None:
    told: list[tuple[int, tuple[int, ...]]] = []
    scorer, state, lengths = batch([ENDS, NEEDS_BEAM_2, ENDS])
    beam_search(scorer, state, lengths, DecodeConfig(beam=1), lambda *news: told.append(news))
    again = told[told.index((1, (A,)), 2) :]
    assert {number for number, _ in again} == {1}
    assert again[-1] == (1, (B,))
