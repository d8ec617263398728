"""What the tests of the page share: waiting, typing, asking for a check, streams sent by hand."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("playwright.sync_api", reason="pip install playwright: browser tests skipped")

from playwright.sync_api import expect

from tests.serve.server import PATIENCE, Running

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

DONE = ".result:not(.draft)"  # a translation that is no longer being made
PATIENCE_MS = 1000 * PATIENCE
TEMPLE = "金閣寺は京都にある有名な寺です。"

# Lets a test send the events of a stream one by one.
SLOW_STREAM = """
const real = window.fetch;
const encoder = new TextEncoder();
window.fetch = (path, options) => {
  if (!String(path).endsWith("/stream")) return real(path, options);
  const body = new ReadableStream({ start(pipe) {
    window.send = (events) => pipe.enqueue(encoder.encode(events.map(([name, content]) =>
      `event: ${name}\\ndata: ${JSON.stringify(content)}\\n\\n`).join("")));
    window.end = () => pipe.close();
  } });
  return Promise.resolve(new Response(body));
};
"""


def wait_for(page: "Page", condition: Callable[[], object]) -> None:
    """Let the page run until a condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        page.wait_for_timeout(20)


def write(page: "Page", text: str) -> None:
    """Type a text."""
    page.get_by_label("Text to translate").fill(text)


def show(page: "Page", text: str) -> None:
    """Type a text and wait until it is translated."""
    write(page, "")
    expect(page.locator(".result")).to_have_count(0)
    write(page, text)
    expect(page.locator("#status")).to_contain_text("Done")
    expect(page.locator(DONE).first).to_be_visible()


def choose(page: "Page", setting: str, value: str) -> None:
    """Choose one of the settings, which are behind a summary."""
    page.locator("#settings").evaluate("box => { box.open = true; }")
    page.get_by_label(setting).select_option(value)


def open_instruments(page: "Page", heat_map: bool = False) -> None:
    """Open how the first sentence was made."""
    page.get_by_text("How it was made").first.click()
    expect(page.locator(".word.source").first).to_be_visible()
    if heat_map:
        page.locator(".heat summary").first.click()
        expect(page.locator(".heat-box svg").first).to_be_visible()


def ask(page: "Page", text: str) -> None:
    """Check a translation for omissions."""
    page.get_by_label("Translation to check").fill(text)
    page.get_by_role("button", name="What does it leave out?").click()


def slow_page(context: "BrowserContext", running: Running, text: str) -> "Page":
    """Open the page with a text whose translation the test sends, event by event."""
    page = context.new_page()
    page.add_init_script(SLOW_STREAM)
    page.goto(running.url)
    expect(page.locator("#choices")).to_be_visible()
    write(page, text)
    # not wait_for_function: it evaluates text inside the page, whose policy forbids that
    wait_for(page, lambda: page.evaluate("window.send !== undefined"))
    return page


def send(page: "Page", name: str, **content: object) -> None:
    """Send one event."""
    send_all(page, [(name, content)])


def send_all(page: "Page", events: Sequence[tuple[str, object]]) -> None:
    """Send events in one piece."""
    page.evaluate("events => window.send(events)", [list(event) for event in events])


def sentence(number: int = 0, **content: Any) -> dict[str, Any]:
    """Return a sentence as the server sends it; by default one word, aligned with one."""
    text = {"text_number": 0, "sentence_number": number, "source": "a", "text": "x"}
    tokens = {"source_tokens": ["a"], "tokens": ["x"], "alignment": [[1.0]], "coverage": [1.0]}
    return {**text, **tokens, "fertility": None, "score": -1.0, "remarks": [], **content}
