"""Draw heat maps, scores by sentence length, and training curves.

Heat maps are the paper's Figures 1 and 5: alpha_ij, the weight of source word j (across) for target
word i (down), bright where it is high; below it C_j, the coverage of each source word at the end.
Scores by length are its Figure 6. Letters: I target words, J source words.

`draw_...` writes PNG or SVG files; `..._svg` returns SVG for a web page, which takes the fonts and
the dark or light colors of the page and names cells and points when pointed at. Sizes are in inches
and set by hand, so that figures grow with their sentences and labels never overlap. Colors are
those of Okabe and Ito, which color-blind people can tell apart.
"""

import io
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from html import escape
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from covnmt.base.arrays import FloatArray
from covnmt.base.errors import UserError
from covnmt.base.files import atomic_write
from covnmt.evaluation.fonts import BASE_FONT, em_width, find_fonts, without_invisible
from covnmt.evaluation.training_curves import TrainingCurves
from covnmt.metrics.by_length import LengthBucket
from covnmt.text.characters import is_full_width
from covnmt.text.tokenize import spell_byte_tokens

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "osD^vP"
GRAY = "#666666"
GRID = "#e5e5e5"
MAX_INTERVALS = 3  # more systems hide each other's confidence intervals
STYLE: dict[Any, Any] = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10,
    "svg.hashsalt": "covnmt",
    "text.parse_math": False,  # a dollar sign is a word like any other
}
# What the colors of a figure are called in the style sheet of the page.
PAGE_COLORS = {"#000000": "currentColor", GRAY: "var(--soft)", GRID: "var(--rule)"}

# in inches
CELL = 0.30  # of a short sentence
SMALL_CELL = 0.16  # of a long one
BARS = 0.8  # height of the coverage bars
GAP = 0.35
TITLE = 0.35
COLOR_BAR = 0.14  # width
LEGEND_ROW = 0.22

LONGEST_LABEL = 20  # characters
TOOLTIP_RADIUS = 5.0  # of a point, in points
MIN_TOOLTIP_ATTENTION = 0.01


@dataclass(frozen=True, eq=False)
class HeatMap:
    """The attention of one system for one sentence."""

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


class Tooltip(NamedTuple):
    """A text for a rectangle, whose corners are in points from the upper left of the figure."""

    left: float
    top: float
    right: float
    bottom: float
    text: str


@dataclass
class Drawing:
    """A figure and the tooltips it has on a web page."""

    figure: Figure
    tooltips: list[Tooltip] = field(default_factory=list)

    def add_cell(self, axes: Axes, x: float, y: float, text: str) -> None:
        """Name the cell around (x, y), one unit wide and high."""
        corners = [self._to_points(axes, x + dx, y + dy) for dx, dy in ((-0.5, -0.5), (0.5, 0.5))]
        (left, right), (top, bottom) = (sorted(values) for values in zip(*corners, strict=True))
        self.tooltips.append(Tooltip(left, top, right, bottom, text))

    def add_point(self, axes: Axes, x: float, y: float, text: str) -> None:
        """Name the point (x, y)."""
        (x, y), r = self._to_points(axes, x, y), TOOLTIP_RADIUS
        self.tooltips.append(Tooltip(x - r, y - r, x + r, y + r, text))

    def _to_points(self, axes: Axes, x: float, y: float) -> tuple[float, float]:
        pixels = axes.transData.transform((x, y))
        across, up = (float(pixel) * 72 / self.figure.dpi for pixel in pixels)
        return across, 72 * float(self.figure.get_figheight()) - up


class Layout(NamedTuple):
    """The sizes of one heat map in inches."""

    cell: float
    left: float  # for target words
    top: float  # for source words
    width: float
    height: float
    upright: bool  # source words fit without being turned


def draw_heat_maps(panels: Sequence[HeatMap], path: Path) -> None:
    """Write the heat maps side by side; PNG or SVG by the name of the file."""
    if not panels:
        raise UserError(f"{path}: nothing to draw; heat maps need the output of `translate --json`")
    with _style([text for panel in panels for text in (panel.title, *panel.source, *panel.target)]):
        _save(_heat_maps_drawing(panels).figure, path)


def heat_maps_svg(panels: Sequence[HeatMap]) -> Markup:
    """Return the heat maps side by side as SVG for a web page."""
    with _style(None):
        label = f"Attention of {', '.join(panel.title for panel in panels)}"
        return _to_svg(_heat_maps_drawing(panels), "heat", label)


def draw_length_curves(
    systems: Mapping[str, Sequence[LengthBucket]], path: Path, unit: str = "words"
) -> None:
    """Write BLEU and mean output length by source length (paper, Figure 6) as PNG or SVG."""
    if not any(systems.values()):
        raise UserError(f"{path}: no sentences to group by length")
    with _style(systems):
        _save(_length_drawing(systems, unit).figure, path)


def length_curves_svg(systems: Mapping[str, Sequence[LengthBucket]]) -> Markup:
    """Return BLEU and mean output length by source length as SVG for a web page."""
    with _style(None):
        label = "BLEU and output length by source length"
        return _to_svg(_length_drawing(systems), "chart", label)


def draw_training_curves(runs: Mapping[str, TrainingCurves], path: Path) -> None:
    """Write loss and validation BLEU of each run by update."""
    if not runs:
        raise UserError(f"{path}: no log to draw")
    with _style(runs):
        figure, (losses, scores) = _two_panels("loss per word", "validation BLEU", list(runs))
        for (name, log), line in zip(runs.items(), _line_styles(), strict=False):
            losses.plot(*log.training_loss, color=line["color"], alpha=0.45, linewidth=1)
            losses.plot(*log.validation_loss, **line, label=name)
            scores.plot(*log.validation_bleu, **line, label=name)
        for axes in (losses, scores):
            axes.set_xlabel("updates")
            axes.locator_params(axis="x", integer=True)
        scores.set_ylim(max(0, scores.get_ylim()[0]), max(1, scores.get_ylim()[1]))
        losses.set_title("thin: training, marked: validation", fontsize=9, color=GRAY, loc="left")
        _legend(figure, losses)
        _save(figure, path)


# Heat maps


def _heat_maps_drawing(panels: Sequence[HeatMap]) -> Drawing:
    panels = [
        replace(p, source=spell_byte_tokens(p.source), target=spell_byte_tokens(p.target))
        for p in panels
    ]
    layouts = _layouts(panels)
    coverages = [panel.coverage for panel in panels if panel.coverage is not None]
    # the same scale in all panels, so that they compare
    tallest = max([2.0, *(float(coverage.max(initial=0)) for coverage in coverages)])
    width = GAP + sum(layout.left + layout.width + GAP for layout in layouts) + COLOR_BAR + 0.8
    height = TITLE + max(layout.top + layout.height for layout in layouts) + GAP / 2
    if coverages:
        height += GAP / 2 + BARS
    drawing, left = Drawing(_new_figure(width, height)), GAP
    for panel, layout in zip(panels, layouts, strict=True):
        left += layout.left
        _draw_heat_map(drawing, panel, layout, left, tallest)
        left += layout.width + GAP
    _draw_color_bar(drawing.figure, left)
    return drawing


def _layouts(panels: Sequence[HeatMap]) -> list[Layout]:
    """Choose sizes: one cell for all, so that panels compare, and matrices that start level."""
    longest = max(max(panel.matrix.shape) for panel in panels)
    cell = float(np.interp(longest, [15, 50], [CELL, SMALL_CELL]))
    em = _font_size(cell) / 72
    upright = all(_widest(panel.source, em) < cell for panel in panels)
    top = 1.3 * em if upright else max(_tallest(panel.source, em) for panel in panels)
    return [
        Layout(
            cell=cell,
            left=_widest(panel.target, em) + 0.1,
            top=top + 0.1,
            # room for the title and the axis of the bars even over a single word
            width=max(cell * len(panel.source), 0.15 * em_width(panel.title), 1.0),
            height=cell * max(len(panel.target), 1),
            upright=upright,
        )
        for panel in panels
    ]


def _font_size(cell: float) -> float:
    """Return the font size in points; a line of text needs more than its letters."""
    return min(10.0, 0.72 * 72 * cell)


def _widest(words: Iterable[str], em: float) -> float:
    return em * max((em_width(_label(word)) for word in words), default=0.0)


def _tallest(words: Iterable[str], em: float) -> float:
    """Return the height of words over narrow columns: turned, or read from top to bottom."""
    labels = [_label(word) for word in words]
    heights = (1.3 * len(w) if _reads_vertically(w) else em_width(w) for w in labels)
    return em * max(heights, default=0.0)


def _reads_vertically(label: str) -> bool:
    """Return whether a label can be set from top to bottom: CJK text and single letters."""
    return len(label) == 1 or all(map(is_full_width, label))


def _label(word: str) -> str:
    """Remove what leaves no ink, and shorten a label that would leave no room for the drawing."""
    word = without_invisible(word)
    return word if len(word) <= LONGEST_LABEL else word[: LONGEST_LABEL - 1] + "…"


def _draw_heat_map(
    drawing: Drawing, panel: HeatMap, layout: Layout, left: float, tallest: float
) -> None:
    """Draw the matrix under its source words, then the bars, from the top of the figure down."""
    figure, J = drawing.figure, len(panel.source)
    below = float(figure.get_figheight()) - TITLE - layout.top
    axes = _new_axes(figure, left, below - layout.height, layout.cell * max(J, 1), layout.height)
    if panel.matrix.size:
        axes.imshow(
            panel.matrix, cmap="viridis", vmin=0, vmax=1, aspect="auto", interpolation="none"
        )
    size = _font_size(layout.cell)
    axes.set_yticks(range(len(panel.target)), [_label(w) for w in panel.target], fontsize=size)
    axes.tick_params(length=0, pad=3, top=True, labeltop=True, bottom=False, labelbottom=False)
    _label_columns(axes, [_label(word) for word in panel.source], layout.upright, size)
    axes.spines[:].set_visible(False)
    for i, j in np.argwhere(panel.matrix >= MIN_TOOLTIP_ATTENTION).tolist():
        words = f"{panel.target[i]} ← {panel.source[j]}"
        drawing.add_cell(axes, j, i, f"{words}: {panel.matrix[i, j]:.2f}")
    top = below + layout.top + 0.1
    height = figure.get_figheight()
    x = left / figure.get_figwidth()
    figure.text(x, top / height, panel.title, fontsize=11, fontweight="bold", va="bottom")
    if panel.coverage is not None:
        bottom = below - layout.height - GAP / 2 - BARS
        bars = _new_axes(figure, left, bottom, layout.cell * max(J, 1), BARS)
        _draw_bars(bars, panel.coverage, tallest)
        for j, coverage in enumerate(panel.coverage.tolist()):
            drawing.add_point(bars, j, coverage / 2, f"{panel.source[j]}: coverage {coverage:.2f}")


def _label_columns(axes: Axes, labels: Sequence[str], upright: bool, size: float) -> None:
    texts = [
        label if upright or not _reads_vertically(label) else "\n".join(label) for label in labels
    ]
    axes.set_xticks(range(len(labels)), texts, fontsize=size, linespacing=1.0)
    for tick, label in zip(axes.get_xticklabels(), labels, strict=True):
        tick.set_rotation(0 if upright or _reads_vertically(label) else 90)


def _draw_bars(axes: Axes, coverage: FloatArray, tallest: float) -> None:
    """Draw the coverage of each source word, with a line at 1."""
    J = len(coverage)
    axes.bar(range(J), coverage, width=0.8, color=COLORS[0])
    axes.axhline(1, color=GRAY, linewidth=0.8)
    axes.set_xlim(-0.5, max(J, 1) - 0.5)
    axes.set_ylim(0, tallest * 1.05)
    axes.set_yticks([0, 1, math.floor(tallest)])
    axes.set_xticks([])
    axes.tick_params(labelsize=8, length=2)
    axes.set_ylabel("coverage", fontsize=8)


def _draw_color_bar(figure: Figure, left: float) -> None:
    height = min(2.0, figure.get_figheight() / 2)
    bottom = figure.get_figheight() - TITLE - height - 0.1
    axes = _new_axes(figure, left, bottom, COLOR_BAR, height)
    axes.imshow(np.linspace(1, 0, 128)[:, None], cmap="viridis", aspect="auto", extent=(0, 1, 0, 1))
    axes.set_xticks([])
    axes.set_yticks([0, 0.5, 1])
    axes.yaxis.tick_right()
    axes.tick_params(labelsize=8, length=2)
    axes.set_title("attention", fontsize=8, loc="left")


# Curves


def _length_drawing(systems: Mapping[str, Sequence[LengthBucket]], unit: str = "words") -> Drawing:
    """Draw curves with confidence intervals; of many systems only the first has intervals."""
    buckets = {b.low: b for rows in systems.values() for b in rows}
    x = {low: k for k, low in enumerate(sorted(buckets))}
    names = [*systems, "reference"]
    figure, (scores, lengths) = _two_panels("BLEU", "words per output", names)
    drawing = Drawing(figure)
    with_intervals = list(systems)[: None if len(systems) <= MAX_INTERVALS else 1]
    for (name, rows), line in zip(systems.items(), _line_styles(), strict=False):
        positions = [x[b.low] for b in rows]
        for axes, values, intervals in (
            (scores, [b.bleu for b in rows], [b.bleu_interval for b in rows]),
            (lengths, [b.output_length for b in rows], [b.output_length_interval for b in rows]),
        ):
            axes.plot(positions, values, **line, label=name)
            if rows and name in with_intervals:
                low, high = zip(*intervals, strict=True)
                axes.fill_between(positions, low, high, color=line["color"], alpha=0.15, lw=0)
    reference = [buckets[low].reference_length for low in x]
    lengths.plot(list(x.values()), reference, "--", color=GRAY, label="reference")
    labels = [f"{buckets[low].label}\nn={buckets[low].sentences:,}" for low in x]
    for axes in (scores, lengths):
        axes.set_xticks(list(x.values()), labels, fontsize=9 if len(x) <= 5 else 8)
        axes.set_xlabel(f"source {unit} (n sentences)")
        axes.set_ylim(0, max(1, axes.get_ylim()[1]))
    for name, rows in systems.items():
        for b in rows:
            drawing.add_point(scores, x[b.low], b.bleu, f"{name}, {b.label}: {b.bleu:.1f}")
            words = f"{name}, {b.label}: {b.output_length:.1f}"
            drawing.add_point(lengths, x[b.low], b.output_length, words)
    _legend(figure, lengths)
    return drawing


def _two_panels(first: str, second: str, names: Sequence[str]) -> tuple[Figure, tuple[Axes, Axes]]:
    """Make two axes side by side, under the room that a legend of these names takes."""
    rows = math.ceil(len(names) / _legend_columns(names))
    figure = _new_figure(11, 3.6 + max(0.6, 0.3 + LEGEND_ROW * rows))
    panels = tuple(_new_axes(figure, left, 0.75, 4.6, 2.85) for left in (0.7, 6.2))
    for axes, label in zip(panels, (first, second), strict=True):
        axes.set_ylabel(label)
        axes.grid(axis="y", color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
    return figure, (panels[0], panels[1])


def _line_styles() -> Iterator[dict[str, Any]]:
    """Yield colors with markers without end; the dashes change when the colors repeat."""
    for dashes in cycle(("-", "--", ":", "-.")):
        for color, marker in zip(COLORS, MARKERS, strict=True):
            yield {"color": color, "marker": marker, "linestyle": dashes, "markersize": 5}


def _legend(figure: Figure, axes: Axes) -> None:
    """Set all names in one row above both panels, or in more rows if they need them."""
    handles, labels = axes.get_legend_handles_labels()
    columns = _legend_columns(list(map(str, labels)))
    figure.legend(handles, labels, loc="upper left", ncols=columns, frameon=False)


def _legend_columns(names: Sequence[str]) -> int:
    return max(1, min(len(names), int(90 / max(em_width(name) + 5 for name in names))))


# Output


@contextmanager
def _style(texts: Iterable[str] | None) -> Iterator[None]:
    """Set fonts that have the texts; None leaves it to a browser to find fonts.

    `find_fonts` warns better than matplotlib does.
    """
    settings: dict[Any, Any] = {**STYLE, "font.family": [BASE_FONT], "svg.fonttype": "none"}
    if texts is not None:
        settings |= {"font.family": find_fonts("".join(texts)), "svg.fonttype": "path"}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def _new_figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _new_axes(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Add axes at a place given in inches."""
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


def _to_svg(drawing: Drawing, css_class: str, label: str) -> Markup:
    """Return an <svg> element for a web page; matplotlib and `escape` escape its texts."""
    stream = io.StringIO()
    drawing.figure.savefig(stream, format="svg", transparent=True)
    match = re.search(r'<svg [^>]*(viewBox="[^"]*")[^>]*>(.*)</svg>', stream.getvalue(), re.DOTALL)
    assert match
    view_box, content = match.groups()
    content = re.sub(r"<metadata>.*?</metadata>", "", content, flags=re.DOTALL)
    content = re.sub(r'<g id="[^"]*">', "<g>", content)  # ids would repeat from figure to figure
    content = re.sub(r'\bxlink:href="', 'href="', content)
    content = re.sub(r"(?<=: )#\w{6}\b", lambda c: PAGE_COLORS.get(c[0], c[0]), content)
    content = content.replace(f"px '{BASE_FONT}'", "px system-ui, sans-serif")
    width, height = (72 * inches for inches in drawing.figure.get_size_inches().tolist())
    tooltips = "".join(
        f'<rect x="{t.left:.1f}" y="{t.top:.1f}" width="{t.right - t.left:.1f}" '
        f'height="{t.bottom - t.top:.1f}"><title>{escape(t.text)}</title></rect>'
        for t in drawing.tooltips
    )
    return Markup(
        f'<svg class="{css_class}" role="img" aria-label="{escape(label)}" {view_box} '
        f'width="{width:.1f}pt" height="{height:.1f}pt">'
        f'{content}<g fill="transparent">{tooltips}</g></svg>'
    )
