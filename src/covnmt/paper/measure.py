"""A trained system -> everything that is known about it (paper, sections 5.1 to 5.4; SPEC 4).

The test set is scored twice: as text, for BLEU and its kin, case-insensitively unless systems read
plain text; and as the words that the system reads and writes, for attention and the proxies.
Forced decoding of pairs with a gold alignment gives AER and SAER. Nothing that comes out holds a
line of a corpus: counts, scores, and the translations of our own sentences.
"""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from covnmt.base.config import DecodeConfig
from covnmt.base.files import read_lines, read_parallel_lines, write_lines
from covnmt.base.processes import available_cpus
from covnmt.data.corpus import Corpus, Split
from covnmt.evaluation.alignment_files import check_links, read_links
from covnmt.evaluation.evaluate import Evaluation, EvaluationOptions, evaluate
from covnmt.evaluation.test_set import EvaluationSet, SystemOutput
from covnmt.inference.align import Aligner, Alignment
from covnmt.inference.info import model_info
from covnmt.inference.translate import Translation, Translator
from covnmt.inference.tune_penalties import (
    PenaltyTuning,
    keep_every_hypothesis,
    penalty_grid,
    score_penalties,
)
from covnmt.metrics.bleu import OUTPUT_LENGTH, Score
from covnmt.metrics.by_length import LengthBucket
from covnmt.paper.experiments import GOLD_FILES, Experiment

NOT_OURS_TO_TELL = {"data": {"directory"}}  # a place on somebody's machine
WARM_UP = 1  # reports of speed that do not count


class JsonTranslation(Protocol):
    """A translation that can tell itself as `translate --json` does."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""


def measure_neural_system(
    experiment: Experiment,
    run: Path,
    prepared: Path,
    device: str,
    decode: DecodeConfig,
    outputs: Path,
) -> dict[str, Any]:
    """Translate, align and score; also leaves the translated test set in `outputs`.

    Where systems read subwords, attention over words is not known but for the gold pairs, so
    there are no proxies and diagnostics.
    """
    test = Corpus.open(prepared).split("test")
    translator, aligner = Translator.load(run, device=device), Aligner.load(run, device)
    whole = keep_long_lines(decode, test)
    translations = translator.translate(test.source_text(), whole)
    save_translations(outputs, translations)
    if experiment.text.plain:
        source = [" ".join(translation.source_tokens) for translation in translations]
        as_text = score_cased([translation.text for translation in translations], source, test)
    else:
        source = test.source_text()
        as_text = score_lowercased([translation.text for translation in translations], test)
    aligned, pair_count = score_gold_alignment(aligner, prepared)
    kinds = {"translation": as_text.translation, "alignment": aligned}
    by_length = as_text.by_length
    if not experiment.text.pieces:
        pairs = zip(test.source_text(), test.target_text(), strict=True)
        as_words = score_attention(translations, aligner.align(pairs), experiment, prepared)
        kinds["adequacy"], kinds["proxies"] = as_words.adequacy, as_words.proxies
        kinds["diagnostics"] = as_words.diagnostics
        # the same sentences in the same groups; where words are exact, so are rates by length
        by_length = as_words.by_length if experiment.text.deterministic else by_length
    return {
        "scores": {kind: [s.to_json() for s in scores] for kind, scores in kinds.items() if scores},
        "gold": {"pairs": pair_count, "what": experiment.text.gold if pair_count else None},
        "test": describe_test(as_text, source, by_length),
        "examples": [
            example_record(translation)
            for translation in translator.translate(experiment.text.examples(prepared), whole)
        ],
    }


def tune_on_dev(
    experiment: Experiment, run: Path, prepared: Path, device: str, decode: DecodeConfig
) -> PenaltyTuning:
    """Length penalties tried on the dev set, which is scored as the test set will be."""
    dev = Corpus.open(prepared).split("dev")
    plain = experiment.text.plain
    references = [line if plain else line.lower() for line in dev.target_text()]
    whole = keep_every_hypothesis(keep_long_lines(decode, dev))
    found = Translator.load(run, device=device).stream(dev.source_text(), whole)
    return score_penalties(found, references, penalty_grid(decode))


def keep_long_lines(decode: DecodeConfig, split: Split) -> DecodeConfig:
    """With no line cut off, or words and attention would not fit."""
    longest = int(split.source_sentences.lengths().max())
    return decode.model_copy(update={"max_source": longest + 1})


def describe_test(
    as_text: Evaluation, source: Sequence[str], by_length: Sequence[LengthBucket]
) -> dict[str, Any]:
    """The test set in figures, by sentence and by length."""
    return {
        "sentences": as_text.sentences,
        "source_lengths": [len(line.split()) for line in source],
        "output_lengths": as_text.statistics[:, OUTPUT_LENGTH].tolist(),
        "statistics": as_text.statistics.tolist(),
        "by_length": [bucket.to_json() for bucket in by_length],
    }


def score_lowercased(outputs: Sequence[str], test: Split) -> Evaluation:
    """The test set as text; references lower-cased, as the systems never saw a capital."""
    references = [line.lower() for line in test.target_text()]
    output = SystemOutput([text.lower() for text in outputs])
    on = EvaluationSet([references], test.source_text())
    found = evaluate(output, on, EvaluationOptions(workers=available_cpus()))
    return replace(found, translation=case_insensitive(found.translation))


def case_insensitive(scores: Sequence[Score]) -> tuple[Score, ...]:
    """Signatures that say what was done: lower-casing first is what sacreBLEU calls lc."""
    return tuple(
        replace(score, signature=score.signature.replace("case:mixed", "case:lc"))
        for score in scores
    )


def score_cased(outputs: Sequence[str], source: Sequence[str], test: Split) -> Evaluation:
    """The test set as people read it; the source is in subwords, for its lengths."""
    on = EvaluationSet([test.target_text()], source)
    return evaluate(SystemOutput(outputs), on, EvaluationOptions(workers=available_cpus()))


def score_attention(
    translations: Sequence[Translation],
    forced: Sequence[Alignment],
    experiment: Experiment,
    prepared: Path,
) -> Evaluation:
    """The test set as words, with attention: proxies and diagnostics, and where they are known
    the exact rates of words left out and said twice."""
    exact = experiment.text.deterministic
    on = EvaluationSet(
        references=[[" ".join(pair.target_tokens) for pair in forced]],
        source=[" ".join(pair.source_tokens) for pair in forced],
        gold=read_links(prepared / GOLD_FILES[2]) if exact else None,
        deterministic=exact,
    )
    fertility = [t.fertility.tolist() for t in translations if t.fertility is not None]
    output = SystemOutput(
        text=[" ".join(translation.tokens) for translation in translations],
        reference_attention=[pair.matrix for pair in forced],
        attention=[translation.alignment for translation in translations],
        fertility=fertility or None,
    )
    return evaluate(output, on, EvaluationOptions(ter=False))


def score_gold_alignment(aligner: Aligner, prepared: Path) -> tuple[tuple[Score, ...], int]:
    """AER, SAER, precision and recall on the gold pairs, and how many pairs there are."""
    source, target, links = (prepared / name for name in GOLD_FILES)
    if not links.exists():
        return (), 0
    pairs = [(a, b) for a, b in read_parallel_lines(source, target)]
    gold = read_links(links)
    lengths = [(len(a.split()), len(b.split())) for a, b in pairs]
    check_links(gold, lengths, links)
    found = aligner.align(pairs, tokenized=True, where=f"{source} and {target}, line")
    on = EvaluationSet([[b for _, b in pairs]], [a for a, _ in pairs], gold)
    # the references stand in for an output: only what is said of alignment is taken
    stand_in = SystemOutput(
        [b for _, b in pairs], reference_attention=[pair.matrix for pair in found]
    )
    return evaluate(stand_in, on, EvaluationOptions(ter=False, samples=1)).alignment, len(pairs)


def example_record(translation: JsonTranslation) -> dict[str, Any]:
    """One of our sentences, as `translate --json` tells it, in fewer digits."""
    told = translation.to_json()
    del told["source"]
    rounded = [[round(weight, 3) for weight in row] for row in told["alignment"]]
    return told | {"alignment": rounded}


def save_translations(path: Path, translations: Iterable[JsonTranslation]) -> None:
    """As `covnmt translate --json` writes them."""
    write_lines(path, (json.dumps(each.to_json(), ensure_ascii=False) for each in translations))


def describe_run(run: Path, reason: str) -> dict[str, Any]:
    """Settings, parameters and the course of the training, from the run's own files."""
    about = model_info(str(run), words=0)
    recipe = about.config.model_dump(mode="json", exclude=NOT_OURS_TO_TELL)
    log = [json.loads(line) for line in read_lines(run / "log.jsonl")]
    reports = [entry for entry in log if "loss" in entry]
    checks = [entry for entry in log if "validation" in entry]
    speeds = [entry["words_per_second"] for entry in reports[WARM_UP:]]
    last = log[-1]
    return {
        "recipe": recipe,
        "words": about.vocabulary_sizes,
        "parameters": about.to_json()["parameters"],
        "training": {
            "reason": reason,
            **{key: last[key] for key in ("update", "epoch", "words", "seconds")},
            "best_update": max((e["update"] for e in checks if e["best"]), default=0),
            "words_per_second": statistics.median(speeds) if speeds else None,
            "curve": [[e["update"], round(e["loss"], 4), e["words_per_second"]] for e in reports],
            "validations": [
                [e["update"], round(e["validation"]["loss"], 4), e["validation"]["bleu"]]
                for e in checks
            ],
        },
    }
