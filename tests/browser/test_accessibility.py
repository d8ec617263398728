"""Every state of the page: axe-core finds no fault, and a phone shows it without scrolling."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="pip install playwright: browser tests skipped")

from playwright.sync_api import Browser, Page, expect

from covnmt.serve.settings import ApiKey, ServeSettings
from tests.serve.server import Running, serving

from .driving import DONE, PATIENCE_MS, TEMPLE, ask, choose, open_instruments, show, write


def opened(page: Page) -> None:
    expect(page.locator(".example")).to_be_visible()


def instruments(page: Page) -> None:
    page.get_by_label("Model").select_option("shipped")
    show(page, f"{TEMPLE}\n{TEMPLE}")
    open_instruments(page, heat_map=True)
    page.locator(".word.target").first.focus()
    expect(page.locator(".source-line .highlighted")).not_to_have_count(0)


def checked(page: Page) -> None:
    page.get_by_label("Model").select_option("shipped")
    show(page, TEMPLE)
    page.get_by_text("Check another translation").click()
    ask(page, "Kinkaku-ji is a famous temple.")
    expect(page.locator(".verdict mark")).to_be_visible()


def compared(page: Page) -> None:
    choose(page, "Compare with", "coverage")
    show(page, "word " * 40)
    expect(page.locator(DONE)).to_have_count(2)
    for place in page.get_by_text("What the").all():  # a tiny model has many doubtful places
        place.click()


def unfit(page: Page) -> None:
    page.get_by_label("Model").select_option("laws")
    show(page, TEMPLE)
    expect(page.locator("#notice button")).to_be_visible()


def refused(page: Page) -> None:
    write(page, "x" * 60 + " x" * 300)
    expect(page.get_by_role("alert")).to_be_visible()


STATES = [opened, instruments, checked, compared, unfit, refused]


def assert_accessible(page: Page) -> None:
    """Let axe-core look at the page."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install it")
    found: list[dict[str, Any]] = axe.Axe().run(page).response["violations"]
    faults = [
        (fault["id"], fault["impact"], [node["html"][:120] for node in fault["nodes"][:3]])
        for fault in found
    ]
    assert faults == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("reach", STATES)
def test_a_state_of_the_page_is_accessible_and_fits_a_phone(
    browser: Browser, running: Running, reach: Callable[[Page], None], scheme: str
) -> None:
    with browser.new_context(
        viewport={"width": 360, "height": 740},
        color_scheme="dark" if scheme == "dark" else "light",
    ) as context:
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.goto(running.url)
        expect(page.locator("#choices")).to_be_visible()
        reach(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        paper = page.locator("form").evaluate("node => getComputedStyle(node).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
        assert_accessible(page)


def test_a_page_that_asks_for_a_key_is_accessible(page: Page, tiny_model: Path) -> None:
    settings = ServeSettings(rate=0, api_keys=(ApiKey(key="a-secret-key"),))
    with serving({"tiny": tiny_model}, settings) as server:
        page.goto(server.url)
        expect(page.get_by_label("API key")).to_be_focused()
        assert_accessible(page)
