"""Generate the tables of docs/serve.md from what was measured of the server."""

import json
import re
from pathlib import Path
from typing import Any

from covnmt.base.table import markdown_table

RESULTS = Path(__file__).parents[2] / "benchmarks/results"
BATCHES, ALONE = "batches", "one sentence at a time"


def load(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def load_table() -> str:
    """Compare the server with one that translates each sentence by itself, by clients."""
    rows = {(row["server"], row["clients"]): row for row in load("serve")["rows"]}

    def describe(row: dict[str, Any]) -> tuple[str, ...]:
        p50, p99 = (f"{1000 * row[key]['median']:,.0f}" for key in ("p50", "p99"))
        return f"{row['rate']['median']:.1f}", f"{p50}, {p99}", f"{row['tail']['median']:.2f}"

    lines = []
    for clients in sorted({clients for _, clients in rows}):
        batches, alone = rows[BATCHES, clients], rows[ALONE, clients]
        speedup = f"{batches['speedup']:.2f}"
        lines.append((str(clients), *describe(batches), *describe(alone), speedup))
    head = ("clients", "requests/s", "p50, p99 in ms", "p99 / p50")
    without = tuple(f"{name}, without batches" for name in head[1:])
    return markdown_table((*head, *without, "speedup by batches"), lines, [True] * 8)


def load_conditions() -> str:
    """Say on which machine, at which load, and how often was measured."""
    found = load("serve")
    used = [row["others"]["median"] for row in found["rows"]]
    settings, machine = found["settings"], found["machine"]
    lengths = " to ".join(re.findall(r"\d+", settings["characters"]))
    return (
        f"Model `{settings['model']}`, sentences of {lengths} characters, beam 5; "
        f"{machine['cores']} cores ({machine['cpu']}), shared by server and clients; medians of "
        f"{settings['repeats']} repetitions, the servers in turns. Meanwhile other programs took "
        f"{100 * min(used):.0f} to {100 * max(used):.0f}% of the cores."
    )


def attacks_table() -> str:
    """Show each attack with one of its figures, one that does not hold if there is such a one."""
    lines = []
    for row in load("abuse")["rows"]:
        findings = row["findings"]
        numbers = [finding for finding in findings if finding["value"] is not None]
        shown = [finding for finding in findings if not finding["held"]] or numbers or findings
        example = f"{shown[0]['what']}: {shown[0]['seen']}, {shown[0]['should']}"
        verdict = "held" if row["held"] else "did not hold"
        lines.append((row["row"], row["name"], example, verdict))
    return markdown_table(("row", "attack", "one of its figures, and its bound", ""), lines)


def soak_table() -> str:
    """Show what became of the requests, and the memory."""
    found = load("soak")
    counts = found["counts"]
    names = {
        "answered right": "right",
        "answered wrong": "wrong",
        "lost": "lost",
        "answered twice": "doubled",
        "failed": "failed",
        "refused, as they should be": "bad, refused",
        "hung up": "hung up",
    }
    lines = [(name, f"{counts.get(key, 0):,}") for name, key in names.items()]
    lines.append(("workers killed", f"{counts.get('workers killed', 0):,}"))
    for name, key in {"server": "server_mib", "oldest worker": "oldest_worker_mib"}.items():
        grown = found["growth"][key]
        before, after = (f"{grown[when]:.0f}" for when in ("second quarter", "last quarter"))
        lines.append((f"memory of the {name}, second and last quarter", f"{before}, {after} MiB"))
    return markdown_table(("requests", ""), lines, [False, True])


TABLES = {
    "server-load": load_table,
    "server-load-conditions": load_conditions,
}
