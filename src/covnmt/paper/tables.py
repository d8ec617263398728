"""Results as Markdown tables, with the figures of the paper beside ours (SPEC 5).

The paper measured on other text, with other hardware and more training: its figures say which way
and how far things moved there, not what ours should be.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from covnmt.base.config import PAPER_SYSTEMS
from covnmt.metrics.adequacy import LOW_ATTENTION
from covnmt.metrics.bootstrap import ConfidenceInterval
from covnmt.paper.results import PAPER_BLEU, Result
from covnmt.paper.summary import BASELINE, Spread, Summary, SystemSummary
from covnmt.paper.systems import PHRASE_BASED, VARIANTS

NOTHING = "-"
DAGGER, DOUBLE_DAGGER = "†‡"


class PaperRow(NamedTuple):
    """A row of the paper's Tables 1 and 3, and its speed against the baseline."""

    name: str
    added: str
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
PHRASES_NAME = f"`{PHRASE_BASED}`, phrase-based"
# Source words left out and said twice as people counted them, in percent (the paper's Table 2).
PAPER_RATES = {"baseline": (25.0, 4.5), "gru10": (16.7, 2.7)}
ADEQUACY = ("left out", "said twice")
PROXIES = ("DROP", "little attention", "REP", "repeated 4-grams")
DIAGNOSTICS = (
    "coverage-attention correlation",
    "fertility-attention correlation",
    "attention entropy",
)


def translation_table(summary: Summary) -> str:
    """The paper's Table 1."""
    marks = f"{DAGGER} {DOUBLE_DAGGER}" if summary.find(PHRASE_BASED) else DAGGER
    head = ("system", "parameters", "BLEU (paper's)", marks, "gain", "95%")
    rows = []
    for each in _all_rows(summary):
        paper = PAPER_ROWS[each.system]
        rows.append(
            [
                system_label(each.system),
                format_parameters(each, summary),
                *(format_spread(each.scores.get(PAPER_BLEU)), significance_marks(each)),
                *(format_signed(each.gain), format_interval(each.gain_band)),
                *(format_spread(each.scores.get(name)) for name in ("BLEU", "chrF", "TER")),
                paper.added,
                f"{paper.bleu:.2f}",
                format_signed(paper.gain),
            ]
        )
    ours, theirs = ("sacreBLEU", "chrF", "TER"), ("paper: parameters", "paper: BLEU", "paper: gain")
    return markdown_table((*head, *ours, *theirs), rows)


def alignment_table(summary: Summary) -> str:
    """The paper's Table 3."""
    own = ("SAER", "AER", "alignment precision", "alignment recall")
    rows = [
        [
            system_label(each.system),
            *(format_spread(each.scores.get(name)) for name in own),
            format_number(PAPER_ROWS[each.system].saer, 2),
            format_number(PAPER_ROWS[each.system].aer, 2),
        ]
        for each in _all_rows(summary)
    ]
    head = ("system", "SAER ↓", "AER ↓", "precision", "recall", "paper: SAER", "paper: AER")
    return markdown_table(head, rows)


def adequacy_table(summary: Summary) -> str:
    """Words left out and said twice: exactly where that is known, and by proxies."""
    names = [n for n in (*ADEQUACY, *PROXIES) if any(n in s.scores for s in summary.systems)]
    base = summary.find(BASELINE)
    rows = [
        [system_label(each.system), *(change_from_baseline(each, base, name) for name in names)]
        for each in _all_rows(summary)
    ]
    return markdown_table(("system", *(f"{name} ↓" for name in names)), rows)


def adequacy_note(summary: Summary) -> str:
    """What the columns are, and the paper's claim."""
    exact = any("left out" in each.scores for each in summary.systems)
    before, after = PAPER_RATES["baseline"], PAPER_RATES["gru10"]
    kinds = "`left out` and `said twice` are exact, the others" if exact else "All of them are"
    limit = "here the text is invented" if exact else "a proxy cannot confirm the paper's figures"
    lines = [
        "Percentages, REP per 100 reference words; in brackets the change from the baseline.",
        f"{kinds} proxies: they hint at words left out (DROP, little attention) and said twice "
        "(REP, repeated 4-grams).",
        f"DROP links words by the system's own attention (`{PHRASE_BASED}`: by its aligner); "
        f"little attention is below {LOW_ATTENTION:g} in all.",
        f"The paper had people count: {before[0]}% of source words left out by the baseline and "
        f"{after[0]}% by GRU d=10 (33.2% fewer), {before[1]}% and {after[1]}% said twice "
        f"(40.0% fewer). No one has rated these outputs; {limit}.",
    ]
    return "\n".join(lines)


def speed_table(summary: Summary) -> str:
    """Words per second while training, as in the paper's section on speed."""
    rows = []
    for each in _six(summary):
        speed = each.words_per_second
        ratio = 1.0 if each.system == BASELINE and speed else each.speed_ratio
        rows.append(
            [
                system_label(each.system),
                NOTHING if speed is None else f"{speed.mean:,.0f}",
                format_number(ratio, 3),
                format_number(PAPER_ROWS[each.system].speed, 3),
                f"{each.updates.mean:,.0f}",
            ]
        )
    return markdown_table(("system", "words/s", "ratio", "paper: ratio", "updates made"), rows)


def attention_table(summary: Summary) -> str:
    """What the attention does."""
    rows = [
        [
            system_label(each.system),
            *(format_spread(each.scores.get(name), 3) for name in DIAGNOSTICS),
        ]
        for each in _six(summary)
    ]
    return markdown_table(("system", *DIAGNOSTICS), rows)


def variants_table(summary: Summary) -> str:
    """Our variants, after the systems they are to be read beside; empty if none was run."""
    run = [VARIANTS[each.system] for each in summary.systems if each.system in VARIANTS]
    if not run:
        return ""
    beside = {name for variant in run for name in (variant.base, variant.beside)}
    shown = [each for each in summary.systems if each.system in VARIANTS or each.system in beside]
    wanted = (PAPER_BLEU, "SAER", "AER", *ADEQUACY, "DROP", "REP")
    first, *others = [name for name in wanted if any(name in each.scores for each in shown)]
    rows = [
        [
            f"`{each.system}`",
            VARIANTS[each.system].what if each.system in VARIANTS else "as above",
            format_spread(each.scores.get(first)),
            *(format_signed(each.change), format_interval(each.change_band)),
            *(format_spread(each.scores.get(name)) for name in others),
            f"{each.updates.mean:,.0f}",
            ", ".join(map(str, each.seeds)),
        ]
        for each in shown
    ]
    return markdown_table(
        ("system", "what", first, "change", "95%", *others, "updates", "seeds"), rows
    )


def tuning_table(results: Sequence[Result]) -> str:
    """Dev BLEU under each length penalty that was tried; empty if none was."""
    run = [result for result in results if result.tuning]
    values = sorted({value for result in run for value, *_ in result.tuning})
    rows = []
    for result in run:
        tried = {value: figures for value, *figures in result.tuning}
        _, ratio = tried[result.length_penalty]
        cells = [format_number(tried[v][0] if v in tried else None, 2) for v in values]
        best = f"{result.length_penalty:g}"
        rows.append([f"`{result.system}`", str(result.seed), *cells, best, f"{ratio:.3f}"])
    head = ("system", "seed", *(f"{value:g}" for value in values), "chosen", "its length")
    return markdown_table(head, rows) if run else ""


def system_label(system: str) -> str:
    """Our name and the paper's; the phrase-based system is not the paper's Moses."""
    return PHRASES_NAME if system == PHRASE_BASED else f"`{system}` ({PAPER_ROWS[system].name})"


def format_parameters(each: SystemSummary, summary: Summary) -> str:
    """All of them for the baseline, else those added to it."""
    base = summary.find(BASELINE)
    if each.system == PHRASE_BASED:
        return NOTHING
    if base is None or each is base:
        return f"{each.parameters:,}"
    return f"{each.parameters - base.parameters:+,}"


def significance_marks(each: SystemSummary) -> str:
    """Like the paper's daggers; with several seeds, with how many of them."""
    marks = (
        _mark(DAGGER, each.better(), len(each.sign_tests)),
        _mark(DOUBLE_DAGGER, each.better_than_phrases(), len(each.phrase_tests)),
    )
    return " ".join(filter(None, marks))


def _mark(sign: str, better: int, tests: int) -> str:
    if not better:
        return ""
    return sign if tests == 1 else f"{sign} {better} of {tests}"


def change_from_baseline(each: SystemSummary, base: SystemSummary | None, name: str) -> str:
    """A score, and by how much of itself the baseline's has changed."""
    own = each.scores.get(name)
    other = base.scores.get(name) if base else None
    if own is None or other is None or each is base or not other.mean:
        return format_spread(own)
    return f"{own.mean:.2f} ({100 * (own.mean / other.mean - 1):+.0f}%)"


def format_spread(found: Spread | None, digits: int = 2) -> str:
    """The mean, and the extremes where there are several seeds."""
    if found is None:
        return NOTHING
    if found.seeds == 1:
        return f"{found.mean:.{digits}f}"
    return f"{found.mean:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"


def format_signed(value: float | None) -> str:
    """With its sign."""
    return NOTHING if value is None else f"{value:+.2f}"


def format_interval(band: ConfidenceInterval | None) -> str:
    """From where to where, with signs."""
    return NOTHING if band is None else f"{band[0]:+.2f} to {band[1]:+.2f}"


def format_number(value: float | None, digits: int) -> str:
    """Or a dash."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _all_rows(summary: Summary) -> list[SystemSummary]:
    return [each for each in summary.systems if each.system in PAPER_ROWS]


def _six(summary: Summary) -> list[SystemSummary]:
    return [each for each in summary.systems if each.system in PAPER_SYSTEMS]
