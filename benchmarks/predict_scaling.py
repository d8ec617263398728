"""Predicted training speed on several GPUs, and a check of the model with gloo on a CPU.

    python benchmarks/predict_scaling.py docs/images/scaling.png

Reads the recorded step times of one GPU (results/train-growth.json) and of gloo ranks on a CPU
(results/scale-training.json), writes scale-model.json and draws the figure. Nothing here was
measured on several GPUs.

    update(n) = step(b) + copies + sum(n)          b pairs for each of n GPUs
    step(b)   = a + c b                            fitted to one GPU
    sum(n)    = 2 (k-1)/k G/B + 2 (k-1) L          ring over k members, G bytes, bandwidth B

Members are GPUs within a machine over NVLink, then machines over Ethernet.

The check applies the same formula to gloo ranks on a CPU. Its inputs are the update of one rank,
copies included, and the bandwidth and latency of separate all-reduces over two ranks; it predicts
the updates of two and of four ranks. More ranks than cores take turns, so computing takes ranks /
cores as long. Ranks on separate cores still share the memory, which the formula ignores; so it is
also checked with the measured time of as many ranks computing side by side without an all-reduce.
"""

from pathlib import Path
from typing import Any, NamedTuple

from harness import argument_parser, recorded, save
from matplotlib.figure import Figure

WEIGHTS = (
    84_449_431  # the paper's model with GRU d=10 (docs/paper-to-code.md, sections 1.6 and 2.2)
)
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
    """Return the seconds of a ring all-reduce."""
    return 2 * (members - 1) * (size / members / link.bandwidth + link.latency)


def over_nvlink(gpus: int, size: float) -> float:
    """All GPUs in one NVLink domain (none is sold with more than 72)."""
    return ring(gpus, size, NVLINK)


def over_ethernet(gpus: int, size: float) -> float:
    """NVLink within machines of eight, Ethernet between them."""
    inside = min(gpus, PER_MACHINE)
    return ring(inside, size, NVLINK) + ring(gpus // inside, size, ETHERNET)


NETWORKS = {"NVLink": over_nvlink, "Ethernet": over_ethernet}


def fit(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Return intercept and slope that minimize the relative squared errors."""
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
    """Predict an update with this many pairs per GPU and bytes per weight in the gradient."""
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
    """Predict with a fixed number of pairs per GPU, and with a fixed batch divided among GPUs."""
    growing = [
        predict(step, network, gpus, pairs, bytes_each)
        for network in NETWORKS
        for pairs in (80, 512, 2048)
        for bytes_each in (2, 4)
        for gpus in GPUS
    ]
    divided = [predict(step, "NVLink", gpus, 512 / gpus, 2) for gpus in (1, 8, 64)]
    return {"growing_batch": growing, "batch_of_512": divided}


def link_of(sums: dict[str, Any]) -> Link:
    """Fit bandwidth and latency of a ring to the times of separate all-reduces."""
    n = sums["workers"]
    points = [(float(size), seconds["median"]) for size, seconds in sums["seconds"].items()]
    latency, per_byte = fit(points)
    return Link(2 * (n - 1) / n / per_byte, latency / (2 * (n - 1)))


def check(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Compare predicted and measured updates of several ranks on a CPU."""
    link, rows = link_of(measured["sums"][0]), []
    for row in measured["updates"]:
        n = row["workers"]
        times = {name: seconds["median"] for name, seconds in row["seconds"].items()}
        if n == 1:  # of each model this one comes first
            alone, copies = times["row"], times["row"] - times["apart"]
        turns = max(1.0, n / measured["cores"])
        travel = ring(n, row["gradient_bytes"], link)
        without = times["apart"] + turns * copies
        rows.append(
            {key: row[key] for key in ("words", "size", "pairs", "gradient_bytes", "workers")}
            | {"compute_ms": 1e3 * turns * alone, "sum_ms": 1e3 * travel}
            | versus(turns * alone + travel, times["row"])
            | {"sum_found_ms": 1e3 * (times["row"] - without)}
            | {"beside_ms": 1e3 * (without + travel)}
            | {"beside_error": (without + travel) / times["row"] - 1}
            | {"overlapped_ms": 1e3 * times["overlapped"]}
        )
    return rows


def check_sums(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Compare separate all-reduces with the ring that was fitted to two ranks."""
    link = link_of(measured["sums"][0])
    return [
        {"workers": sums["workers"], "bytes": int(size)}
        | versus(ring(sums["workers"], int(size), link), seconds["median"])
        for sums in measured["sums"]
        for size, seconds in sums["seconds"].items()
    ]


def versus(expected: float, measured: float) -> dict[str, float]:
    """Return both times and the relative error."""
    return {
        "expected_ms": 1e3 * expected,
        "measured_ms": 1e3 * measured,
        "error": expected / measured - 1,
    }


def draw(path: Path, rows: list[dict[str, Any]], checked: list[dict[str, Any]]) -> None:
    """Plot predicted speed by number of GPUs, and measured versus predicted update times."""
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
    left.legend(fontsize=7, frameon=False, handlelength=4)
    left.set_title("84M weights, bf16 gradients (a model, not a measurement)", fontsize=9)
    for size, marker in zip(sorted({row["gradient_bytes"] for row in checked}), "os^", strict=True):
        points = [row for row in checked if row["gradient_bytes"] == size]
        x, y = ([row[key] for row in points] for key in ("expected_ms", "measured_ms"))
        label = f"gradient of {size / 1e6:.0f} MB"
        right.plot(x, y, marker, color="#0072b2", label=label, fillstyle="none")
        for row, a, b in zip(points, x, y, strict=True):
            right.annotate(f"  {row['workers']}", (a, b), fontsize=8, va="center")
    ends = [f(row["measured_ms"] for row in checked) for f in (min, max)]
    right.plot(ends, ends, color="#999999", linewidth=1)
    right.set(xscale="log", yscale="log", xlabel="expected ms", ylabel="measured ms")
    for axis in (right.xaxis, right.yaxis):
        axis.set_ticks(ticks := (50, 100, 200, 300), [str(ms) for ms in ticks])
        axis.set_ticks([], minor=True)
    right.set_title("gloo on two CPU cores; digits: workers", fontsize=9)
    right.legend(fontsize=7, frameon=False)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Fit, predict, check, draw."""
    parser = argument_parser(__doc__)
    parser.add_argument("figure", type=Path, help="where the figure goes")
    arguments = parser.parse_args()
    growth = recorded("train-growth")
    measured = recorded("scale-training")
    batches = [row for row in growth["rows"] if row["sweep"] == "batch"]
    points = [(row["value"], row["milliseconds"] / 1e3) for row in batches]
    step = fit(points)
    off = [(step[0] + step[1] * b) / t - 1 for b, t in points]
    predicted, checked = predictions(step), check(measured)
    draw(arguments.figure, predicted["growing_batch"], checked)
    fixed, per_pair = (1e3 * seconds for seconds in step)
    checked_sums = check_sums(measured)
    model = {
        "step_ms": {"fixed": fixed, "per_pair": per_pair, "worst_fit": max(off, key=abs)},
        "assumed": {"NVLink": NVLINK._asdict(), "Ethernet": ETHERNET._asdict(), "memory": MEMORY},
        "predicted": predicted,
        "gloo": link_of(measured["sums"][0])._asdict(),
        "checked": checked,
        "checked_sums": checked_sums,
    }
    for row in [*checked, *checked_sums]:
        print("  ".join(f"{key} {value:.4g}" for key, value in row.items()))
    save("scale-model", model, arguments)


if __name__ == "__main__":
    main()
