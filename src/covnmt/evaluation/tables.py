"""Results as tables, in the shape of the paper's Tables 1 and 2; the best of a column is bold."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from covnmt.base.table import Bold, Row, Table, TableColumn
from covnmt.evaluation.evaluate import SIGNIFICANCE_MARKS, Comparison, Evaluation
from covnmt.evaluation.human_evaluation import RatingSummary
from covnmt.metrics.bleu import OUTPUT_LENGTH, PAPER_BLEU, REFERENCE_LENGTH
from covnmt.metrics.by_length import LengthBucket
from covnmt.metrics.significance import SIGNIFICANCE_LEVEL

MISSING = "-"


@dataclass(frozen=True)
class ScoreColumn:
    """A score as a column; `better` is +1 if more is better, -1 if less is, 0 if neither."""

    score: str
    better: int
    label: str = ""  # instead of the name of the score

    @property
    def heading(self) -> str:
        """The label, one word a line, with an arrow towards the better values."""
        first, *rest = (self.label or self.score).split()
        arrow = {+1: " ↑", -1: " ↓"}.get(self.better, "")
        return "\n".join([first + arrow, *rest])


ERROR_COLUMNS = (
    ScoreColumn("AER", -1),
    ScoreColumn("SAER", -1),
    ScoreColumn("left out", -1, "omitted words"),
    ScoreColumn("said twice", -1, "repeated words"),
)
COMPARISON_COLUMNS = (
    ScoreColumn(PAPER_BLEU, +1),
    ScoreColumn("BLEU", +1),
    ScoreColumn("chrF", +1),
    ScoreColumn("TER", -1),
    *ERROR_COLUMNS,
    ScoreColumn("judged omissions", -1),
    ScoreColumn("judged additions", -1),
)
LENGTH_COLUMNS = (
    ScoreColumn(PAPER_BLEU, +1),
    ScoreColumn("output length", 0),
    ScoreColumn("length ratio", 0),
    *ERROR_COLUMNS,
)
KINDS = {
    "translation": "translation",
    "alignment": "alignment",
    "adequacy": "source words (exact)",
    "judged": "omissions and additions (judged by a model)",
    "proxies": "over- and under-translation (proxies)",
    "diagnostics": "attention",
}


def evaluation_table(evaluation: Evaluation) -> Table:
    """Show every score of one system with its signature."""
    columns = [
        TableColumn("measure"),
        TableColumn("value", numeric=True),
        TableColumn("signature", dim=True),
    ]
    sections = [
        [
            (Bold(KINDS[kind]), "", ""),
            *((f"  {score.name}", f"{score.value:.2f}", score.signature) for score in scores),
        ]
        for kind, scores in evaluation.groups().items()
    ]
    return Table(columns, sections, f"{evaluation.sentences:,} sentences")


def comparison_table(comparison: Comparison, title: str | None = None) -> Table:
    """Show one row per system with its daggers of significance, as in the paper's Table 1."""
    legend = ", ".join(
        f"{dagger} better than {baseline}"
        for dagger, baseline in zip(SIGNIFICANCE_MARKS, comparison.baselines, strict=False)
    )
    scores = [_score_values(system) for system in comparison.systems.values()]
    first, *rest = _columns_with_values(COMPARISON_COLUMNS, scores)
    columns = [
        TableColumn("system"),
        TableColumn(first.heading, numeric=True),
        TableColumn(""),  # the daggers
        *_numeric_columns(column.heading for column in rest),
    ]
    rows = [
        (name, main_score, comparison.marks(name), *other_scores)
        for name, (main_score, *other_scores) in zip(
            comparison.systems, _format_rows(scores, [first, *rest]), strict=True
        )
    ]
    test = f"{_sides(comparison)} sign test on the paper's BLEU"
    return Table(columns, [rows], f"{legend} (p < {SIGNIFICANCE_LEVEL:g}, {test})", title)


def significance_table(comparison: Comparison) -> Table:
    """Show the tests of each system against each baseline."""
    columns = [
        *map(TableColumn, ("baseline", "system")),
        *_numeric_columns(("up", "down", "same", "sign test", "bootstrap", "randomization")),
    ]
    first = next(iter(comparison.systems))
    resampling = [
        {result.system: result.p_value for result in results if result.metric == "BLEU"}
        for results in (comparison.bootstrap, comparison.randomization)
    ]
    sections = []
    for baseline in comparison.baselines:
        rows = []
        for system in comparison.systems:
            if system == baseline:
                continue
            test = comparison.sign_tests[baseline, system]
            # sacreBLEU compares with the first system only
            others = [p.get(system) if baseline == first else None for p in resampling]
            counts = (str(test.up), str(test.down), str(test.same))
            p_values = map(_format_p_value, [test.p_value, *others])
            rows.append((baseline, system, *counts, *p_values))
        sections.append(rows)
    caption = (
        "sentences that raise or lower the baseline's BLEU, and p-values "
        f"({_sides(comparison)} sign test)"
    )
    return Table(columns, sections, caption)


def length_table(systems: Mapping[str, Evaluation], title: str | None = None) -> Table:
    """Show all sentences, then each bucket of source lengths, with one row per system."""
    groups = {"all": {name: _overall_scores(system) for name, system in systems.items()}}
    sizes = {"all": max(system.sentences for system in systems.values())}
    for name, system in systems.items():
        for bucket in system.by_length:
            groups.setdefault(bucket.label, {})[name] = _bucket_scores(bucket)
            sizes[bucket.label] = bucket.sentences
    scores = [row for group in groups.values() for row in group.values()]
    score_columns = _columns_with_values(LENGTH_COLUMNS, scores)
    columns = [
        TableColumn("source\nwords"),
        TableColumn("n", numeric=True),
        TableColumn("system"),
        *_numeric_columns(column.heading for column in score_columns),
    ]
    sections = []
    for label, group in groups.items():
        lead = [(label, f"{sizes[label]:,}"), *[("", "")] * (len(group) - 1)]
        cells = _format_rows(list(group.values()), score_columns)
        sections.append(
            [(*start, name, *row) for start, name, row in zip(lead, group, cells, strict=True)]
        )
    caption = "n sentences by number of source words; lengths in words, rates in percent"
    return Table(columns, sections, caption, title)


def ratings_table(ratings: RatingSummary) -> Table:
    """Show one row per system, as in the paper's Table 2."""
    headings = ("ratings", "adequacy ↑", "fluency ↑", "left out ↓", "said twice ↓")
    rows = [
        (
            row.system,
            str(row.ratings),
            f"{row.adequacy:.2f}",
            f"{row.fluency:.2f}",
            f"{row.left_out:.1f}%",
            f"{row.said_twice:.1f}%",
        )
        for row in ratings.systems
    ]
    columns = [TableColumn("system"), *_numeric_columns(headings)]
    return Table(columns, [rows], "scales from 1 to 5; percent of source words")


def agreement_table(ratings: RatingSummary) -> Table:
    """Show how far each two raters agree."""
    rows = [
        (
            row.question,
            " / ".join(Path(rater).name for rater in row.raters),
            f"{row.answers:,}",
            f"{row.same:.1f}%",
            MISSING if row.kappa is None else f"{row.kappa:.2f}",
        )
        for row in ratings.agreement
    ]
    columns = [
        *map(TableColumn, ("question", "raters")),
        *_numeric_columns(("answers", "same", "kappa")),
    ]
    caption = "kappa: Cohen's, squared weights; 1 full agreement, 0 chance"
    return Table(columns, [rows], caption)


def _numeric_columns(headings: Iterable[str]) -> list[TableColumn]:
    return [TableColumn(heading, numeric=True) for heading in headings]


def _sides(comparison: Comparison) -> str:
    one_sided = any(test.alternative == "greater" for test in comparison.sign_tests.values())
    return "one-sided" if one_sided else "two-sided"


def _score_values(evaluation: Evaluation) -> dict[str, float]:
    return {name: score.value for name, score in evaluation.scores.items()}


def _overall_scores(evaluation: Evaluation) -> dict[str, float]:
    """Return for all sentences what `_bucket_scores` returns for a bucket."""
    totals = evaluation.statistics.sum(axis=0)
    output, reference = int(totals[OUTPUT_LENGTH]), int(totals[REFERENCE_LENGTH])
    return {
        **_score_values(evaluation),
        "output length": output / evaluation.sentences,
        "length ratio": output / reference if reference else 0.0,
    }


def _bucket_scores(bucket: LengthBucket) -> dict[str, float]:
    return {
        PAPER_BLEU: bucket.bleu,
        "output length": bucket.output_length,
        "length ratio": bucket.length_ratio,
        **bucket.measures,
    }


def _columns_with_values(
    columns: Sequence[ScoreColumn], rows: Sequence[Mapping[str, float]]
) -> list[ScoreColumn]:
    return [column for column in columns if any(column.score in row for row in rows)]


def _format_rows(rows: Sequence[Mapping[str, float]], columns: Sequence[ScoreColumn]) -> list[Row]:
    """Format scores row by row, the best of each column bold where they differ."""
    formatted = [
        _format_column([row.get(column.score) for row in rows], column.better) for column in columns
    ]
    return [list(row) for row in zip(*formatted, strict=True)]


def _format_column(values: Sequence[float | None], better: int) -> list[str]:
    cells = [MISSING if value is None else f"{value:.2f}" for value in values]
    # compare what is shown: equal cells are equally good
    shown = {float(cell) for cell in cells if cell != MISSING}
    if better == 0 or len(shown) < 2:
        return cells
    best = f"{max(shown, key=lambda value: better * value):.2f}"
    return [Bold(cell) if cell == best else cell for cell in cells]


def _format_p_value(value: float | None) -> str:
    if value is None:
        return MISSING
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"
