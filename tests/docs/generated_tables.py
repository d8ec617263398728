"""Generate the tables of results and settings in README.md and docs/ from the result files.

A table stands between `<!-- table: NAME (scripts/update-docs) -->` and `<!-- end of table -->`.

python -m tests.docs.generated_tables    writes all tables (scripts/update-docs does the same)
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from covnmt.base.arrays import IntArray
from covnmt.base.config import describe_keys
from covnmt.base.files import atomic_write_text
from covnmt.base.table import markdown_table
from covnmt.metrics.bleu import bleu_from_totals
from covnmt.metrics.bootstrap import bleu_gain_interval
from covnmt.metrics.significance import SignTest
from covnmt.paper.checkpoint_tables import (
    BLEU,
    MEASURES,
    collect_runs,
    format_difference,
    format_mean_and_deviation,
    paired_difference,
    runs_of,
)
from covnmt.paper.results import read_results
from tests.docs import server_tables
from tests.docs.command_line_reference import command_line_reference
from tests.system.test_layers import listed_packages

ROOT = Path(__file__).parents[2]
BENCHMARKS = "benchmarks/results"

# names in README.md
SYSTEMS = {
    "pbsmt": "phrase-based",
    "baseline": "baseline",
    "linguistic": "linguistic",
    "fertility": "linguistic + fertility",
    "tanh1": "tanh d=1",
    "gru1": "GRU d=1",
    "gru10": "GRU d=10",
}
RATES = ("AER", "SAER", "DROP", "little attention", "REP", "repeated 4-grams")
VARIATIONS = {
    "as above, seed 1": "",
    "printed order of a step": "-paper-order",
    "without dropout": "-no-dropout",
}
MODERN = {  # experiment and seed; seed 2 on KFTT: both systems were trained side by side
    "KFTT, seed 2": ("kftt-modern", 2),
    "laws, seed 1": ("twlaw-modern", 1),
}
SUMMARY = {
    "KFTT, Japanese-English: the paper's training, 1 seed": "kftt-original",
    "the same: AdamW, dropout, 2 seeds": "kftt",
    "laws, Chinese-English: AdamW, dropout, 2 seeds": "twlaw",
    "synthetic pair: small networks, 3 seeds": "embedded",
}
SIZES = {"1": "gru1", "4": "gru4", "10": "gru10", "16": "gru16"}
INGREDIENTS = {
    "whole recipe": "twlaw-modern/gru10",
    "length normalization, chosen on the dev set": "twlaw-modern/gru10-no-length-penalty",
    "dropout": "twlaw-modern/gru10-no-dropout",
    "subwords (instead of words)": "twlaw/gru10-modern",
    "label smoothing": "twlaw-modern/gru10-no-smoothing",
    "EMA weights, best on dev (instead of the last ones)": "twlaw-modern/gru10-no-average",
}
PAPER_SPEED = {"fertility": 0.91, "gru10": 0.83}
CPU_ENGINES = {
    "onnx-int8": "covnmt, GRU d=10, int8",
    "pytorch": "covnmt, GRU d=10, PyTorch",
    "marian": "Marian 1.12.42, float32",
    "eole": "eole 0.6.4",
    "opennmt-py": "OpenNMT-py 3.5.1",
    "fairseq": "fairseq 0.12.2, LSTM",
    "joeynmt": "Joey NMT 2.3.0",
}
CPU_COLUMNS = {  # result file and beam
    "10,001 words, 256, 512; beam 10": ("cpu-small-batch1", 10),
    "the same, batch 32": ("cpu-small-batch32", 10),
    "the same, greedy, batch 32": ("cpu-small-batch32", 1),
    "the paper's size, beam 10": ("cpu-paper-batch1", 10),
}
JUDGED_SETS = {  # translations in which experts marked omissions
    "omissions-ted": "TED talks, Chinese to English",
    "omissions-zurich-zh-en": "news, Chinese to English",
}
CUT_SETS = {
    "omissions-laws": "laws of Taiwan, `zh-en`",
    "omissions-mix-zh": "other text, `zh-en`",
    "omissions-kftt": "KFTT, `ja-en`",
    "omissions-mix-ja": "other text, `ja-en`",
    "omissions-news-de": "news, `de-en`",
}
KEY_TYPES = {
    "int": "whole number",
    "float": "number",
    "bool": "true, false",
    "tuple": "two numbers",
}


def load_json(name: str) -> Any:
    return json.loads((ROOT / name).read_text("utf-8"))


def tenths(value: float) -> str:
    return f"{value:.1f}".replace("-0.0", "0.0")


def format_gain(gain: float, interval: Sequence[float] | None) -> str:
    sign = "+" if float(tenths(gain)) > 0 else ""
    bounds = f" ({' to '.join(map(tenths, interval))})" if interval else ""
    return f"{sign}{tenths(gain)}{bounds}"


def bold_best(column: Sequence[float | None], better: int, cells: Sequence[str]) -> list[str]:
    """Set the best cell in bold, of those whose value is not None; `better` is +1 or -1."""
    best = max(better * value for value in column if value is not None)
    return [
        re.sub(r"^[^ ]+", r"**\g<0>**", cell)
        if value is not None and better * value == best
        else cell
        for value, cell in zip(column, cells, strict=True)
    ]


def results_table(experiment: str) -> str:
    """Show the systems of an experiment; bold are the best neural ones."""
    by_name = {
        s["system"]: s for s in load_json(f"docs/results/{experiment}/summary.json")["systems"]
    }
    systems = [by_name[name] for name in SYSTEMS]
    neural = [system["system"] != "pbsmt" for system in systems]
    means = [{name: s["mean"] for name, s in system["scores"].items()} for system in systems]

    def column(values: Sequence[float | None], better: int, cells: Sequence[str]) -> list[str]:
        candidates = [v if is_neural else None for v, is_neural in zip(values, neural, strict=True)]
        return bold_best(candidates, better, cells)

    bleu = [scores["BLEU (paper)"] for scores in means]
    bleu_cells = [
        f"{value:.2f}{''.join(f' {mark}' for mark in significance_marks(system))}"
        for value, system in zip(bleu, systems, strict=True)
    ]
    gains = [system["gain"] for system in systems]
    gain_cells = [
        ""
        if system["gain"] is None
        else format_gain(system["gain"], system["gain_band"] if is_neural else None)
        for system, is_neural in zip(systems, neural, strict=True)
    ]
    columns = [column(bleu, 1, bleu_cells), column(gains, 1, gain_cells)]
    for rate in RATES:
        values = [scores.get(rate) for scores in means]
        columns.append(column(values, -1, ["" if v is None else f"{v:.2f}" for v in values]))
    rows = [
        (SYSTEMS[system["system"]], *cells)
        for system, *cells in zip(systems, *columns, strict=True)
    ]
    return markdown_table(("system", "BLEU", "gain", *RATES), rows)


def original_training_table(experiment: str) -> str:
    """Show systems by their last checkpoints (b) and by the mean of these weights (c)."""
    runs = collect_runs(read_results(ROOT / "docs/results" / experiment), [])
    by_name = {
        s["system"]: s for s in load_json(f"docs/results/{experiment}/summary.json")["systems"]
    }
    measured = {run.system for run in runs}
    baseline = runs_of(runs, "baseline")
    rates = [
        measure
        for measure in MEASURES
        if measure.field in ("aer", "saer", "drop", "rep", "repeated_4grams")
        if any(run.values(measure) for run in runs)
    ]
    rows = []
    for name, label in SYSTEMS.items():
        if name not in measured:
            continue
        of_system, averaged = runs_of(runs, name), by_name[name]
        is_baseline = name == "baseline"
        rows.append(
            (
                label,
                format_mean_and_deviation(of_system, BLEU),
                ""
                if is_baseline
                else format_difference(paired_difference(of_system, baseline, BLEU)),
                f"{averaged['scores']['BLEU (paper)']['mean']:.2f}",
                "" if is_baseline else format_gain(averaged["gain"], averaged["gain_band"]),
                *(format_mean_and_deviation(of_system, rate) for rate in rates),
            )
        )
    head = ("system", "BLEU (b)", "gain (b)", "BLEU (c)", "gain (c)")
    return markdown_table((*head, *(f"{rate.name} (b)" for rate in rates)), rows)


def summary_table() -> str:
    """Show the baseline and GRU d=10 of all experiments."""
    rows = []
    for label, experiment in SUMMARY.items():
        summary = load_json(f"docs/results/{experiment}/summary.json")["systems"]
        systems = {system["system"]: system for system in summary}
        pair = [systems[name]["scores"]["BLEU (paper)"] for name in ("baseline", "gru10")]
        gain = format_gain(systems["gru10"]["gain"], systems["gru10"]["gain_band"])
        rows.append((label, *(f"{bleu['mean']:.1f}" for bleu in pair), gain))
    for label, (experiment, seed) in MODERN.items():
        before, baseline = bleu_and_statistics(f"{experiment}/baseline", seed)
        after, coverage = bleu_and_statistics(f"{experiment}/gru10", seed)
        name = f"{label}: modern recipe"
        rows.append((name, f"{before:.1f}", f"{after:.1f}", gain_over(baseline, coverage)))
    return markdown_table(("", "baseline", "GRU d=10", "gain"), rows)


def significance_marks(system: Mapping[str, Any]) -> list[str]:
    """Return the daggers that a system has with at least one seed."""
    tests = {"†": system["sign_tests"], "‡": system["phrase_tests"]}
    return [
        mark
        for mark, by_seed in tests.items()
        if any(SignTest(**test).is_gain for test in by_seed.values())
    ]


def bleu_and_statistics(name: str, seed: int = 1) -> tuple[float, IntArray]:
    result = load_json(f"docs/results/{name}-seed{seed}.json")
    bleu = float(result["scores"]["translation"][0]["value"])
    return bleu, np.array(result["test"]["statistics"])


def gain_over(baseline: IntArray, system: IntArray) -> str:
    gain = float(bleu_from_totals(system.sum(axis=0)) - bleu_from_totals(baseline.sum(axis=0)))
    return format_gain(gain, bleu_gain_interval([(baseline, system)]))


def variations_table() -> str:
    rows = []
    for label, suffix in VARIATIONS.items():
        before, baseline = bleu_and_statistics(f"kftt/baseline{suffix}")
        after, coverage = bleu_and_statistics(f"kftt/gru10{suffix}")
        rows.append((label, f"{before:.2f}", f"{after:.2f}", gain_over(baseline, coverage)))
    return markdown_table(("KFTT, one seed", "baseline", "GRU d=10", "gain"), rows)


def modern_table() -> str:
    rows = []
    for label, (experiment, seed) in MODERN.items():
        before, baseline = bleu_and_statistics(f"{experiment}/baseline", seed)
        after, coverage = bleu_and_statistics(f"{experiment}/gru10", seed)
        rows.append((label, f"{before:.2f}", f"{after:.2f}", gain_over(baseline, coverage)))
    return markdown_table(("modern recipe, one seed", "baseline", "GRU d=10", "gain"), rows)


def sizes_table() -> str:
    bleu = [f"{bleu_and_statistics(f'kftt/{system}')[0]:.2f}" for system in SIZES.values()]
    return markdown_table(("GRU, units d", *SIZES), [("BLEU on KFTT, one seed", *bleu)])


def ingredients_table() -> str:
    rows: list[tuple[str, str, str]] = []
    counts: list[IntArray] = []
    for label, name in INGREDIENTS.items():
        bleu, statistics = bleu_and_statistics(name)
        counts.append(statistics)
        rows.append((label, f"{bleu:.2f}", gain_over(statistics, counts[0]) if rows else ""))
    return markdown_table(("part", "BLEU without it", "effect"), rows)


def training_speeds(name: str, path: str) -> dict[tuple[str, int], float]:
    """Return the median target words per second by system and batch size."""
    rows = load_json(f"{BENCHMARKS}/{name}.json")["rows"]
    return {
        (row["system"], row["batch"]): row["words_per_second"]["median"]
        for row in rows
        if row["path"] == path
    }


def training_speed_table() -> str:
    def cells(speeds: Mapping[tuple[str, int], float], system: str) -> list[str]:
        return [f"{speeds[system, batch]:,.0f}" for batch in (80, 512)]

    speeds = training_speeds("train-systems", "fast")
    rows = []
    for system, label in list(SYSTEMS.items())[1:]:
        ratios = ", ".join(
            f"{speeds[system, batch] / speeds['baseline', batch]:.2f}" for batch in (80, 512)
        )
        paper = f" (the paper: {PAPER_SPEED[system]})" if system in PAPER_SPEED else ""
        ratio = "" if system == "baseline" else ratios + paper
        rows.append((f"covnmt, {label}", *cells(speeds, system), ratio))
    plain, peer = training_speeds("train", "reference"), training_speeds("train-opennmt", "peer")
    rows.append(("covnmt, GRU d=10, plain PyTorch", *cells(plain, "gru10"), ""))
    rows.append(("OpenNMT-py 3.5.1, coverage switch on", *cells(peer, "opennmt-py"), ""))
    head = ("target words/s, training", "batch 80", "batch 512", "speed / baseline (80, 512)")
    return markdown_table(head, rows)


def decoding_speed_table() -> str:
    speeds = {
        (row["path"], row["batch"]): row["sentences_per_second"]["median"]
        for row in load_json(f"{BENCHMARKS}/decode.json")["rows"]
        if row["system"] == "gru10"
    }
    labels = {"fast": "covnmt, GRU d=10", "reference": "covnmt, GRU d=10, plain PyTorch"}
    rows = [
        (
            label,
            *(
                f"{v:,.0f}" if (v := speeds[path, batch]) >= 100 else f"{v:.1f}"
                for batch in (1, 128)
            ),
        )
        for path, label in labels.items()
    ]
    return markdown_table(("sentences/s, beam 10", "batch 1", "batch 128"), rows)


def cpu_speed_table() -> str:
    columns = [
        {
            row["engine"]: f"{row['words_per_cpu_second']['median']:,.0f}"
            for row in load_json(f"{BENCHMARKS}/{file}.json")["rows"]
            if row["beam"] == beam
        }
        for file, beam in CPU_COLUMNS.values()
    ]
    rows = [(label, *(c[engine] for c in columns)) for engine, label in CPU_ENGINES.items()]
    return markdown_table(("system", *CPU_COLUMNS), rows)


def with_interval(measure: Mapping[str, float]) -> str:
    return f"{measure['value']:.3f} ({measure['low']:.3f} to {measure['high']:.3f})"


def judged_omissions_table() -> str:
    """Tabulate how scores rank lines and words of translations that experts judged."""
    rows = []
    keys = ("average precision", "area", "precision", "recall", "faultless marked")
    for name, text in JUDGED_SETS.items():
        result = load_json(f"{BENCHMARKS}/{name}.json")
        for unit in ("line", "word"):
            for score, measures in result.get(f"by {unit}", {}).items():
                cells = [with_interval(measures[k]) if k in measures else "" for k in keys]
                rows.append((text, f"{unit}s", score, *cells))
    head = ("text", "of", "score", "average precision", "area", *keys[2:])
    return markdown_table(head, rows)


def cut_omissions_table() -> str:
    """Tabulate how much of what was cut out of translations is found."""
    rows = []
    for name, text in CUT_SETS.items():
        cuts = dict(load_json(f"{BENCHMARKS}/{name}.json")["cuts"])
        marked = cuts.pop("complete lines marked")
        for mode in marked:
            found = [with_interval(cut[mode]["recall"]) for cut in cuts.values()]
            rows.append((text, mode, with_interval(marked[mode]), *found))
        for score in ("check", "lexicon alone", "length ratio", "least attended word"):
            key = "recall at 2% false alarms"
            found = [f"{cut[score][key]['value']:.3f}" for cut in cuts.values()]
            rows.append((text, f"{score}, at 2%", "0.020", *found))
    head = ("text", "score", "complete lines marked", "word", "phrase", "clause", "sentence")
    return markdown_table(head, rows)


def package_sizes_table() -> str:
    """Count modules and lines of each package; a table that is about right stays as it is."""
    sizes = {name: measure_package(name) for name in listed_packages()}
    sizes["all"] = tuple(map(sum, zip(*sizes.values(), strict=True)))
    rows = [(name, str(files), f"{round(lines, -2):,}") for name, (files, lines) in sizes.items()]
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    shown = re.findall(r"^\| (\w+) \| ([\d,]+) \| ([\d,]+) \|$", page, re.MULTILINE)
    kept = shown if are_about_equal(shown, rows) else rows
    return markdown_table(("package", "modules", "lines, about"), kept)


def measure_package(name: str) -> tuple[int, ...]:
    texts = [path.read_text("utf-8") for path in (ROOT / "src/covnmt" / name).rglob("*.py")]
    return len(texts), sum(text.count("\n") for text in texts)


def are_about_equal(first: Sequence[Sequence[str]], second: Sequence[Sequence[str]]) -> bool:
    """Tell whether rows have the same labels, and numbers that differ by 10% at most."""
    if [row[0] for row in first] != [row[0] for row in second]:
        return False
    numbers = (
        [int(cell.replace(",", "")) for row in rows for cell in row[1:]] for rows in (first, second)
    )
    return all(abs(a - b) <= 0.1 * b for a, b in zip(*numbers, strict=True))


def recipe_keys() -> str:
    """Show all keys of recipes, as the settings themselves describe them."""
    sections = []
    for branch, keys in groupby(describe_keys(), key=lambda row: row[0].rpartition(".")[0]):
        rows = [
            (f"`{key}`", format_choices(kind), f"`{default}`", meaning)
            for key, kind, default, meaning in keys
        ]
        table = markdown_table(("key", "choices", "default", "meaning"), rows)
        sections.append(f"### {branch}\n\n{table}")
    return "\n\n".join(sections)


def format_choices(kind: str) -> str:
    if " | " in kind:
        return ", ".join(f"`{choice}`" for choice in kind.split(" | "))
    return KEY_TYPES.get(kind, kind)


TABLES: dict[str, Callable[[], str]] = {
    "results-kftt-original": partial(original_training_table, "kftt-original"),
    "results-kftt": partial(results_table, "kftt"),
    "results-twlaw": partial(results_table, "twlaw"),
    "variations": variations_table,
    "modern": modern_table,
    "sizes": sizes_table,
    "ingredients": ingredients_table,
    "training-speed": training_speed_table,
    "decoding-speed": decoding_speed_table,
    "cpu-speed": cpu_speed_table,
    "judged-omissions": judged_omissions_table,
    "cut-omissions": cut_omissions_table,
    "package-sizes": package_sizes_table,
    "recipe-keys": recipe_keys,
    "command-line": command_line_reference,
    "summary": summary_table,
    **server_tables.TABLES,
}
PAGES = (
    "README.md",
    "docs/architecture.md",
    "docs/benchmarks.md",
    "docs/check.md",
    "docs/cli.md",
    "docs/recipes.md",
    "docs/results/README.md",
    "docs/serve.md",
)
MARKED = re.compile(
    r"(<!-- table: ([\w-]+) \(scripts/update-docs\) -->\n).*?(<!-- end of table -->)", re.DOTALL
)


def with_tables(page: str) -> str:
    """Fill in all marked tables of a page."""
    return MARKED.sub(lambda match: f"{match[1]}\n{TABLES[match[2]]()}\n\n{match[3]}", page)


def main() -> None:
    for name in PAGES:
        path = ROOT / name
        with atomic_write_text(path) as stream:
            stream.write(with_tables(path.read_text("utf-8")))


if __name__ == "__main__":
    main()
