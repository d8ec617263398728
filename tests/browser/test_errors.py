"""What the page says when something is wrong: no server, no key, limits, texts that do not go."""

from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="pip install playwright: browser tests skipped")

from playwright.sync_api import BrowserContext, Page, expect

from covnmt.serve.settings import ApiKey, ServeSettings
from tests.serve.server import UNLIMITED, Running, serving

from .driving import DONE, send, sentence, show, slow_page, write


def test_a_text_that_cannot_be_translated_shows_an_error_alone(page: Page) -> None:
    show(page, "word")
    write(page, "word " * 300)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("This cannot be translated.")
    message = '"word word word word word word word word…" has 300 tokens'
    expect(alert).to_contain_text(message)
    # the translation of another text would be taken for this one's
    expect(page.locator(".result")).to_have_count(0)
    write(page, "word")
    expect(alert).to_be_hidden()
    expect(page.locator(DONE)).to_be_visible()


def test_a_text_that_is_too_long_shows_the_limit(page: Page) -> None:
    write(page, "word\n" * 501)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("This text is too long.")
    expect(alert).to_contain_text("501 sentences; send 500 at most")


@pytest.mark.parametrize("beam", ["0", "1.5", "99"])
def test_a_beam_that_is_no_number_in_range_is_refused_by_the_page(page: Page, beam: str) -> None:
    show(page, "word")
    page.get_by_text("Settings").click()
    page.get_by_label("Beam").fill(beam)
    expect(page.get_by_role("alert")).to_contain_text("Beam: a whole number from 1 to 20.")
    expect(page.locator(".result")).to_have_count(0)


def test_a_full_server_says_when_to_try_again(page: Page, line: str) -> None:
    reply = {"status": 429, "json": {"error": "too many requests; wait a little"}}
    page.route(
        "**/stream", lambda route: route.fulfill(**reply, headers={"Retry-After": "7"}), times=1
    )
    write(page, line)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The limit is reached.")
    expect(alert).to_contain_text("Wait 7 s.")
    alert.get_by_role("button", name="Try again").click()
    expect(page.locator(DONE)).to_be_visible()
    expect(alert).to_be_hidden()


def test_an_unreachable_server_shows_an_error(
    context: BrowserContext, tiny_model: Path, line: str
) -> None:
    page = context.new_page()
    with ExitStack() as stack:
        page.goto(stack.enter_context(serving({"tiny": tiny_model}, UNLIMITED)).url)
        show(page, line)
    write(page, f"{line} {line}")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The server does not answer.")
    expect(alert.get_by_role("button", name="Try again")).to_be_visible()
    expect(page.locator(".result")).to_have_count(0)
    expect(page.locator("#text")).to_have_value(f"{line} {line}")


def test_a_broken_stream_shows_an_error_and_no_draft(
    context: BrowserContext, running: Running
) -> None:
    page = slow_page(context, running, "a")
    send(page, "partial", text_number=0, sentence_number=0, text="x")
    expect(page.locator(".draft")).to_be_visible()
    page.evaluate("window.end()")
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
    expect(page.locator(".result")).to_have_count(0)


def test_sentences_that_came_before_an_error_stay(
    context: BrowserContext, running: Running
) -> None:
    page = slow_page(context, running, "a. b")
    send(page, "sentence", **sentence(0))
    send(page, "partial", text_number=0, sentence_number=1, text="y")
    send(page, "error", status=408, error="not done in time; send less at once")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("This took too long.")
    expect(alert).to_contain_text("Not done in time; send less at once")
    expect(page.locator(".summary")).to_have_text("Stopped after 1 sentence.")
    expect(page.locator(".translation")).to_have_text("x")
    expect(page.locator("[aria-busy]")).to_have_count(0)


def test_a_missing_api_key_is_requested(
    context: BrowserContext, tiny_model: Path, line: str
) -> None:
    settings = ServeSettings(rate=0, api_keys=(ApiKey(key="a-secret-key"),))
    with serving({"tiny": tiny_model}, settings) as server:
        page = context.new_page()
        page.goto(server.url)
        alert, box = page.get_by_role("alert"), page.get_by_label("API key")
        expect(alert).to_contain_text("This server asks for a key.")
        expect(box).to_be_focused()
        # the other controls would be empty
        expect(page.get_by_label("Model")).to_be_hidden()
        expect(page.locator(".example")).to_be_visible()
        write(page, line)
        box.fill("a-wrong-key")
        box.press("Enter")
        expect(alert).to_contain_text("This is not the key of this server.")
        expect(box).to_be_focused()
        box.fill("a-secret-key")
        box.press("Enter")
        expect(page.locator(DONE)).to_be_visible()
        expect(alert).to_be_hidden()
        expect(box).to_be_hidden()
        expect(page.get_by_label("Text to translate")).to_be_focused()
        # it stays for the tab
        page.reload()
        expect(page.get_by_label("Model")).to_be_visible()
        page.close()
