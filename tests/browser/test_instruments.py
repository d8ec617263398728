"""How a translation was made: words with bars, steps, the heat map, and what it exports."""

import re
from itertools import pairwise

import pytest

pytest.importorskip("playwright.sync_api", reason="pip install playwright: browser tests skipped")

from playwright.sync_api import Page, expect

from covnmt.inference.model import Model

from .driving import open_instruments, show


def test_nothing_is_drawn_before_it_is_opened(page: Page, line: str) -> None:
    show(page, line)
    assert page.locator(".word, svg, .check textarea").count() == 0
    open_instruments(page)
    assert page.locator("svg").count() == 0


def test_words_and_bars_are_those_of_the_model(page: Page, translator: Model, line: str) -> None:
    show(page, line)
    open_instruments(page)
    [expected] = translator.translate([line])
    expect(page.locator(".word.source .token")).to_have_text(line.split())
    expect(page.locator(".word.target .token")).to_have_text(list(expected.tokens))
    for word, coverage in zip(page.locator(".word.source").all(), expected.coverage, strict=True):
        label = word.get_attribute("aria-label") or ""
        shown = re.search(r"coverage (\d\.\d\d)", label)
        assert shown is not None
        assert float(shown[1]) == pytest.approx(coverage, abs=0.011)
        # a bar is twice as wide as the line at 1 is far from its beginning
        width = float(word.locator(".fill").evaluate("bar => parseFloat(bar.style.width)"))
        assert width == pytest.approx(min(50 * coverage, 100), abs=1)


def test_bytes_are_shown_as_characters_and_spaces_not_at_all(page: Page) -> None:
    show(page, "▁ ▁cat s ▁ <0xE9> <0xA9> <0xAB> <0x24>")
    open_instruments(page)
    expect(page.locator(".word.source .token")).to_have_text(["cats", "驫$"])


def test_arrow_keys_move_between_words(page: Page, line: str) -> None:
    show(page, line)
    open_instruments(page)
    page.locator(".word.source").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".word.source").nth(1)).to_be_focused()
    expect(page.locator(".word.source").nth(1)).to_have_class(re.compile(r"\bselected\b"))
    page.keyboard.press("End")
    expect(page.locator(".word.source").last).to_be_focused()
    label = page.locator(".word.source").last.get_attribute("aria-label")
    assert re.search(r"coverage \d\.\d\d, fertility \d\.\d\d", label or "")


def test_stepping_fills_the_coverage(page: Page, line: str) -> None:
    show(page, line)
    open_instruments(page)
    slider = page.get_by_label("Target words so far")

    def total() -> float:
        script = "all => all.reduce((sum, bar) => sum + parseFloat(bar.style.width), 0)"
        return float(page.locator(".fill").evaluate_all(script))

    full = total()
    slider.fill("0")
    assert total() == 0
    expect(page.locator(".word.target.upcoming")).to_have_count(
        page.locator(".word.target").count()
    )
    slider.press("ArrowRight")
    assert 0 < total() < full
    # asked in the page, which may have played all before a question from outside arrives
    click = "button => { button.click(); return button.textContent; }"
    assert page.get_by_role("button", name="Play").evaluate(click) == "Pause"
    expect(page.locator(".word.target.upcoming")).to_have_count(0)
    assert total() == full


def test_the_heat_map_is_exported_as_svg_and_png(page: Page, line: str) -> None:
    show(page, line)
    open_instruments(page, heat_map=True)
    starts = {"SVG": b"<svg", "PNG": b"\x89PNG"}
    for kind, start in starts.items():
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Export as {kind}").click()
        assert download.value.suggested_filename == f"baseline.{kind.lower()}"
        assert download.value.path().read_bytes().startswith(start)


def test_the_heat_map_zooms(page: Page, line: str) -> None:
    show(page, line)
    open_instruments(page, heat_map=True)
    drawing = page.locator(".heat-box svg")
    before = int(drawing.get_attribute("width") or 0)
    page.get_by_role("button", name="Zoom in").click()
    assert int(drawing.get_attribute("width") or 0) > before


def test_a_heat_map_that_is_a_little_too_wide_is_drawn_to_fit(page: Page, line: str) -> None:
    show(page, " ".join((line.split() * 20)[:50]))
    open_instruments(page, heat_map=True)
    width, space = page.locator(".heat-box").evaluate("box => [box.scrollWidth, box.clientWidth]")
    assert width == space


def test_pointing_at_a_cell_highlights_its_words(page: Page, line: str) -> None:
    show(page, line)
    open_instruments(page, heat_map=True)
    page.locator(".heat-box rect[fill-opacity]").first.hover()
    expect(page.locator(".readout bdi")).to_have_count(2)
    expect(page.locator(".translation .selected")).to_have_count(1)


def test_labels_of_eighty_words_do_not_overlap(page: Page, line: str) -> None:
    show(page, " ".join((line.split() * 20)[:80]))
    open_instruments(page, heat_map=True)
    boxes = page.locator(".heat-box svg text[transform]").evaluate_all(
        "all => all.map((text) => text.getBoundingClientRect()).map((box) => [box.x, box.width])"
    )
    assert len(boxes) == 80
    gaps = [right[0] - left[0] - left[1] for left, right in pairwise(boxes)]
    assert min(gaps) >= 0, "labels run into each other"


def test_labels_stand_upright_in_scripts_that_are_written_so(page: Page) -> None:
    show(page, "この寺は京都市の北にある。")
    open_instruments(page, heat_map=True)
    upright = page.locator('.heat-box text[writing-mode="vertical-rl"]')
    expect(upright).not_to_have_count(0)
    assert page.locator(".heat-box text[transform]").count() < upright.count()
