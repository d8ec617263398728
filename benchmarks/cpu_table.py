"""Print the tables of docs/cpu.md from the recorded results of cpu.py and int8.py.

python benchmarks/cpu_table.py
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness import RECORDED

NAMES = {
    "onnx-int8": "covnmt, int8",
    "onnx-int8-shortlist": "covnmt, int8 with a shortlist",
    "onnx-fp32": "covnmt, ONNX float32",
    "pytorch": "covnmt, PyTorch",
    "marian": "Marian",
    "opennmt-py": "OpenNMT-py",
    "eole": "eole",
    "joeynmt": "Joey NMT",
    "fairseq": "fairseq",
}
PEERS = ("opennmt-py", "eole", "joeynmt", "fairseq")  # in Python


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    head = list(header)
    lines = [head, ["---"] * len(head), *map(list, rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def rates(result: dict[str, Any], unit: str) -> dict[str, dict[int, float]]:
    """Return the median words per second, by engine and beam."""
    medians: dict[str, dict[int, float]] = {}
    for row in result["rows"]:
        medians.setdefault(row["engine"], {})[row["beam"]] = row[unit]["median"]
    return medians


def speeds(result: dict[str, Any], unit: str) -> str:
    """Return a table with a row per engine and a column per beam."""
    medians = rates(result, unit)
    engines = {engine["engine"]: engine for engine in result["engines"]}
    beams = sorted(next(iter(medians.values())))
    rows = []
    for engine in (name for name in NAMES if name in medians):
        about = engines[engine]
        version = "" if NAMES[engine].startswith("covnmt") else f" {about['version']}"
        disk = f"{about['disk_mib']:,.0f} MiB" if about["disk_mib"] else ""
        costs = [f"{about['ready_seconds']:.1f} s", f"{about['peak_mib']:,.0f} MiB", disk]
        figures = [f"{medians[engine][beam]:,.0f}" for beam in beams]
        rows.append([NAMES[engine] + version, *figures, *costs])
    header = ["engine", *(f"beam {beam}" for beam in beams), "ready in", "peak memory", "on disk"]
    return table(header, rows)


def ratios(result: dict[str, Any], unit: str) -> str:
    """Return int8's speed over PyTorch, the best Python toolkit and Marian, for each beam."""
    medians = rates(result, unit)
    int8 = medians["onnx-int8"]
    lines = []
    for beam, rate in int8.items():
        best = max(medians[name][beam] for name in PEERS if name in medians)
        others = [medians["pytorch"][beam], best, medians["marian"][beam]]
        lines.append(f"beam {beam}: " + ", ".join(f"{rate / other:.1f}" for other in others))
    return "int8 over PyTorch, best Python toolkit, Marian: " + "; ".join(lines) + "\n"


def forms(result: dict[str, Any]) -> str:
    """Return a table with a row for every model format and beam."""
    rows = [
        [
            NAMES[row["form"]],
            str(row["beam"]),
            f"{row['bleu']:.2f}",
            f"{row['changed_lines']:,}",
            f"{row['words_per_cpu_second']:,.0f}",
            f"{row['peak_mib']:,.0f} MiB",
            f"{row['disk_mib']:,.0f} MiB",
        ]
        for row in result["rows"]
    ]
    header = ["form", "beam", "BLEU", "lines that change", "words per CPU second"]
    return table([*header, "peak memory", "on disk"], rows)


def main() -> None:
    """Print a table for every recorded result."""
    for path in sorted(RECORDED.glob("cpu-*.json")):
        result = json.loads(Path(path).read_text("utf-8"))
        unit = "words_per_second" if "threads" in path.stem else "words_per_cpu_second"
        print(f"{path.stem} ({result['machine']['commit']}, {unit})\n")
        print(speeds(result, unit), ratios(result, unit), sep="\n")
    for path in sorted(RECORDED.glob("int8-*.json")):
        result = json.loads(Path(path).read_text("utf-8"))
        print(f"{path.stem}, {result['sentences']:,} sentences\n\n{forms(result)}")


if __name__ == "__main__":
    main()
