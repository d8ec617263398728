"""The weights of the features, tuned towards BLEU on the dev set (`covnmt smt tune`).

Translate the dev set with the weights so far, add the translations to those of earlier rounds, find
the weights that would choose best among all of them (`mert`), and go round again. The weights kept
are those under which the dev set, really translated, had the highest BLEU.

After every round all that is known is written down, so a run that was stopped goes on.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from covnmt.base.arrays import DoubleArray, IntArray
from covnmt.base.console import log
from covnmt.base.errors import UserError
from covnmt.base.files import read_parallel_lines, write_json
from covnmt.metrics.bleu import corpus_bleu, sentence_bleu_statistics
from covnmt.phrase_based.bitext import load_arrays, save_arrays
from covnmt.phrase_based.decode import NBestDecoder
from covnmt.phrase_based.features import FEATURES, INITIAL_WEIGHTS, MINIMUM_WEIGHTS
from covnmt.phrase_based.mert import NBestLists, optimize_weights
from covnmt.phrase_based.model import Figures, PhraseBasedModel, cpu_seconds, peak_mib
from covnmt.phrase_based.nbest import PhraseHypothesis
from covnmt.phrase_based.settings import WeightTuningSettings
from covnmt.phrase_based.translate import (
    MAX_CHUNK_TOKENS,
    WEIGHTS_FILE,
    hypothesis_tokens,
    open_decoder_for,
    read_tuned,
)
from covnmt.text.codec import SIDES, Codec

POOL_FILE = "tuning.npz"


@dataclass(frozen=True)
class DevSet:
    """The sentences to tune on, as tokens."""

    source: list[list[str]]
    target: list[list[str]]

    @classmethod
    def of(cls, model: PhraseBasedModel, number: int) -> "DevSet":
        """The first sentences, or all; those too long for one piece are left out."""
        source, target = model.codec("source"), model.codec("target")
        texts = (model.directory / f"dev.{side}.txt" for side in SIDES)
        pairs = [(source.tokenize(a), target.tokenize(b)) for a, b in read_parallel_lines(*texts)]
        pairs = [pair for pair in pairs if 0 < len(pair[0]) <= MAX_CHUNK_TOKENS][: number or None]
        if not pairs:
            raise UserError(
                f"{model.directory}: no sentence of the dev set has 1 to {MAX_CHUNK_TOKENS} words; "
                "prepare the data with another dev set, and train again"
            )
        return cls([a for a, _ in pairs], [b for _, b in pairs])


@dataclass(frozen=True)
class NBestPool:
    """All translations so far, without repetitions."""

    sentence: IntArray  # [n]
    features: DoubleArray  # [n, F]
    statistics: IntArray  # [n, 10]

    def __len__(self) -> int:
        return len(self.sentence)

    def with_more(self, other: "NBestPool") -> "NBestPool":
        """Both together."""
        rows = np.concatenate([self._rows(), other._rows()])
        kept = np.sort(np.unique(rows.round(6), axis=0, return_index=True)[1])
        rows = rows[kept[np.argsort(rows[kept, 0], kind="stable")]]
        size = self.features.shape[1]
        return NBestPool(
            rows[:, 0].astype(np.int64), rows[:, 1 : 1 + size], rows[:, 1 + size :].astype(np.int64)
        )

    def _rows(self) -> DoubleArray:
        return np.column_stack([self.sentence, self.features, self.statistics]).astype(np.float64)

    def lists(self) -> NBestLists:
        """By sentence."""
        cuts = np.flatnonzero(np.diff(self.sentence)) + 1
        return NBestLists.of(np.split(self.features, cuts), np.split(self.statistics, cuts))


EMPTY = NBestPool(np.zeros(0, np.int64), np.zeros((0, len(FEATURES))), np.zeros((0, 10), np.int64))


@dataclass
class TuningState:
    """Where a run stands: the weights and BLEU of each round, and the pool."""

    rounds: list[tuple[list[float], float]] = field(default_factory=list)
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    phrase_pairs: int = 0  # of the table of the dev set
    pool: NBestPool = field(default_factory=lambda: EMPTY)
    converged: bool = False  # the last round found nothing new

    def best(self) -> tuple[list[float], float]:
        """The weights with the highest BLEU; the first of equals."""
        return max(self.rounds, key=lambda each: each[1])


def tune_phrase_based(
    model: PhraseBasedModel, settings: WeightTuningSettings
) -> list[tuple[list[float], float]]:
    """Tune the weights, or resume tuning, and write the best ones into the model directory.

    Returns the weights and dev BLEU of every round; the first has the initial weights.
    """
    dev = DevSet.of(model, settings.sentences)
    # a run with more rounds goes on where one with fewer ended, on as many processes as it likes
    asked = settings.model_dump(mode="json", exclude={"iterations": True, "search": {"processes"}})
    made_from = {"model": model.identity(), "tune": asked}
    state = restore_tuning(model.directory, made_from)
    codecs = model.codec("source"), model.codec("target")
    if has_rounds_left(state, settings):
        with open_decoder_for(model, dev.source, settings.search) as (decoder, pairs):
            state.phrase_pairs = pairs
            while has_rounds_left(state, settings):
                run_round(state, decoder, dev, codecs, settings)
                save_tuning(model.directory, made_from, state)
    return state.rounds


def has_rounds_left(state: TuningState, settings: WeightTuningSettings) -> bool:
    """Whether there is a round still to be made."""
    return len(state.rounds) < settings.iterations and not state.converged


def run_round(
    state: TuningState,
    decoder: NBestDecoder,
    dev: DevSet,
    codecs: tuple[Codec, Codec],
    settings: WeightTuningSettings,
) -> None:
    """Find the next weights, translate with them, and note the BLEU."""
    began, cpu = time.monotonic(), cpu_seconds() + decoder.cpu_seconds
    number = len(state.rounds) + 1
    weights = next_weights(state, settings)
    ids = [codecs[0].vocabulary.encode(tokens) for tokens in dev.source]
    lists = list(decoder.nbest(ids, weights, settings.nbest, f"round {number}"))
    found = score_translations(lists, dev, codecs[1])
    first = np.unique(found.sentence, return_index=True)[1]
    bleu = float(corpus_bleu(found.statistics[first].sum(axis=0)))
    state.rounds.append((weights.tolist(), bleu))
    known = len(state.pool)
    state.pool = state.pool.with_more(found)
    log(f"round {number}: BLEU {bleu:.2f}, {len(state.pool):,} translations")
    state.converged = len(state.pool) == known
    state.seconds += time.monotonic() - began
    state.cpu_seconds += cpu_seconds() + decoder.cpu_seconds - cpu


def next_weights(state: TuningState, settings: WeightTuningSettings) -> DoubleArray:
    """The weights that choose best from the pool; the usual ones in the beginning."""
    if not state.rounds:
        return INITIAL_WEIGHTS
    last = np.array(state.rounds[-1][0])
    seed = settings.seed + len(state.rounds)
    return optimize_weights(
        state.pool.lists(),
        last,
        MINIMUM_WEIGHTS,
        settings.restarts,
        seed,
        settings.search.processes,
    )[0]


def score_translations(
    lists: Sequence[Sequence[PhraseHypothesis]], dev: DevSet, target: Codec
) -> NBestPool:
    """The features and BLEU counts of every translation."""
    sentence, features, statistics = [], [], []
    for n, hypotheses in enumerate(lists):
        for each in hypotheses:
            tokens = hypothesis_tokens(each, dev.source[n], target.vocabulary)
            sentence.append(n)
            features.append(each.features)
            statistics.append(sentence_bleu_statistics(tokens, [dev.target[n]]))
    return NBestPool(np.array(sentence), np.array(features), np.array(statistics))


def save_tuning(directory: Path, made_from: Figures, state: TuningState) -> None:
    """Write the best weights, and all that is needed to go on."""
    pool = state.pool
    arrays = {"sentence": pool.sentence, "features": pool.features, "statistics": pool.statistics}
    save_arrays(directory / POOL_FILE, arrays | {"rounds": np.array(len(state.rounds))})
    weights, bleu = state.best()
    content = {
        "made_from": made_from,
        "weights": dict(zip(FEATURES, weights, strict=True)),
        "dev_bleu": bleu,
        "rounds": state.rounds,
        "converged": state.converged,
        "seconds": round(state.seconds, 1),
        "cpu_seconds": round(state.cpu_seconds, 1),
        "phrase_pairs": state.phrase_pairs,
        "peak_mib": peak_mib(),
    }
    write_json(directory / WEIGHTS_FILE, content)


def read_tuning(directory: Path) -> Figures:
    """What is known of a model's tuning."""
    if not (directory / WEIGHTS_FILE).exists():
        raise UserError(f"{directory}: not tuned yet; give `covnmt smt tune {directory}`")
    return read_tuned(directory / WEIGHTS_FILE)


def restore_tuning(directory: Path, made_from: Figures) -> TuningState:
    """Where a run with the same settings stopped; else the beginning."""
    known = read_tuning(directory) if (directory / WEIGHTS_FILE).exists() else {}
    if known.get("made_from") != made_from or not (directory / POOL_FILE).exists():
        return TuningState()
    arrays = load_arrays(directory / POOL_FILE)
    # stopped between the two files: what the next round found is in the pool already
    if arrays.get("rounds", len(known["rounds"])) != len(known["rounds"]):
        return TuningState()
    pool = NBestPool(arrays["sentence"], arrays["features"], arrays["statistics"])
    rounds = [(weights, bleu) for weights, bleu in known["rounds"]]
    cost = known["seconds"], known["cpu_seconds"], known["phrase_pairs"]
    return TuningState(rounds, *cost, pool, known["converged"])
