"""Drawings inside the report, as SVG: heat maps and curves, in the colours of the page.

They show the same as `covnmt.evaluation.figures`, but take the reader's fonts, follow the light or
dark page, and name each cell and point when pointed at. Sizes are in CSS pixels.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from matplotlib import colormaps
from matplotlib.colors import to_hex

from covnmt.evaluation.figures import (
    COLORS,
    LONGEST_LABEL,
    HeatMap,
    reads_vertically,
    truncate_label,
)
from covnmt.evaluation.fonts import em_width
from covnmt.evaluation.markup import Markup, element, join
from covnmt.metrics.bootstrap import ConfidenceInterval
from covnmt.metrics.by_length import LengthBucket

FONT = 12  # size of labels
STRIP = 56  # height of the coverage bars
PAD = 6
FAINT = 0.01  # attention that is drawn as none


def heat_map(panel: HeatMap, tallest: float) -> Markup:
    """Attention [I, J] as a grid under its source words, over bars of their coverage.

    `tallest` is the coverage that a bar of full height stands for.
    """
    I, J = panel.matrix.shape
    # 80 words stay readable: a line of text still fits into a cell
    cell = 22 if max(I, J) <= 25 else 15
    left = FONT * _widest(panel.target) + 2 * PAD
    top = FONT * _widest(panel.source) + 2 * PAD
    below = top + I * cell
    bars = Markup("")
    if panel.coverage is not None:
        bars = _bars(panel, left, below + PAD, cell, tallest)
    width, height = max(left + J * cell + 2 * PAD, 160), below + (STRIP + 3 * PAD if bars else PAD)
    return element(
        "svg",
        element("title", f"Attention of {panel.title}"),
        element("rect", x=left, y=top, width=J * cell, height=I * cell, class_="none"),
        *_cells(panel, left, top, cell),
        *(
            _text(word, left - PAD, top + (i + 0.5) * cell, "end")
            for i, word in enumerate(panel.target)
        ),
        *(_above(word, left + (j + 0.5) * cell, top - PAD) for j, word in enumerate(panel.source)),
        bars,
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=round(width),
        height=round(height),
        role="img",
        class_="heat",
    )


def length_chart(
    systems: Mapping[str, Sequence[LengthBucket]], what: str, pick: str, reference: bool = False
) -> Markup:
    """One curve with its band per system over buckets of source length.

    `pick` is the name of the figure in the bucket, beside which `pick`_interval lies.
    """
    width, height, left, below = 460, 230, 44, 188
    buckets = {b.low: b for rows in systems.values() for b in rows}
    step = (width - left - 16) / max(len(buckets), 1)
    x = {low: left + (k + 0.5) * step for k, low in enumerate(sorted(buckets))}
    tops = [getattr(b, f"{pick}_interval")[1] for rows in systems.values() for b in rows]
    tops += [b.reference_length for b in buckets.values()] if reference else []
    unit = _round_step(max(tops, default=1.0) / 5)
    scale = (below - 14) / max(*tops, unit)
    curves = []
    for (name, rows), colour in zip(systems.items(), _colours(len(systems)), strict=True):
        points = [(x[b.low], below - scale * getattr(b, pick)) for b in rows]
        bands = [(x[b.low], getattr(b, f"{pick}_interval")) for b in rows]
        curves += [_band(bands, below, scale, colour), _line(points, colour)]
        labels = [f"{name}, {b.label}: {getattr(b, pick):.1f}" for b in rows]
        curves += [_point(*p, colour, label) for p, label in zip(points, labels, strict=True)]
    if reference:
        expected = ((x[low], below - scale * buckets[low].reference_length) for low in x)
        curves.append(_line(expected, "currentColor", dashed=True))
    return element(
        "svg",
        element("title", f"{what} by source length"),
        *_grid(unit, scale, left, below, width),
        *(_below(buckets[low], x[low], below) for low in x),
        *curves,
        viewBox=f"0 0 {width} {height}",
        role="img",
        class_="chart",
    )


def legend(names: Iterable[str], reference: str | None = None) -> Markup:
    """Which colour is which system."""
    names = list(names)
    items = [
        element("span", element("i", style=f"background:{colour}"), name)
        for name, colour in zip(names, _colours(len(names)), strict=True)
    ]
    if reference:
        items.append(element("span", element("i", class_="dashed"), reference))
    return element("p", *items, class_="legend")


def _colours(count: int) -> list[str]:
    return [COLORS[k % len(COLORS)] for k in range(count)]


def _widest(words: Sequence[str]) -> float:
    return max((em_width(truncate_label(word)) for word in words), default=0.0)


def _above(word: str, x: float, y: float) -> Markup:
    """A label over a column: turned, or from top to bottom where it can be read so."""
    if reads_vertically(truncate_label(word)):
        return _text(word, x, y, "end", style="writing-mode:vertical-rl;text-orientation:upright")
    return _text(word, x, y, "start", transform=f"rotate(-90 {x:.1f} {y:.1f})")


def _text(word: str, x: float, y: float, anchor: str, **how: str) -> Markup:
    label = element("title", word) if len(word) > LONGEST_LABEL else Markup("")
    return element(
        "text",
        label,
        truncate_label(word),
        x=f"{x:.1f}",
        y=f"{y:.1f}",
        text_anchor=anchor,
        dominant_baseline="central",
        **how,
    )


def _cells(panel: HeatMap, left: float, top: float, cell: int) -> list[Markup]:
    viridis = colormaps["viridis"]
    cells = []
    for i, row in enumerate(panel.matrix.tolist()):
        for j, weight in enumerate(row):
            if weight < FAINT:
                continue
            name = f"{panel.target[i]} ← {panel.source[j]}: {weight:.2f}"
            cells.append(
                element(
                    "rect",
                    element("title", name),
                    x=f"{left + j * cell:.1f}",
                    y=f"{top + i * cell:.1f}",
                    width=cell,
                    height=cell,
                    fill=to_hex(viridis(weight)),
                )
            )
    return cells


def _bars(panel: HeatMap, left: float, top: float, cell: int, tallest: float) -> Markup:
    """Coverage of each source word, with a line where it is covered once."""
    assert panel.coverage is not None
    once = STRIP / tallest
    bars = []
    for j, value in enumerate(panel.coverage.tolist()):
        height = once * max(value, 0.0)
        bars.append(
            element(
                "rect",
                element("title", f"{panel.source[j]}: covered {value:.2f}"),
                x=f"{left + j * cell + 2:.1f}",
                y=f"{top + STRIP - height:.1f}",
                width=cell - 4,
                height=f"{height:.1f}",
            )
        )
    right = left + len(bars) * cell
    y = top + STRIP - once
    line = element("line", x1=left, x2=right, y1=y, y2=y)
    levels = (0, 1, math.floor(tallest))
    marks = (_text(str(n), left - PAD, top + STRIP - n * once, "end") for n in levels)
    return element("g", *bars, line, *marks, class_="coverage")


def _round_step(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, ... from `value` up."""
    steps = (base * 10.0**power for power in range(6) for base in (1, 2, 5))
    return next((step for step in steps if step >= value), value)


def _grid(unit: float, scale: float, left: float, below: float, width: float) -> list[Markup]:
    drawn = []
    level = 0.0
    while below - scale * level >= 10:
        y = below - scale * level
        drawn.append(element("line", x1=left, x2=width - 8, y1=f"{y:.1f}", y2=f"{y:.1f}"))
        drawn.append(_text(f"{level:g}", left - PAD, y, "end"))
        level += unit
    return drawn


def _below(bucket: LengthBucket, x: float, below: float) -> Markup:
    return join(
        _text(bucket.label, x, below + 14, "middle"),
        _text(f"n={bucket.sentences}", x, below + 30, "middle"),
    )


def _line(points: Iterable[tuple[float, float]], colour: str, dashed: bool = False) -> Markup:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = "5 4" if dashed else None
    return element(
        "polyline", points=path, fill="none", stroke=colour, stroke_width=2, stroke_dasharray=dashes
    )


def _band(
    bands: Sequence[tuple[float, ConfidenceInterval]], below: float, scale: float, colour: str
) -> Markup:
    there = [(x, high) for x, (_, high) in bands]
    back = [(x, low) for x, (low, _) in reversed(bands)]
    path = " ".join(f"{x:.1f},{below - scale * value:.1f}" for x, value in there + back)
    return element("polygon", points=path, fill=colour, opacity=0.15)


def _point(x: float, y: float, colour: str, name: str) -> Markup:
    return element("circle", element("title", name), cx=f"{x:.1f}", cy=f"{y:.1f}", r=4, fill=colour)
