"""Figures as PNG or SVG files: heat maps, curves by sentence length, curves of training.

Heat maps are the paper's Figures 1 and 5: alpha_ij, the weight of source word j (across) for target
word i (down), bright where it is high; below it C_j, how much of each source word was covered in
all. Curves by length are its Figure 6. Letters: I target words, J source words.

Sizes are in inches, placed by hand, so that a figure grows with its sentences and words never
overlap. Colours are those of Okabe and Ito, which colour-blind people can tell apart.
"""

import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from covnmt.base.arrays import FloatArray
from covnmt.base.errors import UserError
from covnmt.base.files import PARSE_ERRORS, atomic_write, read_lines
from covnmt.evaluation.fonts import em_width, families, without_invisible
from covnmt.metrics.bootstrap import ConfidenceInterval
from covnmt.metrics.by_length import LengthBucket
from covnmt.text.characters import is_full_width
from covnmt.text.tokenize import spell_byte_tokens

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "osD^vP"
GREY = "#666666"
FEW = 3  # systems whose bands can be told apart
STYLE: dict[Any, Any] = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10,
    "svg.hashsalt": "covnmt",
    "text.parse_math": False,  # a dollar sign is a word like any other
}

CELL = 0.30  # one word of a short sentence
SMALL_CELL = 0.16  # and of a long one
STRIP = 0.8  # height of the coverage bars
GAP = 0.35
TITLE = 0.35
BAR = 0.14  # width of the colour bar
LONGEST_LABEL = 20
LEGEND_ROW = 0.22


@dataclass(frozen=True, eq=False)
class HeatMap:
    """What one system looked at while it translated one sentence."""

    title: str
    source: Sequence[str]  # J words
    target: Sequence[str]  # I words
    matrix: FloatArray  # [I, J]
    coverage: FloatArray | None = None  # [J]

    def __post_init__(self) -> None:
        I, J = len(self.target), len(self.source)
        if self.matrix.shape != (I, J):
            shape = " x ".join(map(str, self.matrix.shape))
            raise ValueError(f"{self.title}: matrix is {shape} for {I} target, {J} source words")
        if self.coverage is not None and self.coverage.shape != (J,):
            raise ValueError(f"{self.title}: {len(self.coverage)} coverages, {J} source words")


class Box(NamedTuple):
    """Where one heat map goes: sizes in inches around its matrix."""

    cell: float
    left: float  # target words
    top: float  # source words
    width: float
    height: float
    upright: bool  # source words need no turning


def draw_heat_maps(panels: Sequence[HeatMap], path: Path) -> None:
    """Draw the heat maps side by side; PNG or SVG by the name of the file."""
    if not panels:
        raise UserError(f"{path}: nothing to draw; heat maps need the output of `translate --json`")
    panels = [
        replace(p, source=spell_byte_tokens(p.source), target=spell_byte_tokens(p.target))
        for p in panels
    ]
    with _style(word for panel in panels for word in _words(panel)):
        boxes = _boxes(panels)
        strip = any(panel.coverage is not None for panel in panels)
        figure, left, tallest = _canvas(boxes, strip), GAP, tallest_bar(panels)
        for panel, box in zip(panels, boxes, strict=True):
            left += box.left
            _draw_heat_map(figure, panel, box, left, tallest)
            left += box.width + GAP
        _colour_bar(figure, left)
        _save(figure, path)


def tallest_bar(panels: Sequence[HeatMap]) -> float:
    """What the bars of coverage reach up to, the same in all panels, so that they compare."""
    coverages = [panel.coverage for panel in panels if panel.coverage is not None]
    return max([2.0, *(float(coverage.max(initial=0)) for coverage in coverages)])


def draw_length_curves(systems: Mapping[str, Sequence[LengthBucket]], path: Path) -> None:
    """Draw BLEU and mean output length by source length (paper, Figure 6).

    Few systems have their bands; of many, only the first, as bands would hide each other.
    """
    buckets = {b.low: b for rows in systems.values() for b in rows}
    if not buckets:
        raise UserError(f"{path}: no sentences to group by length")
    x = {low: k for k, low in enumerate(sorted(buckets))}
    with _style(systems):
        names = [*systems, "reference"]
        figure, (scores, lengths) = _two_panels("BLEU", "words per output", names)
        with_bands = list(systems)[: None if len(systems) <= FEW else 1]
        for (name, rows), look in zip(systems.items(), _looks(), strict=False):
            at = [x[b.low] for b in rows]
            scores.plot(at, [b.bleu for b in rows], **look, label=name)
            lengths.plot(at, [b.output_length for b in rows], **look, label=name)
            if name in with_bands:
                _band(scores, at, [b.bleu_interval for b in rows], look)
                _band(lengths, at, [b.output_length_interval for b in rows], look)
        reference = [buckets[low].reference_length for low in x]
        lengths.plot(list(x.values()), reference, "--", color=GREY, label="reference")
        labels = [f"{buckets[low].label}\nn={buckets[low].sentences:,}" for low in x]
        for axes in (scores, lengths):
            axes.set_xticks(list(x.values()), labels, fontsize=9 if len(x) <= 5 else 8)
            axes.set_xlabel("source words (n sentences)")
            axes.set_ylim(0, max(1, axes.get_ylim()[1]))
        _legend(figure, lengths)
        _save(figure, path)


def draw_training_curves(logs: Mapping[str, Path], path: Path) -> None:
    """Draw loss and validation BLEU against updates, from the `log.jsonl` of each run."""
    runs = {name: _read_log(log) for name, log in logs.items()}
    if not runs:
        raise UserError(f"{path}: no log to draw")
    with _style(runs):
        figure, (losses, scores) = _two_panels("loss per word", "validation BLEU", list(runs))
        for (name, log), look in zip(runs.items(), _looks(), strict=False):
            losses.plot(*log.training, color=look["color"], alpha=0.45, linewidth=1)
            losses.plot(*log.validation, **look, label=name)
            scores.plot(*log.bleu, **look, label=name)
        for axes in (losses, scores):
            axes.set_xlabel("updates")
            axes.locator_params(axis="x", integer=True)
        scores.set_ylim(max(0, scores.get_ylim()[0]), max(1, scores.get_ylim()[1]))
        losses.set_title("thin: training, marked: validation", fontsize=9, color=GREY, loc="left")
        _legend(figure, losses)
        _save(figure, path)


class Points(NamedTuple):
    """One curve."""

    x: list[int]
    y: list[float]


class Log(NamedTuple):
    """The curves of one run."""

    training: Points
    validation: Points
    bleu: Points


def _read_log(path: Path) -> Log:
    log = Log(Points([], []), Points([], []), Points([], []))
    for number, line in enumerate(read_lines(path), 1):
        place = f"{path}, line {number}"
        entry = _read_entry(line, place)
        validation = entry.get("validation") or {}
        try:
            for points, value in (
                (log.training, entry.get("loss")),
                (log.validation, validation.get("loss")),
                (log.bleu, validation.get("bleu")),
            ):
                if value is not None:
                    points.x.append(entry["update"])
                    points.y.append(float(value))
        except (AttributeError, TypeError, ValueError):
            raise UserError(f"{place}: loss and BLEU should be numbers") from None
    if not log.training.x and not log.validation.x:
        raise UserError(f"{path}: nothing reported yet; wait for the first report of the training")
    return log


def _read_entry(line: str, place: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except PARSE_ERRORS as error:
        raise UserError(f"{place}: not valid JSON ({error})") from None
    if not isinstance(entry, dict) or not isinstance(entry.get("update"), int):
        raise UserError(f'{place}: no "update"; expected the log.jsonl of a training run')
    return entry


# Heat maps


def _words(panel: HeatMap) -> list[str]:
    return [panel.title, *panel.source, *panel.target]


def _boxes(panels: Sequence[HeatMap]) -> list[Box]:
    """Sizes with one cell for all, so that panels compare, and matrices that start level."""
    longest = max(max(panel.matrix.shape) for panel in panels)
    cell = float(np.interp(longest, [15, 50], [CELL, SMALL_CELL]))
    em = _font_size(cell) / 72
    upright = all(_width(panel.source, em) < cell for panel in panels)
    top = 1.3 * em if upright else max(_height(panel.source, em) for panel in panels)
    return [
        Box(
            cell=cell,
            left=_width(panel.target, em) + 0.1,
            top=top + 0.1,
            # room for the title and the axis of the bars even over a single word
            width=max(cell * len(panel.source), 0.15 * em_width(panel.title), 1.0),
            height=cell * max(len(panel.target), 1),
            upright=upright,
        )
        for panel in panels
    ]


def _font_size(cell: float) -> float:
    """In points; a line of text needs more than its letters."""
    return min(10.0, 0.72 * 72 * cell)


def _width(words: Iterable[str], em: float) -> float:
    return em * max((em_width(_label(word)) for word in words), default=0.0)


def _height(words: Iterable[str], em: float) -> float:
    """Of words that stand over narrow columns: turned, or one character under the other."""
    labels = [_label(word) for word in words]
    heights = (1.3 * len(w) if reads_vertically(w) else em_width(w) for w in labels)
    return em * max(heights, default=0.0)


def reads_vertically(label: str) -> bool:
    """Whether it can be read from top to bottom, as Japanese, Chinese and single letters can."""
    return len(label) == 1 or all(map(is_full_width, label))


def _label(word: str) -> str:
    """The word without invisible characters, cut if it is very long."""
    return truncate_label(without_invisible(word))


def truncate_label(word: str) -> str:
    """A label that leaves room for the drawing."""
    return word if len(word) <= LONGEST_LABEL else word[: LONGEST_LABEL - 1] + "…"


def _canvas(boxes: Sequence[Box], strip: bool) -> Figure:
    width = GAP + sum(box.left + box.width + GAP for box in boxes) + BAR + 0.8
    above = TITLE + max(box.top for box in boxes)
    below = (GAP / 2 + STRIP if strip else 0.0) + GAP / 2
    return _figure(width, above + max(box.height for box in boxes) + below)


def _draw_heat_map(figure: Figure, panel: HeatMap, box: Box, left: float, tallest: float) -> None:
    """The matrix under its source words, then the bars, from the top of the figure down."""
    J, below = len(panel.source), float(figure.get_figheight()) - TITLE - box.top
    axes = _axes(figure, left, below - box.height, box.cell * max(J, 1), box.height)
    if panel.matrix.size:
        axes.imshow(
            panel.matrix, cmap="viridis", vmin=0, vmax=1, aspect="auto", interpolation="none"
        )
    size = _font_size(box.cell)
    axes.set_yticks(range(len(panel.target)), [_label(w) for w in panel.target], fontsize=size)
    axes.tick_params(length=0, pad=3, top=True, labeltop=True, bottom=False, labelbottom=False)
    _column_labels(axes, [_label(word) for word in panel.source], box.upright, size)
    axes.spines[:].set_visible(False)
    top = below + box.top + 0.1
    height = figure.get_figheight()
    x = left / figure.get_figwidth()
    figure.text(x, top / height, panel.title, fontsize=11, fontweight="bold", va="bottom")
    if panel.coverage is not None:
        place = below - box.height - GAP / 2 - STRIP
        _bars(_axes(figure, left, place, box.cell * max(J, 1), STRIP), panel.coverage, tallest)


def _column_labels(axes: Axes, labels: Sequence[str], upright: bool, size: float) -> None:
    texts = [
        label if upright or not reads_vertically(label) else "\n".join(label) for label in labels
    ]
    axes.set_xticks(range(len(labels)), texts, fontsize=size, linespacing=1.0)
    for tick, label in zip(axes.get_xticklabels(), labels, strict=True):
        tick.set_rotation(0 if upright or reads_vertically(label) else 90)


def _bars(axes: Axes, coverage: FloatArray, tallest: float) -> None:
    """How much each source word was covered, with a line where it is covered once."""
    J = len(coverage)
    axes.bar(range(J), coverage, width=0.8, color=COLORS[0])
    axes.axhline(1, color=GREY, linewidth=0.8)
    axes.set_xlim(-0.5, max(J, 1) - 0.5)
    axes.set_ylim(0, tallest * 1.05)
    axes.set_yticks([0, 1, math.floor(tallest)])
    axes.set_xticks([])
    axes.tick_params(labelsize=8, length=2)
    axes.set_ylabel("coverage", fontsize=8)


def _colour_bar(figure: Figure, left: float) -> None:
    height = min(2.0, figure.get_figheight() / 2)
    axes = _axes(figure, left, figure.get_figheight() - TITLE - height - 0.1, BAR, height)
    axes.imshow(np.linspace(1, 0, 128)[:, None], cmap="viridis", aspect="auto", extent=(0, 1, 0, 1))
    axes.set_xticks([])
    axes.set_yticks([0, 0.5, 1])
    axes.yaxis.tick_right()
    axes.tick_params(labelsize=8, length=2)
    axes.set_title("attention", fontsize=8, loc="left")


# Curves


def _two_panels(first: str, second: str, names: Sequence[str]) -> tuple[Figure, tuple[Axes, Axes]]:
    """Side by side, under the room that a legend of these names takes."""
    rows = math.ceil(len(names) / _columns(names))
    figure = _figure(11, 3.6 + max(0.6, 0.3 + LEGEND_ROW * rows))
    axes = tuple(_axes(figure, left, 0.75, 4.6, 2.85) for left in (0.7, 6.2))
    for one, label in zip(axes, (first, second), strict=True):
        one.set_ylabel(label)
        one.grid(axis="y", color="#e5e5e5", linewidth=0.8)
        one.set_axisbelow(True)
    return figure, (axes[0], axes[1])


def _looks() -> Iterator[dict[str, Any]]:
    """Endless colours and markers; line styles tell apart what shares a colour."""
    for style in cycle(("-", "--", ":", "-.")):
        for color, marker in zip(COLORS, MARKERS, strict=True):
            yield {"color": color, "marker": marker, "linestyle": style, "markersize": 5}


def _band(
    axes: Axes, x: Sequence[int], bands: Sequence[ConfidenceInterval], look: dict[str, Any]
) -> None:
    low, high = zip(*bands, strict=True)
    axes.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)


def _legend(figure: Figure, axes: Axes) -> None:
    """All names in one row above both panels, in more rows if they need the space."""
    handles, labels = axes.get_legend_handles_labels()
    columns = _columns(list(map(str, labels)))
    figure.legend(handles, labels, loc="upper left", ncols=columns, frameon=False)


def _columns(names: Sequence[str]) -> int:
    """How many names fit side by side into a legend."""
    return max(1, min(len(names), int(90 / max(em_width(name) + 5 for name in names))))


# Files


@contextmanager
def _style(texts: Iterable[str]) -> Iterator[None]:
    """Our style, with fonts that have the texts; `families` warns better than matplotlib does."""
    settings = {**STYLE, "font.family": families("".join(texts))}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _axes(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Axes at a place given in inches."""
    across, down = figure.get_figwidth(), figure.get_figheight()
    return figure.add_axes((left / across, bottom / down, width / across, height / down))


def _save(figure: Figure, path: Path) -> None:
    kind = path.suffix.lower()
    if kind not in (".png", ".svg"):
        raise UserError(f"{path}: figures are written as .png or .svg; end the name with one")
    # without the date, equal figures are equal files
    metadata = {"Date": None} if kind == ".svg" else {}
    with atomic_write(path) as stream:
        figure.savefig(stream, format=kind[1:], dpi=150, metadata=metadata)
