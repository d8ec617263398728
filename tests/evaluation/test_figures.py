"""Heat maps and curves: cells and labels are in their places, and SVG for pages is safe."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

from covnmt.base.errors import UserError
from covnmt.evaluation import figures, fonts
from covnmt.evaluation.figures import (
    HeatMap,
    draw_heat_maps,
    draw_length_curves,
    draw_training_curves,
    heat_maps_svg,
    length_curves_svg,
)
from covnmt.evaluation.training_curves import read_training_curves
from covnmt.metrics.by_length import LengthBucket

LONG = ["internationalisation", "委員会", "a", "の", "$x_1$", "50%", "naïve", "国際協力機構"]

ONES = np.ones(8, dtype=np.float32)
SIZES = [(1, 1), (5, 5), (3, 12), (40, 7), (80, 80)]


def panel(I: int, J: int, hot: tuple[int, int] | None = None, title: str = "system") -> HeatMap:
    matrix = np.zeros((I, J), dtype=np.float32)
    if hot:
        matrix[hot] = 1.0
    words = [LONG[k % len(LONG)] for k in range(max(I, J))]
    return HeatMap(title, words[:J], words[:I], matrix, matrix.sum(axis=0))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Keep figures instead of writing them."""
    kept: list[Figure] = []

    def keep(figure: Figure, _: Path) -> None:
        figure.draw_without_rendering()
        kept.append(figure)

    monkeypatch.setattr(figures, "_save", keep)
    return kept


@pytest.fixture(autouse=True)
def same_fonts_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use only the font that is part of matplotlib."""
    monkeypatch.setattr(fonts, "_candidates", lambda missing: iter(()))
    monkeypatch.setattr(fonts, "_warned", set())


def labels(figure: Figure) -> list[list[Text]]:
    """Return the labels of each axis that are not empty."""
    rows = [
        list(row)
        for axes in figure.axes
        for row in (axes.get_xticklabels(), axes.get_yticklabels())
    ]
    return [[text for text in row if text.get_text() and text.get_visible()] for row in rows]


def test_the_right_cell_is_bright(tmp_path: Path) -> None:
    def image(hot: tuple[int, int] | None) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        path = tmp_path / "map.png"
        bare = panel(4, 6, hot)
        draw_heat_maps([HeatMap("t", bare.source, bare.target, bare.matrix)], path)
        return np.asarray(imread(path))

    dark = image(None)

    def box(hot: tuple[int, int]) -> tuple[int, int, int, int]:
        rows, columns = np.nonzero(np.abs(image(hot) - dark).max(axis=2) > 0.05)
        return rows.min(), rows.max(), columns.min(), columns.max()

    cell = figures.CELL * 150  # pixels
    first, lower, right = box((0, 0)), box((3, 0)), box((0, 5))
    middle = (first[0] + first[1]) // 2, (first[2] + first[3]) // 2
    assert dark[middle][:3] == pytest.approx(to_rgb("#440154"), abs=0.01)
    assert image((0, 0))[middle][:3] == pytest.approx(to_rgb("#fde725"), abs=0.01)
    assert first[1] - first[0] == pytest.approx(cell, abs=2)
    assert first[3] - first[2] == pytest.approx(cell, abs=2)
    assert lower[0] - first[0] == pytest.approx(3 * cell, abs=2)
    assert lower[2] == first[2]
    assert right[2] - first[2] == pytest.approx(5 * cell, abs=2)
    assert right[0] == first[0]


@pytest.mark.parametrize(("I", "J"), SIZES)
def test_labels_are_inside_the_figure_and_apart(drawn: list[Figure], I: int, J: int) -> None:
    draw_heat_maps(
        [panel(I, J, title="first"), panel(max(I - 2, 1), J, title="second")], Path("x.png")
    )
    (figure,) = drawn
    width, height = figure.bbox.size
    for row in labels(figure):
        boxes = [text.get_window_extent() for text in row]
        for box in boxes:
            assert box.x0 >= -1
            assert box.x1 <= width + 1
            assert box.y0 >= -1
            assert box.y1 <= height + 1
        for one, other in pairwise(boxes):
            assert not one.padded(-1).overlaps(other.padded(-1))
        assert all(float(text.get_fontsize()) >= 6 for text in row)


def test_titles_of_panels_do_not_overlap(drawn: list[Figure]) -> None:
    draw_heat_maps(
        [panel(5, 5, title="a rather long name of a system"), panel(9, 5)], Path("x.png")
    )
    (figure,) = drawn
    first, second = (text.get_window_extent() for text in figure.texts)
    assert first.x1 < second.x0


def test_bars_do_not_overlap_the_next_panel(drawn: list[Figure]) -> None:
    narrow = HeatMap("a", list("abcdefgh"), ["x"], np.ones((1, 8), np.float32), ONES)
    draw_heat_maps([narrow, narrow], Path("x.png"))
    left, right = (axes.get_tightbbox() for axes in drawn[0].axes if axes.patches)
    assert left is not None
    assert right is not None
    assert left.x1 < right.x0


def test_bars_show_coverage_on_one_scale(drawn: list[Figure]) -> None:
    low, high = panel(2, 3), panel(2, 3)
    coverages = np.array([0.2, 1.0, 0.4], np.float32), np.array([3.5, 0.0, 1.0], np.float32)
    draw_heat_maps(
        [
            HeatMap(p.title, p.source, p.target, p.matrix, c)
            for p, c in zip((low, high), coverages, strict=True)
        ],
        Path("x.png"),
    )
    strips = [axes for axes in drawn[0].axes if axes.patches]
    for axes, coverage in zip(strips, coverages, strict=True):
        heights = [bar.get_height() for bar in axes.containers[0].patches]  # type: ignore[attr-defined]
        assert heights == pytest.approx(coverage.tolist())
    assert strips[0].get_ylim() == strips[1].get_ylim()
    assert strips[0].get_ylim()[1] > 3.5


@pytest.mark.parametrize("name", ["map.png", "map.svg", "map.SVG"])
def test_equal_figures_are_equal_files(tmp_path: Path, name: str) -> None:
    draw_heat_maps([panel(3, 4, (1, 1))], tmp_path / name)
    first = (tmp_path / name).read_bytes()
    draw_heat_maps([panel(3, 4, (1, 1))], tmp_path / name)
    assert (tmp_path / name).read_bytes() == first
    assert first.startswith((b"\x89PNG", b"<?xml"))


def test_dollar_signs_are_text(tmp_path: Path) -> None:
    word = HeatMap("$", ["$x^2$"], ["$$"], np.ones((1, 1), np.float32))
    draw_heat_maps([word], tmp_path / "map.svg")
    assert "<!-- $x^2$ -->" in (tmp_path / "map.svg").read_text("utf-8")


def test_byte_tokens_are_drawn_as_their_characters(drawn: list[Figure]) -> None:
    matrix = np.full((1, 2), 0.5, dtype=np.float32)
    draw_heat_maps([HeatMap("x", ["<0xC3>", "<0xBC>"], ["<0x24>"], matrix)], Path("x.png"))
    words = {text.get_text() for row in labels(drawn[0]) for text in row}
    assert {"ü₁", "ü₂", "$"} <= words


def test_empty_translation_is_drawn(drawn: list[Figure]) -> None:
    nothing = HeatMap("t", ["a", "b"], [], np.zeros((0, 2), np.float32), np.zeros(2, np.float32))
    draw_heat_maps([nothing], Path("x.png"))
    assert len(drawn) == 1


def test_missing_fonts_are_warned_of(
    drawn: list[Figure], capsys: pytest.CaptureFixture[str]
) -> None:
    draw_heat_maps([panel(2, 2)], Path("x.png"))
    assert "fonts-noto-cjk" in capsys.readouterr().err
    assert len(drawn) == 1


@pytest.mark.parametrize(
    ("shape", "coverage"), [((2, 3), None), ((3, 2), 3), ((2, 2), None)], ids=str
)
def test_heat_map_rejects_sizes_that_do_not_fit(
    shape: tuple[int, int], coverage: int | None
) -> None:
    bars = None if coverage is None else np.ones(coverage, np.float32)
    with pytest.raises(ValueError, match="source words"):
        HeatMap("t", ["a", "b"], ["x", "y", "z"], np.zeros(shape, np.float32), bars)


def test_only_long_latin_words_are_turned(drawn: list[Figure]) -> None:
    words = ["1", "_", "の", "国際", "longer"]
    draw_heat_maps([HeatMap("t", words, ["x"], np.zeros((1, 5), np.float32))], Path("x.png"))
    turned = [text.get_rotation() for text in drawn[0].axes[0].get_xticklabels()]
    assert turned == [0, 0, 0, 0, 90]


def test_bad_names_and_empty_figures_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"map\.gif: "):
        draw_heat_maps([panel(2, 2)], tmp_path / "map.gif")
    with pytest.raises(UserError, match=r"map\.png: "):
        draw_heat_maps([], tmp_path / "map.png")
    with pytest.raises(UserError, match=r"length\.png: "):
        draw_length_curves({"a": []}, tmp_path / "length.png")
    with pytest.raises(UserError, match=r"curves\.png: "):
        draw_training_curves({}, tmp_path / "curves.png")
    assert list(tmp_path.iterdir()) == []


def buckets(bleus: Sequence[float]) -> list[LengthBucket]:
    return [
        LengthBucket(
            low=10 * k + 1,
            high=None if k == 2 else 10 * k + 10,
            sentences=100 - 30 * k,
            bleu=bleu,
            bleu_interval=(bleu - 2, bleu + 2),
            output_length=9.0 * k + 5,
            output_length_interval=(9.0 * k + 4, 9.0 * k + 7),
            reference_length=10.0 * k + 5,
            measures={},
        )
        for k, bleu in enumerate(bleus)
    ]


def test_length_curves_show_the_buckets(drawn: list[Figure]) -> None:
    draw_length_curves({"one": buckets([30, 20, 10]), "two": buckets([35, 30, 25])}, Path("x.svg"))
    scores, lengths = drawn[0].axes
    assert [list(line.get_ydata()) for line in scores.lines] == [[30, 20, 10], [35, 30, 25]]  # type: ignore[arg-type]
    assert [str(line.get_label()) for line in lengths.lines] == ["one", "two", "reference"]
    assert list(lengths.lines[2].get_ydata()) == [5, 15, 25]  # type: ignore[arg-type]
    named = [text.get_text() for text in scores.get_xticklabels()]
    assert named == ["1-10\nn=100", "11-20\nn=70", "21+\nn=40"]
    # nothing is cut off: bands lie inside the axes, which start at zero
    assert scores.get_ylim()[0] == 0
    assert scores.get_ylim()[1] >= 37
    assert lengths.get_ylim()[1] >= 25


@pytest.mark.parametrize(("systems", "intervals"), [(1, 1), (3, 3), (4, 1), (6, 1)])
def test_only_the_first_of_many_systems_has_intervals(
    drawn: list[Figure], systems: int, intervals: int
) -> None:
    draw_length_curves({f"{k}": buckets([30, 20, 10 + k]) for k in range(systems)}, Path("x.svg"))
    for axes in drawn[0].axes:
        assert len(axes.collections) == intervals


def log(path: Path, *entries: object) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), "utf-8")
    return path


def test_training_curves_show_the_log(drawn: list[Figure], tmp_path: Path) -> None:
    run = log(
        tmp_path / "log.jsonl",
        {"update": 10, "loss": 5.0, "words_per_second": 900},
        {"update": 20, "loss": 4.0, "words_per_second": 900},
        {"update": 20, "validation": {"loss": 4.5, "bleu": 12.0}, "best": True},
        {"update": 30, "loss": 3.0, "words_per_second": 900},
        {"update": 40, "validation": {"loss": 3.5, "bleu": None}},
    )
    draw_training_curves({"run": read_training_curves(run)}, Path("x.png"))
    losses, scores = drawn[0].axes
    points = [np.asarray(line.get_xydata()).tolist() for line in (*losses.lines, *scores.lines)]
    assert points == [[[10, 5], [20, 4], [30, 3]], [[20, 4.5], [40, 3.5]], [[20, 12]]]


def test_axes_of_scores_start_at_zero(drawn: list[Figure], tmp_path: Path) -> None:
    entries = [{"update": k, "loss": 5.0, "validation": {"loss": 5.0, "bleu": 0.0}} for k in (1, 3)]
    run = read_training_curves(log(tmp_path / "log.jsonl", *entries))
    draw_training_curves({"run": run}, Path("x.png"))
    draw_length_curves(
        {"one": [replace(b, bleu_interval=(0.0, 0.0)) for b in buckets([0, 0])]}, Path("x.png")
    )
    for scores in (drawn[0].axes[1], drawn[1].axes[0]):
        assert scores.get_ylim() == (0, 1)
    assert all(tick == int(tick) for axes in drawn[0].axes for tick in axes.get_xticks())


@pytest.mark.parametrize("systems", [2, 9, 20])
def test_legend_is_above_the_panels(drawn: list[Figure], systems: int) -> None:
    names = [f"a rather long name of system {k}" for k in range(systems)]
    draw_length_curves({name: buckets([30, 20, 10]) for name in names}, Path("x.png"))
    (figure,) = drawn
    [legend] = figure.legends
    tops = [axes.get_window_extent().y1 for axes in figure.axes]
    assert legend.get_window_extent().y0 > max(tops)
    assert legend.get_window_extent().y1 <= figure.bbox.y1


def test_line_styles_of_many_systems_differ(drawn: list[Figure]) -> None:
    draw_length_curves({f"system {k}": buckets([k, k, k]) for k in range(9)}, Path("x.png"))
    styles = {
        (str(line.get_color()), str(line.get_marker()), str(line.get_linestyle()))
        for line in drawn[0].axes[0].lines
    }
    assert len(styles) == 9


MATRIX = np.array([[0.9, 0.05, 0.0], [0.0, 0.004, 1.0]], dtype=np.float32)
HOSTILE = HeatMap(
    'a <b> & "c"', ["ka", "<mo>", "ti"], ["big", "now"], MATRIX, np.array([0.9, 0.5, 5], np.float32)
)


def tooltips(svg: ElementTree.Element) -> dict[str, ElementTree.Element]:
    """Return the rectangles with a title by their titles."""
    return {
        title.text or "": rect
        for rect in svg.iter("rect")
        if (title := rect.find("title")) is not None
    }


def test_cells_of_the_page_have_tooltips_in_their_places() -> None:
    cells = tooltips(ElementTree.fromstring(heat_maps_svg([HOSTILE])))
    assert list(cells)[:3] == ["big ← ka: 0.90", "big ← <mo>: 0.05", "now ← ti: 1.00"]
    assert list(cells)[3:] == [
        "ka: coverage 0.90",
        "<mo>: coverage 0.50",
        "ti: coverage 5.00",
    ]
    first, second, third = [
        [float(cells[name].attrib[key]) for key in ("x", "y")] for name in list(cells)[:3]
    ]
    step = float(cells["big ← ka: 0.90"].attrib["width"])
    assert step == pytest.approx(72 * figures.CELL, abs=0.1)
    assert second == pytest.approx([first[0] + step, first[1]], abs=0.11)
    assert third == pytest.approx([first[0] + 2 * step, first[1] + step], abs=0.11)


@pytest.mark.parametrize(("I", "J"), [(1, 1), (0, 3), (5, 5), (80, 80)])
def test_tooltips_of_the_page_are_inside_the_figure(I: int, J: int) -> None:
    ones = np.ones((I, J), np.float32)
    bare = panel(I, J)
    svg = ElementTree.fromstring(
        heat_maps_svg([HeatMap("t", bare.source, bare.target, ones, ones.sum(axis=0))])
    )
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    cells = tooltips(svg).values()
    assert cells
    for rect in cells:
        x, y, w, h = (float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width + 0.1
        assert 0 <= y <= y + h <= height + 0.1


def test_svg_of_the_page_has_its_colors_and_escaped_text() -> None:
    text = heat_maps_svg([HOSTILE])
    assert "http" not in text
    assert "#000000" not in text
    svg = ElementTree.fromstring(text)
    assert svg.attrib["aria-label"] == 'Attention of a <b> & "c"'
    words = {"".join(node.itertext()).strip() for node in svg.iter("text")}
    assert {'a <b> & "c"', "ka", "<mo>", "ti", "big", "now"} <= words


def test_points_of_the_page_have_tooltips_and_higher_is_better() -> None:
    systems = {"one": buckets([30, 10]), "<two>": buckets([35, 20])}
    svg = ElementTree.fromstring(length_curves_svg(systems))
    points = tooltips(svg)
    names = ["one, 1-10: 30.0", "one, 11-20: 10.0", "<two>, 1-10: 35.0", "<two>, 11-20: 20.0"]
    y = [float(points[name].attrib["y"]) for name in names]
    assert y[2] < y[0] < y[3] < y[1]
    assert (y[0] - y[2]) * 2 == pytest.approx(y[1] - y[3], abs=0.3)
    assert "1-10" in {"".join(node.itertext()) for node in svg.iter("text")}


def test_page_can_show_scores_of_zero() -> None:
    zero = [replace(b, bleu=0.0, bleu_interval=(0.0, 0.0)) for b in buckets([0])]
    assert tooltips(ElementTree.fromstring(length_curves_svg({"one": zero})))
