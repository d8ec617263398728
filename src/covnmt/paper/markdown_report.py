"""Results -> README.md, figures and summary.json of an experiment; needs the result files alone.

Figures are of one seed, as far as the systems have it. What is not there yet is listed as missing.
"""

import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from covnmt.base.config import PAPER_SYSTEMS
from covnmt.base.errors import UserError
from covnmt.base.files import atomic_write_text, write_json, write_lines
from covnmt.evaluation.figures import (
    HeatMap,
    draw_heat_maps,
    draw_length_curves,
    draw_training_curves,
)
from covnmt.evaluation.interesting_sentences import repeated_bigram_positions
from covnmt.metrics.adequacy import LOW_ATTENTION
from covnmt.metrics.by_length import scores_by_length
from covnmt.paper import tables
from covnmt.paper.experiments import Experiment
from covnmt.paper.results import Example, Result, read_results
from covnmt.paper.summary import BASELINE, Summary, group_by_system, summarize_results
from covnmt.paper.systems import PHRASE_BASED

PAGE, SUMMARY = "README.md", "summary.json"
COVERAGE = "gru10"  # the system shown beside the baseline
LONG = 40  # source words; beyond, the paper finds the baseline's outputs much too short


def write_page(experiment: Experiment, directory: Path) -> Path:
    """Write everything into the directory of the results; gives the page."""
    results = read_results(directory)
    if not results:
        raise UserError(f"{directory}: no result files yet; run a job, or copy some there")
    summary = summarize_results(experiment, results)
    write_json(directory / SUMMARY, summary.to_json())
    first = one_result_per_system(results)
    pictures = picture_examples(first, directory)
    parts = [
        introduction(experiment, summary, results),
        translation(experiment, summary),
        tuning(results),
        alignment(experiment, summary, results),
        adequacy(summary, results),
    ]
    if first:  # of the neural systems, not the phrase-based one alone
        write_figures(first, directory)
        parts += [lengths(first), speed(summary), training(first), attention(summary, results)]
    parts += [
        examples(first, pictures),
        variants(summary),
        missing(summary),
    ]
    with atomic_write_text(directory / PAGE) as stream:
        stream.write("\n\n".join(part for part in parts if part) + "\n")
    return directory / PAGE


def one_result_per_system(results: Sequence[Result]) -> dict[str, Result]:
    """Of every neural system the seed that most of them have, or else its first."""
    groups = {
        name: group for name, group in group_by_system(results).items() if name in PAPER_SYSTEMS
    }
    counts = Counter(result.seed for group in groups.values() for result in group)
    most = min(counts, key=lambda seed: (-counts[seed], seed), default=0)
    return {
        name: next((result for result in group if result.seed == most), group[0])
        for name, group in groups.items()
    }


def adequacy(summary: Summary, results: Sequence[Result]) -> str:
    """The section of words left out and said twice, where that was measured."""
    if not any(result.scores.proxies for result in results):
        return ""
    table, note = tables.adequacy_table(summary), tables.adequacy_note(summary)
    return f"## Over- and under-translation\n\n{table}\n\n{note}"


def attention(summary: Summary, results: Sequence[Result]) -> str:
    """The section of what attention tells, where that was measured."""
    if not any(result.scores.diagnostics for result in results):
        return ""
    return f"## Attention\n\n{tables.attention_table(summary)}\n\n{ATTENTION_NOTE}"


ATTENTION_NOTE = (
    "Correlation of the attention a word has received with what it receives next (the paper finds "
    "it negative), of predicted fertility with attention received, and entropy in bits."
)


def introduction(experiment: Experiment, summary: Summary, results: Sequence[Result]) -> str:
    """Where everything comes from."""
    data = results[0].data
    pairs = ", ".join(f"{name} {split.kept:,}" for name, split in data.items())
    shared = "" if summary.unequal else ", the same for all systems of a table"
    lines = [
        f"# {experiment.title}",
        "",
        "Written by `covnmt reproduce` from the result files beside it; do not edit.",
        "",
        f"- Pairs: {pairs}. Recipe: `{experiment.recipe}`{shared}.",
        f"- Trained on: {'; '.join(summary.machines)}.",
        f"- Commits: {', '.join(f'`{each}`' for each in summary.commits)}.",
        "- The paper's figures are for other text (NIST Chinese to English), hardware and "
        "training: compare directions, not values.",
    ]
    if summary.unequal:
        lines.append(f"- **Not one recipe**: the results differ in {'; '.join(summary.unequal)}.")
    return "\n".join(lines)


def translation(experiment: Experiment, summary: Summary) -> str:
    """The section of Table 1."""
    lower = "The first score is" if experiment.text.plain else "Scores are"
    phrases = summary.find(PHRASE_BASED)
    double = f"; {tables.DOUBLE_DAGGER}: better than `{PHRASE_BASED}`" if phrases else ""
    note = (
        f"{tables.DAGGER}: better than the baseline of the same seed with p < 0.01 in the sign "
        f"test on the paper's BLEU{double}. "
        "Gains are against the same seeds, with what 95% of bootstrap samples of the test "
        "sentences give; brackets hold the lowest and highest seed. "
        f"{lower} case-insensitive. The paper's own figures are means of three test sets with four "
        "references each; here there is one reference."
    )
    if phrases:
        note += f" The paper's figure beside `{PHRASE_BASED}` is that of Moses."
    return f"## Translation (Table 1)\n\n{tables.translation_table(summary)}\n\n{note}"


def tuning(results: Sequence[Result]) -> str:
    """The section on length normalisation, where it was chosen on the dev set."""
    ordered = [result for group in group_by_system(results).values() for result in group]
    if not (found := tables.tuning_table(ordered)):
        return ""
    note = (
        "The paper's BLEU of the dev set, with log-probabilities divided by length to this power; "
        "the test set was translated with the best (of equal ones, the smallest). Its length is "
        "that of the output over the reference's, on the dev set."
    )
    return f"## Length normalisation, chosen on the dev set\n\n{found}\n\n{note}"


def alignment(experiment: Experiment, summary: Summary, results: Sequence[Result]) -> str:
    """The section of Table 3."""
    gold = next((result.gold for result in results if result.gold.pairs), None)
    if gold is None:
        why = "No gold alignments were given, so there is no AER."
        if experiment.text.plain:
            why = "There is no AER: these subwords do not end where words of gold alignments do."
        return f"## Alignment (Table 3)\n\n{why}"
    note = (
        f"On {gold.pairs:,} {gold.what}; forced decoding, each target word linked to its "
        "heaviest source word."
    )
    if summary.find(PHRASE_BASED):
        note += f" The row of `{PHRASE_BASED}` is its statistical aligner, both directions joined."
    return f"## Alignment (Table 3)\n\n{tables.alignment_table(summary)}\n\n{note}"


def lengths(first: Mapping[str, Result]) -> str:
    """The section on sentence length."""
    rows = []
    for name, result in first.items():
        long = [n for n, j in enumerate(result.test.source_lengths) if j > LONG]
        if long:
            output, reference = result.statistics[long, :2].sum(axis=0)
            rows.append([tables.system_label(name), str(len(long)), f"{output / reference:.3f}"])
    head = ("system", f"sentences over {LONG} words", "output / reference length")
    claim = f"The paper: beyond {LONG} words the baseline's outputs are much shorter."
    long_table = f"{tables.markdown_table(head, rows)}\n\n{claim} " if rows else ""
    seeds = ", ".join(sorted({str(result.seed) for result in first.values()}))
    note = (
        f"Seed {seeds}; bands hold 95% of bootstrap samples, and of more than three systems "
        "only the first has one."
    )
    return f"## Sentence length\n\n![BLEU and length](lengths.png)\n\n{long_table}{note}"


def speed(summary: Summary) -> str:
    """The section on speed."""
    note = (
        "Median of target words per second over the reports of training. A ratio is given only "
        "for systems trained by the same commit on the same kind of machine; those that shared it "
        "with other work have no figures."
    )
    return f"## Speed\n\n{tables.speed_table(summary)}\n\n{note}"


def training(first: Mapping[str, Result]) -> str:
    """The section on training."""
    ended: dict[str, list[str]] = {}
    for name, result in first.items():
        ended.setdefault(result.training.reason, []).append(f"`{name}`")
    ends = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in ended.items())
    return f"## Training\n\n![Training curves](training.png)\n\nWhy it ended. {ends}."


def examples(first: Mapping[str, Result], pictures: Mapping[str, int]) -> str:
    """Our sentences under both systems."""
    pair = _pair(first)
    if not pair:
        return ""
    lines = ["## Example sentences", "", "Ours, from no corpus; all of them are shown.", ""]
    for number, rows in enumerate(zip(*(r.examples for r in pair), strict=True), 1):
        lines.append(f"{number}. {' '.join(rows[0].source_tokens)}")
        lines += [f"   - `{r.system}`: {row.text}" for r, row in zip(pair, rows, strict=True)]
    for caption, number in pictures.items():
        lines += ["", f"![Sentence {number + 1}](example-{number + 1}.png)", "", f"*{caption}*"]
    return "\n".join(lines)


def variants(summary: Summary) -> str:
    """The section on variants, where there are some."""
    found = tables.variants_table(summary)
    note = (
        "Change: in BLEU against the system it is made of, with the same seeds, and what 95% of "
        "bootstrap samples of the test sentences give."
    )
    return f"## Variants\n\n{found}\n\n{note}" if found else ""


def missing(summary: Summary) -> str:
    """What was planned and is not there."""
    names = ", ".join(f"`{name}`" for name in summary.missing)
    return f"## Missing\n\nNot run yet: {names}." if names else ""


# Figures


def write_figures(first: Mapping[str, Result], directory: Path) -> None:
    """Curves by sentence length and of training, as PNG and SVG."""
    buckets = {
        name: scores_by_length(result.statistics, result.test.source_lengths)
        for name, result in first.items()
    }
    with tempfile.TemporaryDirectory() as place:
        logs = {name: Path(place) / f"{name}.jsonl" for name in first}
        for name, log in logs.items():
            write_lines(log, map(json.dumps, _log(first[name])))
        for ending in ("png", "svg"):
            draw_length_curves(buckets, directory / f"lengths.{ending}")
            draw_training_curves(logs, directory / f"training.{ending}")


def picture_examples(first: Mapping[str, Result], directory: Path) -> dict[str, int]:
    """Heat maps of two of our sentences: where coverage mends most, and where least."""
    pair = _pair(first)
    if not pair or not pair[0].examples:
        return {}
    troubles = [[count_coverage_errors(row) for row in result.examples] for result in pair]
    mended = [before - after for before, after in zip(*troubles, strict=True)]
    rule = f"fewest words with attention below {LOW_ATTENTION:g} in all or said again"
    most, least = int(np.argmax(mended)), int(np.argmin(mended))
    chosen = {f"Where {COVERAGE} gains most on the baseline ({rule}).": most}
    if least != most:
        chosen[f"Where {COVERAGE} gains least, or loses."] = least
    files = {directory / f"example-{number + 1}.png": number for number in chosen.values()}
    for file, number in files.items():
        draw_heat_maps([_panel(result, number) for result in pair], file)
    for old in set(directory.glob("example-*.png")) - set(files):  # of an earlier page
        old.unlink()
    return chosen


def count_coverage_errors(example: Example) -> int:
    """Source words hardly looked at, and target words in pairs that were said before."""
    hardly = int((example.matrix.sum(axis=0) < LOW_ATTENTION).sum())
    return hardly + len(repeated_bigram_positions(example.tokens))


def _pair(first: Mapping[str, Result]) -> list[Result]:
    """The baseline and the coverage system, if both are there and translated the same sentences."""
    pair = [first[name] for name in (BASELINE, COVERAGE) if name in first]
    told = {tuple(tuple(row.source_tokens) for row in r.examples) for r in pair}
    return pair if len(pair) == 2 and len(told) == 1 else []


def _panel(result: Result, number: int) -> HeatMap:
    row = result.examples[number]
    coverage = np.array(row.coverage, dtype=np.float32)
    return HeatMap(result.system, row.source_tokens, row.tokens, row.matrix, coverage)


def _log(result: Result) -> list[dict[str, Any]]:
    """The training's log again, as far as it is drawn."""
    reports = [{"update": p.update, "loss": p.loss} for p in result.training.curve]
    checks = [
        {"update": p.update, "validation": {"loss": p.loss, "bleu": p.bleu}}
        for p in result.training.validations
    ]
    return [*reports, *checks]
