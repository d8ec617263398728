"""Results as Markdown tables, next to the figures of the paper (docs/paper-to-code.md, section 5).

The paper measured on other text, with other hardware and more training: its figures show the
direction and size of effects, not what ours should be.
"""

from collections.abc import Sequence
from typing import NamedTuple

from covnmt.base.config import PAPER_SYSTEMS
from covnmt.base.table import markdown_table
from covnmt.metrics.adequacy import LOW_ATTENTION
from covnmt.metrics.attention_statistics import COVERED, UNCOVERED
from covnmt.metrics.bleu import PAPER_BLEU
from covnmt.metrics.bootstrap import ConfidenceInterval
from covnmt.paper.results import Result
from covnmt.paper.summary import BASELINE, Spread, Summary, SystemSummary
from covnmt.paper.systems import PHRASE_BASED, VARIANTS

NOTHING = "-"
DAGGER, DOUBLE_DAGGER = "†‡"


class PaperRow(NamedTuple):
    """A row of the paper's Tables 1 and 3, and its speed relative to the baseline."""

    name: str
    added: str  # parameters
    bleu: float
    gain: float | None
    saer: float | None
    aer: float | None
    speed: float | None = None


PAPER_ROWS = {
    PHRASE_BASED: PaperRow("Moses", NOTHING, 28.41, None, None, None),
    "baseline": PaperRow("GroundHog", "84.3M", 28.32, None, 67.00, 54.67, 1.0),
    "linguistic": PaperRow("+ linguistic", "+1K", 29.42, 1.10, 66.75, 53.55),
    "fertility": PaperRow("+ linguistic, fertility", "+3K", 29.86, 1.54, 64.85, 52.13, 0.906),
    "tanh1": PaperRow("+ NN tanh d=1", "+4K", 29.12, 0.80, 67.10, 54.46),
    "gru1": PaperRow("+ NN GRU d=1", "+10K", 29.59, 1.27, 66.30, 53.51),
    "gru10": PaperRow("+ NN GRU d=10", "+100K", 30.14, 1.82, 64.25, 50.50, 0.833),
}
# Source words omitted and repeated as people counted them, in percent (the paper's Table 2).
PAPER_RATES = {"baseline": (25.0, 4.5), "gru10": (16.7, 2.7)}
# Scores by the names that result files have, and what pages call them.
ADEQUACY = {"left out": "omitted words", "said twice": "repeated words"}
SCORES = {PAPER_BLEU: "BLEU", "BLEU": "sacreBLEU", **ADEQUACY}
PROXIES = ("DROP", "little attention", "REP", "repeated 4-grams")
DIAGNOSTICS = ("fertility-attention correlation", "attention entropy")


def translation_table(summary: Summary) -> str:
    """Fill in the paper's Table 1."""
    marks = f"{DAGGER} {DOUBLE_DAGGER}" if summary.find(PHRASE_BASED) else DAGGER
    comparison = (marks, "gain", "95%", "published parameters", "published BLEU", "published gain")
    head = ("system", "parameters", "BLEU", *comparison[:3], "sacreBLEU", "chrF", "TER")
    rows = []
    for system in _systems_of_the_paper(summary):
        paper = PAPER_ROWS[system.system]
        rows.append(
            [
                system_label(system.system),
                format_parameters(system, summary),
                *(format_spread(system.scores.get(PAPER_BLEU)), significance_marks(system)),
                *(format_number(system.gain, "+.2f"), format_interval(system.gain_interval)),
                *(format_spread(system.scores.get(name)) for name in ("BLEU", "chrF", "TER")),
                paper.added,
                f"{paper.bleu:.2f}",
                format_number(paper.gain, "+.2f"),
            ]
        )
    hidden = () if summary.find(BASELINE) else comparison
    return _table_without(hidden, (*head, *comparison[3:]), rows)


def runs_table(results: Sequence[Result]) -> str:
    """Tabulate single runs and what they may differ in."""
    rows = [
        [
            f"`{result.system}`",
            str(result.seed),
            format_number(result.score_values.get(PAPER_BLEU), ".2f"),
            f"{result.training.update:,}",
            f"{result.length_penalty:g}" if "decode" in result.recipe else NOTHING,
        ]
        for result in results
    ]
    return markdown_table(("system", "seed", "BLEU", "updates", "length penalty"), rows)


def alignment_table(summary: Summary) -> str:
    """Fill in the paper's Table 3."""
    names = ("SAER", "AER", "alignment precision", "alignment recall")
    rows = [
        [
            system_label(system.system),
            *(format_spread(system.scores.get(name)) for name in names),
            format_number(PAPER_ROWS[system.system].saer, ".2f"),
            format_number(PAPER_ROWS[system.system].aer, ".2f"),
        ]
        for system in _systems_of_the_paper(summary)
    ]
    head = ("system", "SAER ↓", "AER ↓", "precision", "recall", "published SAER", "published AER")
    return _table_without(() if summary.find(BASELINE) else head[-2:], head, rows)


def adequacy_table(summary: Summary) -> str:
    """Tabulate omissions and repetitions: exactly where they are known, and by proxies."""
    names = [n for n in (*ADEQUACY, *PROXIES) if any(n in s.scores for s in summary.systems)]
    base = summary.find(BASELINE)
    rows = [
        [
            system_label(system.system),
            *(format_change_from_baseline(system, base, name) for name in names),
        ]
        for system in _systems_of_the_paper(summary)
    ]
    return markdown_table(("system", *(f"{ADEQUACY.get(name, name)} ↓" for name in names)), rows)


def adequacy_note(summary: Summary) -> str:
    """Explain the columns, and quote the paper's claim."""
    exact = any("left out" in system.scores for system in summary.systems)
    before, after = PAPER_RATES["baseline"], PAPER_RATES["gru10"]
    fewer = [f"{100 * (1 - b / a):.1f}% fewer" for a, b in zip(before, after, strict=True)]
    kinds = "Omitted and repeated words are exact, the others are" if exact else "All of them are"
    aligner = f" (`{PHRASE_BASED}`: by its aligner)" if summary.find(PHRASE_BASED) else ""
    limit = (
        ", and their text is synthetic" if exact else "; a proxy cannot confirm the paper's figures"
    )
    lines = [
        "Percentages, REP per 100 reference words; in parentheses the change from the baseline.",
        f"{kinds} proxies: DROP and little attention for omissions (under-translation), REP and "
        "repeated 4-grams for repetitions (over-translation).",
        f"DROP links words by the system's own attention{aligner}; little attention means a total "
        f"below {LOW_ATTENTION:g}.",
        f"In the paper people counted: the baseline omitted {before[0]}% of source words and "
        f"GRU d=10 {after[0]}% ({fewer[0]}); they repeated {before[1]}% and {after[1]}% "
        f"({fewer[1]}). Nobody has rated these outputs{limit}.",
    ]
    return "\n".join(lines)


def speed_table(summary: Summary) -> str:
    """Tabulate target tokens per second in training, as in the paper's section on speed."""
    rows = []
    for system in _neural_systems(summary):
        speed = system.words_per_second
        ratio = 1.0 if system.system == BASELINE and speed else system.speed_ratio
        rows.append(
            [
                system_label(system.system),
                format_number(speed.mean if speed else None, ",.0f"),
                format_number(ratio, ".3f"),
                format_number(PAPER_ROWS[system.system].speed, ".3f"),
                format_range(system.updates),
            ]
        )
    ratios = ("ratio", "published ratio")
    hidden = () if summary.find(BASELINE) else ratios
    return _table_without(hidden, ("system", "tokens/s", *ratios, "updates"), rows)


def attention_table(summary: Summary) -> str:
    """Tabulate the attention statistics."""
    rows = [
        [
            system_label(system.system),
            *(format_spread(system.scores.get(name), 3) for name in DIAGNOSTICS),
        ]
        for system in _neural_systems(summary)
    ]
    return markdown_table(("system", *DIAGNOSTICS), rows)


def coverage_effect_table(results: Sequence[Result]) -> str:
    """Tabulate what coverage changes in the attention of each run; empty if nobody measured it."""
    rows = [
        [
            f"`{result.system}`",
            str(result.seed),
            *(
                f"{group.change:+.3f}"
                for group in (effect.uncovered, effect.partly, effect.covered)
            ),
            f"{effect.difference:+.3f}",
            format_interval(effect.difference_interval, 3),
            format_number(effect.attended, "+.3f"),
            format_interval(effect.attended_interval, 3),
            f"{effect.covered.words:,}",
        ]
        for result in results
        if (effect := result.coverage_effect) and effect.covered.words
    ]
    head = (
        *("system", "seed", f"C < {UNCOVERED:g}", "between", f"C > {COVERED:g}"),
        *("difference", "95%", "by attention received", "95%", f"words with C > {COVERED:g}"),
    )
    return markdown_table(head, rows) if rows else ""


def other_tests_table(results: Sequence[Result]) -> str:
    """Tabulate sacreBLEU and chrF of every run on text of other kinds; empty if there is none."""
    tests = {name: test.sentences for r in results for name, test in r.other_tests.items()}
    rows = []
    for result in results:
        measured = [result.other_tests.get(name) for name in tests]
        if any(measured):
            values = [{s.name: s.value for s in test.scores} if test else {} for test in measured]
            cells = (f"{v['BLEU']:.2f} / {v['chrF']:.2f}" if v else NOTHING for v in values)
            rows.append([f"`{result.system}`", str(result.seed), *cells])
    head = ("system", "seed", *(f"{name}, {n:,} pairs" for name, n in tests.items()))
    return markdown_table(head, rows) if rows else ""


def distillation_table(results: Sequence[Result]) -> str:
    """Tabulate the teachers of students; empty if there are none."""
    rows = [
        [
            *(f"`{result.system}`", str(result.seed), f"`{about.teacher}`"),
            format_number(about.teacher_bleu, ".2f"),
            f"{about.teacher_update:,}",
            f"{about.kept:,}",
            "yes" if about.references else "no",
        ]
        for result in results
        if (about := result.distillation)
    ]
    head = (
        *("student", "seed", "teacher", "dev BLEU of the teacher", "its updates"),
        *("translations", "also reads the original pairs"),
    )
    return markdown_table(head, rows) if rows else ""


def variants_table(summary: Summary) -> str:
    """Tabulate our variants after the systems they are compared with; empty if none was run."""
    run = [VARIANTS[system.system] for system in summary.systems if system.system in VARIANTS]
    if not run:
        return ""
    compared = {name for variant in run for name in (variant.base, variant.compare_with)}
    shown = [s for s in summary.systems if s.system in VARIANTS or s.system in compared]
    wanted = (PAPER_BLEU, "SAER", "AER", *ADEQUACY, "DROP", "REP")
    first, *others = [name for name in wanted if any(name in s.scores for s in shown)]
    rows = [
        [
            f"`{system.system}`",
            VARIANTS[system.system].description if system.system in VARIANTS else "as above",
            format_spread(system.scores.get(first)),
            *(format_number(system.change, "+.2f"), format_interval(system.change_interval)),
            *(format_spread(system.scores.get(name)) for name in others),
            format_range(system.updates),
            ", ".join(map(str, system.seeds)),
        ]
        for system in shown
    ]
    scores = [SCORES.get(name, name) for name in others]
    return markdown_table(
        ("system", "what", SCORES.get(first, first), "change", "95%", *scores, "updates", "seeds"),
        rows,
    )


def length_penalty_table(results: Sequence[Result]) -> str:
    """Tabulate dev BLEU under each length penalty that was tried; empty if none was."""
    tuned = [result for result in results if result.tuning]
    penalties = sorted({trial.length_penalty for result in tuned for trial in result.tuning})
    rows = []
    for result in tuned:
        trials = {trial.length_penalty: trial for trial in result.tuning}
        cells = [format_number(trials[p].bleu if p in trials else None, ".2f") for p in penalties]
        ratio = trials[result.length_penalty].length_ratio
        chosen = f"{result.length_penalty:g}"
        rows.append([f"`{result.system}`", str(result.seed), *cells, chosen, f"{ratio:.3f}"])
    head = ("system", "seed", *(f"{p:g}" for p in penalties), "chosen", "length ratio")
    return markdown_table(head, rows) if tuned else ""


def system_label(system: str) -> str:
    """Join our name and the paper's; the phrase-based system is not the paper's Moses."""
    if system == PHRASE_BASED:
        return f"`{PHRASE_BASED}`, phrase-based"
    return f"`{system}` ({PAPER_ROWS[system].name})"


def format_parameters(system: SystemSummary, summary: Summary) -> str:
    """Format all parameters of the baseline, or those that a system adds to it."""
    base = summary.find(BASELINE)
    if system.system == PHRASE_BASED:
        return NOTHING
    if base is None or system is base:
        return f"{system.parameters:,}"
    return f"{system.parameters - base.parameters:+,}"


def significance_marks(system: SystemSummary) -> str:
    """Return daggers like the paper's; with several seeds, also for how many they hold."""
    marks = []
    for sign, tests in ((DAGGER, system.sign_tests), (DOUBLE_DAGGER, system.phrase_tests)):
        better = sum(test.is_gain for test in tests.values())
        if better:
            marks.append(sign if len(tests) == 1 else f"{sign} {better} of {len(tests)}")
    return " ".join(marks)


def format_change_from_baseline(
    system: SystemSummary, base: SystemSummary | None, name: str
) -> str:
    """Format a score, and its relative change from the baseline."""
    score = system.scores.get(name)
    base_score = base.scores.get(name) if base else None
    if score is None or base_score is None or system is base or not base_score.mean:
        return format_spread(score)
    return f"{score.mean:.2f} ({100 * (score.mean / base_score.mean - 1):+.0f}%)"


def format_spread(spread: Spread | None, digits: int = 2) -> str:
    """Format the mean, and the extremes where there are several seeds."""
    if spread is None:
        return NOTHING
    if spread.seeds == 1:
        return f"{spread.mean:.{digits}f}"
    return f"{spread.mean:.{digits}f} [{spread.low:.{digits}f}, {spread.high:.{digits}f}]"


def format_range(spread: Spread) -> str:
    """Format a whole number, or the lowest and highest if the seeds differ."""
    same = spread.low == spread.high
    return f"{spread.low:,.0f}" if same else f"{spread.low:,.0f} to {spread.high:,.0f}"


def format_interval(interval: ConfidenceInterval | None, digits: int = 2) -> str:
    """Format an interval with signs, or a dash."""
    if interval is None:
        return NOTHING
    return " to ".join(f"{end:+.{digits}f}" for end in interval)


def format_number(value: float | None, spec: str) -> str:
    """Format a number, or a dash."""
    return NOTHING if value is None else format(value, spec)


def _table_without(hidden: Sequence[str], head: Sequence[str], rows: Sequence[list[str]]) -> str:
    """Format a table without some of its columns, which compare with a baseline that is missing."""
    kept = [n for n, name in enumerate(head) if name not in hidden]
    return markdown_table([head[n] for n in kept], [[row[n] for n in kept] for row in rows])


def _systems_of_the_paper(summary: Summary) -> list[SystemSummary]:
    return [system for system in summary.systems if system.system in PAPER_ROWS]


def _neural_systems(summary: Summary) -> list[SystemSummary]:
    return [system for system in summary.systems if system.system in PAPER_SYSTEMS]
