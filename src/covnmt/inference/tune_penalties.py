"""Which penalties suit a model, as a dev set tells (SPEC 1.5; beyond the paper, which has none).

Penalties rank the hypotheses of a search that is over (see `search`). So the dev set is translated
only once: all hypotheses of every sentence are kept, and ranked anew under each setting. What wins
is what `translate` gives under that setting.
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
from covnmt.decoding.engines import default_processes
from covnmt.decoding.penalties import MAX_RETRY_BEAM, penalized_score
from covnmt.inference.parallel import TranslationJob, map_lines
from covnmt.inference.translate import Translation, override_decoding
from covnmt.metrics.bleu import bleu_statistics, paper_bleu_from_statistics
from covnmt.model.directory import find_model, load_config, save_config

LENGTH_PENALTIES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6)
CHUNK_BATCHES = 4  # at a time, for one to see how it goes


class Candidates(NamedTuple):
    """The L hypotheses of a sentence, with what penalties depend on."""

    texts: list[str]
    log_probs: DoubleArray  # [L]
    lengths: IntArray  # [L] tokens, with the end symbol
    received: FloatArray  # [L, J] attention that every source token got in all

    @classmethod
    def from_n_best(cls, best: Translation) -> "Candidates":
        """Collect the n-best list of a translation that was made without penalties."""
        n_best = (best, *best.alternatives)
        return cls(
            [translation.text for translation in n_best],
            np.array([translation.score for translation in n_best]),
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
    """Settings, and how good the dev set comes out under them."""

    decode: DecodeConfig
    bleu: float
    length_ratio: float  # output words over reference words

    @property
    def penalties(self) -> tuple[float, float]:
        """For length and for coverage."""
        return self.decode.length_penalty, self.decode.coverage_penalty

    def to_json(self) -> dict[str, float]:
        """As plain values."""
        length, coverage = self.penalties
        return {
            "length_penalty": length,
            "coverage_penalty": coverage,
            "bleu": round(self.bleu, 4),
            "length_ratio": round(self.length_ratio, 4),
        }


@dataclass(frozen=True)
class PenaltyTuning:
    """All that was tried, the smaller penalties first."""

    trials: Sequence[PenaltyTrial]
    signature: str  # of BLEU

    @property
    def best(self) -> PenaltyTrial:
        """The best BLEU; of equal ones that with the smaller penalties."""
        return max(self.trials, key=lambda trial: (trial.bleu, *(-p for p in trial.penalties)))

    @property
    def best_is_last(self) -> bool:
        """Whether the best length penalty is the largest, so that larger ones could be better."""
        tried = {trial.decode.length_penalty for trial in self.trials}
        return len(tried) > 1 and self.best.decode.length_penalty == max(tried)

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Both penalties, BLEU, output over reference length, and which is best."""
        for trial in self.trials:
            penalties = (f"{value:g}" for value in trial.penalties)
            mark = "best" if trial is self.best else ""
            yield (*penalties, f"{trial.bleu:.2f}", f"{trial.length_ratio:.3f}", mark)

    def advice(self) -> str:
        """What to do with it; all that was set is named, as the model may have other values."""
        length, coverage = self.best.penalties
        options = f"--length-penalty {length:g} --coverage-penalty {coverage:g}"
        options += f" --beam {self.best.decode.beam}"
        edge = "; the largest that was tried, so try larger ones" if self.best_is_last else ""
        return f"BLEU: {self.signature}\nbest: covnmt translate {options}{edge}"

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "signature": self.signature,
            "best": self.best.to_json(),
            "trials": [trial.to_json() for trial in self.trials],
        }


def penalty_grid(
    decode: DecodeConfig, lengths: Sequence[float] = (), coverages: Sequence[float] = ()
) -> list[DecodeConfig]:
    """These with every length penalty and every coverage penalty; a usual range, and their own."""
    if decode.beam == 1:
        raise UserError("a beam of 1 leaves penalties nothing to choose from; give a wider --beam")
    pairs = product(lengths or LENGTH_PENALTIES, coverages or [decode.coverage_penalty])
    return [
        override_decoding(decode, {"length_penalty": length, "coverage_penalty": coverage})
        for length, coverage in sorted(set(pairs))
    ]


def keep_every_hypothesis(decode: DecodeConfig) -> DecodeConfig:
    """The same search without penalties, which gives all that it found."""
    most = 2 * max(decode.beam, MAX_RETRY_BEAM)  # more than any beam ends with, doubled or not
    return decode.model_copy(update={"nbest": most, "length_penalty": 0.0, "coverage_penalty": 0.0})


def score_penalties(
    found: Iterable[Translation],
    references: Sequence[str],
    settings: Sequence[DecodeConfig],
    tokenize: str = "13a",
) -> PenaltyTuning:
    """Score settings on translations that were made with `keep_every_hypothesis` of one of them."""
    beams = [Candidates.from_n_best(best) for best in found]
    chosen = [[beam.winner(decode) for beam in beams] for decode in settings]
    # settings mostly agree, and every text is counted once
    used = sorted({pair for winners in chosen for pair in enumerate(winners)})
    texts = [beams[line].texts[number] for line, number in used]
    rows = bleu_statistics(texts, [[references[line] for line, _ in used]], tokenize)
    counts = dict(zip(used, rows, strict=True))
    scores = [
        paper_bleu_from_statistics(
            np.stack([counts[pair] for pair in enumerate(winners)]), 1, tokenize
        )
        for winners in chosen
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
    """Translate a dev set, and score these settings on it."""
    pairs = [(line, translation) for line, translation in read_parallel_lines(source, reference)]
    if not pairs:
        raise UserError(f"{source} and {reference} are empty; expected a sentence on each line")
    job = replace(job, decode=keep_every_hypothesis(job.decode))
    workers = default_processes(job.loader.directories[0], job.loader.threads)
    chunks = chunked((line for line, _ in pairs), CHUNK_BATCHES * job.decode.batch_size)
    found = map_lines(job.loader, job, chunks, workers)
    references = [translation for _, translation in pairs]
    tuning = score_penalties(
        track(found, len(pairs), "translating"), references, settings, tokenize
    )
    if tuning.best.bleu == 0:
        raise UserError(
            f"{reference}: BLEU is 0 whatever is tried, so nothing can be chosen; is it the "
            "translation of the source? For Chinese or Japanese give --tokenize zh or char"
        )
    return tuning


def check_can_save_decoding(model: Path) -> None:
    """Only a directory of one's own can be changed; better told before the work."""
    directory = find_model(model)
    if directory != model:
        raise UserError(
            f"{model} comes along with the package and stays as it is: copy {directory} and tune "
            "the copy, or leave --write out"
        )
    check_writable(directory / "config.json")


def save_decoding(directory: Path, decode: DecodeConfig) -> None:
    """From now on the model in this directory translates so, unless told otherwise."""
    known = load_config(directory)
    config = known.config.model_copy(update={"decode": decode})
    save_config(directory, replace(known, config=config))
