"""The phrase-based system as a job: trained, tuned and measured like the neural ones.

It has no attention. Its alignments come from its statistical aligner, which learns from training
pairs and from the pairs to align: gold pairs for AER, and test sentences with their references and
with the system's outputs for DROP.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from covnmt.base.cpus import available_cpus
from covnmt.data.corpus import Corpus, Split
from covnmt.evaluation.system_output import SystemOutput
from covnmt.paper.experiments import Experiment
from covnmt.paper.measure import GoldPairs, measure_system
from covnmt.paper.results import ResultFields, Training, ValidationPoint
from covnmt.paper.systems import ALIGNER_PAIRS
from covnmt.phrase_based.align_files import align_pairs
from covnmt.phrase_based.model import PhraseBasedModel, train_phrase_based
from covnmt.phrase_based.settings import (
    AlignerSettings,
    PhraseBasedSettings,
    StackSearchSettings,
    WeightTuningSettings,
)
from covnmt.phrase_based.translate import PhraseTranslation, translate_phrase_based
from covnmt.phrase_based.tune_weights import read_tuning, tune_phrase_based

TUNING_ROUNDS = 12  # at most
TUNING_FIGURES = {"weights", "dev_bleu", "seconds", "cpu_seconds", "peak_mib", "phrase_pairs"}


@dataclass(frozen=True)
class PhraseBasedSystem:
    """A phrase-based model with the settings it is measured with."""

    model: PhraseBasedModel
    corpus: Corpus
    search: StackSearchSettings

    def translate(
        self, test: Sequence[str], examples: Sequence[str]
    ) -> tuple[list[PhraseTranslation], list[PhraseTranslation]]:
        """Translate everything in one go: one phrase table serves all lines."""
        done = list(translate_phrase_based(self.model, [*test, *examples], self.search))
        return done[: len(test)], done[len(test) :]

    def align(
        self, gold: GoldPairs, test: Split | None, translations: Sequence[PhraseTranslation]
    ) -> tuple[SystemOutput, SystemOutput | None]:
        """Align everything in one go: the aligner learns from all pairs."""
        tokenize = self.corpus.codec("target").tokenize
        lines = test.text("target") if test else []
        shown = translations if test else []
        references = [
            (t.source_tokens, tokenize(line)) for t, line in zip(shown, lines, strict=True)
        ]
        outputs = [(t.source_tokens, t.tokens) for t in shown]
        settings, processes = self.model.settings.align, self.search.processes
        pairs = [*gold.pairs, *references, *outputs]
        links = align_pairs(pairs, self.corpus, settings, ALIGNER_PAIRS, processes)
        begin, end = len(gold.pairs), len(gold.pairs) + len(references)
        targets = [" ".join(target) for _, target in gold.pairs]
        text = [" ".join(translation.tokens) for translation in shown]
        of_test = SystemOutput(text, links=links[begin:end], output_links=links[end:])
        return SystemOutput(targets, links=links[:begin]), of_test if test else None


def run_phrase_based_job(
    experiment: Experiment, directory: Path, prepared: Path, seed: int, outputs: Path
) -> ResultFields:
    """Train, tune and measure, skipping stages that are done."""
    search = StackSearchSettings(processes=available_cpus())
    settings = PhraseBasedSettings(align=AlignerSettings(seed=seed))
    tuning = WeightTuningSettings(search=search, iterations=TUNING_ROUNDS, seed=seed)
    model = train_phrase_based(prepared, directory, settings, search.processes)
    tune_phrase_based(model, tuning)
    began = time.monotonic()
    system = PhraseBasedSystem(model, Corpus.open(prepared), search)
    measured = measure_system(system, experiment, prepared, outputs)
    seconds = round(time.monotonic() - began, 1)
    return {**describe_model(model, tuning), "measuring_seconds": seconds, **measured}


def describe_model(model: PhraseBasedModel, settings: WeightTuningSettings) -> ResultFields:
    """Describe settings and training; a round of tuning takes the place of an update."""
    records = model.stage_records()
    tuned = read_tuning(model.directory)
    scores = [bleu for _, bleu in tuned.rounds]
    dumped = {"smt": model.settings, "tune": settings}
    return {
        "recipe": {name: value.model_dump(mode="json") for name, value in dumped.items()},
        "parameters": {"total": 0},
        "training": Training(
            reason=f"tuned in {len(scores)} rounds",
            update=len(scores),
            words_per_second=None,
            seconds=sum(record.seconds for record in records.values()) + tuned.seconds,
            cpu_seconds=sum(record.cpu_seconds for record in records.values()) + tuned.cpu_seconds,
            stages={name: r.model_dump(exclude={"made_from"}) for name, r in records.items()},
            tuning=tuned.model_dump(include=TUNING_FIGURES),
            curve=[],
            validations=[
                ValidationPoint(number, None, bleu) for number, bleu in enumerate(scores, 1)
            ],
        ),
        "processes": settings.search.processes,
    }
