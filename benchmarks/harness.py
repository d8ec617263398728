"""What all benchmarks share: arguments, the machine they ran on, and their result files.

Results go to benchmarks/out, which git ignores. With `--record` they go to benchmarks/results; its
files are committed, and README and docs quote them.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "results"
UNRECORDED = Path(__file__).parent / "out"


def argument_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the module's docstring as its help, and where results go."""
    summary, _, details = (doc or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    group = parser.add_argument_group("result file")
    place = group.add_mutually_exclusive_group()
    place.add_argument(
        "--record", action="store_true", help="replace the committed file in benchmarks/results"
    )
    place.add_argument(
        "--out", type=Path, default=UNRECORDED, help="directory (default: benchmarks/out)"
    )
    return parser


def result_path(name: str, arguments: argparse.Namespace) -> Path:
    """Return where a result file goes."""
    directory: Path = RECORDED if arguments.record else arguments.out
    return directory / f"{name}.json"


def save(
    name: str, content: dict[str, Any], arguments: argparse.Namespace, quiet: bool = False
) -> None:
    """Write a result file with machine, commit, versions and command."""
    path = result_path(name, arguments)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine(), **content}, indent=2) + "\n", "utf-8")
    if not quiet:
        print(f"wrote {path}")


def recorded(name: str) -> dict[str, Any]:
    """Read a committed result file."""
    content: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text("utf-8"))
    return content


def argument_values(arguments: argparse.Namespace, leave_out: Iterable[str] = ()) -> dict[str, str]:
    """Return the arguments for a result file, without paths that only exist here."""
    hidden = {"out", "record", *leave_out}
    return {key: str(value) for key, value in vars(arguments).items() if key not in hidden}


def machine() -> dict[str, Any]:
    """Return hardware, commit, versions and command."""
    from covnmt.base.provenance import collect_provenance  # imports torch: not before measuring

    provenance = collect_provenance()
    return {**provenance.pop("machine"), **provenance, "command": command()}


def command() -> str:
    """Return what was run, without where results went and data were."""
    program = Path(sys.argv[0])
    here = f"benchmarks/{program.name}" if program.is_absolute() else str(program)
    words = [word for word in ("python", here, *sys.argv[1:]) if word != "--record"]
    if "--out" in words:
        at = words.index("--out")
        del words[at : at + 2]
    for option in ("--data", "--source", "--target"):
        if option in words:
            words[words.index(option) + 1] = option[2:].upper()
    return " ".join(words)


def summary(values: list[float]) -> dict[str, float]:
    """Return the median, and the extremes as the spread."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def process_tree(root: int) -> set[int]:
    """Return the ids of a process and all its descendants."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended meanwhile
    tree = {root}
    while children := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= children
    return tree
