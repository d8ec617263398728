"""What several GPUs would give: a model of computing and communicating, and a check of it.

    python benchmarks/scaling.py docs/images/scaling.png

Reads the step times measured on one GPU (results/train-growth.json) and with gloo workers on a CPU
(results/scale-training.json); writes results/scale-model.json and draws the figure. Nothing here
was measured on several GPUs.

    update(n) = step(b) + copies + sum(n)          b pairs for each of n GPUs
    step(b)   = a + c b                            fitted to one GPU
    sum(n)    = 2 (k-1)/k G/B + 2 (k-1) L          ring over k members, G bytes, bandwidth B

Members are GPUs within a machine over NVLink, then machines over Ethernet.
"""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from machine import RESULTS, save
from matplotlib.figure import Figure

WEIGHTS = 84_449_431  # the paper's model with GRU d=10 (SPEC 1.6 and 2.2)
WORDS = 28  # target words of a pair in train-growth.json
COPY_BYTES = 12 * WEIGHTS  # into the row and out of it: fp32 read, bf16 written, and back
MEMORY = 4.0e12  # bytes a second that such copies reach; the card's peak is 4.8e12
GPUS = (1, 8, 64, 512)


class Link(NamedTuple):
    """How members of a ring reach each other. Assumed, not measured."""

    bandwidth: float  # bytes a second in each direction
    latency: float  # seconds for each step around the ring


NVLINK = Link(300e9, 5e-6)
ETHERNET = Link(10e9, 30e-6)  # 100 Gbit/s for each machine, four fifths of it used
PER_MACHINE = 8


def ring(members: int, size: float, link: Link) -> float:
    """Seconds of a sum over a ring."""
    return 2 * (members - 1) * (size / members / link.bandwidth + link.latency)


def over_nvlink(gpus: int, size: float) -> float:
    """All GPUs in one NVLink domain; beyond 72 of them no such machine is sold."""
    return ring(gpus, size, NVLINK)


def over_ethernet(gpus: int, size: float) -> float:
    """NVLink within machines of eight, Ethernet between them."""
    inside = min(gpus, PER_MACHINE)
    return ring(inside, size, NVLINK) + ring(gpus // inside, size, ETHERNET)


NETWORKS = {"NVLink": over_nvlink, "Ethernet": over_ethernet}


def fit(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Intercept and slope, every point weighing the same relative to its own height."""
    x, y = zip(*points, strict=True)
    weights = [1 / v**2 for v in y]
    total = sum(weights)
    mean_x = sum(w * v for w, v in zip(weights, x, strict=True)) / total
    mean_y = sum(w * v for w, v in zip(weights, y, strict=True)) / total
    rows = list(zip(weights, x, y, strict=True))
    slope = sum(w * (u - mean_x) * (v - mean_y) for w, u, v in rows)
    slope /= sum(w * (u - mean_x) ** 2 for w, u, _ in rows)
    return mean_y - slope * mean_x, slope


def predict(
    step: tuple[float, float], network: str, gpus: int, pairs: float, bytes_each: int
) -> dict[str, Any]:
    """An update of so many pairs on each GPU, with gradients of so many bytes a weight."""
    compute, extra = step[0] + step[1] * pairs, 0.0
    if gpus > 1:
        extra = COPY_BYTES / MEMORY + NETWORKS[network](gpus, bytes_each * WEIGHTS)
    return {
        "network": network,
        "gpus": gpus,
        "pairs_per_gpu": pairs,
        "gradient": {2: "bf16", 4: "fp32"}[bytes_each],
        "update_ms": 1e3 * (compute + extra),
        "sum_ms": 1e3 * extra,
        "words_per_second": gpus * pairs * WORDS / (compute + extra),
        "efficiency": compute / (compute + extra),
    }


def predictions(step: tuple[float, float]) -> dict[str, list[dict[str, Any]]]:
    """With as many pairs on each GPU as before, and with a given batch divided among them."""
    growing = [
        predict(step, network, gpus, pairs, bytes_each)
        for network in NETWORKS
        for pairs in (80, 512, 2048)
        for bytes_each in (2, 4)
        for gpus in GPUS
    ]
    divided = [predict(step, "NVLink", gpus, 512 / gpus, 2) for gpus in (1, 8, 64)]
    return {"growing_batch": growing, "batch_of_512": divided}


def check(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """The model for gloo workers on a CPU: update(n) = step apart from each other + sum(n)."""
    rows = []
    for row in measured["rows"]:
        parts = {part: row[f"{part}_seconds"]["median"] for part in ("apart", "sum")}
        expected, found = sum(parts.values()), row["seconds"]["median"]
        known = {key: row[key] for key in ("hidden", "pairs", "workers")}
        known |= {f"{part}_ms": 1e3 * seconds for part, seconds in parts.items()}
        times = {"expected_ms": 1e3 * expected, "measured_ms": 1e3 * found}
        rows.append({**known, **times, "error": expected / found - 1})
    return rows


def draw(path: Path, rows: list[dict[str, Any]], checked: list[dict[str, Any]]) -> None:
    """Predicted speed against the number of GPUs; measured against expected update times."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    colours = {80: "#0072b2", 512: "#d55e00", 2048: "#009e73"}
    for network, style in (("NVLink", "-"), ("Ethernet", "--")):
        for batch, colour in colours.items():
            wanted = {"network": network, "pairs_per_gpu": batch, "gradient": "bf16"}
            line = [row for row in rows if wanted.items() <= row.items()]
            y = [row["words_per_second"] for row in line]
            label = f"{network}, {batch} pairs per GPU"
            left.plot(GPUS, y, style, color=colour, marker="o", label=label)
    left.set(xscale="log", yscale="log", xlabel="GPUs", ylabel="target words / s, predicted")
    left.set_xticks(GPUS, [str(number) for number in GPUS])
    left.minorticks_off()
    left.legend(fontsize=7, frameon=False)
    left.set_title("84M weights, bf16 gradients (a model, not a measurement)", fontsize=9)
    for hidden, marker in ((64, "o"), (256, "s")):
        points = [row for row in checked if row["hidden"] == hidden]
        x, y = ([row[key] for row in points] for key in ("expected_ms", "measured_ms"))
        right.plot(x, y, marker, color="#0072b2", label=f"{hidden} units", fillstyle="none")
        for row, a, b in zip(points, x, y, strict=True):
            right.annotate(f"  {row['workers']}", (a, b), fontsize=8, va="center")
    ends = [f(row["measured_ms"] for row in checked) for f in (min, max)]
    right.plot(ends, ends, color="#999999", linewidth=1)
    right.set(xscale="log", yscale="log", xlabel="expected ms", ylabel="measured ms")
    right.set_title("gloo on two CPU cores; digits: workers", fontsize=9)
    right.legend(fontsize=7, frameon=False)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Fit, predict, check, draw."""
    growth = json.loads((RESULTS / "train-growth.json").read_text("utf-8"))
    measured = json.loads((RESULTS / "scale-training.json").read_text("utf-8"))
    batches = [row for row in growth["rows"] if row["sweep"] == "batch"]
    points = [(row["value"], row["milliseconds"] / 1e3) for row in batches]
    step = fit(points)
    off = [(step[0] + step[1] * b) / t - 1 for b, t in points]
    predicted, checked = predictions(step), check(measured)
    draw(Path(sys.argv[1]), predicted["growing_batch"], checked)
    fixed, per_pair = (1e3 * seconds for seconds in step)
    found = {
        "step_ms": {"fixed": fixed, "per_pair": per_pair, "worst_fit": max(off, key=abs)},
        "assumed": {"NVLink": NVLINK._asdict(), "Ethernet": ETHERNET._asdict(), "memory": MEMORY},
        "predicted": predicted,
        "checked": checked,
    }
    save("scale-model", found, None)


if __name__ == "__main__":
    main()
