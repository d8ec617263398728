"""Draw how the cost of training grows, from the recorded results of `train.py --growth`.

python benchmarks/plot_train_growth.py docs/images/growth.png
"""

import sys

from harness import recorded
from matplotlib.figure import Figure

AXES = {"source": "source tokens", "batch": "sentences per batch", "d": "coverage units d"}


def main() -> None:
    """Draw one panel for each sweep."""
    content = recorded("train-growth")
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    for axes, (sweep, label) in zip(figure.subplots(1, 3), AXES.items(), strict=True):
        rows = [row for row in content["rows"] if row["sweep"] == sweep]
        x = [row["value"] for row in rows]
        rates = [row["words_per_second"] for row in rows]
        y = [rate["median"] / 1000 for rate in rates]
        spread = [[abs(rate[end] - rate["median"]) / 1000 for rate in rates]
                  for end in ("low", "high")]  # fmt: skip
        axes.errorbar(x, y, yerr=spread, marker="o", color="#0072b2", capsize=3)
        if sweep == "batch":
            axes.set_xscale("log", base=2)
        axes.set_xticks(x, [str(value) for value in x], fontsize=8)
        axes.minorticks_off()
        axes.set_xlabel(label)
        axes.set_ylim(0, 1.1 * max(y))
        axes.grid(axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.get_axes()[0].set_ylabel("thousand target tokens / s")
    name = content["machine"]["gpu"]
    figure.suptitle(f"Training speed, paper size, GRU d=10, bf16, {name}", fontsize=10)
    figure.savefig(sys.argv[1], dpi=150)


if __name__ == "__main__":
    main()
