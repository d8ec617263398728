"""Tune the feature weights for BLEU on the dev set (`covnmt smt tune`).

Each round decodes the dev set with the latest weights, adds the translations to those of earlier
rounds, and finds the weights that would choose best among all of them (`mert`). The weights kept
are those under which the decoded dev set had the highest BLEU.

The state is saved after every round, so an interrupted run resumes.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from covnmt.base.arrays import DoubleArray, IntArray
from covnmt.base.console import log
from covnmt.base.errors import UserError
from covnmt.base.files import read_parallel_lines, write_json
from covnmt.metrics.bleu import bleu_from_totals, sentence_bleu_statistics
from covnmt.phrase_based.bitext import load_arrays, save_arrays
from covnmt.phrase_based.decode import NBestDecoder, open_decoder
from covnmt.phrase_based.mert import NBestLists, optimize_weights
from covnmt.phrase_based.model import PhraseBasedModel, cpu_seconds, peak_mib
from covnmt.phrase_based.nbest import PhraseHypothesis
from covnmt.phrase_based.settings import WeightTuningSettings
from covnmt.phrase_based.stack import FEATURES, INITIAL_WEIGHTS, MINIMUM_WEIGHTS
from covnmt.phrase_based.translate import (
    MAX_CHUNK_TOKENS,
    WEIGHTS_FILE,
    TunedWeights,
    TuningInputs,
    hypothesis_tokens,
)
from covnmt.text.codec import SIDES, Codec

POOL_FILE = "tuning.npz"


@dataclass(frozen=True)
class TuningSet:
    """The sentences to tune on, as tokens; the source as ids too."""

    source: list[list[str]]
    source_ids: list[list[int]]
    target: list[list[str]]

    @classmethod
    def from_model(cls, model: PhraseBasedModel, number: int) -> "TuningSet":
        """Take the first sentences (0: all), without those longer than one chunk."""
        source, target = model.codec("source"), model.codec("target")
        texts = (model.directory / f"dev.{side}.txt" for side in SIDES)
        pairs = [(source.tokenize(a), target.tokenize(b)) for a, b in read_parallel_lines(*texts)]
        pairs = [pair for pair in pairs if 0 < len(pair[0]) <= MAX_CHUNK_TOKENS][: number or None]
        if not pairs:
            raise UserError(
                f"{model.directory}: no sentence of the dev set has 1 to {MAX_CHUNK_TOKENS} words; "
                "prepare the data with another dev set, and train again"
            )
        source_ids = [source.vocabulary.encode(a) for a, _ in pairs]
        return cls([a for a, _ in pairs], source_ids, [b for _, b in pairs])


@dataclass(frozen=True)
class NBestPool:
    """The different translations of all rounds so far, by sentence."""

    sentence: IntArray  # [n]
    features: DoubleArray  # [n, F]
    statistics: IntArray  # [n, 10] BLEU counts

    def __len__(self) -> int:
        return len(self.sentence)

    def merged_with(self, other: "NBestPool") -> "NBestPool":
        """Add the translations of another round, without duplicates."""
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
        """Split the pool by sentence."""
        cuts = np.flatnonzero(np.diff(self.sentence)) + 1
        return NBestLists.from_lists(np.split(self.features, cuts), np.split(self.statistics, cuts))


EMPTY_POOL = NBestPool(
    np.zeros(0, np.int64), np.zeros((0, len(FEATURES))), np.zeros((0, 10), np.int64)
)


def tune_phrase_based(
    model: PhraseBasedModel, settings: WeightTuningSettings
) -> list[tuple[list[float], float]]:
    """Tune the weights, or resume tuning, and write the best ones into the model directory.

    Returns the weights and dev BLEU of every round; the first has the initial weights.
    """
    dev = TuningSet.from_model(model, settings.sentences)
    # more rounds resume a run of fewer, and the number of processes changes no result
    dumped = settings.model_dump(mode="json", exclude={"iterations": True, "search": {"processes"}})
    made_from = TuningInputs(model=model.identity(), tune=dumped)
    tuned, accumulated = restore_tuning(model.directory, made_from)
    target = model.codec("target")
    if has_rounds_left(tuned, settings):
        with open_decoder(model, dev.source_ids, settings.search) as decoder:
            while has_rounds_left(tuned, settings):
                tuned, accumulated = run_round(tuned, accumulated, decoder, dev, target, settings)
                arrays = {**vars(accumulated), "rounds": np.array(len(tuned.rounds))}
                save_arrays(model.directory / POOL_FILE, arrays)
                write_json(model.directory / WEIGHTS_FILE, tuned.model_dump(mode="json"))
    return tuned.rounds


def has_rounds_left(tuned: TunedWeights, settings: WeightTuningSettings) -> bool:
    """Tell whether another round is to be run."""
    return len(tuned.rounds) < settings.iterations and not tuned.converged


def run_round(
    tuned: TunedWeights,
    accumulated: NBestPool,
    decoder: NBestDecoder,
    dev: TuningSet,
    target: Codec,
    settings: WeightTuningSettings,
) -> tuple[TunedWeights, NBestPool]:
    """Find the next weights, decode the dev set with them, and record its BLEU."""
    began, cpu_before = time.monotonic(), cpu_seconds() + decoder.cpu_seconds
    number = len(tuned.rounds) + 1
    weights = next_weights(tuned, accumulated, settings)
    lists = list(decoder.nbest_lists(dev.source_ids, weights, settings.nbest, f"round {number}"))
    translations = score_translations(lists, dev, target)
    best_rows = np.unique(translations.sentence, return_index=True)[1]
    bleu = float(bleu_from_totals(translations.statistics[best_rows].sum(axis=0)))
    merged = accumulated.merged_with(translations)
    log(f"round {number}: BLEU {bleu:.2f}, {len(merged):,} translations")
    rounds = [*tuned.rounds, (weights.tolist(), bleu)]
    best_weights, dev_bleu = best_round(rounds)
    cpu = cpu_seconds() + decoder.cpu_seconds - cpu_before
    changes = {
        "weights": dict(zip(FEATURES, best_weights, strict=True)),
        "dev_bleu": dev_bleu,
        "rounds": rounds,
        "converged": len(merged) == len(accumulated),
        "seconds": round(tuned.seconds + time.monotonic() - began, 1),
        "cpu_seconds": round(tuned.cpu_seconds + cpu, 1),
        "phrase_pairs": decoder.phrase_pairs,
        "peak_mib": peak_mib(),
    }
    return tuned.model_copy(update=changes), merged


def best_round(rounds: Sequence[tuple[list[float], float]]) -> tuple[list[float], float]:
    """Return the weights with the highest BLEU; the first of equals."""
    return max(rounds, key=lambda weights_and_bleu: weights_and_bleu[1])


def next_weights(
    tuned: TunedWeights, accumulated: NBestPool, settings: WeightTuningSettings
) -> DoubleArray:
    """Find the weights that choose best from the pool; the first round has the initial ones."""
    if not tuned.rounds:
        return INITIAL_WEIGHTS
    weights, _ = optimize_weights(
        accumulated.lists(),
        np.array(tuned.rounds[-1][0]),
        MINIMUM_WEIGHTS,
        settings.restarts,
        settings.seed + len(tuned.rounds),
        settings.search.processes,
    )
    return weights


def score_translations(
    lists: Sequence[Sequence[PhraseHypothesis]], dev: TuningSet, target: Codec
) -> NBestPool:
    """Collect the features and BLEU counts of every translation."""
    sentence, features, statistics = [], [], []
    for n, hypotheses in enumerate(lists):
        for hypothesis in hypotheses:
            tokens = hypothesis_tokens(hypothesis, dev.source[n], target.vocabulary)
            sentence.append(n)
            features.append(hypothesis.features)
            statistics.append(sentence_bleu_statistics(tokens, [dev.target[n]]))
    return NBestPool(np.array(sentence), np.array(features), np.array(statistics))


def read_tuning(directory: Path) -> TunedWeights:
    """Read the outcome of a model's tuning."""
    if not (directory / WEIGHTS_FILE).exists():
        raise UserError(f"{directory}: not tuned yet; run `covnmt smt tune {directory}`")
    return TunedWeights.read(directory / WEIGHTS_FILE)


def restore_tuning(directory: Path, made_from: TuningInputs) -> tuple[TunedWeights, NBestPool]:
    """Restore a run with the same inputs; else begin with the initial weights."""
    initial = dict(zip(FEATURES, INITIAL_WEIGHTS.tolist(), strict=True))
    beginning = TunedWeights(made_from=made_from, weights=initial, rounds=[]), EMPTY_POOL
    if not (directory / WEIGHTS_FILE).exists():
        return beginning
    tuned = read_tuning(directory)
    if tuned.made_from != made_from or not (directory / POOL_FILE).exists():
        return beginning
    arrays = load_arrays(directory / POOL_FILE)
    # interrupted between the two files: the pool has the translations of one round more
    if arrays.pop("rounds", len(tuned.rounds)) != len(tuned.rounds):
        return beginning
    return tuned, NBestPool(**arrays)
