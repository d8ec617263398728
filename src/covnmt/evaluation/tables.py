"""Results as tables for the terminal, in the shape of the paper's Tables 1 and 2.

Functions return `rich` tables; whoever calls them prints. The best figure of a column is bold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from covnmt.evaluation.evaluate import (
    SIGNIFICANCE_LEVEL,
    SIGNIFICANCE_MARKS,
    Comparison,
    Evaluation,
)
from covnmt.evaluation.human_evaluation import RatingSummary
from covnmt.metrics.by_length import LengthBucket

MISSING = "-"


@dataclass(frozen=True)
class Column:
    """A measure as a column; `better` is +1 if more is better, -1 if less is, 0 if neither."""

    name: str
    better: int

    @property
    def heading(self) -> str:
        """The name, one word a line, with an arrow towards the better end."""
        first, *rest = self.name.split()
        arrow = {+1: " ↑", -1: " ↓"}.get(self.better, "")
        return "\n".join([first + arrow, *rest])


COLUMNS = (
    Column("BLEU (paper)", +1),
    Column("BLEU", +1),
    Column("chrF", +1),
    Column("TER", -1),
    Column("AER", -1),
    Column("SAER", -1),
    Column("left out", -1),
    Column("said twice", -1),
)
BY_LENGTH = (
    Column("BLEU (paper)", +1),
    Column("output length", 0),
    Column("length ratio", 0),
    Column("AER", -1),
    Column("SAER", -1),
    Column("left out", -1),
    Column("said twice", -1),
)
KINDS = {
    "translation": "translation",
    "alignment": "alignment",
    "adequacy": "source words (exact)",
    "proxies": "over- and under-translation (proxies)",
    "diagnostics": "attention",
}


def evaluation_table(evaluation: Evaluation) -> Table:
    """Every score of one system with its signature."""
    table = _table(None, f"{evaluation.sentences:,} sentences")
    table.add_column("measure")
    table.add_column("value", justify="right")
    table.add_column("signature", style="dim", overflow="fold")
    for kind, scores in evaluation.groups().items():
        table.add_row(Text(KINDS[kind], style="italic"))
        for score in scores:
            table.add_row(f"  {score.name}", f"{score.value:.2f}", score.signature)
        table.add_section()
    return table


def comparison_table(comparison: Comparison, title: str | None = None) -> Table:
    """One row per system with the marks of significance, like the paper's Table 1."""
    legend = ", ".join(
        f"{mark} better than {baseline}"
        for mark, baseline in zip(SIGNIFICANCE_MARKS, comparison.baselines, strict=False)
    )
    rows = [_figures(system) for system in comparison.systems.values()]
    first, *rest = _present(COLUMNS, rows)
    how = f"{_sides(comparison)} sign test on the paper's BLEU"
    table = _table(title, f"{legend} (p < {SIGNIFICANCE_LEVEL:g}, {how})")
    table.add_column("system")
    table.add_column(first.heading, justify="right")
    table.add_column("")  # marks stand behind the first figure
    for column in rest:
        table.add_column(column.heading, justify="right")
    for name, (lead, *others) in zip(comparison.systems, _cells(rows, [first, *rest]), strict=True):
        table.add_row(name, lead, comparison.marks(name), *others)
    return table


def significance_table(comparison: Comparison) -> Table:
    """How each system fares against each baseline in every test."""
    table = _table(
        None,
        "sentences that raise or lower the baseline's BLEU, and p-values "
        f"({_sides(comparison)} sign test)",
    )
    for heading in ("baseline", "system"):
        table.add_column(heading)
    for heading in ("up", "down", "same", "sign test", "bootstrap", "randomization"):
        table.add_column(heading, justify="right")
    first = next(iter(comparison.systems))
    tests = {
        name: {r.system: r.p_value for r in results if r.metric == "BLEU"}
        for name, results in (
            ("bootstrap", comparison.bootstrap),
            ("randomization", comparison.randomization),
        )
    }
    for baseline in comparison.baselines:
        for system in comparison.systems:
            if system == baseline:
                continue
            test = comparison.sign_tests[baseline, system]
            # sacreBLEU compares with the first system only
            others = [p.get(system) if baseline == first else None for p in tests.values()]
            counts = (str(test.up), str(test.down), str(test.same))
            table.add_row(baseline, system, *counts, *map(_p_value, [test.p_value, *others]))
        table.add_section()
    return table


def length_table(systems: Mapping[str, Evaluation], title: str | None = None) -> Table:
    """All sentences, then groups by source length, with one row per system in each."""
    groups = {"all": {name: _overall(system) for name, system in systems.items()}}
    sizes = {"all": max(system.sentences for system in systems.values())}
    for name, system in systems.items():
        for bucket in system.by_length:
            groups.setdefault(bucket.label, {})[name] = _bucket_figures(bucket)
            sizes[bucket.label] = bucket.sentences
    columns = _present(BY_LENGTH, [row for group in groups.values() for row in group.values()])
    table = _table(title, "n sentences of so many source words; lengths in words, rates in percent")
    table.add_column("source\nwords")
    table.add_column("n", justify="right")
    table.add_column("system")
    for column in columns:
        table.add_column(column.heading, justify="right")
    for label, rows in groups.items():
        cells = _cells(list(rows.values()), columns)
        for number, (system_name, row) in enumerate(zip(rows, cells, strict=True)):
            lead = (label, f"{sizes[label]:,}") if number == 0 else ("", "")
            table.add_row(*lead, system_name, *row)
        table.add_section()
    return table


def ratings_table(ratings: RatingSummary) -> Table:
    """One row per system, like the paper's Table 2."""
    table = _table(None, "scales from 1 to 5; percent of source words")
    table.add_column("system")
    for heading in ("ratings", "adequacy ↑", "fluency ↑", "left out ↓", "said twice ↓"):
        table.add_column(heading, justify="right")
    for row in ratings.systems:
        figures = (f"{row.adequacy:.2f}", f"{row.fluency:.2f}")
        rates = (f"{row.left_out:.1f}%", f"{row.said_twice:.1f}%")
        table.add_row(row.system, str(row.ratings), *figures, *rates)
    return table


def agreement_table(ratings: RatingSummary) -> Table:
    """How far each two raters agree."""
    table = _table(None, "kappa: Cohen's, squared weights; 1 full agreement, 0 chance")
    for heading in ("question", "raters"):
        table.add_column(heading)
    for heading in ("answers", "same", "kappa"):
        table.add_column(heading, justify="right")
    for row in ratings.agreement:
        kappa = "-" if row.kappa is None else f"{row.kappa:.2f}"
        names = " / ".join(Path(rater).name for rater in row.raters)
        table.add_row(row.question, names, f"{row.answers:,}", f"{row.same:.1f}%", kappa)
    return table


def _sides(comparison: Comparison) -> str:
    one_sided = any(test.alternative == "greater" for test in comparison.sign_tests.values())
    return "one-sided" if one_sided else "two-sided"


def _figures(evaluation: Evaluation) -> dict[str, float]:
    return {name: score.value for name, score in evaluation.scores.items()}


def _overall(evaluation: Evaluation) -> dict[str, float]:
    """What `_bucket_figures` gives for a bucket, for all sentences."""
    figures = _figures(evaluation)
    if evaluation.by_length:
        buckets = evaluation.by_length
        output = sum(bucket.output_length * bucket.sentences for bucket in buckets)
        reference = sum(bucket.reference_length * bucket.sentences for bucket in buckets)
        figures["output length"] = output / evaluation.sentences
        figures["length ratio"] = output / reference if reference else 0.0
    return figures


def _bucket_figures(bucket: LengthBucket) -> dict[str, float]:
    return {
        "BLEU (paper)": bucket.bleu,
        "output length": bucket.output_length,
        "length ratio": bucket.length_ratio,
        **bucket.measures,
    }


def _present(columns: Sequence[Column], rows: Sequence[Mapping[str, float]]) -> list[Column]:
    return [column for column in columns if any(column.name in row for row in rows)]


def _cells(rows: Sequence[Mapping[str, float]], columns: Sequence[Column]) -> list[list[Text]]:
    """Figures as text, the best of each column bold where there is a choice."""
    shown = [[_shown(row.get(column.name)) for column in columns] for row in rows]
    for number, column in enumerate(columns):
        values = [float(row[number].plain) for row in shown if row[number].plain != MISSING]
        if column.better == 0 or len(set(values)) < 2:
            continue
        best = max(values, key=lambda value: column.better * value)
        for row in shown:
            if row[number].plain != MISSING and float(row[number].plain) == best:
                row[number].stylize("bold")
    return shown


def _shown(value: float | None) -> Text:
    return Text(MISSING if value is None else f"{value:.2f}")


def _p_value(value: float | None) -> str:
    if value is None:
        return MISSING
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"


def _table(title: str | None, caption: str) -> Table:
    return Table(
        title=title,
        caption=caption,
        box=box.SIMPLE_HEAD,
        show_edge=False,
        title_justify="left",
        caption_justify="left",
        collapse_padding=True,
        pad_edge=False,
    )
