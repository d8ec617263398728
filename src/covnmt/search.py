"""Greedy and batched beam search (SPEC 1.5; the paper decodes with a beam of 10).

The search knows nothing of the architecture: it sees a `Scorer`, which turns the words chosen last
into log-probabilities of the next ones, and a `State`, whose rows it picks and repeats.

The score of a hypothesis is its summed log-probability. A hypothesis that chooses the end symbol
leaves the beam, which shrinks by one; a sentence is done when its beam is empty or its steps are
used up. Nothing is pruned for being worse than a finished hypothesis, so the penalties, which
need not fall as a hypothesis grows, can wait for the final ranking and need no stop criterion.

Every candidate that entered a beam becomes a node of a trellis that names its parent; hypotheses
are read off backwards when the search is over. Letters: S sentences, K slots of a beam, V words,
J source positions with the end symbol, N nodes.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

from covnmt.config import DecodeConfig
from covnmt.errors import UserError

RESERVED = 0  # the word number that is never generated
ROOT = -1  # the parent of first words
WIDEST = 100  # a beam this wide is not doubled any more


class State(Protocol):
    """What a scorer remembers of its rows; never changed in place."""

    def select(self, rows: Tensor) -> Self:
        """The state with these rows, in this order; rows may repeat."""


StateT = TypeVar("StateT", bound=State)


class StepResult(NamedTuple, Generic[StateT]):
    """What a scorer says about R rows."""

    log_probs: Tensor  # [R, V]
    attention: Tensor  # [R, J]
    state: StateT


class Scorer(Protocol[StateT]):
    """A model with S source sentences in it, ready to generate.

    A state has one row per sentence at the first step and K rows per sentence later: row s K + k
    is slot k of sentence s. J stays the same for all steps, whichever sentences are kept.
    """

    @property
    def end(self) -> int:
        """The number of the end symbol."""

    @property
    def unk(self) -> int:
        """The number of the unknown word."""

    def step(self, state: StateT, words: Tensor | None) -> StepResult[StateT]:
        """Score the next word of every row, given the word chosen last (None at the start)."""

    def keep(self, sentences: Tensor) -> "Scorer[StateT]":
        """A scorer for only these of the S sentences, in this order."""


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """One translation; the attention has a row per symbol, the end symbol's too if finished."""

    words: tuple[int, ...]  # without the end symbol
    score: float  # after penalties
    log_prob: float
    attention: Tensor  # [I + 1, J], on the CPU
    finished: bool


@torch.no_grad()
def search(
    scorer: Scorer[StateT], state: StateT, source_lengths: Tensor, config: DecodeConfig
) -> list[list[Hypothesis]]:
    """The n best translations of every sentence, best first; always at least one.

    `source_lengths` [S] count the end symbol and lie on the scorer's device. Sentences without any
    finished hypothesis are tried again (see `attempts`), in parts so that the wider beams take no
    more memory; where nothing helps their hypotheses come back unfinished.
    """
    found: list[list[Hypothesis]] = [[] for _ in source_lengths]
    pending = list(range(len(found)))
    rows = len(pending) * config.beam
    for attempt in attempts(config):
        if not pending:
            break
        todo = torch.tensor(pending, device=source_lengths.device)
        for part in torch.split(todo, max(1, rows // attempt.beam)):
            lengths = source_lengths[part]
            nodes = _explore(scorer.keep(part), state.select(part), lengths, attempt)
            results = _read(nodes, lengths.tolist(), attempt)
            for sentence, hypotheses in zip(part.tolist(), results, strict=True):
                found[sentence] = hypotheses
        pending = [sentence for sentence in pending if not found[sentence][0].finished]
    return found


def greedy(
    scorer: Scorer[StateT], state: StateT, source_lengths: Tensor, config: DecodeConfig
) -> list[Hypothesis]:
    """One translation per sentence, the best word at every step: a beam of 1."""
    narrow = config.model_copy(update={"beam": 1, "nbest": 1})
    return [best for (best,) in search(scorer, state, source_lengths, narrow)]


def attempts(config: DecodeConfig) -> Iterator[DecodeConfig]:
    """What to try while no hypothesis finishes: first allow UNK, then double the beam."""
    yield config
    if not config.retry:
        return
    if config.forbid_unk:
        config = config.model_copy(update={"forbid_unk": False})
        yield config
    while config.beam < WIDEST:
        config = config.model_copy(update={"beam": 2 * config.beam})
        yield config


def step_limits(source_lengths: Tensor, config: DecodeConfig) -> tuple[Tensor, Tensor]:
    """Steps during which the end symbol is forbidden, and most steps, of every sentence."""
    if config.length_rules:
        return source_lengths // 2, 3 * source_lengths
    return torch.zeros_like(source_lengths), torch.full_like(source_lengths, config.max_length)


def length_penalty(length: int, alpha: float) -> float:
    """What a log-probability is divided by; the length counts the end symbol."""
    return float(length**alpha)


def coverage_penalty(attention: Tensor, beta: float) -> float:
    """What is added for source words that got less than one word's attention (GNMT).

        beta * sum_j log(min(sum_i alpha_ij, 1))

    The last column, the source end symbol, needs no covering. A word without any attention counts
    as the smallest positive number, so that the penalty stays finite.
    """
    if beta == 0:
        return 0.0
    total = attention[:, :-1].sum(0).clamp(torch.finfo(attention.dtype).tiny, 1.0)  # [J - 1]
    return beta * float(total.log().sum())


def penalised(log_prob: float, attention: Tensor, config: DecodeConfig) -> float:
    """The score that ranks hypotheses."""
    divisor = length_penalty(len(attention), config.length_penalty)
    return log_prob / divisor + coverage_penalty(attention, config.coverage_penalty)


def top(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest of every row [S, N] with their positions; equal scores go to the lower one.

    `torch.topk` leaves ties open and a stable sort of all N is slow, so two small sorts do it. The
    row is cut into blocks: whatever belongs to the k highest lies in one of the k blocks with the
    highest maxima (each better block holds a better score), or in the rest behind the last block.
    """
    N = scores.shape[1]
    size = max(1, math.isqrt(N // k))
    whole = N - N % size
    maxima = scores[:, :whole].view(-1, whole // size, size).amax(2)  # [S, blocks]
    blocks = maxima.sort(dim=1, descending=True, stable=True).indices[:, :k].sort(dim=1).values
    inside = torch.arange(size, device=scores.device)
    rest = torch.arange(whole, N, device=scores.device).expand(len(scores), -1)
    positions = torch.cat(((blocks[:, :, None] * size + inside).flatten(1), rest), dim=1)
    ranked = scores.gather(1, positions).sort(dim=1, descending=True, stable=True)
    return ranked.values[:, :k], positions.gather(1, ranked.indices[:, :k])


class _Beam(NamedTuple):
    """The open hypotheses of the sentences still at work, best first; empty slots have -inf."""

    sentences: Tensor  # [S] their numbers
    lengths: Tensor  # [S] of the source
    widths: Tensor  # [S] hypotheses that may be open: the beam less the finished ones
    widest: int  # the largest of them
    log_probs: Tensor  # [S, K]
    nodes: Tensor  # [S, K] where each ends in the trellis


class _Candidates(NamedTuple):
    """The best continuations of a beam, best first, and what becomes of each."""

    log_probs: Tensor  # [S, K]
    rows: Tensor  # [S, K] of the state each continues
    words: Tensor  # [S, K]
    finished: Tensor  # [S, K] chose the end symbol
    cut: Tensor  # [S, K] open when the steps are used up
    live: Tensor  # [S, K] goes on
    widths: Tensor  # [S] left for the next step


class _Nodes(NamedTuple):
    """A trellis or the part of it that one step adds."""

    sentences: Tensor  # [N]
    parents: Tensor  # [N]
    words: Tensor  # [N]
    log_probs: Tensor  # [N] of the whole hypothesis
    attention: Tensor  # [N, J]
    finished: Tensor  # [N]
    cut: Tensor  # [N]


def _explore(
    scorer: Scorer[StateT], state: StateT, lengths: Tensor, config: DecodeConfig
) -> _Nodes:
    """Search until every beam is empty or out of steps; the whole trellis, on the CPU."""
    beam = _first(lengths, config.beam)
    words: Tensor | None = None
    trellis: list[_Nodes] = []
    size = 0
    for step in count():
        result = scorer.step(state, words)
        scores = _allowed(beam, result.log_probs, step, scorer, config)
        candidates = _judge(beam, scores, step, scorer.end, config)
        trellis.append(_record(beam, candidates, result.attention))
        nodes = size + torch.arange(candidates.words.numel(), device=lengths.device)
        size += len(nodes)
        kept, slots, widest = _survivors(candidates)
        if len(kept) == 0:
            break
        if len(kept) < len(beam.sentences):
            scorer = scorer.keep(kept)
        state = result.state.select(_take(candidates.rows, kept, slots).flatten())
        words = _take(candidates.words, kept, slots).flatten()
        beam = _next(beam, candidates, nodes, kept, slots, widest)
    return _Nodes(*(torch.cat(parts).cpu() for parts in zip(*trellis, strict=True)))


def _first(lengths: Tensor, width: int) -> _Beam:
    S = len(lengths)
    return _Beam(
        sentences=torch.arange(S, device=lengths.device),
        lengths=lengths,
        widths=torch.full_like(lengths, width),
        widest=width,
        log_probs=torch.zeros(S, 1, device=lengths.device),
        nodes=torch.full((S, 1), ROOT, device=lengths.device),
    )


def _allowed(
    beam: _Beam, log_probs: Tensor, step: int, scorer: Scorer[StateT], config: DecodeConfig
) -> Tensor:
    """Log-probabilities of every continuation [S, K, V]; forbidden ones have -inf."""
    scores = beam.log_probs[:, :, None] + log_probs.view(*beam.log_probs.shape, -1)  # [S, K, V]
    scores[:, :, RESERVED] = -math.inf
    if config.forbid_unk:
        scores[:, :, scorer.unk] = -math.inf
    without_end, _ = step_limits(beam.lengths, config)
    scores[:, :, scorer.end].masked_fill_((step < without_end)[:, None], -math.inf)
    return scores


def _judge(beam: _Beam, scores: Tensor, step: int, end: int, config: DecodeConfig) -> _Candidates:
    """Choose as many continuations as each beam is wide, and see which end."""
    S, K, V = scores.shape
    log_probs, positions = top(scores.flatten(1), min(beam.widest, K * V))
    words = positions % V
    rows = torch.arange(S, device=scores.device)[:, None] * K + positions // V
    rank = torch.arange(log_probs.shape[1], device=scores.device)
    chosen = (rank < beam.widths[:, None]) & (log_probs > -math.inf)
    finished = chosen & (words == end)
    is_last = (step + 1 >= step_limits(beam.lengths, config)[1])[:, None]
    cut = chosen & ~finished & is_last
    live = chosen & ~finished & ~is_last
    widths = beam.widths - finished.sum(1)
    return _Candidates(log_probs, rows, words, finished, cut, live, widths)


def _record(beam: _Beam, candidates: _Candidates, attention: Tensor) -> _Nodes:
    return _Nodes(
        sentences=beam.sentences[:, None].expand_as(candidates.rows).flatten(),
        parents=beam.nodes.flatten()[candidates.rows.flatten()],
        words=candidates.words.flatten(),
        log_probs=candidates.log_probs.flatten(),
        attention=attention[candidates.rows.flatten()].float(),
        finished=candidates.finished.flatten(),
        cut=candidates.cut.flatten(),
    )


def _survivors(candidates: _Candidates) -> tuple[Tensor, Tensor, int]:
    """Sentences that go on, their live candidates' slots (best first), and the widest beam left.

    The only place where the host waits for the device, once a step.
    """
    live, widths = torch.stack((candidates.live.sum(1), candidates.widths)).cpu()  # [S] each
    kept = live.nonzero().flatten()
    if len(kept) == 0:
        return kept, kept, 0
    slots = (~candidates.live).byte().argsort(dim=1, stable=True)[:, : int(live.max())]
    return kept.to(slots.device), slots, int(widths[kept].max())


def _take(table: Tensor, kept: Tensor, slots: Tensor) -> Tensor:
    return table.gather(1, slots)[kept]


def _next(
    beam: _Beam, candidates: _Candidates, nodes: Tensor, kept: Tensor, slots: Tensor, widest: int
) -> _Beam:
    log_probs = candidates.log_probs.masked_fill(~candidates.live, -math.inf)
    return _Beam(
        sentences=beam.sentences[kept],
        lengths=beam.lengths[kept],
        widths=candidates.widths[kept],
        widest=widest,
        log_probs=_take(log_probs, kept, slots),
        nodes=_take(nodes.view_as(log_probs), kept, slots),
    )


def _read(nodes: _Nodes, lengths: list[int], config: DecodeConfig) -> list[list[Hypothesis]]:
    """The n best hypotheses of every sentence in a trellis."""
    found: list[list[Hypothesis]] = [[] for _ in lengths]
    leaves = (nodes.finished | nodes.cut).nonzero().flatten()
    sentences = nodes.sentences[leaves].tolist()
    for sentence, path in zip(sentences, _paths(nodes.parents, leaves), strict=True):
        found[sentence].append(_hypothesis(nodes, path, lengths[sentence], config))
    return [
        _ranked(hypotheses, config) or [_nothing(length)]
        for hypotheses, length in zip(found, lengths, strict=True)
    ]


def _paths(parents: Tensor, leaves: Tensor) -> list[Tensor]:
    """The nodes from the first word to each leaf; all leaves walk up together."""
    steps = [leaves]
    while bool((leaves != ROOT).any()):
        leaves = torch.where(leaves == ROOT, ROOT, parents[leaves])
        steps.append(leaves)
    return [path[path != ROOT] for path in torch.stack(steps[::-1], dim=1)]


def _hypothesis(nodes: _Nodes, path: Tensor, J: int, config: DecodeConfig) -> Hypothesis:
    leaf = path[-1]
    finished = bool(nodes.finished[leaf])
    words = nodes.words[path].tolist()
    log_prob = float(nodes.log_probs[leaf])
    attention = nodes.attention[path, :J]
    score = penalised(log_prob, attention, config)
    return Hypothesis(
        tuple(words[:-1] if finished else words), score, log_prob, attention, finished
    )


def _ranked(hypotheses: list[Hypothesis], config: DecodeConfig) -> list[Hypothesis]:
    """The best of the finished ones, or of all where none is; equal scores: found first, first."""
    pool = [hypothesis for hypothesis in hypotheses if hypothesis.finished] or hypotheses
    return sorted(pool, key=lambda hypothesis: -hypothesis.score)[: config.nbest]


def _nothing(J: int) -> Hypothesis:
    """What is left where the model gives every continuation no probability."""
    return Hypothesis((), -math.inf, -math.inf, torch.zeros(0, J), finished=False)


class EnsembleState(NamedTuple, Generic[StateT]):
    """The states of several scorers, kept in step."""

    states: tuple[StateT, ...]

    def select(self, rows: Tensor) -> "EnsembleState[StateT]":
        """The same rows of every state."""
        return EnsembleState(tuple(state.select(rows) for state in self.states))


class Ensemble(Generic[StateT]):
    """Several scorers as one: the mean of their probabilities and of their attention."""

    def __init__(self, scorers: Sequence[Scorer[StateT]]) -> None:
        self.scorers = tuple(scorers)
        if len({(scorer.end, scorer.unk) for scorer in scorers}) != 1:
            raise UserError("an ensemble needs models with the same target vocabulary")
        self.end = self.scorers[0].end
        self.unk = self.scorers[0].unk

    def step(
        self, state: EnsembleState[StateT], words: Tensor | None
    ) -> StepResult[EnsembleState[StateT]]:
        """Score with all, then average."""
        pairs = zip(self.scorers, state.states, strict=True)
        results = [scorer.step(own, words) for scorer, own in pairs]
        log_probs = torch.stack([result.log_probs for result in results]).logsumexp(0)
        attention = torch.stack([result.attention for result in results]).mean(0)
        states = EnsembleState(tuple(result.state for result in results))
        return StepResult(log_probs - math.log(len(results)), attention, states)

    def keep(self, sentences: Tensor) -> "Ensemble[StateT]":
        """An ensemble for only these sentences."""
        return Ensemble([scorer.keep(sentences) for scorer in self.scorers])
