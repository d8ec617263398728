"""Evaluate one system, or compare several: `covnmt evaluate` and `covnmt compare`.

The inputs decide which scores there are: text gives BLEU, chrF and TER, a source the scores by
length, a gold alignment AER and SAER, attention of the output the attention statistics. Every score
carries a signature that names the choices needed to reproduce it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from typing import Any

from covnmt import __version__
from covnmt.base.arrays import FloatArray, IntArray
from covnmt.base.console import track
from covnmt.base.errors import UserError
from covnmt.base.processes import Chunk, map_chunks
from covnmt.evaluation.test_set import EvaluationSet, SystemOutput, check_evaluation_inputs
from covnmt.metrics import adequacy, alignment, attention_statistics, bleu
from covnmt.metrics.adequacy import LOW_ATTENTION, SourceWordErrors
from covnmt.metrics.alignment import LinkExtraction, Links, Symmetrization
from covnmt.metrics.bleu import Score
from covnmt.metrics.bootstrap import BOOTSTRAP_SAMPLES
from covnmt.metrics.by_length import LengthBucket, SubsetMeasure, scores_by_length
from covnmt.metrics.significance import (
    Alternative,
    PairedTestResult,
    SignTest,
    paired_tests,
    sign_test,
)

SIGNIFICANCE_MARKS = "†‡§¶"
SIGNIFICANCE_LEVEL = 0.01
VERSION = f"version:covnmt-{__version__}"
TER_CHUNK = 100  # lines per task; fewer are not worth a process


@dataclass(frozen=True)
class EvaluationOptions:
    """The choices of an evaluation; the defaults follow the paper."""

    tokenize: str = "13a"
    extraction: LinkExtraction = "argmax"
    threshold: float = 0.5
    symmetry: Symmetrization = "grow-diag-final"
    renormalize: bool = False
    alternative: Alternative = "two-sided"
    ter: bool = True
    workers: int = 1  # processes for TER
    samples: int = BOOTSTRAP_SAMPLES  # for the confidence intervals by length


@dataclass(frozen=True)
class Evaluation:
    """All scores of one system.

    `adequacy` holds exact rates and is empty unless the test set is deterministic; `proxies` are
    rough substitutes. `statistics` are the BLEU statistics [N, 10], `word_errors` the omitted and
    repeated source words of each sentence of a deterministic set.
    """

    sentences: int
    translation: tuple[Score, ...]
    alignment: tuple[Score, ...]
    adequacy: tuple[Score, ...]
    proxies: tuple[Score, ...]
    diagnostics: tuple[Score, ...]
    by_length: tuple[LengthBucket, ...]
    statistics: IntArray = field(repr=False, compare=False)
    word_errors: tuple[SourceWordErrors, ...] = field(repr=False)

    def groups(self) -> dict[str, tuple[Score, ...]]:
        """Return the scores by kind, without empty kinds."""
        kinds = ("translation", "alignment", "adequacy", "proxies", "diagnostics")
        return {kind: scores for kind in kinds if (scores := getattr(self, kind))}

    @property
    def scores(self) -> dict[str, Score]:
        """The scores of all kinds by name."""
        return {score.name: score for group in self.groups().values() for score in group}

    def to_json(self) -> dict[str, Any]:
        """Return what `covnmt evaluate --json` writes."""
        groups = {kind: [s.to_json() for s in group] for kind, group in self.groups().items()}
        return {
            "sentences": self.sentences,
            **groups,
            "by_length": [bucket.to_json() for bucket in self.by_length],
        }


@dataclass(frozen=True)
class Comparison:
    """Several systems on one test set; sign tests are keyed (baseline, system)."""

    systems: Mapping[str, Evaluation]
    baselines: tuple[str, ...]
    sign_tests: Mapping[tuple[str, str], SignTest]
    bootstrap: tuple[PairedTestResult, ...]
    randomization: tuple[PairedTestResult, ...]

    def marks(self, system: str) -> str:
        """Return a mark for each baseline that the system beats with p < 0.01 (paper, Table 1)."""
        return "".join(
            mark
            for mark, baseline in zip(SIGNIFICANCE_MARKS, self.baselines, strict=False)
            if baseline != system and self._beats(system, baseline)
        )

    def _beats(self, system: str, baseline: str) -> bool:
        test = self.sign_tests[baseline, system]
        return test.p_value < SIGNIFICANCE_LEVEL and test.up > test.down

    def to_json(self) -> dict[str, Any]:
        """Return what `covnmt compare --json` writes."""
        return {
            "systems": {
                name: {"marks": self.marks(name), **evaluation.to_json()}
                for name, evaluation in self.systems.items()
            },
            "marks": dict(zip(SIGNIFICANCE_MARKS, self.baselines, strict=False)),
            "sign_tests": [
                {"baseline": baseline, "system": system, **test.to_json()}
                for (baseline, system), test in self.sign_tests.items()
            ],
            "bootstrap": [result.to_json() for result in self.bootstrap],
            "randomisation": [result.to_json() for result in self.randomization],
        }


def evaluate(
    output: SystemOutput, test_set: EvaluationSet, options: EvaluationOptions | None = None
) -> Evaluation:
    """Compute all scores that the output and the test set allow."""
    options = options or EvaluationOptions()
    check_evaluation_inputs(test_set, output)
    statistics = bleu.bleu_statistics(output.text, test_set.references, options.tokenize)
    word_errors = _find_word_errors(output, test_set)
    links = _reference_links(output, options)
    return Evaluation(
        sentences=len(output.text),
        translation=_translation_scores(output, test_set, statistics, options),
        alignment=_alignment_scores(output, test_set, links, options),
        adequacy=_adequacy_scores(word_errors),
        proxies=_proxy_scores(output, test_set, links, options),
        diagnostics=_attention_scores(output),
        by_length=_scores_by_length(output, test_set, statistics, links, word_errors, options),
        statistics=statistics,
        word_errors=word_errors,
    )


def compare(
    outputs: Mapping[str, SystemOutput],
    test_set: EvaluationSet,
    baselines: Sequence[str] = (),
    options: EvaluationOptions | None = None,
) -> Comparison:
    """Evaluate several systems and test their differences; the first is the default baseline."""
    options = options or EvaluationOptions()
    if len(outputs) < 2:
        raise UserError("a comparison needs at least two systems")
    for name in baselines:
        if name not in outputs:
            raise UserError(f"baseline {name!r} is not among the systems: {', '.join(outputs)}")
    baselines = tuple(dict.fromkeys(baselines))
    if len(baselines) > len(SIGNIFICANCE_MARKS):
        raise UserError(
            f"{len(baselines)} baselines, but there are only {len(SIGNIFICANCE_MARKS)} marks "
            f"({SIGNIFICANCE_MARKS}); name fewer"
        )
    systems = {
        name: evaluate(outputs[name], test_set, options)
        for name in track(outputs, len(outputs), "evaluating", "systems")
    }
    texts = {name: output.text for name, output in outputs.items()}
    references = test_set.references
    return Comparison(
        systems=systems,
        baselines=baselines or (next(iter(outputs)),),
        sign_tests={
            (baseline, system): sign_test(
                systems[baseline].statistics, systems[system].statistics, options.alternative
            )
            for baseline, system in permutations(outputs, 2)
        },
        bootstrap=tuple(paired_tests(texts, references, "bootstrap", tokenize=options.tokenize)),
        randomization=tuple(
            paired_tests(texts, references, "randomization", tokenize=options.tokenize)
        ),
    )


def _translation_scores(
    output: SystemOutput,
    test_set: EvaluationSet,
    statistics: IntArray,
    options: EvaluationOptions,
) -> tuple[Score, ...]:
    references = test_set.references
    scores = [
        bleu.paper_bleu_from_statistics(statistics, len(references), options.tokenize),
        bleu.sacre_bleu(output.text, references, options.tokenize),
        bleu.chrf(output.text, references),
    ]
    if options.ter:
        map_lines = partial(_map_lines, len(output.text), options.workers)
        scores.append(bleu.ter(output.text, references, map_lines))
    return tuple(scores)


def _map_lines(
    count: int, workers: int, function: Callable[[Any], Any], lines: Iterable[Any]
) -> Iterator[Any]:
    """Apply a function to `count` lines in several processes, with a progress bar."""
    results = map_chunks(partial(_map_chunk, function), lines, TER_CHUNK, workers)
    return track(results, count, "TER")


def _map_chunk(function: Callable[[Any], Any], chunk: Chunk[Any]) -> list[Any]:
    return [function(line) for line in chunk.lines]


def _reference_links(output: SystemOutput, options: EvaluationOptions) -> list[Links] | None:
    """Return the system's links with the first reference, symmetrized if both directions exist."""
    if output.links is not None:
        links = list(output.links)
    elif output.reference_attention is not None:
        links = _extract_links(output.reference_attention, options)
    else:
        return None
    if output.reverse_links is None:
        return links
    return [
        alignment.symmetrize(forward, backward, options.symmetry)
        for forward, backward in zip(links, output.reverse_links, strict=True)
    ]


def _extract_links(matrices: Sequence[FloatArray], options: EvaluationOptions) -> list[Links]:
    return [
        alignment.links_from_attention(matrix, options.extraction, options.threshold)
        for matrix in matrices
    ]


def _alignment_scores(
    output: SystemOutput,
    test_set: EvaluationSet,
    links: list[Links] | None,
    options: EvaluationOptions,
) -> tuple[Score, ...]:
    if test_set.gold is None or links is None:
        return ()
    quality = alignment.alignment_quality(links, test_set.gold)
    signature = _links_signature(output, options)
    scores = [
        Score(name, 100 * value, signature)
        for name, value in (
            ("AER", quality.aer),
            ("alignment precision", quality.precision),
            ("alignment recall", quality.recall),
            ("alignment F1", quality.f1),
        )
    ]
    if output.reference_attention is not None:
        saer = alignment.saer(output.reference_attention, test_set.gold, options.renormalize)
        rows = "renormalised" if options.renormalize else "as-is"
        scores.insert(1, Score("SAER", 100 * saer, f"rows:{rows}|pooled:corpus|{VERSION}"))
    return tuple(scores)


def _links_signature(output: SystemOutput, options: EvaluationOptions) -> str:
    links = "file" if output.links is not None else _extraction_signature(options)
    symmetry = options.symmetry if output.reverse_links is not None else "none"
    return f"links:{links}|sym:{symmetry}|pooled:corpus|{VERSION}"


def _extraction_signature(options: EvaluationOptions) -> str:
    threshold = f"({options.threshold:g})" if options.extraction == "threshold" else ""
    return options.extraction + threshold


def _find_word_errors(
    output: SystemOutput, test_set: EvaluationSet
) -> tuple[SourceWordErrors, ...]:
    if not test_set.deterministic:
        return ()
    if test_set.gold is None or test_set.source is None:
        raise UserError("--deterministic needs the source and a gold alignment too")
    return tuple(
        adequacy.source_word_errors(
            hypothesis.split(), reference.split(), gold, len(source.split())
        )
        for hypothesis, reference, gold, source in zip(
            output.text, test_set.references[0], test_set.gold, test_set.source, strict=True
        )
    )


def _adequacy_scores(word_errors: Sequence[SourceWordErrors]) -> tuple[Score, ...]:
    if not word_errors:
        return ()
    signature = f"match:lcs+left-to-right|links:sure|per:source-word|pooled:corpus|{VERSION}"
    return (
        Score("left out", adequacy.omission_rate(word_errors), signature),
        Score("said twice", adequacy.repetition_rate(word_errors), signature),
    )


def _proxy_scores(
    output: SystemOutput,
    test_set: EvaluationSet,
    links: list[Links] | None,
    options: EvaluationOptions,
) -> tuple[Score, ...]:
    hypotheses = [line.split() for line in output.text]
    references = [line.split() for line in test_set.references[0]]
    order = 4
    repeated = adequacy.repeated_ngram_rate(hypotheses, order)
    scores = [
        Score(
            "REP",
            adequacy.rep_score(hypotheses, references),
            f"n:2|w:1,2|ref:1|tok:none|{VERSION}",
        ),
        Score(f"repeated {order}-grams", repeated, f"n:{order}|tok:none|{VERSION}"),
    ]
    output_links = _output_links(output, options)
    if output_links is not None and links is not None:
        origin = "file" if output.output_links is not None else _extraction_signature(options)
        signature = f"output-links:{origin}|{_links_signature(output, options)}"
        scores.append(Score("DROP", adequacy.drop_score(output_links, links), signature))
    if output.attention is not None:
        low = adequacy.low_attention_rate(output.attention)
        scores.append(Score("little attention", low, f"below:{LOW_ATTENTION:g}|{VERSION}"))
    return tuple(scores)


def _output_links(output: SystemOutput, options: EvaluationOptions) -> Sequence[Links] | None:
    """Return links with the system's output by the same aligner as those with the reference.

    None if attention is over subwords but the reference's over words.
    """
    if output.output_links is not None or output.links is not None:
        return output.output_links
    if output.attention is None or output.reference_attention is None:
        return None
    pairs = zip(output.attention, output.reference_attention, strict=True)
    if any(ours.shape[1] != reference.shape[1] for ours, reference in pairs):
        return None
    return _extract_links(output.attention, options)


def _attention_scores(output: SystemOutput) -> tuple[Score, ...]:
    if output.attention is None:
        return ()
    correlation = attention_statistics.coverage_correlation(output.attention)
    entropy = attention_statistics.attention_entropy(output.attention)
    scores = [
        Score("coverage-attention correlation", correlation, f"r:pearson|lag:1|{VERSION}"),
        Score("attention entropy", entropy, f"unit:bits|end:counted|{VERSION}"),
    ]
    if output.fertility is not None:
        fit = attention_statistics.fertility_fit(output.fertility, output.attention)
        details = {
            "mean_predicted": fit.mean_predicted,
            "mean_received": fit.mean_received,
            "mean_absolute_difference": fit.mean_absolute_difference,
        }
        name, signature = "fertility-attention correlation", f"r:pearson|{VERSION}"
        scores.append(Score(name, fit.correlation, signature, details))
    return tuple(scores)


def _scores_by_length(
    output: SystemOutput,
    test_set: EvaluationSet,
    statistics: IntArray,
    links: list[Links] | None,
    word_errors: Sequence[SourceWordErrors],
    options: EvaluationOptions,
) -> tuple[LengthBucket, ...]:
    if test_set.source is None:
        return ()
    gold, soft = test_set.gold, output.reference_attention
    measures: dict[str, SubsetMeasure] = {}
    if gold is not None and links is not None:
        measures["AER"] = lambda chosen: (
            100 * alignment.aer([links[n] for n in chosen], [gold[n] for n in chosen])
        )
    if gold is not None and soft is not None:
        measures["SAER"] = lambda chosen: (
            100
            * alignment.saer(
                [soft[n] for n in chosen], [gold[n] for n in chosen], options.renormalize
            )
        )
    if word_errors:
        measures["left out"] = lambda chosen: adequacy.omission_rate(
            [word_errors[n] for n in chosen]
        )
        measures["said twice"] = lambda chosen: adequacy.repetition_rate(
            [word_errors[n] for n in chosen]
        )
    lengths = [len(line.split()) for line in test_set.source]
    return scores_by_length(statistics, lengths, measures, samples=options.samples)
