"""Write the report: one self-contained HTML page, and its figures as files beside it.

The page answers, in this order: which system is better, on which sentences, what it attends to, and
what it omits or repeats. Templates escape every text.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from covnmt import __version__
from covnmt.base.arrays import FloatArray
from covnmt.base.console import track
from covnmt.base.errors import UserError
from covnmt.base.files import atomic_write_text, check_writable, write_json
from covnmt.evaluation.evaluate import Comparison, EvaluationOptions, compare, evaluate
from covnmt.evaluation.figures import (
    HeatMap,
    draw_heat_maps,
    draw_length_curves,
    heat_maps_svg,
    length_curves_svg,
)
from covnmt.evaluation.interesting_sentences import (
    SentenceRanker,
    SentenceRanking,
    most_different,
    repeated_bigram_positions,
)
from covnmt.evaluation.rendering import render_template
from covnmt.evaluation.system_output import OutputLine, combine_output_lines, read_outputs
from covnmt.evaluation.tables import (
    comparison_table,
    evaluation_table,
    length_table,
    significance_table,
)
from covnmt.evaluation.test_set import EvaluationSet
from covnmt.metrics.bleu import sentence_bleu

SystemLines = Mapping[str, Sequence[OutputLine]]
MarkedWords = list[tuple[str, str | None]]  # words, each with the class of its <mark>, if any

PAGE = "index.html"
HEADINGS = {
    "results": "Results",
    "length": "By sentence length",
    "attention": "Attention",
    "different": "Sentences where the systems differ most",
    "lost": "Omitted words",
    "twice": "Repeated words",
}


@dataclass(frozen=True)
class SentenceCard:
    """A sentence with its source, its first reference and some outputs, by their names."""

    heading: str
    rows: Mapping[str, MarkedWords]


def write_report(
    directory: Path,
    title: str,
    test_set: EvaluationSet,
    systems: SystemLines,
    reference_attention: Mapping[str, Sequence[FloatArray]] | None = None,
    baselines: Sequence[str] = (),
    options: EvaluationOptions | None = None,
    sentences: int = 10,
    maps: int = 4,
) -> Path:
    """Write `index.html`, `scores.json` and `figures/`; return the path of the page.

    The test set must have a source. `reference_attention` holds, for systems that have them, soft
    matrices of the reference (`covnmt align`), which with gold links give AER and SAER. Each list
    shows at most `sentences`; at most `maps` sentences get heat maps.
    """
    if test_set.source is None:
        raise UserError("a report needs the source text")
    if not systems:
        raise UserError("a report needs the output of at least one system")
    check_writable(directory / PAGE)
    comparison = _compare(test_set, systems, reference_attention or {}, baselines, options)
    with_maps = _choose_heat_maps(comparison, systems, sentences, maps)
    _write_figures(directory / "figures", comparison, systems, with_maps)
    write_json(directory / "scores.json", comparison.to_json())
    ranker = SentenceRanker(comparison, systems, test_set)
    rankings = {
        "lost": ranker.under_translated(sentences),
        "twice": ranker.over_translated(sentences),
    }
    evaluations = comparison.systems
    several = len(evaluations) > 1
    page = render_template(
        "report.html",
        title=title,
        version=__version__,
        headings=HEADINGS,
        heat_maps={k + 1: heat_maps_svg(attention_heat_maps(systems, k)) for k in with_maps},
        different=_difference_cards(comparison, systems, test_set, sentences),
        rankings={
            mark: (ranking.measure, _ranked_cards(ranking, mark, systems, test_set))
            for mark, ranking in rankings.items()
        },
        sentences=len(test_set.source),
        systems={name: evaluation_table(system) for name, system in evaluations.items()},
        comparison=comparison_table(comparison) if several else None,
        significance=significance_table(comparison) if several else None,
        length_curves=length_curves_svg({n: e.by_length for n, e in evaluations.items()}),
        length_table=length_table(evaluations),
    )
    with atomic_write_text(directory / PAGE) as stream:
        stream.write(page)
    return directory / PAGE


def attention_heat_maps(systems: SystemLines, sentence: int) -> list[HeatMap]:
    """Return heat maps of one sentence, from 0, for the systems whose output has attention."""
    lines = {name: outputs[sentence] for name, outputs in systems.items()}
    return [
        HeatMap(name, line.source_tokens, line.tokens, line.alignment, line.coverage)
        for name, line in lines.items()
        if line.alignment is not None and line.alignment.size
    ]


def read_heat_maps(paths: Mapping[str, Path], number: int) -> list[HeatMap]:
    """Read heat maps of one line, counted from 1, from the output files of several systems."""
    systems = {name: read_outputs(path) for name, path in paths.items()}
    for path, outputs in zip(paths.values(), systems.values(), strict=True):
        if not 1 <= number <= len(outputs):
            raise UserError(f"{path}: has no line {number}, it has {len(outputs)}")
        alignment, where = outputs[number - 1].alignment, f"{path}, line {number}: nothing to draw"
        if alignment is None:
            raise UserError(f"{where}; heat maps need the output of `translate --json`")
        if not alignment.size:
            raise UserError(f"{where}, the sentence or its translation is empty; choose another")
    return attention_heat_maps(systems, number - 1)


def _compare(
    test_set: EvaluationSet,
    systems: SystemLines,
    reference_attention: Mapping[str, Sequence[FloatArray]],
    baselines: Sequence[str],
    options: EvaluationOptions | None,
) -> Comparison:
    """Evaluate all systems; a single one is compared with nothing."""
    outputs = {
        name: combine_output_lines(lines, reference_attention.get(name))
        for name, lines in systems.items()
    }
    if len(outputs) > 1:
        return compare(outputs, test_set, baselines, options)
    evaluations = {name: evaluate(output, test_set, options) for name, output in outputs.items()}
    return Comparison(evaluations, (), {}, (), ())


def _choose_heat_maps(
    comparison: Comparison, systems: SystemLines, sentences: int, maps: int
) -> list[int]:
    """Choose the sentences where systems differ most, else the first ones; they need attention."""
    candidates = most_different(comparison, sentences) or range(len(next(iter(systems.values()))))
    return list(islice((k for k in candidates if attention_heat_maps(systems, k)), maps))


def _write_figures(
    directory: Path, comparison: Comparison, systems: SystemLines, with_maps: Sequence[int]
) -> None:
    buckets = {name: system.by_length for name, system in comparison.systems.items()}
    for kind in ("png", "svg"):
        draw_length_curves(buckets, directory / f"length.{kind}")
    for k in track(with_maps, len(with_maps), "heat maps", "sentences"):
        for kind in ("png", "svg"):
            draw_heat_maps(attention_heat_maps(systems, k), directory / f"sentence-{k + 1}.{kind}")


def _difference_cards(
    comparison: Comparison, systems: SystemLines, test_set: EvaluationSet, count: int
) -> list[SentenceCard]:
    scores = {name: sentence_bleu(e.statistics) for name, e in comparison.systems.items()}
    cards = []
    for k in most_different(comparison, count):
        outputs = {
            f"{name} ({scores[name][k]:.0f})": _mark_words(lines[k].text.split())
            for name, lines in systems.items()
        }
        cards.append(_card(f"Sentence {k + 1}", test_set, k, outputs))
    return cards


def _ranked_cards(
    ranking: SentenceRanking, mark: str, systems: SystemLines, test_set: EvaluationSet
) -> list[SentenceCard]:
    cards = []
    for ranked in ranking.sentences:
        k = ranked.sentence
        words = systems[ranked.system][k].text.split()
        repeated = repeated_bigram_positions(words) if mark == "twice" else frozenset()
        outputs = {ranked.system: _mark_words(words, repeated, mark)}
        source = _mark_words(ranked.source, ranked.marked, mark)
        heading = f"Sentence {k + 1}, {ranked.system}: {ranked.amount:g}"
        cards.append(_card(heading, test_set, k, outputs, source))
    return cards


def _card(
    heading: str,
    test_set: EvaluationSet,
    sentence: int,
    outputs: Mapping[str, MarkedWords],
    source: MarkedWords | None = None,
) -> SentenceCard:
    assert test_set.source is not None
    rows: dict[str, MarkedWords] = {
        "source": source or [(test_set.source[sentence], None)],
        "reference": [(test_set.references[0][sentence], None)],
        **outputs,
    }
    return SentenceCard(heading, rows)


def _mark_words(
    words: Iterable[str], marked: frozenset[int] = frozenset(), mark: str = ""
) -> MarkedWords:
    return [(word, mark if k in marked else None) for k, word in enumerate(words)]
