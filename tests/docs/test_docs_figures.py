"""The figures in the documents are those of the result files, to the last digit."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covnmt.base.arrays import IntArray
from covnmt.metrics.bleu import corpus_bleu
from covnmt.metrics.bootstrap import bleu_gain_interval

ROOT = Path(__file__).parents[2]

# the names of README.md
SYSTEMS = {
    "phrase-based": "pbsmt",
    "baseline": "baseline",
    "linguistic": "linguistic",
    "linguistic + fertility": "fertility",
    "tanh d=1": "tanh1",
    "GRU d=1": "gru1",
    "GRU d=10": "gru10",
}
SCORES = ("AER", "SAER", "DROP", "REP", "repeated 4-grams")
CPU = {
    "covnmt, GRU d=10, int8": "onnx-int8",
    "covnmt, GRU d=10, PyTorch": "pytorch",
    "Marian 1.12.42, float32": "marian",
    "eole 0.6.4": "eole",
    "OpenNMT-py 3.5.1": "opennmt-py",
    "fairseq 0.12.2, LSTM": "fairseq",
    "Joey NMT 2.3.0": "joeynmt",
}
CPU_COLUMNS = (
    ("cpu-small-batch1", 10),
    ("cpu-small-batch32", 10),
    ("cpu-small-batch32", 1),
    ("cpu-paper-batch1", 10),
)
INGREDIENTS = {  # README.md's rows, and the results without each
    "nothing left out": "twlaw-modern/gru10",
    "length normalisation, chosen on the dev set": "twlaw-modern/gru10-no-length-penalty",
    "dropout": "twlaw-modern/gru10-no-dropout",
    "subwords (with words instead)": "twlaw/gru10-modern",
    "label smoothing": "twlaw-modern/gru10-no-smoothing",
    "averaged weights, best on dev (with the last ones instead)": "twlaw-modern/gru10-no-average",
}
CHECKS = ("check-ja-en", "check-embedded-gru10", "check-embedded-baseline")
SENTENCE_CHECKS = ("check-sentences-ja-en", "check-sentences-zh-en")


def tables(document: str, column: str) -> list[dict[str, list[str]]]:
    """The tables with such a column: cells of each row, without emphasis, by the first of them."""
    found = []
    for text in re.findall(r"(?:^\|.*\n)+", (ROOT / document).read_text("utf-8"), re.MULTILINE):
        head, _, *rows = [
            [cell.strip() for cell in line.replace("**", "").strip("|").split("|")]
            for line in text.splitlines()
        ]
        if column in head:
            found.append({re.sub(r" \(\[.*", "", name): cells for name, *cells in rows})
    return found


def results(name: str) -> Any:
    return json.loads((ROOT / name).read_text("utf-8"))


def tenths(value: float) -> str:
    return f"{value:.1f}".replace("-0.0", "0.0")


def gain(system: Any) -> str:
    if system["gain"] is None:
        return ""
    mean, band = tenths(system["gain"]), map(tenths, system["gain_band"])
    sign = "+" if float(mean) > 0 else ""
    return f"{sign}{mean}" + ("" if system["system"] == "pbsmt" else f" ({' to '.join(band)})")


@pytest.mark.parametrize(("number", "experiment"), [(0, "kftt"), (1, "twlaw")])
def test_results(number: int, experiment: str) -> None:
    found = results(f"docs/results/{experiment}/summary.json")["systems"]
    systems = {each["system"]: each for each in found}
    table = tables("README.md", "repeated 4-grams")[number]
    assert list(table) == list(SYSTEMS)
    for name, (bleu, shown, *cells) in table.items():
        system = systems[SYSTEMS[name]]
        means = {score: each["mean"] for score, each in system["scores"].items()}
        assert bleu.split()[0] == f"{means['BLEU (paper)']:.2f}", name
        assert shown == gain(system), name
        assert cells == [f"{means[s]:.2f}" if s in means else "" for s in SCORES], name


def test_what_is_said_of_coverage() -> None:
    """Also where it loses: that is easily left out."""
    page = " ".join((ROOT / "README.md").read_text("utf-8").split())

    def scores(experiment: str, name: str) -> list[float]:
        found = results(f"docs/results/{experiment}/summary.json")["systems"]
        systems = {each["system"]: each["scores"] for each in found}
        return [systems[system][name]["mean"] for system in ("baseline", "gru10")]

    less = {
        name: [before - after for before, after in (scores(e, name) for e in ("kftt", "twlaw"))]
        for name in ("AER", "SAER")
    }
    (aer, aer_laws), (saer, saer_laws) = less["AER"], less["SAER"]
    assert (
        f"GRU d=10 has {aer:.1f} and {aer_laws:.1f} points of AER less than the baseline and "
        f"{saer:.1f} and {saer_laws:.1f} of SAER" in page
    )
    before, after = scores("kftt", "little attention")
    assert f"{after:.1f}% of its source words get little attention on KFTT for {before:.1f}" in page
    before, after = scores("twlaw", "little attention")
    assert f"on the laws {after:.1f} for {before:.1f}" in page
    before, after = scores("embedded", "little attention")
    assert f"on the embedded pair ({after:.1f} for {before:.1f})" in page
    modern = results("docs/results/twlaw-modern/summary.json")["systems"]
    [laws] = [each for each in modern if each["system"] == "gru10"]
    high, low = (tenths(-bound) for bound in laws["gain_band"])
    assert f"GRU d=10 loses {tenths(-laws['gain'])} ({low} to {high})" in page


def test_what_is_said_of_what_coverage_sees() -> None:
    page = " ".join((ROOT / "README.md").read_text("utf-8").split())
    found = results("docs/results/embedded/summary.json")["systems"]
    systems = {each["system"]: each for each in found}
    unseen = ("attention", "state", "annotation")
    attention, state, word = (tenths(-systems[f"gru10-no-{name}"]["change"]) for name in unseen)
    assert (
        f"of the {tenths(systems['gru10']['gain'])} BLEU that GRU d=10 gains it loses {attention} "
        f"without the attention, {state} without the decoder state and {word} without the source"
        in page
    )


def test_what_is_said_of_sizes_and_dropout() -> None:
    page = " ".join((ROOT / "README.md").read_text("utf-8").split())

    def result(system: str) -> tuple[str, IntArray]:
        found = results(f"docs/results/kftt/{system}-seed1.json")
        bleu = found["scores"]["translation"][0]["value"]
        return tenths(bleu), np.array(found["test"]["statistics"])

    *smaller, largest = (result(system)[0] for system in ("gru1", "gru4", "gru10", "gru16"))
    assert f"d = 1, 4, 10 and 16 has {', '.join(smaller)} and {largest} BLEU on KFTT" in page
    before, base = result("baseline-no-dropout")
    after, coverage = result("gru10-no-dropout")
    assert f"the baseline has {before} BLEU on KFTT and GRU d=10 {after}" in page
    gained = float(corpus_bleu(coverage.sum(axis=0)) - corpus_bleu(base.sum(axis=0)))
    low, high = map(tenths, bleu_gain_interval([(base, coverage)]))
    assert f"coverage gains {tenths(gained)} ({low} to {high})" in page


def test_keys_of_result_files() -> None:
    page = (ROOT / "docs/reproduce.md").read_text("utf-8")
    told = page.partition("## What a result file holds")[2].partition("## ")[0]
    files = ROOT.glob("docs/results/*/*-seed*.json")
    keys = {key for path in files for key in json.loads(path.read_text("utf-8"))}
    assert [key for key in sorted(keys) if f"`{key}`" not in told] == []


def test_ingredients() -> None:
    [table] = tables("README.md", "it brings")
    assert list(table) == list(INGREDIENTS)
    counts = {}
    for name, (bleu, brings) in table.items():
        result = results(f"docs/results/{INGREDIENTS[name]}-seed1.json")
        assert bleu == f"{result['scores']['translation'][0]['value']:.2f}", name
        counts[name] = np.array(result["test"]["statistics"], dtype=float)
        if len(counts) > 1:
            pair = (counts[name], counts["nothing left out"])
            without, complete = (float(corpus_bleu(each.sum(axis=0))) for each in pair)
            change = {"gain": complete - without, "gain_band": bleu_gain_interval([pair])}
            assert brings == gain({"system": name, **change}), name


def test_training_speeds() -> None:
    [table] = tables("README.md", "of the baseline's")
    rows = results("benchmarks/results/train-systems.json")["rows"]
    speeds = {(row["system"], row["batch"]): row["words_per_second"]["median"] for row in rows}
    for name, system in list(SYSTEMS.items())[1:]:
        own = [speeds[system, batch] for batch in (80, 512)]
        *cells, ratios = table[f"covnmt, {name}"]
        assert cells == [f"{speed:,.0f}" for speed in own], name
        if system != "baseline":
            base = [speeds["baseline", batch] for batch in (80, 512)]
            quotients = (f"{one / other:.2f}" for one, other in zip(own, base, strict=True))
            assert ratios.startswith(", ".join(quotients)), name


def test_cpu_speeds() -> None:
    [table] = tables("README.md", "batch 1 where not said")
    assert list(table) == list(CPU)
    for name, engine in CPU.items():
        medians = (
            row["words_per_cpu_second"]["median"]
            for file, beam in CPU_COLUMNS
            for row in results(f"benchmarks/results/{file}.json")["rows"]
            if (row["engine"], row["beam"]) == (engine, beam)
        )
        assert table[name] == [f"{median:,.0f}" for median in medians], name


def test_checks() -> None:
    page = (ROOT / "docs/check.md").read_text("utf-8")
    [text] = re.findall(r"^\| pairs \|.*\n.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    for line, name in zip(text.splitlines(), CHECKS, strict=True):
        row = results(f"benchmarks/results/{name}.json")["row"]
        percent = (f"{100 * row[key]:.0f}%" for key in ("pairs_found", "precision", "recall"))
        areas = (f"{row[key]:.2f}" for key in ("area", "area_of_attention"))
        cells = [*percent, *areas, f"{100 * row['whole_units_flagged']:.1f}%"]
        assert [cell.strip() for cell in line.strip("|").split("|")][2:] == cells, name
    flagged = results("benchmarks/results/check-ja-en.json")["row"]["whole_pairs_flagged"]
    assert f"{100 * flagged:.0f}% of the whole sentences have a word reported" in page


def test_checks_of_sentences() -> None:
    page = (ROOT / "docs/check.md").read_text("utf-8")
    [text] = re.findall(r"^\| lines \|.*\n.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    for line, name in zip(text.splitlines(), SENTENCE_CHECKS, strict=True):
        row = results(f"benchmarks/results/{name}.json")["row"]
        found = (f"{100 * row[key]:.0f}%" for key in ("gone_reported", "gone_reported_as_one"))
        false = (f"{100 * row[key]:.1f}%" for key in ("kept_reported", "whole_reported"))
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells[0].startswith(f"{row['lines']} of ")
        assert cells[2:] == [*found, *false], name
