"""A browser, a server, and its page.

Needs playwright and Debian's chromium (apt install chromium); skipped where one is missing.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from covnmt.model.directory import find_model
from covnmt.serve.settings import ServeSettings
from tests.serve.server import PATIENCE, Running, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    driver = pytest.importorskip("playwright.sync_api", reason="pip install playwright: skipped")
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("apt install chromium: browser tests skipped")
    driver.expect.set_options(timeout=1000 * PATIENCE)
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=FLAGS, timeout=1000 * PATIENCE
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def running(tiny_model: Path) -> Iterator[Running]:
    names = ("baseline", "coverage", "kftt:ja-en", "laws:zh-en", "semitic:he-ar")
    models = dict.fromkeys(names, tiny_model)
    models["shipped"] = find_model("ja-en")
    with serving(models, ServeSettings(rate=0, workers=1)) as server:
        yield server


@pytest.fixture
def context(browser: "Browser") -> Iterator["BrowserContext"]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(1000 * PATIENCE)
    yield context
    context.close()


@pytest.fixture
def page(context: "BrowserContext", running: Running) -> Iterator["Page"]:
    """Open the page, which must not throw, break its security policy, or load from elsewhere."""
    page = context.new_page()
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda message: _keep(troubles, message.type, message.text))
    page.on("request", lambda request: _keep_foreign(troubles, request.url))
    page.goto(running.url)
    yield page
    assert troubles == []


def _keep(troubles: list[str], kind: str, text: str) -> None:
    if kind == "error" and "status of 4" not in text and "ERR_CONNECTION_REFUSED" not in text:
        troubles.append(text)


def _keep_foreign(troubles: list[str], url: str) -> None:
    if not re.match(r"http://127\.0\.0\.1:|blob:|data:", url):
        troubles.append(f"asked for {url}")


@pytest.fixture(scope="module")
def line(lines: list[str]) -> str:
    return next(line for line in lines if len(line.split()) > 5)
