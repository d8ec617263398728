"""The tables of docs/cpu.md, from the result files of benchmarks/cpu.py and benchmarks/int8.py.

python benchmarks/cpu_table.py
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from machine import RESULTS

NAMES = {
    "onnx-int8": "covnmt, int8",
    "onnx-int8-shortlist": "covnmt, int8 with a short list",
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
    """As Markdown."""
    head = list(header)
    lines = [head, ["---"] * len(head), *map(list, rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def rates(result: dict[str, Any], unit: str) -> dict[str, dict[int, float]]:
    """Median words per second, by engine and beam."""
    found: dict[str, dict[int, float]] = {}
    for row in result["rows"]:
        found.setdefault(row["engine"], {})[row["beam"]] = row[unit]["median"]
    return found


def speeds(result: dict[str, Any], unit: str) -> str:
    """A row per engine, a column per beam, and what does not depend on it."""
    known = rates(result, unit)
    about = {each["engine"]: each for each in result["engines"]}
    beams = sorted(next(iter(known.values())))
    rows = []
    for engine in (name for name in NAMES if name in known):
        told = about[engine]
        version = "" if NAMES[engine].startswith("covnmt") else f" {told['version']}"
        disk = f"{told['disk_mib']:,.0f} MiB" if told["disk_mib"] else ""
        costs = [f"{told['ready_seconds']:.1f} s", f"{told['peak_mib']:,.0f} MiB", disk]
        figures = [f"{known[engine][beam]:,.0f}" for beam in beams]
        rows.append([NAMES[engine] + version, *figures, *costs])
    header = ["engine", *(f"beam {beam}" for beam in beams), "ready in", "peak memory", "on disk"]
    return table(header, rows)


def ratios(result: dict[str, Any], unit: str) -> str:
    """Our int8 over PyTorch, the best toolkit in Python, and Marian, for each beam."""
    known = rates(result, unit)
    ours = known["onnx-int8"]
    lines = []
    for beam, rate in ours.items():
        best = max(known[name][beam] for name in PEERS if name in known)
        others = [known["pytorch"][beam], best, known["marian"][beam]]
        lines.append(f"beam {beam}: " + ", ".join(f"{rate / other:.1f}" for other in others))
    return "int8 over PyTorch, best Python toolkit, Marian: " + "; ".join(lines) + "\n"


def forms(result: dict[str, Any]) -> str:
    """A row for every form of a model and beam."""
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
    """Print every table there is."""
    for path in sorted(RESULTS.glob("cpu-*.json")):
        result = json.loads(Path(path).read_text("utf-8"))
        unit = "words_per_second" if "threads" in path.stem else "words_per_cpu_second"
        print(f"{path.stem} ({result['machine']['commit']}, {unit})\n")
        print(speeds(result, unit), ratios(result, unit), sep="\n")
    for path in sorted(RESULTS.glob("int8-*.json")):
        result = json.loads(Path(path).read_text("utf-8"))
        print(f"{path.stem}, {result['sentences']:,} sentences\n\n{forms(result)}")


if __name__ == "__main__":
    main()
