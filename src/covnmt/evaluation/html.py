"""The report: one HTML page that needs nothing else, and its figures as files beside it.

The page answers, in this order: which system is better, on which sentences, what it looks at, and
what it leaves out or says twice. Tables are those of `covnmt.evaluation.tables`, drawings those of
`covnmt.evaluation.svg`; every text goes through `covnmt.report.markup`, which escapes it.
"""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import islice
from pathlib import Path
from string import Template

from rich.table import Table
from rich.text import Text

from covnmt import __version__
from covnmt.base.arrays import FloatArray
from covnmt.base.console import track
from covnmt.base.errors import UserError
from covnmt.base.files import atomic_write_text, check_writable, write_json
from covnmt.evaluation import svg
from covnmt.evaluation.evaluate import Comparison, EvaluationOptions, compare, evaluate
from covnmt.evaluation.figures import HeatMap, draw_heat_maps, draw_length_curves, tallest_bar
from covnmt.evaluation.interesting_sentences import (
    RankedSentence,
    SentenceRanking,
    most_different,
    over_translated,
    repeated_bigram_positions,
    sentence_bleu,
    under_translated,
)
from covnmt.evaluation.markup import Markup, element, join
from covnmt.evaluation.system_output import OutputLine, read_outputs
from covnmt.evaluation.tables import (
    comparison_table,
    evaluation_table,
    length_table,
    significance_table,
)
from covnmt.evaluation.test_set import EvaluationSet, combine_output_lines

Systems = Mapping[str, Sequence[OutputLine]]

PAGE = "index.html"
SECTIONS = {
    "results": "Results",
    "length": "By sentence length",
    "attention": "What the systems looked at",
    "different": "Where the systems differ most",
    "lost": "Words left out",
    "twice": "Words said twice",
}


def write_report(
    directory: Path,
    title: str,
    on: EvaluationSet,
    systems: Systems,
    forced: Mapping[str, Sequence[FloatArray]] | None = None,
    baselines: Sequence[str] = (),
    options: EvaluationOptions | None = None,
    sentences: int = 10,
    maps: int = 4,
) -> Path:
    """Write `index.html`, `scores.json` and `figures/`; give back the path of the page.

    `on` must have the source. `forced` holds, for systems that have them, soft matrices of the
    reference (`covnmt align`), which with gold links give AER and SAER. At most `sentences` are
    shown in each list and `maps` as heat maps.
    """
    if on.source is None:
        raise UserError("a report needs the source text")
    if not systems:
        raise UserError("a report needs the output of at least one system")
    check_writable(directory / PAGE)
    comparison = _compare(on, systems, forced or {}, baselines, options)
    chosen = _with_attention(comparison, systems, sentences, maps)
    _write_figures(directory / "figures", comparison, systems, chosen)
    write_json(directory / "scores.json", comparison.to_json())
    body = join(
        _head(title, comparison),
        _results(comparison),
        _by_length(comparison),
        _attention(systems, chosen),
        _differences(comparison, systems, on, sentences),
        _ranking("lost", under_translated(comparison, systems, on, sentences), systems, on),
        _ranking("twice", over_translated(comparison, systems, on, sentences), systems, on),
    )
    template = Template((files("covnmt.evaluation") / "page.html").read_text("utf-8"))
    with atomic_write_text(directory / PAGE) as stream:
        stream.write(template.substitute(title=join(title), body=body))
    return directory / PAGE


def attention_heat_maps(systems: Systems, sentence: int) -> list[HeatMap]:
    """Heat maps of one sentence under all systems that tell their attention."""
    rows = {name: outputs[sentence] for name, outputs in systems.items()}
    return [
        HeatMap(name, row.source_tokens, row.tokens, row.alignment, row.coverage)
        for name, row in rows.items()
        if row.alignment is not None and row.alignment.size
    ]


def read_heat_maps(paths: Mapping[str, Path], number: int) -> list[HeatMap]:
    """Heat maps of one line, counted from 1, under the systems that wrote these files."""
    systems = {name: read_outputs(path) for name, path in paths.items()}
    for path, outputs in zip(paths.values(), systems.values(), strict=True):
        if not 1 <= number <= len(outputs):
            raise UserError(f"{path}: has no line {number}, it has {len(outputs)}")
        drawn, where = outputs[number - 1].alignment, f"{path}, line {number}: nothing to draw"
        if drawn is None:
            raise UserError(f"{where}; heat maps need the output of `translate --json`")
        if not drawn.size:
            raise UserError(f"{where}, the sentence or its translation is empty; choose another")
    return attention_heat_maps(systems, number - 1)


def _compare(
    on: EvaluationSet,
    systems: Systems,
    forced: Mapping[str, Sequence[FloatArray]],
    baselines: Sequence[str],
    options: EvaluationOptions | None,
) -> Comparison:
    """Score all systems; a single one has nothing to be tested against."""
    outputs = {name: combine_output_lines(rows, forced.get(name)) for name, rows in systems.items()}
    if len(outputs) > 1:
        return compare(outputs, on, baselines, options)
    evaluations = {name: evaluate(output, on, options) for name, output in outputs.items()}
    return Comparison(evaluations, (), {}, (), ())


def _with_attention(
    comparison: Comparison, systems: Systems, sentences: int, maps: int
) -> list[int]:
    """Sentences to draw: where systems differ most, else the first that can be drawn."""
    wanted = most_different(comparison, sentences) or range(len(next(iter(systems.values()))))
    return list(islice((k for k in wanted if attention_heat_maps(systems, k)), maps))


def _write_figures(
    directory: Path, comparison: Comparison, systems: Systems, chosen: Sequence[int]
) -> None:
    buckets = {name: system.by_length for name, system in comparison.systems.items()}
    for kind in ("png", "svg"):
        draw_length_curves(buckets, directory / f"length.{kind}")
    for k in track(chosen, len(chosen), "heat maps", "sentences"):
        for kind in ("png", "svg"):
            draw_heat_maps(attention_heat_maps(systems, k), directory / f"sentence-{k + 1}.{kind}")


def _head(title: str, comparison: Comparison) -> Markup:
    first = next(iter(comparison.systems.values()))
    links = (element("a", name, href=f"#{key}") for key, name in SECTIONS.items())
    count = len(comparison.systems)
    systems = f"{count} systems" if count > 1 else "one system"
    about = f"{first.sentences:,} sentences, {systems}. Made by covnmt {__version__}."
    return element(
        "header",
        element("h1", title),
        element("p", about, class_="soft"),
        element("nav", *links),
    )


def _section(key: str, *children: str) -> Markup:
    return element("section", element("h2", SECTIONS[key]), *children, id=key)


def _results(comparison: Comparison) -> Markup:
    several = len(comparison.systems) > 1
    parts = [_table(comparison_table(comparison))] if several else []
    if several:
        parts.append(_details("Tests of significance", _table(significance_table(comparison))))
    for name, evaluation in comparison.systems.items():
        table = _table(evaluation_table(evaluation))
        parts.append(_details(f"Every score of {name}", table) if several else table)
    return _section("results", *parts)


def _by_length(comparison: Comparison) -> Markup:
    buckets = {name: system.by_length for name, system in comparison.systems.items()}
    charts = (
        ("BLEU (paper's)", svg.length_chart(buckets, "BLEU", "bleu")),
        (
            "Words per output",
            svg.length_chart(buckets, "Output length", "output_length", reference=True),
        ),
    )
    drawn = (element("figure", element("figcaption", name), chart) for name, chart in charts)
    return _section(
        "length",
        svg.legend(buckets, reference="reference"),
        element("div", *drawn, class_="pair"),
        element(
            "p",
            "By number of source words; n is the number of sentences. Bands hold 95% of bootstrap "
            "samples. As files: figures/length.png and .svg.",
            class_="soft",
        ),
        _details("As a table", _table(length_table(comparison.systems))),
    )


def _attention(systems: Systems, chosen: Sequence[int]) -> Markup:
    if not chosen:
        hint = "No attention in these files; `covnmt translate --json` writes it."
        return _section("attention", element("p", hint, class_="soft"))
    scale = element("span", class_="bar")
    return _section(
        "attention",
        element(
            "p",
            "Source words across, output words down; attention from 0",
            scale,
            "1. Bars: how much of each source word was covered in all; the line is once.",
            class_="soft",
        ),
        *(_maps(systems, k) for k in chosen),
    )


def _maps(systems: Systems, sentence: int) -> Markup:
    shown = attention_heat_maps(systems, sentence)
    tallest = tallest_bar(shown)
    drawn = (
        element("figure", element("figcaption", panel.title), svg.heat_map(panel, tallest))
        for panel in shown
    )
    name = f"figures/sentence-{sentence + 1}"
    links = (join(" ", element("a", kind, href=f"{name}.{kind}")) for kind in ("png", "svg"))
    heading = element("h3", f"Sentence {sentence + 1}", element("small", *links))
    return join(heading, element("div", *drawn, class_="maps", tabindex=0))


def _differences(
    comparison: Comparison, systems: Systems, on: EvaluationSet, sentences: int
) -> Markup:
    chosen = most_different(comparison, sentences)
    scores = {name: sentence_bleu(e.statistics) for name, e in comparison.systems.items()}
    cards = []
    for k in chosen:
        outputs = {
            f"{name} ({scores[name][k]:.0f})": _words(rows[k].text.split())
            for name, rows in systems.items()
        }
        cards.append(_card(f"Sentence {k + 1}", on, k, outputs))
    about = (
        "In brackets the sentence's BLEU, smoothed by adding one."
        if chosen
        else "No sentence differs."
    )
    return _section("different", element("p", about, class_="soft"), *cards)


def _ranking(key: str, ranking: SentenceRanking, systems: Systems, on: EvaluationSet) -> Markup:
    about = (
        f"Counted: {ranking.measure}." if ranking.findings else f"None found: {ranking.measure}."
    )
    cards = (_finding(finding, key, systems, on) for finding in ranking.findings)
    return _section(key, element("p", about, class_="soft"), *cards)


def _finding(finding: RankedSentence, kind: str, systems: Systems, on: EvaluationSet) -> Markup:
    k = finding.sentence
    words = systems[finding.system][k].text.split()
    repeated = repeated_bigram_positions(words) if kind == "twice" else frozenset()
    outputs = {finding.system: _words(words, repeated, kind)}
    source = _words(finding.source, finding.marked, kind)
    heading = f"Sentence {k + 1}, {finding.system}: {finding.amount:g}"
    return _card(heading, on, k, outputs, source)


def _card(
    heading: str,
    on: EvaluationSet,
    sentence: int,
    outputs: Mapping[str, Markup],
    source: Markup | None = None,
) -> Markup:
    """A sentence with its source, its first reference and some outputs."""
    assert on.source is not None
    rows = {
        "source": source or join(on.source[sentence]),
        "reference": join(on.references[0][sentence]),
        **outputs,
    }
    pairs = (
        join(element("dt", name), element("dd", text, dir="auto")) for name, text in rows.items()
    )
    return element("article", element("h3", heading), element("dl", *pairs), class_="sentence")


def _words(words: Sequence[str], marked: frozenset[int] = frozenset(), kind: str = "") -> Markup:
    """Words side by side, some of them marked."""
    if not words:
        return element("span", "(nothing)", class_="soft")
    shown = (
        element("mark", word, class_=kind) if k in marked else join(word)
        for k, word in enumerate(words)
    )
    return Markup(" ".join(shown))


def _details(summary: str, *children: str) -> Markup:
    return element("details", element("summary", summary), *children)


def _table(table: Table) -> Markup:
    """A table made for the terminal, as HTML."""
    columns = [(column, list(column.cells)) for column in table.columns]
    numbers = ["number" if column.justify == "right" else None for column, _ in columns]
    head = (
        element("th", str(column.header), class_=number)
        for (column, _), number in zip(columns, numbers, strict=True)
    )
    rows = []
    for k, row in enumerate(table.rows):
        cells = (
            element("td", _cell(cells[k]), class_=number)
            for (_, cells), number in zip(columns, numbers, strict=True)
        )
        rows.append(element("tr", *cells, class_="section" if row.end_section else None))
    caption = element("caption", str(table.caption)) if table.caption else Markup("")
    body = (element("thead", element("tr", *head)), element("tbody", *rows))
    return element("div", element("table", caption, *body), class_="wide", tabindex=0)


def _cell(content: object) -> str:
    if not isinstance(content, Text):
        return str(content)
    bold = any("bold" in str(span.style) for span in content.spans)
    return element("b", content.plain) if bold else content.plain
