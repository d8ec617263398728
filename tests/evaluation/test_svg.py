"""Drawings of the page say what they are given, and read as XML."""

from xml.etree import ElementTree

import numpy as np
import pytest

from covnmt.evaluation.figures import HeatMap, tallest_bar
from covnmt.evaluation.markup import Markup
from covnmt.evaluation.svg import STRIP, heat_map, legend, length_chart
from covnmt.metrics.by_length import LengthBucket

MATRIX = np.array([[0.9, 0.05, 0.0], [0.0, 0.004, 1.0]], dtype=np.float32)
PANEL = HeatMap(
    "a <b> & c", ["ka", "<mo>", "ti"], ["big", "now"], MATRIX, np.array([0.9, 0.5, 5.0], np.float32)
)


def tree(drawing: Markup) -> ElementTree.Element:
    return ElementTree.fromstring(drawing)


def titles(node: ElementTree.Element, path: str) -> list[str]:
    return [title.text or "" for title in node.findall(f"{path}/title")]


def test_cells_are_named_and_placed() -> None:
    svg = tree(heat_map(PANEL, 5.0))
    # what is fainter than a hundredth is left to the background
    assert titles(svg, "rect") == ["big ← ka: 0.90", "big ← <mo>: 0.05", "now ← ti: 1.00"]
    first, second, third = [rect for rect in svg.findall("rect") if rect.find("title") is not None]
    step = float(first.attrib["width"])
    assert float(second.attrib["x"]) - float(first.attrib["x"]) == pytest.approx(step)
    assert float(third.attrib["x"]) - float(first.attrib["x"]) == pytest.approx(2 * step)
    assert float(third.attrib["y"]) - float(first.attrib["y"]) == pytest.approx(step)
    assert third.attrib["fill"] == "#fde725"


def test_japanese_stands_upright_over_its_column() -> None:
    panel = HeatMap("t", ["国際", "1", "word"], ["x"], np.zeros((1, 3), np.float32))
    _, *above = tree(heat_map(panel, 2.0)).findall("text")
    assert [node.text for node in above] == ["国際", "1", "word"]
    assert ["upright" in node.get("style", "") for node in above] == [True, True, False]
    assert ["rotate" in node.get("transform", "") for node in above] == [False, False, True]


def test_bars_have_the_height_of_coverage() -> None:
    strip = tree(heat_map(PANEL, 5.0))
    bars = strip.findall("g/rect")
    heights = [float(bar.attrib["height"]) for bar in bars]
    assert heights == pytest.approx([0.9 * STRIP / 5, 0.5 * STRIP / 5, STRIP], abs=0.1)
    assert [text.text for text in strip.findall("g/text")] == ["0", "1", "5"]
    bottoms = {round(float(bar.attrib["y"]) + float(bar.attrib["height"])) for bar in bars}
    assert len(bottoms) == 1
    bare = HeatMap(PANEL.title, PANEL.source, PANEL.target, MATRIX)
    assert tree(heat_map(bare, 2.0)).find("g") is None


@pytest.mark.parametrize(("I", "J"), [(1, 1), (0, 3), (5, 5), (80, 80)])
def test_everything_is_inside(I: int, J: int) -> None:
    matrix = np.ones((I, J), dtype=np.float32)
    words = ["国際協力機構" if k % 3 else "internationalisation-of-it" for k in range(80)]
    panel = HeatMap("t", words[:J], words[:I], matrix, matrix.sum(axis=0))
    svg = tree(heat_map(panel, tallest_bar([panel])))
    width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
    for node in svg.iter("rect"):
        x, y = float(node.attrib["x"]), float(node.attrib["y"])
        assert 0 <= x <= x + float(node.attrib["width"]) <= width
        assert 0 <= y <= y + float(node.attrib["height"]) <= height
    labels = ["".join(node.itertext()) for node in svg.findall("text")]
    assert len(labels) == I + J


def bucket(low: int, bleu: float) -> LengthBucket:
    return LengthBucket(low, low + 9, 40, bleu, (bleu - 5, bleu + 5), 12.0, (11.0, 14.0), 13.0, {})


def test_higher_is_better_drawn() -> None:
    systems = {"one": [bucket(1, 30), bucket(11, 10)], "<two>": [bucket(1, 35), bucket(11, 20)]}
    svg = tree(length_chart(systems, "BLEU", "bleu"))
    points = svg.findall("circle")
    y = [float(point.attrib["cy"]) for point in points]
    assert y[2] < y[0] < y[3] < y[1]
    # equal steps of BLEU are equal steps on the page
    assert (y[0] - y[2]) * 2 == pytest.approx(y[1] - y[3], abs=0.3)
    # and lie on the line of their value
    (line,) = [node for node in svg.findall("text") if "".join(node.itertext()) == "20"]
    assert y[3] == pytest.approx(float(line.attrib["y"]), abs=0.1)
    assert titles(svg, "circle")[2] == "<two>, 1-10: 35.0"
    texts = {"".join(node.itertext()) for node in svg.findall("text")}
    assert {"1-10", "11-20", "n=40", "0"} <= texts
    assert all(node.attrib["stroke"] != "currentColor" for node in svg.findall("polyline"))


def test_reference_is_dashed() -> None:
    svg = tree(length_chart({"one": [bucket(1, 30)]}, "Length", "output_length", reference=True))
    dashed = [line for line in svg.findall("polyline") if "stroke-dasharray" in line.attrib]
    assert len(dashed) == 1


def test_all_zero_is_drawn() -> None:
    zero = LengthBucket(1, None, 1, 0.0, (0.0, 0.0), 0.0, (0.0, 0.0), 0.0, {})
    assert tree(length_chart({"one": [zero]}, "BLEU", "bleu")).find("circle") is not None


def test_legend_names_all() -> None:
    text = "".join(tree(legend(["a", "<b>"], reference="reference")).itertext())
    assert text == "a<b>reference"
