"""All scores of a system, and of several side by side: `covnmt evaluate` and `covnmt compare`.

Which figures come out depends on what goes in: text gives the scores of translation, a source the
figures by length, a gold alignment AER and SAER, soft matrices of the output the diagnostics.
Every figure carries a signature that says how to get it again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from covnmt import __version__
from covnmt.base.arrays import FloatArray, IntArray
from covnmt.base.console import track
from covnmt.base.errors import UserError
from covnmt.evaluation.test_set import EvaluationSet, SystemOutput, check_evaluation_inputs
from covnmt.metrics import adequacy, alignment, attention_statistics, bleu
from covnmt.metrics.adequacy import LOW_ATTENTION, SourceWordErrors
from covnmt.metrics.alignment import LinkExtraction, Links, Symmetrization
from covnmt.metrics.bleu import Score
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


@dataclass(frozen=True)
class EvaluationOptions:
    """How to evaluate; the defaults follow the paper."""

    tokenize: str = "13a"
    extraction: LinkExtraction = "argmax"
    threshold: float = 0.5
    symmetry: Symmetrization = "grow-diag-final"
    renormalize: bool = False
    alternative: Alternative = "two-sided"
    ter: bool = True
    workers: int = 1  # processes for TER
    samples: int = 1000  # of the bands by length


@dataclass(frozen=True)
class Evaluation:
    """Everything known about one system.

    `adequacy` is exact and only there for deterministic sets; `proxies` merely hint at the same.
    `statistics` are the BLEU counts [N, 10], `word_errors` the source words omitted and repeated.
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
        """The scores by kind, kinds without a score left out."""
        kinds = ("translation", "alignment", "adequacy", "proxies", "diagnostics")
        return {kind: scores for kind in kinds if (scores := getattr(self, kind))}

    @property
    def scores(self) -> dict[str, Score]:
        """Those that there are, by name."""
        return {score.name: score for group in self.groups().values() for score in group}

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        groups = {kind: [s.to_json() for s in group] for kind, group in self.groups().items()}
        return {
            "sentences": self.sentences,
            **groups,
            "by_length": [bucket.to_json() for bucket in self.by_length],
        }


@dataclass(frozen=True)
class Comparison:
    """Several systems on one set; sign tests are keyed (baseline, system)."""

    systems: Mapping[str, Evaluation]
    baselines: tuple[str, ...]
    sign_tests: Mapping[tuple[str, str], SignTest]
    bootstrap: tuple[PairedTestResult, ...]
    randomization: tuple[PairedTestResult, ...]

    def marks(self, system: str) -> str:
        """Marks as in the paper's Table 1: better than a baseline with p below 0.01."""
        return "".join(
            mark
            for mark, baseline in zip(SIGNIFICANCE_MARKS, self.baselines, strict=False)
            if baseline != system and self._beats(system, baseline)
        )

    def _beats(self, system: str, baseline: str) -> bool:
        test = self.sign_tests[baseline, system]
        return test.p_value < SIGNIFICANCE_LEVEL and test.up > test.down

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
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
    output: SystemOutput, on: EvaluationSet, options: EvaluationOptions | None = None
) -> Evaluation:
    """Score one system on one set."""
    options = options or EvaluationOptions()
    check_evaluation_inputs(on, output)
    statistics = bleu.bleu_statistics(output.text, on.references, options.tokenize)
    words = _source_words(output, on)
    links = _links(output, options)
    return Evaluation(
        sentences=len(output.text),
        translation=_translation_scores(output, on, statistics, options),
        alignment=_alignment_scores(output, on, links, options),
        adequacy=_adequacy_scores(words),
        proxies=_proxies(output, on, links, options),
        diagnostics=_diagnostics(output),
        by_length=_by_length(output, on, statistics, links, words, options),
        statistics=statistics,
        word_errors=words,
    )


def compare(
    outputs: Mapping[str, SystemOutput],
    on: EvaluationSet,
    baselines: Sequence[str] = (),
    options: EvaluationOptions | None = None,
) -> Comparison:
    """Score several systems and test their differences; the baselines default to the first."""
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
        name: evaluate(outputs[name], on, options)
        for name in track(outputs, len(outputs), "evaluating", "systems")
    }
    texts = {name: output.text for name, output in outputs.items()}
    sign_tests = {
        (first, second): sign_test(
            systems[first].statistics, systems[second].statistics, options.alternative
        )
        for first, second in permutations(outputs, 2)
    }
    return Comparison(
        systems=systems,
        baselines=baselines or (next(iter(outputs)),),
        sign_tests=sign_tests,
        bootstrap=tuple(paired_tests(texts, on.references, "bootstrap", tokenize=options.tokenize)),
        randomization=tuple(
            paired_tests(texts, on.references, "randomization", tokenize=options.tokenize)
        ),
    )


def _translation_scores(
    output: SystemOutput, on: EvaluationSet, statistics: IntArray, options: EvaluationOptions
) -> tuple[Score, ...]:
    scores = [
        bleu.paper_bleu_from_statistics(statistics, len(on.references), options.tokenize),
        bleu.sacre_bleu(output.text, on.references, options.tokenize),
        bleu.chrf(output.text, on.references),
    ]
    if options.ter:
        scores.append(bleu.ter(output.text, on.references, options.workers))
    return tuple(scores)


def _links(output: SystemOutput, options: EvaluationOptions) -> list[Links] | None:
    """The system's links with the first reference, both directions joined where both are given."""
    if output.links is not None:
        links = list(output.links)
    elif output.reference_attention is not None:
        links = _extracted(output.reference_attention, options)
    else:
        return None
    if output.reverse_links is None:
        return links
    return [
        alignment.symmetrize(forward, backward, options.symmetry)
        for forward, backward in zip(links, output.reverse_links, strict=True)
    ]


def _extracted(matrices: Sequence[FloatArray], options: EvaluationOptions) -> list[Links]:
    return [
        alignment.links_from_attention(matrix, options.extraction, options.threshold)
        for matrix in matrices
    ]


def _alignment_scores(
    output: SystemOutput, on: EvaluationSet, links: list[Links] | None, options: EvaluationOptions
) -> tuple[Score, ...]:
    if on.gold is None or links is None:
        return ()
    quality = alignment.alignment_quality(links, on.gold)
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
        value = alignment.saer(output.reference_attention, on.gold, options.renormalize)
        rows = "renormalised" if options.renormalize else "as-is"
        scores.insert(1, Score("SAER", 100 * value, f"rows:{rows}|pooled:corpus|{VERSION}"))
    return tuple(scores)


def _links_signature(output: SystemOutput, options: EvaluationOptions) -> str:
    links = "file" if output.links is not None else _extraction(options)
    symmetry = options.symmetry if output.reverse_links is not None else "none"
    return f"links:{links}|sym:{symmetry}|pooled:corpus|{VERSION}"


def _extraction(options: EvaluationOptions) -> str:
    threshold = f"({options.threshold:g})" if options.extraction == "threshold" else ""
    return options.extraction + threshold


def _source_words(output: SystemOutput, on: EvaluationSet) -> tuple[SourceWordErrors, ...]:
    if not on.deterministic:
        return ()
    if on.gold is None or on.source is None:
        raise UserError("exact rates of words left out and said twice need source and gold links")
    return tuple(
        adequacy.source_word_errors(
            hypothesis.split(), reference.split(), gold, len(source.split())
        )
        for hypothesis, reference, gold, source in zip(
            output.text, on.references[0], on.gold, on.source, strict=True
        )
    )


def _adequacy_scores(words: Sequence[SourceWordErrors]) -> tuple[Score, ...]:
    if not words:
        return ()
    signature = f"match:lcs+left-to-right|links:sure|per:source-word|pooled:corpus|{VERSION}"
    return (
        Score("left out", adequacy.omission_rate(words), signature),
        Score("said twice", adequacy.repetition_rate(words), signature),
    )


def _proxies(
    output: SystemOutput, on: EvaluationSet, links: list[Links] | None, options: EvaluationOptions
) -> tuple[Score, ...]:
    tokens = [line.split() for line in output.text]
    references = [line.split() for line in on.references[0]]
    order = 4
    scores = [
        Score(
            "REP",
            adequacy.rep_score(tokens, references),
            f"n:2|w:1,2|ref:1|tok:none|{VERSION}",
        ),
        Score(
            f"repeated {order}-grams",
            adequacy.repeated_ngram_rate(tokens, order),
            f"n:{order}|tok:none|{VERSION}",
        ),
    ]
    own = _output_links(output, options)
    if own is not None and links is not None:
        how = "file" if output.output_links is not None else _extraction(options)
        signature = f"output-links:{how}|{_links_signature(output, options)}"
        scores.append(Score("DROP", adequacy.drop_score(own, links), signature))
    if output.attention is not None:
        value = adequacy.low_attention_rate(output.attention)
        signature = f"below:{LOW_ATTENTION:g}|{VERSION}"
        scores.append(Score("little attention", value, signature))
    return tuple(scores)


def _output_links(output: SystemOutput, options: EvaluationOptions) -> Sequence[Links] | None:
    """Links with the system's own output, by the same aligner as those with the reference.

    There are none where attention is over subwords, and matrices of the reference over words.
    """
    if output.output_links is not None or output.links is not None:
        return output.output_links
    if output.attention is None or output.reference_attention is None:
        return None
    both = zip(output.attention, output.reference_attention, strict=True)
    same_words = all(own.shape[1] == forced.shape[1] for own, forced in both)
    return _extracted(output.attention, options) if same_words else None


def _diagnostics(output: SystemOutput) -> tuple[Score, ...]:
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
        scores.append(
            Score(
                "fertility-attention correlation",
                fit.correlation,
                f"r:pearson|{VERSION}",
                {
                    "mean_predicted": fit.mean_predicted,
                    "mean_received": fit.mean_received,
                    "mean_absolute_difference": fit.mean_absolute_difference,
                },
            )
        )
    return tuple(scores)


def _by_length(
    output: SystemOutput,
    on: EvaluationSet,
    statistics: IntArray,
    links: list[Links] | None,
    words: Sequence[SourceWordErrors],
    options: EvaluationOptions,
) -> tuple[LengthBucket, ...]:
    if on.source is None:
        return ()
    gold, forced = on.gold, output.reference_attention
    measures: dict[str, SubsetMeasure] = {}
    if gold is not None and links is not None:
        measures["AER"] = lambda chosen: (
            100 * alignment.aer([links[n] for n in chosen], [gold[n] for n in chosen])
        )
    if gold is not None and forced is not None:
        measures["SAER"] = lambda chosen: (
            100
            * alignment.saer(
                [forced[n] for n in chosen], [gold[n] for n in chosen], options.renormalize
            )
        )
    if words:
        measures["left out"] = lambda chosen: adequacy.omission_rate([words[n] for n in chosen])
        measures["said twice"] = lambda chosen: adequacy.repetition_rate([words[n] for n in chosen])
    lengths = [len(line.split()) for line in on.source]
    return scores_by_length(statistics, lengths, measures, samples=options.samples)
