"""Measure a trained system as the paper does (sections 5.1 to 5.4).

The test set is scored twice: as text, for BLEU and similar scores, and as the tokens that the
system reads and writes, for adequacy and attention. Pairs with a gold alignment give AER and SAER.
No line of a corpus goes into the measurements: only counts, scores and translations of our example
sentences.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

from covnmt.base.config import DecodeConfig
from covnmt.base.cpus import available_cpus
from covnmt.base.errors import UserError
from covnmt.base.files import read_parallel_lines, write_lines
from covnmt.data.corpus import Corpus, Split
from covnmt.evaluation.alignment_files import check_links, read_links
from covnmt.evaluation.evaluate import Evaluation, EvaluationOptions, evaluate
from covnmt.evaluation.system_output import SystemOutput
from covnmt.evaluation.test_set import EvaluationSet
from covnmt.inference.align import EmptySideError
from covnmt.inference.model import Model
from covnmt.inference.translate import Translation
from covnmt.metrics.alignment import GoldAlignment
from covnmt.metrics.bleu import OUTPUT_LENGTH, Score
from covnmt.paper.experiments import GOLD_FILES, Experiment
from covnmt.paper.results import (
    ExampleSentence,
    Gold,
    OtherTestSet,
    ResultFields,
    SentenceMeasurements,
    SystemScores,
)
from covnmt.phrase_based.align_files import TokenizedPair
from covnmt.phrase_based.translate import PhraseTranslation

AnyTranslation = TypeVar("AnyTranslation", Translation, PhraseTranslation)


@dataclass(frozen=True)
class GoldPairs:
    """Pairs with a gold alignment, split into words; empty where the corpus has none."""

    pairs: Sequence[TokenizedPair]
    links: Sequence[GoldAlignment]
    location: str  # for messages, before a line number

    @classmethod
    def read(cls, prepared: Path) -> "GoldPairs":
        """Read the gold files of a prepared directory, if they are there."""
        source, target, path = (prepared / name for name in GOLD_FILES)
        if not path.exists():
            return cls([], [], "")
        pairs = [(a.split(), b.split()) for a, b in read_parallel_lines(source, target)]
        links = read_links(path)
        possible = [alignment.possible for alignment in links]
        check_links(possible, [(len(a), len(b)) for a, b in pairs], path)
        return cls(pairs, links, f"{source} and {target}, line")


class TrainedSystem(Protocol[AnyTranslation]):
    """A system that can be measured."""

    def translate(
        self, test: Sequence[str], examples: Sequence[str]
    ) -> tuple[Sequence[AnyTranslation], Sequence[AnyTranslation]]:
        """Translate the test set and the example sentences."""

    def align(
        self, gold: GoldPairs, test: Split | None, translations: Sequence[AnyTranslation]
    ) -> tuple[SystemOutput, SystemOutput | None]:
        """Align the gold pairs; and the test set with its references and with the translations.

        The text of the first output is the gold target, since only its alignment is scored.
        """


@dataclass(frozen=True)
class NeuralSystem:
    """A neural model, whose alignments are attention."""

    model: Model
    decode: DecodeConfig

    def translate(
        self, test: Sequence[str], examples: Sequence[str]
    ) -> tuple[list[Translation], list[Translation]]:
        """See `TrainedSystem`."""
        return (
            self.model.translate(test, self.decode),
            self.model.translate(examples, self.decode),
        )

    def align(
        self, gold: GoldPairs, test: Split | None, translations: Sequence[Translation]
    ) -> tuple[SystemOutput, SystemOutput | None]:
        """Force-decode the gold pairs and the references."""
        targets = [" ".join(target) for _, target in gold.pairs]
        pairs = zip((" ".join(source) for source, _ in gold.pairs), targets, strict=True)
        try:
            aligned = self.model.align(pairs, tokenized=True)
        except EmptySideError as error:
            raise UserError(f"{gold.location} {error.index + 1}: {error.reason}") from None
        of_gold = SystemOutput(targets, reference_attention=[pair.matrix for pair in aligned])
        if test is None:
            return of_gold, None
        forced = self.model.align(zip(test.text("source"), test.text("target"), strict=True))
        fertility = [t.fertility.tolist() for t in translations if t.fertility is not None]
        return of_gold, SystemOutput(
            text=[" ".join(translation.tokens) for translation in translations],
            reference_attention=[pair.matrix for pair in forced],
            attention=[translation.alignment for translation in translations],
            fertility=fertility or None,
        )


def measure_system(
    system: TrainedSystem[AnyTranslation], experiment: Experiment, prepared: Path, outputs: Path
) -> ResultFields:
    """Translate, align and score; write the translated test set to `outputs` as JSON lines.

    Systems that read subwords are not scored by tokens: their attention is over subwords, so there
    is no adequacy, and no attention statistics.
    """
    corpus = Corpus.open(prepared)
    test, gold, text = corpus.split("test"), GoldPairs.read(prepared), experiment.text
    translations, examples = system.translate(test.text("source"), experiment.examples(prepared))
    write_lines(outputs, (json.dumps(t.to_json(), ensure_ascii=False) for t in translations))
    source = [" ".join(t.source_tokens) for t in translations]
    scored = score_text([t.text for t in translations], source if text.plain else None, test)
    of_gold, of_test = system.align(gold, None if text.subwords else test, translations)
    scores, by_length = {"translation": scored.translation}, scored.by_length
    if gold.pairs:
        words = [" ".join(words) for words, _ in gold.pairs]
        test_set = EvaluationSet([of_gold.text], words, gold.links)
        options = EvaluationOptions(ter=False, samples=1)
        scores["alignment"] = evaluate(of_gold, test_set, options).alignment
    if of_test:
        tokenize = corpus.codec("target").tokenize
        references = [" ".join(tokenize(line)) for line in test.text("target")]
        links = read_links(prepared / GOLD_FILES[2]) if text.deterministic else None
        test_set = EvaluationSet([references], source, links, text.deterministic)
        by_token = evaluate(of_test, test_set, EvaluationOptions(ter=False))
        scores |= {kind: getattr(by_token, kind) for kind in ("adequacy", "proxies", "diagnostics")}
        if text.deterministic:  # then the rates by length are exact, of the same sentences
            by_length = by_token.by_length
    lengths = [len(line.split()) for line in (source if text.plain else test.text("source"))]
    return {
        "scores": SystemScores(**{kind: list(values) for kind, values in scores.items() if values}),
        "gold": Gold(pairs=len(gold.pairs), what=text.gold if gold.pairs else None),
        "test": SentenceMeasurements(
            sentences=scored.sentences,
            source_lengths=lengths,
            output_lengths=scored.statistics[:, OUTPUT_LENGTH].tolist(),
            statistics=scored.statistics.tolist(),
            by_length=[bucket.to_json() for bucket in by_length],
        ),
        "examples": [example_record(translation) for translation in examples],
    }


def measure_other_tests(
    model: Model, decode: DecodeConfig, prepared: Path
) -> dict[str, OtherTestSet]:
    """Translate and score test-NAME.source.txt and test-NAME.target.txt, where there are some."""
    measured = {}
    for path in sorted(prepared.glob("test-*.source.txt")):
        name = path.name.removeprefix("test-").removesuffix(".source.txt")
        pairs = list(read_parallel_lines(path, prepared / f"test-{name}.target.txt"))
        texts = [t.text for t in model.translate([source for source, _ in pairs], decode)]
        references = EvaluationSet([[reference for _, reference in pairs]])
        scored = evaluate(SystemOutput(texts), references, EvaluationOptions(ter=False, samples=1))
        measured[name] = OtherTestSet(sentences=len(pairs), scores=list(scored.translation))
    return measured


def score_text(
    translations: Sequence[str], cased_source: Sequence[str] | None, test: Split
) -> Evaluation:
    """Score the test set as text.

    `cased_source`, in subwords, belongs to systems that read and write plain text. Others never saw
    a capital: outputs and references are lowercased.
    """
    options = EvaluationOptions(workers=available_cpus())
    references = test.text("target")
    if cased_source is not None:
        return evaluate(
            SystemOutput(translations), EvaluationSet([references], cased_source), options
        )
    lowercased = EvaluationSet([[line.lower() for line in references]], test.text("source"))
    result = evaluate(SystemOutput([text.lower() for text in translations]), lowercased, options)
    return replace(result, translation=mark_lowercased_signatures(result.translation))


def mark_lowercased_signatures(scores: Iterable[Score]) -> tuple[Score, ...]:
    """Mark in their signatures that text was lowercased, as sacreBLEU does (`case:lc`)."""
    return tuple(
        replace(score, signature=score.signature.replace("case:mixed", "case:lc"))
        for score in scores
    )


def example_record(translation: Translation | PhraseTranslation) -> ExampleSentence:
    """Describe the translation of an example sentence, attention rounded to three digits."""
    record = translation.to_json()
    rounded = [[round(weight, 3) for weight in row] for row in record["alignment"]]
    return ExampleSentence(**{**record, "alignment": rounded})
