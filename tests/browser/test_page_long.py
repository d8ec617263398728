"""The page: memory, color schemes, languages, right-to-left scripts."""

import re

import pytest

pytest.importorskip("playwright.sync_api", reason="pip install playwright: browser tests skipped")

from playwright.sync_api import BrowserContext, Page, expect

from .driving import DONE, open_instruments, show, write


def test_removed_results_are_freed(page: Page, context: BrowserContext, line: str) -> None:
    """Somebody who types all day creates thousands of heat maps."""
    tools = context.new_cdp_session(page)

    def nodes() -> int:
        write(page, "")
        expect(page.locator(DONE)).to_have_count(0)
        tools.send("HeapProfiler.collectGarbage")
        return int(tools.send("Memory.getDOMCounters")["nodes"])

    show(page, line)
    open_instruments(page, heat_map=True)
    drawn = page.evaluate("document.querySelectorAll('.result *').length")
    before = nodes()
    for count in range(2, 7):
        show(page, " ".join([line] * count))
        open_instruments(page, heat_map=True)
        expect(page.locator(".word.source")).to_have_count(count * len(line.split()))
    assert nodes() < before + drawn


def test_the_heat_map_follows_the_color_scheme(page: Page, line: str) -> None:
    show(page, line)
    open_instruments(page, heat_map=True)
    paper = page.locator(".heat-box svg > rect").first
    expect(paper).to_have_attribute("fill", "#ffffff")
    page.emulate_media(color_scheme="dark")
    expect(paper).to_have_attribute("fill", "#15181d")


def test_text_has_the_language_of_the_model(page: Page, line: str) -> None:
    """Chinese and Japanese share characters and draw them differently."""
    text = page.get_by_label("Text to translate")
    for model, source, target in [("laws", "zh", "en"), ("kftt", "ja", "en"), ("baseline", "", "")]:
        page.get_by_label("Model").select_option(model)
        show(page, line)
        open_instruments(page, heat_map=True)
        assert text.evaluate("box => box.lang") == source
        shown = page.locator(".translation, .source-line, .side, .heat-box text")
        lang = shown.evaluate_all("all => all.map((each) => each.getAttribute('lang') ?? '')")
        assert lang[:4] == [target, source, source, target]
        assert set(lang[4:]) == {source, target, ""}  # that of the bars has none


def test_right_to_left_text_is_laid_out_so(page: Page, line: str) -> None:
    page.get_by_label("Model").select_option("baseline")
    show(page, "שלום עולם טוב")
    open_instruments(page)
    text = page.get_by_label("Text to translate")
    assert text.evaluate("box => getComputedStyle(box).direction") == "rtl"
    words = page.locator(".word.source")
    first, second = (words.nth(n).bounding_box() for n in range(2))
    assert first is not None
    assert second is not None
    assert first["x"] > second["x"]
    words.first.focus()
    page.keyboard.press("ArrowLeft")
    expect(words.nth(1)).to_have_class(re.compile(r"\bselected\b"))
    page.keyboard.press("ArrowRight")
    expect(words.first).to_have_class(re.compile(r"\bselected\b"))
    show(page, line)
    assert text.evaluate("box => getComputedStyle(box).direction") == "ltr"


def test_a_foreign_first_word_does_not_change_the_direction(page: Page) -> None:
    page.get_by_label("Model").select_option("semitic")
    expect(page.get_by_label("Example")).to_be_disabled()
    show(page, "Google שלום 1998")
    open_instruments(page)
    page.get_by_text("Check another translation").click()
    shown = page.locator("#text, .translation, .source-line, .side, .check textarea")
    ways = shown.evaluate_all("all => all.map((each) => getComputedStyle(each).direction)")
    assert ways == ["rtl"] * 6


def test_labels_are_shortened_between_characters(page: Page) -> None:
    show(page, 40 * "👍" + "x")
    open_instruments(page, heat_map=True)
    labels = page.locator(".heat-box text")
    assert labels.evaluate_all("all => all.every((each) => each.textContent.isWellFormed())")
