"""What every result file says about where it came from, and how figures are summed up."""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from covnmt.base.provenance import collect_provenance

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Hardware, commit, versions and command."""
    found = collect_provenance()
    return {**found.pop("machine"), **found, "command": command()}


def command() -> str:
    """What was run, without where its result went and its data were."""
    words = ["python", *sys.argv]
    if "--out" in words:
        at = words.index("--out")
        del words[at : at + 2]
    if "--data" in words:
        words[words.index("--data") + 1] = "DATA"
    return " ".join(words)


def summary(values: list[float]) -> dict[str, float]:
    """Median, and the extremes as the spread."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def family(root: int) -> set[int]:
    """A process and all its descendants."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it ended meanwhile
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def save(name: str, content: dict[str, Any], directory: Path | None) -> None:
    """Write a result file."""
    path = (directory or RESULTS) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content.get("settings", {}).pop("out", None)
    path.write_text(json.dumps({"machine": machine(), **content}, indent=2) + "\n", "utf-8")
    print(f"wrote {path}")
