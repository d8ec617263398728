"""The page in a real browser: typing, pointing, comparing, stepping, exporting, errors."""

import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlencode

import pytest

pytest.importorskip("playwright.sync_api", reason="pip install playwright: browser tests skipped")

from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

from covnmt.inference.model import Model
from covnmt.serve.settings import ServeSettings
from tests.serve.server import PATIENCE, UNLIMITED, Running, serving

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
DONE = ".result:not(.draft)"  # a translation that is no longer being made
PATIENCE_MS = 1000 * PATIENCE


def wait_for(page: Page, condition: Callable[[], object]) -> None:
    """Let the page run until a condition holds."""
    end = time.monotonic() + PATIENCE_MS / 1000
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        page.wait_for_timeout(20)


def show(page: Page, text: str) -> None:
    page.get_by_label("Text to translate").fill(text)
    expect(page.locator("#status")).to_contain_text("Done")
    expect(page.locator(DONE).first).to_be_visible()


def test_the_translation_appears_while_typing(page: Page, translator: Model, line: str) -> None:
    page.get_by_label("Text to translate").press_sequentially(line)
    [expected] = translator.translate([line])
    expect(page.locator(f"{DONE} .translation")).to_have_text(expected.text)
    # a part of the line may have had the same translation
    expect(page.locator(".word.source")).to_have_count(len(line.split()))
    expect(page.locator(".word.target")).to_have_count(len(expected.tokens))


def test_subwords_are_shown_as_words(page: Page) -> None:
    show(page, "▁ ▁cat s")
    expect(page.locator(f"{DONE} .word.source .token")).to_have_text(["␣", "cat", "s"])


def test_byte_tokens_are_shown_as_characters(page: Page) -> None:
    show(page, "▁ <0xE9> <0xA9> <0xAB> <0x24> <0xAB>")
    shown = ["␣", "驫₁", "驫₂", "驫₃", "$", "<0xAB>"]
    expect(page.locator(f"{DONE} .word.source .token")).to_have_text(shown)


def test_a_line_without_words_has_no_panel(page: Page, line: str) -> None:
    show(page, f"{line}\n***\n{line}")
    expect(page.locator(f"{DONE} .translation")).to_contain_text("***")
    expect(page.locator(f"{DONE} h3")).to_have_text(["Sentence 1", "Sentence 3"])


def test_text_typed_before_the_models_are_loaded_stays(
    context: BrowserContext, running: Running, line: str
) -> None:
    page = context.new_page()
    held: list[Route] = []
    page.route("**/v1/models", lambda route: held.append(route))
    page.goto(running.url)
    page.get_by_label("Text to translate").fill(line)
    wait_for(page, lambda: held)
    held[0].continue_()
    expect(page.locator("#status")).to_contain_text("Done")
    expect(page.locator("#text")).to_have_value(line)


def test_aligned_words_are_highlighted(page: Page, translator: Model, line: str) -> None:
    show(page, line)
    [expected] = translator.translate([line])
    i = 1
    page.locator(".word.target").nth(i).hover()
    j = int(expected.alignment[i].argmax())
    expect(page.locator(".word.source").nth(j)).to_have_class(re.compile(r"\bhighlighted\b"))
    page.locator("h1").hover()
    expect(page.locator(".word.highlighted")).to_have_count(0)


def test_arrow_keys_move_between_words(page: Page, line: str) -> None:
    show(page, line)
    page.locator(".word.source").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".word.source").nth(1)).to_be_focused()
    expect(page.locator(".word.source").nth(1)).to_have_class(re.compile(r"\bselected\b"))
    page.keyboard.press("End")
    expect(page.locator(".word.source").last).to_be_focused()
    label = page.locator(".word.source").last.get_attribute("aria-label")
    assert re.search(r"coverage \d\.\d\d, fertility \d\.\d\d", label or "")


def test_two_models_are_compared_and_the_link_reproduces_it(
    page: Page, context: BrowserContext, line: str
) -> None:
    show(page, line)
    page.get_by_label("Compare with").select_option("coverage")
    expect(page.locator(f"{DONE} h2")).to_have_text(["baseline", "coverage"])
    again = context.new_page()
    again.goto(page.url)
    expect(again.locator(f"{DONE} h2")).to_have_text(["baseline", "coverage"])
    expect(again.locator("#text")).to_have_value(line)


def test_stepping_fills_the_coverage(page: Page, line: str) -> None:
    show(page, line)
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
    starts = {"SVG": b"<svg", "PNG": b"\x89PNG"}
    for kind, start in starts.items():
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Export as {kind}").click()
        assert download.value.suggested_filename == f"baseline.{kind.lower()}"
        assert download.value.path().read_bytes().startswith(start)


def test_the_heat_map_zooms(page: Page, line: str) -> None:
    show(page, line)
    drawing = page.locator(".heat-box svg")
    before = int(drawing.get_attribute("width") or 0)
    page.get_by_role("button", name="Zoom in").click()
    assert int(drawing.get_attribute("width") or 0) > before


def test_labels_of_eighty_words_do_not_overlap(page: Page, line: str) -> None:
    show(page, " ".join((line.split() * 20)[:80]))
    boxes = page.locator(".heat-box svg text[transform]").evaluate_all(
        "all => all.map((text) => text.getBoundingClientRect()).map((box) => [box.x, box.width])"
    )
    assert len(boxes) == 80
    gaps = [right[0] - left[0] for left, right in pairwise(boxes)]
    assert min(gaps) >= 12, "labels run into each other"


def test_text_is_never_inserted_as_html(page: Page) -> None:
    show(page, "<img src=x onerror=alert(1)> <b>bold</b>")
    expect(page.locator(".word.source .token").first).to_contain_text("<img")
    assert page.locator(".result img, .result b:not(.remarks b)").count() == 0


def test_an_example_of_two_lines_has_two_sentences(page: Page) -> None:
    page.get_by_label("Example").select_option("Two lines")
    expect(page.locator(".sentence")).to_have_count(2)


def test_the_default_beam_is_shown_as_placeholder(page: Page, running: Running) -> None:
    usual = {name: str(model.decode.beam) for name, model in running.models.items()}
    assert usual["baseline"] != usual["shipped"]
    for model in ("baseline", "shipped"):
        page.get_by_label("Model").select_option(model)
        expect(page.get_by_label("Beam")).to_have_attribute("placeholder", usual[model])


@pytest.mark.parametrize(("model", "language"), [("kftt", "ja"), ("laws", "zh")])
def test_examples_in_the_language_of_the_model(page: Page, model: str, language: str) -> None:
    ours = (EXAMPLES / f"{language}.txt").read_text("utf-8").splitlines()
    expect(page.get_by_label("Example").locator("option")).not_to_have_count(0)
    page.get_by_label("Model").select_option(model)
    for title in ("Short", "Two lines", "Long", "Longer"):
        page.get_by_label("Example").select_option(title)
        shown = page.get_by_label("Text to translate").input_value()
        assert set(shown.splitlines()) <= set(ours)
    expect(page.locator(f"{DONE} h2")).to_have_text([model])
    words = page.locator(f"{DONE} .word.source")
    expect(words.last).to_contain_text(shown.rstrip("。")[-1])  # the last of them is drawn
    # words over the columns stand upright, as their script is written
    upright = page.locator('.heat-box text[writing-mode="vertical-rl"]')
    expect(upright).not_to_have_count(0)
    assert page.locator(".heat-box text[transform]").count() < upright.count()


TEMPLE = "金閣寺は京都にある有名な寺です。"


def ask(page: Page, text: str) -> None:
    """Check a translation for omissions."""
    page.get_by_label("Translation to check").fill(text)
    page.get_by_role("button", name="What does it leave out?").click()


@pytest.fixture
def checking(page: Page) -> Page:
    """Open the page with a sentence and the box for another translation."""
    page.get_by_label("Model").select_option("shipped")
    show(page, TEMPLE)
    page.get_by_text("Check another translation").click()
    return page


def test_omissions_of_a_checked_translation_are_marked(checking: Page) -> None:
    ask(checking, "Kinkaku-ji is a famous temple.")
    verdict, omitted = checking.locator(".verdict"), checking.locator(".word.source.omitted")
    expect(verdict).to_contain_text("Probably left out: 京都")
    expect(verdict).to_contain_text("A hint")
    expect(verdict).to_have_role("status")
    expect(omitted.locator(".token")).to_have_text(["京都"])
    # not by colour alone, and told to who cannot see it; stepping does not take it away
    assert omitted.evaluate("word => getComputedStyle(word).borderTopStyle") == "dashed"
    checking.get_by_label("Target words so far").fill("2")
    expect(omitted).to_have_attribute("aria-label", re.compile("probably left out"))
    # what was said of another text is gone as soon as there is a new one
    checking.get_by_label("Translation to check").press_sequentially("x")
    expect(omitted).to_have_count(0)
    expect(verdict).to_be_empty()
    assert checking.locator('[aria-label*="left out"]').count() == 0


def test_a_complete_translation_has_no_marks(checking: Page) -> None:
    box, verdict = checking.get_by_label("Translation to check"), checking.locator(".verdict")
    expect(box).to_have_value(checking.locator(".translation").inner_text())
    box.press("Tab")
    checking.keyboard.press("Enter")
    expect(verdict).to_contain_text("the model's own translation")
    ask(checking, "Kinkaku-ji is a famous temple in Kyoto.")
    expect(verdict).to_contain_text("Nothing seems to be left out")
    ask(checking, " ")
    expect(verdict).to_contain_text("paste a translation")
    expect(checking.locator(".omitted:visible")).to_have_count(0)


def test_a_translation_that_is_too_long_shows_an_error(checking: Page) -> None:
    ask(checking, "temple " * 101)
    expect(checking.locator(".verdict")).to_contain_text("101 tokens")
    ask(checking, "<b>temple</b>")
    expect(checking.locator(".verdict")).to_contain_text("Probably left out")
    assert checking.locator(".verdict b").count() == 0


def test_the_response_of_an_aborted_check_is_not_shown(checking: Page) -> None:
    """The first check is blocked until the second one is done."""
    held: list[Route] = []
    checking.route("**/v1/check", lambda route: held.append(route), times=1)
    ask(checking, "Temple.")
    wait_for(checking, lambda: held)
    expect(checking.locator(".verdict")).to_have_text("Checking…")
    ask(checking, "Kinkaku-ji is a famous temple.")
    expect(checking.locator(".verdict")).to_contain_text("Probably left out: 京都")
    held[0].abort()
    checking.wait_for_timeout(50)
    expect(checking.locator(".verdict")).to_contain_text("Probably left out: 京都")


# Lets a test send the events of a stream one by one.
SLOW_STREAM = """
const real = window.fetch;
const encoder = new TextEncoder();
window.fetch = (path, options) => {
  if (!String(path).endsWith("/stream")) return real(path, options);
  const body = new ReadableStream({ start(pipe) {
    window.send = (name, content) =>
      pipe.enqueue(encoder.encode(`event: ${name}\\ndata: ${JSON.stringify(content)}\\n\\n`));
    window.end = () => pipe.close();
  } });
  return Promise.resolve(new Response(body));
};
"""


def slow_page(context: BrowserContext, running: Running, text: str) -> Page:
    """Open the page with a text whose translation the test sends, event by event."""
    page = context.new_page()
    page.add_init_script(SLOW_STREAM)
    page.goto(f"{running.url}/#{urlencode({'text': text})}")
    # not wait_for_function: it evaluates text inside the page, whose policy forbids that
    wait_for(page, lambda: page.evaluate("window.send !== undefined"))
    return page


def send(page: Page, name: str, **content: object) -> None:
    page.evaluate("([name, content]) => window.send(name, content)", [name, content])


def test_partial_texts_are_shown_as_a_draft(context: BrowserContext, running: Running) -> None:
    page = slow_page(context, running, "a b. c")
    draft = page.locator(".draft")
    send(page, "partial", text_number=0, sentence_number=0, text="x")
    expect(draft.locator(".translation")).to_have_text("x")
    assert draft.get_attribute("aria-busy") == "true"
    # a screen reader hears of the beginning and of the end, not of every word
    assert page.locator(".draft [aria-live], [aria-live] .draft").count() == 0
    send(page, "partial", text_number=0, sentence_number=1, text="z")
    send(page, "partial", text_number=0, sentence_number=0, text="x <b>y</b>")
    expect(draft.locator(".translation")).to_have_text("x <b>y</b>\nz")
    expect(page.locator("#status")).to_have_text("Translating…")
    for number, text in enumerate(("x y.", "z")):
        sentence = {"text_number": 0, "sentence_number": number, "source": "a", "text": text}
        tokens = {"readable_source_tokens": ["a"], "readable_tokens": ["x"]}
        attention = {"alignment": [[1.0]], "coverage": [1.0], "fertility": None}
        send(page, "sentence", **sentence, **tokens, **attention, score=-1.0, remarks=[])
    send(page, "done", model="baseline", texts=["x y. z"])
    expect(page.locator(f"{DONE} .translation")).to_have_text("x y. z")
    expect(page.locator("[aria-busy]")).to_have_count(0)
    expect(page.locator("#status")).to_contain_text("Done")


def test_a_broken_stream_shows_an_error(context: BrowserContext, running: Running) -> None:
    page = slow_page(context, running, "a")
    send(page, "partial", text_number=0, sentence_number=0, text="x")
    expect(page.locator(".draft")).to_be_visible()
    page.evaluate("window.end()")
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
    expect(page.locator(".draft")).to_have_count(0)


def test_a_text_that_cannot_be_translated_shows_an_error(page: Page) -> None:
    page.get_by_label("Text to translate").fill("one\n" + "word " * 300)
    message = 'sentence 2: "word word word word word word word word…" has 300 tokens'
    expect(page.get_by_role("alert")).to_contain_text(message)
    page.get_by_label("Text to translate").fill("word")
    expect(page.get_by_role("alert")).to_be_hidden()


def test_an_unreachable_server_shows_an_error(
    context: BrowserContext, tiny_model: Path, line: str
) -> None:
    page = context.new_page()
    with ExitStack() as stack:
        page.goto(stack.enter_context(serving({"tiny": tiny_model}, UNLIMITED)).url)
        show(page, line)
    page.get_by_label("Text to translate").fill(f"{line} {line}")
    expect(page.get_by_role("alert")).to_contain_text("does not answer")


def test_a_missing_api_key_is_requested(
    context: BrowserContext, tiny_model: Path, line: str
) -> None:
    settings = ServeSettings(rate=0, api_key="a-secret-key")
    with serving({"tiny": tiny_model}, settings) as server:
        page = context.new_page()
        page.goto(f"{server.url}/#{urlencode({'text': line})}")
        expect(page.get_by_role("alert")).to_contain_text("API key")
        page.get_by_label("API key").fill("a-secret-key")
        page.get_by_label("API key").press("Tab")
        expect(page.locator(DONE)).to_be_visible()
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone(browser: Browser, running: Running, line: str, scheme: str) -> None:
    with browser.new_context(
        viewport={"width": 360, "height": 740},
        color_scheme="dark" if scheme == "dark" else "light",
    ) as context:
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.goto(f"{running.url}/#{urlencode({'text': f'{line} ' * 3})}")
        expect(page.locator(DONE)).to_be_visible()
        page.get_by_text("Check another translation").click()
        ask(page, f"{line} " * 3)
        expect(page.locator(".verdict small")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.get_by_label("Text to translate").fill("x" * 60 + " x" * 300)
        expect(page.get_by_role("alert")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        paper = page.locator(DONE).evaluate("node => getComputedStyle(node).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
