"""Evaluate one system, or compare several: `covnmt evaluate` and `covnmt compare`.

The inputs decide which scores there are: text gives BLEU, chrF and TER, a source the scores by
length, a gold alignment AER and SAER, attention of the output the attention statistics. Every score
carries a signature that names the choices needed to reproduce it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, Any, TypeVar

from covnmt import __version__
from covnmt.base.arrays import FloatArray, IntArray
from covnmt.base.console import track
from covnmt.base.errors import UserError
from covnmt.base.processes import Chunk, map_chunks
from covnmt.evaluation.system_output import SystemOutput
from covnmt.evaluation.test_set import EvaluationSet, check_evaluation_inputs
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

if TYPE_CHECKING:
    from covnmt.inference.model import ModelLoader

T = TypeVar("T")

SIGNIFICANCE_MARKS = "†‡§¶"
VERSION = f"version:covnmt-{__version__}"
TER_CHUNK = 100  # lines per task; fewer are not worth a process


@dataclass(frozen=True)
class EvaluationOptions:
    """The choices of an evaluation; the defaults follow the paper."""

    tokenize: str = "13a"
    link_method: LinkExtraction = "argmax"
    threshold: float = 0.5
    symmetrization: Symmetrization = "grow-diag-final"
    renormalize: bool = False
    alternative: Alternative = "two-sided"
    ter: bool = True
    workers: int = 1  # processes for TER
    samples: int = BOOTSTRAP_SAMPLES  # for the confidence intervals by length
    judge: "ModelLoader | None" = None  # the model that finds omissions, as in `covnmt check`


@dataclass(frozen=True)
class Evaluation:
    """All scores of one system.

    `adequacy` holds exact rates and is empty unless the reference is unique; `proxies` are
    rough substitutes. `statistics` are the BLEU statistics [N, 10], `word_errors` the omitted and
    repeated source words of each sentence if it is.
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
    judged: tuple[Score, ...] = ()  # by a model

    def groups(self) -> dict[str, tuple[Score, ...]]:
        """Return the scores by kind, without empty kinds."""
        kinds = ("translation", "alignment", "adequacy", "judged", "proxies", "diagnostics")
        return {kind: scores for kind in kinds if (scores := getattr(self, kind))}

    @property
    def scores(self) -> dict[str, Score]:
        """The scores of all kinds by name."""
        return {score.name: score for group in self.groups().values() for score in group}

    def to_json(self) -> dict[str, Any]:
        """Return what `covnmt evaluate --json` writes."""
        groups = {kind: [asdict(score) for score in group] for kind, group in self.groups().items()}
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
        """Return a dagger per baseline that the system beats with p < 0.01 (paper, Table 1)."""
        return "".join(
            dagger
            for dagger, baseline in zip(SIGNIFICANCE_MARKS, self.baselines, strict=False)
            if baseline != system and self.sign_tests[baseline, system].is_gain
        )

    def to_json(self) -> dict[str, Any]:
        """Return what `covnmt compare --json` writes."""
        return {
            "systems": {
                name: {"marks": self.marks(name), **evaluation.to_json()}
                for name, evaluation in self.systems.items()
            },
            "marks": dict(zip(SIGNIFICANCE_MARKS, self.baselines, strict=False)),
            "sign_tests": [
                {"baseline": baseline, "system": system, **asdict(test)}
                for (baseline, system), test in self.sign_tests.items()
            ],
            "bootstrap": [asdict(result) for result in self.bootstrap],
            "randomisation": [  # the keys of result files keep the British spelling
                asdict(result) for result in self.randomization
            ],
        }


def evaluate(
    output: SystemOutput, test_set: EvaluationSet, options: EvaluationOptions | None = None
) -> Evaluation:
    """Compute all scores that the output and the test set allow."""
    check_evaluation_inputs(test_set, output)
    return _Evaluator(output, test_set, options or EvaluationOptions()).evaluate()


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


class _Evaluator:
    """Scores one system."""

    def __init__(
        self, output: SystemOutput, test_set: EvaluationSet, options: EvaluationOptions
    ) -> None:
        self.output, self.test_set, self.options = output, test_set, options
        references = test_set.references
        self.statistics = bleu.bleu_statistics(output.text, references, options.tokenize)
        self.word_errors = self._find_word_errors()
        self.reference_links = self._link_reference()

    def evaluate(self) -> Evaluation:
        return Evaluation(
            sentences=len(self.output.text),
            translation=self._translation_scores(),
            alignment=self._alignment_scores(),
            adequacy=self._adequacy_scores(),
            proxies=self._proxy_scores(),
            diagnostics=self._attention_scores(),
            by_length=self._scores_by_length(),
            statistics=self.statistics,
            word_errors=self.word_errors,
            judged=self._judged_scores(),
        )

    def _judged_scores(self) -> tuple[Score, ...]:
        if self.options.judge is None or self.test_set.source is None:
            return ()
        from covnmt.evaluation.judged_omissions import judged_scores  # opens models

        return judged_scores(self.options.judge, self.test_set.source, self.output.text)

    def _translation_scores(self) -> tuple[Score, ...]:
        text, references = self.output.text, self.test_set.references
        tokenize = self.options.tokenize
        scores = [
            bleu.paper_bleu_from_statistics(self.statistics, len(references), tokenize),
            bleu.sacre_bleu(text, references, tokenize),
            bleu.chrf(text, references),
        ]
        if self.options.ter:
            scores.append(bleu.ter(text, references, self._map_lines))
        return tuple(scores)

    def _map_lines(self, function: Callable[[Any], Any], lines: Iterable[Any]) -> Iterator[Any]:
        """Apply a function to each line in several processes, with a progress bar."""
        results = map_chunks(partial(_map_chunk, function), lines, TER_CHUNK, self.options.workers)
        return track(results, len(self.output.text), "TER")

    def _link_reference(self) -> list[Links] | None:
        """Return links with the first reference, symmetrized if both directions are given."""
        if self.output.links is not None:
            links = list(self.output.links)
        elif self.output.reference_attention is not None:
            links = self._extract_links(self.output.reference_attention)
        else:
            return None
        if self.output.reverse_links is None:
            return links
        return [
            alignment.symmetrize(forward, backward, self.options.symmetrization)
            for forward, backward in zip(links, self.output.reverse_links, strict=True)
        ]

    def _link_output(self) -> Sequence[Links] | None:
        """Return links with the system's output by the same aligner as those with the reference.

        None if attention is over subwords but the reference's over words.
        """
        output = self.output
        if output.output_links is not None or output.links is not None:
            return output.output_links
        if output.attention is None or output.reference_attention is None:
            return None
        pairs = zip(output.attention, output.reference_attention, strict=True)
        if any(ours.shape[1] != reference.shape[1] for ours, reference in pairs):
            return None
        return self._extract_links(output.attention)

    def _extract_links(self, matrices: Sequence[FloatArray]) -> list[Links]:
        method, threshold = self.options.link_method, self.options.threshold
        return [alignment.links_from_attention(m, method, threshold) for m in matrices]

    def _links_signature(self) -> str:
        links = "file" if self.output.links is not None else self._link_method_signature()
        both = self.output.reverse_links is not None
        symmetrization = self.options.symmetrization if both else "none"
        return f"links:{links}|sym:{symmetrization}|pooled:corpus|{VERSION}"

    def _link_method_signature(self) -> str:
        method, threshold = self.options.link_method, self.options.threshold
        return f"{method}({threshold:g})" if method == "threshold" else method

    def _alignment_scores(self) -> tuple[Score, ...]:
        gold, attention = self.test_set.gold, self.output.reference_attention
        if gold is None or self.reference_links is None:
            return ()
        quality = alignment.alignment_quality(self.reference_links, gold)
        signature = self._links_signature()
        scores = [
            Score(name, 100 * value, signature)
            for name, value in (
                ("AER", quality.aer),
                ("alignment precision", quality.precision),
                ("alignment recall", quality.recall),
                ("alignment F1", quality.f1),
            )
        ]
        if attention is not None:
            saer = alignment.saer(attention, gold, self.options.renormalize)
            # signatures in result files keep the British spelling
            rows = "renormalised" if self.options.renormalize else "as-is"
            scores.insert(1, Score("SAER", 100 * saer, f"rows:{rows}|pooled:corpus|{VERSION}"))
        return tuple(scores)

    def _find_word_errors(self) -> tuple[SourceWordErrors, ...]:
        test_set = self.test_set
        if not test_set.unique_reference:
            return ()
        if test_set.gold is None or test_set.source is None:
            raise UserError("--unique-reference needs the source and a gold alignment too")
        rows = zip(
            self.output.text, test_set.references[0], test_set.gold, test_set.source, strict=True
        )
        return tuple(
            adequacy.source_word_errors(
                hypothesis.split(), reference.split(), gold, len(source.split())
            )
            for hypothesis, reference, gold, source in rows
        )

    def _adequacy_scores(self) -> tuple[Score, ...]:
        if not self.word_errors:
            return ()
        signature = f"match:lcs+left-to-right|links:sure|per:source-word|pooled:corpus|{VERSION}"
        return (
            Score("left out", adequacy.omission_rate(self.word_errors), signature),
            Score("said twice", adequacy.repetition_rate(self.word_errors), signature),
        )

    def _proxy_scores(self) -> tuple[Score, ...]:
        hypotheses = [line.split() for line in self.output.text]
        references = [line.split() for line in self.test_set.references[0]]
        order = 4
        rep = adequacy.rep_score(hypotheses, references)
        repeated = adequacy.repeated_ngram_rate(hypotheses, order)
        scores = [
            Score("REP", rep, f"n:2|w:1,2|ref:1|tok:none|{VERSION}"),
            Score(f"repeated {order}-grams", repeated, f"n:{order}|tok:none|{VERSION}"),
        ]
        output_links = self._link_output()
        if output_links is not None and self.reference_links is not None:
            from_file = self.output.output_links is not None
            method = "file" if from_file else self._link_method_signature()
            signature = f"output-links:{method}|{self._links_signature()}"
            drop = adequacy.drop_score(output_links, self.reference_links)
            scores.append(Score("DROP", drop, signature))
        if self.output.attention is not None:
            low = adequacy.low_attention_rate(self.output.attention)
            scores.append(Score("little attention", low, f"below:{LOW_ATTENTION:g}|{VERSION}"))
        return tuple(scores)

    def _attention_scores(self) -> tuple[Score, ...]:
        attention, fertility = self.output.attention, self.output.fertility
        if attention is None:
            return ()
        entropy = attention_statistics.attention_entropy(attention)
        scores = [Score("attention entropy", entropy, f"unit:bits|end:counted|{VERSION}")]
        if fertility is not None:
            fit = asdict(attention_statistics.fertility_fit(fertility, attention))
            name, signature = "fertility-attention correlation", f"r:pearson|{VERSION}"
            scores.append(Score(name, fit.pop("correlation"), signature, fit))
        return tuple(scores)

    def _scores_by_length(self) -> tuple[LengthBucket, ...]:
        if self.test_set.source is None:
            return ()
        lengths = [len(line.split()) for line in self.test_set.source]
        measures: dict[str, SubsetMeasure] = {}
        gold, links = self.test_set.gold, self.reference_links
        attention = self.output.reference_attention
        errors, renormalize = self.word_errors, self.options.renormalize
        if gold is not None and links is not None:
            measures["AER"] = lambda subset: (
                100 * alignment.aer(_pick(links, subset), _pick(gold, subset))
            )
        if gold is not None and attention is not None:
            measures["SAER"] = lambda subset: (
                100 * alignment.saer(_pick(attention, subset), _pick(gold, subset), renormalize)
            )
        if errors:
            measures["left out"] = lambda subset: adequacy.omission_rate(_pick(errors, subset))
            measures["said twice"] = lambda subset: adequacy.repetition_rate(_pick(errors, subset))
        return scores_by_length(self.statistics, lengths, measures, self.options.samples)


def _pick(rows: Sequence[T], subset: Sequence[int]) -> list[T]:
    return [rows[n] for n in subset]


def _map_chunk(function: Callable[[Any], Any], chunk: Chunk[Any]) -> list[Any]:
    return [function(line) for line in chunk.lines]
