"""Write the README.md, figures and summary.json of an experiment from its result files.

Figures are of one seed, as far as the systems have it. Planned results that do not exist yet are
listed as missing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from covnmt.base.config import PAPER_SYSTEMS
from covnmt.base.errors import UserError
from covnmt.base.files import atomic_write_text, write_json
from covnmt.base.table import markdown_table, page_section
from covnmt.evaluation.figures import (
    HeatMap,
    draw_heat_maps,
    draw_length_curves,
    draw_training_curves,
)
from covnmt.evaluation.interesting_sentences import repeated_bigram_positions
from covnmt.evaluation.training_curves import Curve, TrainingCurves
from covnmt.metrics.adequacy import LOW_ATTENTION
from covnmt.metrics.by_length import scores_by_length
from covnmt.paper import tables
from covnmt.paper.checkpoint_sections import (
    best_checkpoint_section,
    checkpoints_section,
    gain_over_training_section,
    measuring_section,
)
from covnmt.paper.checkpoint_tables import collect_runs
from covnmt.paper.experiments import Experiment
from covnmt.paper.results import (
    LONG_SOURCE,
    ExampleSentence,
    Result,
    read_partial_results,
    read_results,
)
from covnmt.paper.summary import (
    BASELINE,
    COVERAGE_SYSTEM,
    Summary,
    group_by_system,
    summarize_results,
)
from covnmt.paper.systems import ALIGNER_PAIRS, PHRASE_BASED

PAGE, SUMMARY = "README.md", "summary.json"
WORD_START = "▁"  # of SentencePiece, at the start of a word
MIN_VALIDATIONS = 5  # for training curves that show something
ATTENTION_NOTE = "Correlation of predicted fertility with the attention received; entropy in bits."
COVERAGE_EFFECT_NOTE = (
    "What coverage does inside the model: the mean change of log attention (nats) when the model "
    "attends with its coverage instead of C_0, everything else being equal, on the test set with "
    "its references. Source words are grouped at every step by the attention received before, "
    "divided by fertility where there is one (C). The difference compares words that are covered "
    "with words that are not yet; below zero, coverage turns attention away from covered words. "
    "Neural coverage of a word changes without attention to it too, so there the difference also "
    "shows how covered words differ from others; `by attention received` is the same difference "
    "against the coverage that words have if they are never attended to, so it shows what "
    "attention received does. Intervals: 95%, bootstrap over sentences. Without coverage all are 0."
)


# of the baseline and of the coverage system
ExamplePairs = Sequence[tuple[ExampleSentence, ExampleSentence]]


class ExampleHeatMap(NamedTuple):
    """A heat map of an example sentence, which is counted from 1."""

    number: int
    caption: str

    @property
    def file(self) -> str:
        """Name of the image."""
        return f"example-{self.number}.png"


def write_page(experiment: Experiment, directory: Path) -> Path:
    """Write page, figures and summary next to the results; returns the path of the page."""
    results, unfinished = read_results(directory), read_partial_results(directory)
    if not results:
        raise UserError(f"{directory}: no result files yet; run a job, or copy some there")
    best = results
    if experiment.checkpoints:
        results = [result.with_averaged_weights() for result in best]
    summary = summarize_results(experiment, results)
    write_json(directory / SUMMARY, summary.to_json())
    shown = one_result_per_system(results)
    examples = shared_examples(shown)
    pictures = choose_pictures(examples)
    draw_pictures(examples, pictures, directory)
    runs = collect_runs(best, unfinished)
    sections = [
        introduction(experiment, summary, results),
        *((measuring_section(), checkpoints_section(runs)) if experiment.checkpoints else ()),
        translation_section(experiment, summary, results),
        length_penalty_section(results),
        other_tests_section(results),
        distillation_section(results),
        alignment_section(experiment, summary, results),
        adequacy_section(experiment, summary, results),
    ]
    if shown:  # there are neural systems
        draw_figures(experiment, shown, directory)
        sections += [
            length_section(experiment, shown),
            speed_section(summary),
            training_section(shown),
            attention_section(summary, results),
        ]
    if experiment.checkpoints:
        best_summary = summarize_results(experiment, best)
        sections += [gain_over_training_section(runs), best_checkpoint_section(best_summary)]
    sections += [
        examples_section(examples, pictures),
        variants_section(summary),
        missing_section(summary),
    ]
    with atomic_write_text(directory / PAGE) as stream:
        stream.write("\n\n".join(section for section in sections if section) + "\n")
    return directory / PAGE


def one_result_per_system(results: Sequence[Result]) -> dict[str, Result]:
    """Take of each of the paper's systems the seed that most systems have, or else its first."""
    groups = {name: rs for name, rs in group_by_system(results).items() if name in PAPER_SYSTEMS}
    counts = Counter(result.seed for group in groups.values() for result in group)
    usual = min(counts, key=lambda seed: (-counts[seed], seed), default=0)
    return {
        name: next((result for result in group if result.seed == usual), group[0])
        for name, group in groups.items()
    }


def shared_examples(shown: Mapping[str, Result]) -> ExamplePairs:
    """Pair the examples of both systems, if both are there and translated the same sentences."""
    if BASELINE not in shown or COVERAGE_SYSTEM not in shown:
        return []
    baseline, coverage = shown[BASELINE].examples, shown[COVERAGE_SYSTEM].examples
    if [e.source_tokens for e in baseline] != [e.source_tokens for e in coverage]:
        return []
    return list(zip(baseline, coverage, strict=True))


# Sections


def introduction(experiment: Experiment, summary: Summary, results: Sequence[Result]) -> str:
    """Write the title and where the results come from."""
    pairs = ", ".join(f"{name} {split.kept:,}" for name, split in results[0].data.items())
    several = len(summary.systems) > 1 and not summary.unequal
    shared = ", the same for all systems of a table except variants" if several else ""
    commits = ", ".join(f"`{commit}`" for commit in summary.commits)
    if "+`" in commits:
        commits += " (+: with changes that were not committed)"
    lines = [
        f"# {experiment.title}",
        "",
        "Generated by `covnmt reproduce` from the result files in this directory; do not edit.",
        "",
        f"- Sentence pairs: {pairs}. Recipe: `{experiment.recipe}`{shared}.",
        f"- Trained on: {'; '.join(machine_label(name, results) for name in summary.machines)}.",
        f"- Commits: {commits}.",
    ]
    if summary.find(BASELINE):
        lines.append(
            "- Published figures are those of the paper: for other text (NIST Chinese to English), "
            "hardware and training. Compare directions, not values."
        )
    if summary.unequal:
        lines.append(f"- **Not one recipe**: the results differ in {'; '.join(summary.unequal)}.")
    return "\n".join(lines)


def machine_label(machine: str, results: Sequence[Result]) -> str:
    """Name a machine, and say so if only the phrase-based system was trained on it."""
    systems = {result.system for result in results if result.machine.name == machine}
    return f"{machine} (only `{PHRASE_BASED}`)" if systems == {PHRASE_BASED} else machine


def translation_section(experiment: Experiment, summary: Summary, results: Sequence[Result]) -> str:
    """Write the section of the paper's Table 1."""
    paragraphs = [tables.translation_table(summary)]
    if summary.unequal:
        paragraphs += [
            "**Means of several seeds mix runs with different settings or training time.** The "
            "gain compares only seeds that both systems have. The single runs:",
            tables.runs_table([result for result in results if result.system in PAPER_SYSTEMS]),
        ]
    case = "All scores are case-insensitive."
    if experiment.text.plain:
        case = "BLEU and TER are case-insensitive, sacreBLEU and chrF case-sensitive."
    signatures = "; ".join(
        f"{tables.SCORES.get(score.name, score.name)} `{score.signature}`"
        for score in results[0].scores.translation
    )
    paragraphs.append(f"BLEU is computed as in the paper. {case} Signatures: {signatures}.")
    if summary.find(BASELINE):
        has_phrase_based = summary.find(PHRASE_BASED) is not None
        double = f"; {tables.DOUBLE_DAGGER}: than `{PHRASE_BASED}`" if has_phrase_based else ""
        moses = f", and that of `{PHRASE_BASED}` is Moses" if has_phrase_based else ""
        paragraphs.append(
            f"{tables.DAGGER}: better than the baseline of the same seed{double}, with p < 0.01 in "
            f"the sign test on BLEU; `{tables.DAGGER} 1 of 2`: with one of two seeds. Gains "
            "compare equal seeds, with 95% bootstrap confidence intervals over the test sentences. "
            "Square brackets hold the lowest and highest seed. Names in parentheses are the "
            "paper's. The published scores are means of three test sets with four references each "
            f"(here there is one){moses}."
        )
    return page_section("Translation (Table 1)", *paragraphs)


def length_penalty_section(results: Sequence[Result]) -> str:
    """Write the section on length normalization, where it was chosen on the dev set."""
    ordered = [result for group in group_by_system(results).values() for result in group]
    table = tables.length_penalty_table(ordered)
    note = (
        "The paper's BLEU on the dev set, with log-probabilities divided by length to this power. "
        "The test set was translated with the best value (of equal ones, the smallest). The length "
        "ratio is output over reference, on the dev set."
    )
    return page_section("Length normalization, chosen on the dev set", table, note) if table else ""


def other_tests_section(results: Sequence[Result]) -> str:
    """Write the section on held-out text of other kinds, where a corpus is a mix of several."""
    table = tables.other_tests_table(results)
    note = (
        "sacreBLEU / chrF, case-sensitive, of held-out pairs of each source of the training text."
    )
    return page_section("Other test sets", table, note) if table else ""


def distillation_section(results: Sequence[Result]) -> str:
    """Write the section on how the training text of students was made."""
    table = tables.distillation_table(results)
    note = "Students are trained on translations of the training source by a larger model."
    return page_section("Distillation", table, note) if table else ""


def alignment_section(experiment: Experiment, summary: Summary, results: Sequence[Result]) -> str:
    """Write the section of the paper's Table 3."""
    gold = next((result.gold for result in results if result.gold.pairs), None)
    if gold is None:
        reason = "No gold alignments were given, so there is no AER."
        if experiment.text.plain:
            reason = (
                "There is no AER: the subwords of plain text do not end where the words of gold "
                "alignments do."
            )
        return page_section("Alignment (Table 3)", reason)
    note = (
        f"On {gold.pairs:,} {gold.what}: force-decoded, each target word linked to the source word "
        "with the highest attention."
    )
    if summary.find(PHRASE_BASED):
        note += (
            f" The row of `{PHRASE_BASED}` is its statistical aligner, which learned from "
            f"{ALIGNER_PAIRS:,} training pairs and from these; both directions are symmetrized."
        )
    return page_section("Alignment (Table 3)", tables.alignment_table(summary), note)


def adequacy_section(experiment: Experiment, summary: Summary, results: Sequence[Result]) -> str:
    """Write the section on omissions and repetitions, where they were measured."""
    title = "Over- and under-translation"
    if any(result.scores.proxies for result in results):
        return page_section(title, tables.adequacy_table(summary), tables.adequacy_note(summary))
    reason = "Not measured: the attention of these systems is over subwords, not over words."
    return page_section(title, reason) if experiment.text.subwords else ""


def length_section(experiment: Experiment, shown: Mapping[str, Result]) -> str:
    """Write the section on sentence length."""
    unit = length_unit(experiment)
    rows = []
    for name, result in shown.items():
        if long := result.long_sentences():
            number, ratio = long
            rows.append([tables.system_label(name), str(number), f"{ratio:.3f}"])
    head = ("system", f"sentences over {LONG_SOURCE} {unit}", "output / reference length")
    claim = f"In the paper the baseline's outputs are much too short beyond {LONG_SOURCE} words."
    table = markdown_table(head, rows) if rows else ""
    seeds = ", ".join(sorted({str(result.seed) for result in shown.values()}))
    only = ", drawn only for the first system" if len(shown) > 3 else ""
    note = f"Seed {seeds}. Shaded areas are 95% bootstrap confidence intervals{only}."
    figure = "![BLEU and length](lengths.png)"
    compared = rows and BASELINE in shown
    return page_section("Sentence length", figure, table, f"{claim} {note}" if compared else note)


def speed_section(summary: Summary) -> str:
    """Write the section on speed."""
    note = (
        "Target tokens (words, or subwords) per second, median over the reports of training. Runs "
        "that shared the machine with other work have no speed."
    )
    if summary.find(BASELINE):
        note += (
            " The ratio compares a run with the baseline of the same seed, commit and kind of "
            "machine, if there is one. Both columns are means over the seeds that have a value, so "
            "the ratio need not be the quotient of the speeds. docs/kernels.md compares all "
            "systems in one run on a GPU."
        )
    return page_section("Speed", tables.speed_table(summary), note)


def training_section(shown: Mapping[str, Result]) -> str:
    """Write the section on training: the curves, and why each training ended."""
    systems_by_reason: dict[str, list[str]] = {}
    for name, result in shown.items():
        systems_by_reason.setdefault(result.training.reason, []).append(f"`{name}`")
    reasons = "; ".join(
        f"{', '.join(names)}: {reason}" for reason, names in systems_by_reason.items()
    )
    figure = "![Training curves](training.png)" if has_training_curves(shown) else ""
    seeds = ", ".join(sorted({str(result.seed) for result in shown.values()}))
    note = f"Why training ended (seed {seeds}). {reasons}."
    if "measuring" in reasons:
        note += " Measuring is translation, alignment and scoring after the training."
    return page_section("Training", figure, note)


def attention_section(summary: Summary, results: Sequence[Result]) -> str:
    """Write the section on attention statistics and the effect of coverage, where measured."""
    paragraphs = []
    if any(result.scores.diagnostics for result in results):
        paragraphs += [tables.attention_table(summary), ATTENTION_NOTE]
    ordered = [result for group in group_by_system(results).values() for result in group]
    if effects := tables.coverage_effect_table(ordered):
        paragraphs += [effects, COVERAGE_EFFECT_NOTE]
    return page_section("Attention", *paragraphs) if paragraphs else ""


def examples_section(examples: ExamplePairs, pictures: Sequence[ExampleHeatMap]) -> str:
    """Write the example sentences with their translations by both systems."""
    if not examples:
        return ""
    lines = [
        "## Example sentences",
        "",
        "Our own, from no corpus; all of them are shown.",
        "",
    ]
    for number, (baseline, coverage) in enumerate(examples, 1):
        lines.append(f"{number}. {readable_source(baseline.source_tokens)}")
        if baseline.text == coverage.text:
            lines.append(f"   - both: {baseline.text}")
        else:
            outputs = {BASELINE: baseline, COVERAGE_SYSTEM: coverage}
            lines += [f"   - `{name}`: {example.text}" for name, example in outputs.items()]
    for picture in pictures:
        lines += ["", f"![Sentence {picture.number}]({picture.file})", "", f"*{picture.caption}*"]
    return "\n".join(lines)


def readable_source(tokens: Sequence[str]) -> str:
    """Join words, or the subwords of SentencePiece, which mark where a word begins."""
    if any(token.startswith(WORD_START) for token in tokens):
        return "".join(tokens).replace(WORD_START, " ").strip()
    return " ".join(tokens)


def variants_section(summary: Summary) -> str:
    """Write the section on our variants, if some were run."""
    table = tables.variants_table(summary)
    note = (
        "The change in BLEU is against the system that a variant modifies, with the same seeds, "
        "and has a 95% bootstrap confidence interval over the test sentences."
    )
    return page_section("Variants", table, note) if table else ""


def missing_section(summary: Summary) -> str:
    """List planned results that do not exist."""
    names = ", ".join(f"`{name}`" for name in summary.missing)
    return page_section("Missing", f"Not run yet: {names}.") if names else ""


# Figures


def has_training_curves(shown: Mapping[str, Result]) -> bool:
    """Tell whether there were enough validations for curves that show something."""
    return any(len(result.training.validations) >= MIN_VALIDATIONS for result in shown.values())


def length_unit(experiment: Experiment) -> str:
    """Return what source lengths are counted in."""
    return "subwords" if experiment.text.plain else "words"


def draw_figures(experiment: Experiment, shown: Mapping[str, Result], directory: Path) -> None:
    """Draw curves by sentence length and of training, as PNG and SVG."""
    buckets = {
        name: scores_by_length(result.statistics, result.test.source_lengths)
        for name, result in shown.items()
    }
    curves = {name: training_curves(result) for name, result in shown.items()}
    for ending in ("png", "svg"):
        draw_length_curves(buckets, directory / f"lengths.{ending}", length_unit(experiment))
        training_figure = directory / f"training.{ending}"
        if has_training_curves(shown):
            draw_training_curves(curves, training_figure)
        else:
            training_figure.unlink(missing_ok=True)


def training_curves(result: Result) -> TrainingCurves:
    """Return the curves of a training."""
    reports, validations = result.training.curve, result.training.validations
    losses = [(point.update, point.loss) for point in validations if point.loss is not None]
    return TrainingCurves(
        Curve([point.update for point in reports], [point.loss for point in reports]),
        Curve([update for update, _ in losses], [loss for _, loss in losses]),
        Curve([point.update for point in validations], [point.bleu for point in validations]),
    )


def choose_pictures(examples: ExamplePairs) -> list[ExampleHeatMap]:
    """Choose the examples where coverage removes and where it adds the most attention errors."""
    # two equal outputs would show nothing, whatever their attention
    reductions = [
        count_attention_errors(baseline) - count_attention_errors(coverage)
        if baseline.text != coverage.text
        else 0
        for baseline, coverage in examples
    ]
    between = f"from {BASELINE} to {COVERAGE_SYSTEM}"
    definition = (
        f" (source words with less than {LOW_ATTENTION:g} attention in total, and target words in "
        "repeated pairs of words; they do not tell which translation is better)"
    )
    pictures = []
    if reductions and max(reductions) > 0:
        number = int(np.argmax(reductions)) + 1
        caption = f"Where the number of attention errors falls most {between}{definition}."
        pictures.append(ExampleHeatMap(number, caption))
    if reductions and min(reductions) < 0:
        number = int(np.argmin(reductions)) + 1
        caption = f"Where the number of attention errors rises most {between}"
        caption += "." if pictures else f"{definition}. In no sentence does it fall."
        pictures.append(ExampleHeatMap(number, caption))
    return pictures


def count_attention_errors(example: ExampleSentence) -> int:
    """Count source words with little attention, and target words in repeated pairs of words."""
    neglected = int((example.matrix.sum(axis=0) < LOW_ATTENTION).sum())
    return neglected + len(repeated_bigram_positions(example.tokens))


def draw_pictures(
    examples: ExamplePairs, pictures: Sequence[ExampleHeatMap], directory: Path
) -> None:
    """Draw the heat maps of both systems, and remove pictures of an earlier page."""
    for picture in pictures:
        pair = zip((BASELINE, COVERAGE_SYSTEM), examples[picture.number - 1], strict=True)
        panels = [
            HeatMap(name, e.source_tokens, e.tokens, e.matrix, np.array(e.coverage, np.float32))
            for name, e in pair
        ]
        draw_heat_maps(panels, directory / picture.file)
    kept = {directory / picture.file for picture in pictures}
    for path in set(directory.glob("example-*.png")) - kept:
        path.unlink()
