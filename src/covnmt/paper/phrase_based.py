"""The phrase-based system as a job: trained, tuned and measured like the neural ones.

It has no attention. Its alignment is that of its statistical aligner, which learns from training
pairs and from the pairs it is asked about: gold pairs (AER), and test sentences with their
references and with the system's outputs (DROP).
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from covnmt.base.files import read_parallel_lines
from covnmt.base.processes import available_cpus
from covnmt.data.corpus import Corpus
from covnmt.evaluation.alignment_files import read_links
from covnmt.evaluation.evaluate import Evaluation, EvaluationOptions, evaluate
from covnmt.evaluation.test_set import EvaluationSet, SystemOutput
from covnmt.metrics.alignment import Links
from covnmt.metrics.bleu import Score
from covnmt.paper.experiments import GOLD_FILES, Experiment
from covnmt.paper.measure import describe_test, example_record, save_translations, score_lowercased
from covnmt.phrase_based.align_files import WordPair, align_pairs
from covnmt.phrase_based.model import PhraseBasedModel, train_phrase_based
from covnmt.phrase_based.settings import (
    AlignerSettings,
    PhraseBasedSettings,
    StackSearchSettings,
    WeightTuningSettings,
)
from covnmt.phrase_based.translate import translate_phrase_based
from covnmt.phrase_based.tune_weights import read_tuning, tune_phrase_based

ROUNDS = 12  # of tuning, at most
LEARN = 100_000  # training pairs that the aligner learns from when it is measured


TUNING = ("weights", "dev_bleu", "seconds", "cpu_seconds", "peak_mib", "phrase_pairs")


def run_job(experiment: Experiment, run: Path, prepared: Path, seed: int) -> dict[str, Any]:
    """Train, tune and measure; what is done already is not done again."""
    search = StackSearchSettings(processes=available_cpus())
    settings = PhraseBasedSettings(align=AlignerSettings(seed=seed))
    tuning = WeightTuningSettings(search=search, iterations=ROUNDS, seed=seed)
    model = train_phrase_based(prepared, run, settings, search.processes)
    tune_phrase_based(model, tuning)
    began = time.monotonic()
    found = measure(experiment, model, prepared, search)
    cost = {"measuring_seconds": round(time.monotonic() - began, 1), "processes": search.processes}
    return {**describe_model(model, tuning), **cost, **found}


def describe_model(model: PhraseBasedModel, tuning: WeightTuningSettings) -> dict[str, Any]:
    """Settings and the course of training; a round of tuning is what an update is to the others."""
    stages = {name: _without_source(noted) for name, noted in model.figures().items()}
    tuned = read_tuning(model.directory)
    scores = [bleu for _, bleu in tuned["rounds"]]
    return {
        "recipe": {
            "smt": model.settings.model_dump(mode="json"),
            "tune": tuning.model_dump(mode="json"),
        },
        "parameters": {"total": 0},
        "training": {
            "reason": f"tuned in {len(scores)} rounds",
            "update": len(scores),
            "words_per_second": None,
            "seconds": sum(noted["seconds"] for noted in stages.values()) + tuned["seconds"],
            "cpu_seconds": sum(each["cpu_seconds"] for each in (*stages.values(), tuned)),
            "stages": stages,
            "tuning": {key: tuned[key] for key in TUNING},
            "curve": [],
            "validations": [[number, None, bleu] for number, bleu in enumerate(scores, 1)],
        },
    }


def _without_source(noted: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in noted.items() if key != "made_from"}


def measure(
    experiment: Experiment, model: PhraseBasedModel, prepared: Path, search: StackSearchSettings
) -> dict[str, Any]:
    """Translate, align and score; also leaves the translated test set in the model directory."""
    corpus = Corpus.open(prepared)
    test = corpus.split("test")
    lines, examples = list(test.source_text()), list(experiment.text.examples(prepared))
    all_done = list(translate_phrase_based(model, [*lines, *examples], search))
    done, shown = all_done[: len(lines)], all_done[len(lines) :]
    save_translations(model.directory / "test.jsonl", done)
    as_text = score_lowercased([each.text for each in done], test)
    codec = corpus.codec("target")
    references: list[WordPair] = [
        (each.source_tokens, codec.tokenize(line))
        for each, line in zip(done, test.target_text(), strict=True)
    ]
    outputs: list[WordPair] = [(each.source_tokens, each.tokens) for each in done]
    gold = gold_pairs(prepared)
    asked = [*gold, *references, *outputs]
    links = align_pairs(asked, corpus, model.settings.align, LEARN, search.processes)
    in_test = links[len(gold) : len(gold) + len(references)], links[len(gold) + len(references) :]
    as_words = score_words(references, outputs, *in_test, experiment, prepared)
    by_length = (as_words if experiment.text.deterministic else as_text).by_length
    kinds = {
        "translation": as_text.translation,
        "alignment": score_alignment(gold, links[: len(gold)], prepared),
        "adequacy": as_words.adequacy,
        "proxies": as_words.proxies,
    }
    return {
        "scores": {kind: [s.to_json() for s in scores] for kind, scores in kinds.items() if scores},
        "gold": {"pairs": len(gold), "what": experiment.text.gold if gold else None},
        "test": describe_test(as_text, test.source_text(), by_length),
        "examples": [example_record(each) for each in shown],
    }


def gold_pairs(prepared: Path) -> list[WordPair]:
    """The pairs with a gold alignment, where there are some."""
    source, target, links = (prepared / name for name in GOLD_FILES)
    if not links.exists():
        return []
    return [(one.split(), other.split()) for one, other in read_parallel_lines(source, target)]


def score_words(
    references: Sequence[WordPair],
    outputs: Sequence[WordPair],
    links: Sequence[Links],
    output_links: Sequence[Links],
    experiment: Experiment,
    prepared: Path,
) -> Evaluation:
    """The test set as words: the proxies, and where they are known the exact rates."""
    exact = experiment.text.deterministic
    on = EvaluationSet(
        references=[[" ".join(target) for _, target in references]],
        source=[" ".join(source) for source, _ in references],
        gold=read_links(prepared / GOLD_FILES[2]) if exact else None,
        deterministic=exact,
    )
    text = [" ".join(target) for _, target in outputs]
    return evaluate(
        SystemOutput(text, links=links, output_links=output_links), on, EvaluationOptions(ter=False)
    )


def score_alignment(
    pairs: Sequence[WordPair], links: Sequence[Links], prepared: Path
) -> tuple[Score, ...]:
    """AER, precision and recall of the aligner on the gold pairs."""
    if not pairs:
        return ()
    text = [" ".join(target) for _, target in pairs]
    source = [" ".join(words) for words, _ in pairs]
    on = EvaluationSet([text], source, read_links(prepared / GOLD_FILES[2]))
    # the references stand in for an output: only what is said of alignment is taken
    return evaluate(
        SystemOutput(text, links=links), on, EvaluationOptions(ter=False, samples=1)
    ).alignment
