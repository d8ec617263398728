"""Tune the length and coverage penalties of a model on a dev set (beyond the paper).

Penalties rank hypotheses after the search (docs/paper-to-code.md, section 1.5). So the dev set is
translated only once, every hypothesis is kept, and all of them are ranked anew for each setting.
The winners are the translations that `translate` gives with that setting.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from covnmt.base.arrays import DoubleArray, FloatArray, IntArray
from covnmt.base.config import DecodeConfig
from covnmt.base.console import track
from covnmt.base.errors import UserError
from covnmt.base.files import check_writable, read_parallel_lines
from covnmt.base.processes import chunked
from covnmt.decoding.search_rules import MAX_RETRY_BEAM, penalized_score
from covnmt.inference.parallel import TranslationJob, map_lines
from covnmt.inference.translate import Translation, override_decoding
from covnmt.metrics.bleu import bleu_statistics, paper_bleu_from_statistics
from covnmt.model.directory import find_own_model, load_config, save_config

LENGTH_PENALTIES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6)
TUNING_CHUNK_BATCHES = 4  # per chunk, so that progress shows soon


class PenaltyCandidates(NamedTuple):
    """The L hypotheses of a sentence, with what penalties depend on."""

    texts: list[str]
    log_probs: DoubleArray  # [L]
    lengths: IntArray  # [L] tokens, with the end symbol
    received: FloatArray  # [L, J] attention that every source token got in all

    @classmethod
    def from_n_best(cls, best: Translation) -> "PenaltyCandidates":
        """Collect the n-best list of a translation."""
        n_best = (best, *best.alternatives)
        return cls(
            [translation.text for translation in n_best],
            np.array([translation.log_prob for translation in n_best]),
            np.array([len(translation.tokens) + 1 for translation in n_best]),
            np.stack([_received_attention(translation) for translation in n_best]),
        )

    def scores(self, decode: DecodeConfig) -> DoubleArray:
        """Return the scores [L] under these settings."""
        scores: DoubleArray = penalized_score(
            self.log_probs, self.lengths, lambda: self.received, decode
        )
        return scores

    def winner(self, decode: DecodeConfig) -> int:
        """Return the index of the best one under these settings; of equal ones the first."""
        return int(np.argmax(self.scores(decode)))


def _received_attention(translation: Translation) -> FloatArray:
    fertility = translation.fertility
    return translation.coverage if fertility is None else translation.coverage * fertility


@dataclass(frozen=True)
class PenaltyTrial:
    """Settings and the score of the dev set with them."""

    decode: DecodeConfig
    bleu: float
    length_ratio: float  # output words over reference words

    @property
    def penalties(self) -> tuple[float, float]:
        """The length penalty and the coverage penalty."""
        return self.decode.length_penalty, self.decode.coverage_penalty

    def to_json(self) -> dict[str, float]:
        """Return JSON values."""
        length, coverage = self.penalties
        return {
            "length_penalty": length,
            "coverage_penalty": coverage,
            "bleu": round(self.bleu, 4),
            "length_ratio": round(self.length_ratio, 4),
        }


@dataclass(frozen=True)
class PenaltyTuning:
    """The trials, in order of their penalties."""

    trials: Sequence[PenaltyTrial]
    signature: str  # of BLEU

    @property
    def best(self) -> PenaltyTrial:
        """The trial with the best BLEU; of equal ones, the one with the smaller penalties."""
        return max(self.trials, key=lambda trial: (trial.bleu, *(-p for p in trial.penalties)))

    @property
    def best_is_last(self) -> bool:
        """Whether the best length penalty is the largest, so that larger ones may be better."""
        penalties = {trial.decode.length_penalty for trial in self.trials}
        return len(penalties) > 1 and self.best.decode.length_penalty == max(penalties)

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield table rows: penalties, BLEU, length ratio, and a mark on the best."""
        for trial in self.trials:
            penalties = (f"{value:g}" for value in trial.penalties)
            mark = "best" if trial is self.best else ""
            yield (*penalties, f"{trial.bleu:.2f}", f"{trial.length_ratio:.3f}", mark)

    def advice(self) -> str:
        """Return the options of the best trial, complete: the model may have other defaults."""
        length, coverage = self.best.penalties
        options = f"--length-penalty {length:g} --coverage-penalty {coverage:g}"
        options += f" --beam {self.best.decode.beam}"
        edge = "; the largest length penalty won, so try larger ones" if self.best_is_last else ""
        return f"BLEU: {self.signature}\nbest: covnmt translate {options}{edge}"

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "signature": self.signature,
            "best": self.best.to_json(),
            "trials": [trial.to_json() for trial in self.trials],
        }


def penalty_grid(
    decode: DecodeConfig, lengths: Sequence[float] = (), coverages: Sequence[float] = ()
) -> list[DecodeConfig]:
    """Return the settings with every combination of penalties.

    The defaults are LENGTH_PENALTIES, and the coverage penalty that the settings have.
    """
    if decode.beam == 1:
        raise UserError(
            "a beam of 1 keeps one hypothesis, so penalties change nothing; give a larger --beam"
        )
    pairs = product(lengths or LENGTH_PENALTIES, coverages or [decode.coverage_penalty])
    return [
        override_decoding(decode, {"length_penalty": length, "coverage_penalty": coverage})
        for length, coverage in sorted(set(pairs))
    ]


def decoding_for_tuning(decode: DecodeConfig) -> DecodeConfig:
    """Return settings for a search that keeps every hypothesis, the likeliest first."""
    nbest = 2 * max(decode.beam, MAX_RETRY_BEAM)  # more than any beam ends with, doubled or not
    update = {"nbest": nbest, "length_penalty": 0.0, "coverage_penalty": 0.0}
    return decode.model_copy(update=update)


def score_penalties(
    translations: Iterable[Translation],
    references: Sequence[str],
    settings: Sequence[DecodeConfig],
    tokenize: str = "13a",
) -> PenaltyTuning:
    """Score settings on translations that were made with `decoding_for_tuning` of one of them."""
    sentences = [PenaltyCandidates.from_n_best(best) for best in translations]
    winners = [[sentence.winner(decode) for sentence in sentences] for decode in settings]
    # settings mostly agree on a winner, so the n-grams of every text are counted only once
    used = sorted({pair for row in winners for pair in enumerate(row)})
    texts = [sentences[line].texts[rank] for line, rank in used]
    statistics = bleu_statistics(texts, [[references[line] for line, _ in used]], tokenize)
    counts = dict(zip(used, statistics, strict=True))
    scores = [
        paper_bleu_from_statistics(np.stack([counts[p] for p in enumerate(row)]), 1, tokenize)
        for row in winners
    ]
    trials = [
        PenaltyTrial(decode, score.value, score.details["length_ratio"])
        for decode, score in zip(settings, scores, strict=True)
    ]
    return PenaltyTuning(trials, scores[0].signature)


def tune_penalties(
    job: TranslationJob,
    source: Path,
    reference: Path,
    settings: Sequence[DecodeConfig],
    tokenize: str = "13a",
) -> PenaltyTuning:
    """Translate a dev set once and score all settings on it."""
    pairs = [(line, target) for line, target in read_parallel_lines(source, reference)]
    if not pairs:
        raise UserError(f"{source} and {reference} are empty; expected a sentence on each line")
    job = replace(job, decode=decoding_for_tuning(job.decode))
    workers = job.loader.default_workers
    chunks = chunked((line for line, _ in pairs), TUNING_CHUNK_BATCHES * job.decode.batch_size)
    translations = map_lines(job.loader, job.translate, chunks, workers)
    progress = track(translations, len(pairs), "translating")
    tuning = score_penalties(progress, [target for _, target in pairs], settings, tokenize)
    if tuning.best.bleu == 0:
        raise UserError(
            f"{reference}: BLEU is 0 with all penalties, so there is nothing to choose; is it the "
            "translation of the source? For Chinese or Japanese give --tokenize zh or char"
        )
    return tuning


def check_can_save_decoding(model: Path) -> None:
    """Refuse a bundled model, or one whose config.json cannot be written, before the work."""
    directory = find_own_model(model, "tune the copy, or leave --write out")
    check_writable(directory / "config.json")


def save_decoding(directory: Path, decode: DecodeConfig) -> None:
    """Store these decoding settings as the model's defaults."""
    description = load_config(directory)
    config = description.config.model_copy(update={"decode": decode})
    save_config(directory, replace(description, config=config))
