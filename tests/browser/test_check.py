"""Checking another translation on the page: verdict, marks in the source, errors, cancelling."""

import pytest

pytest.importorskip("playwright.sync_api", reason="pip install playwright: browser tests skipped")

from playwright.sync_api import Page, Route, expect

from .driving import TEMPLE, ask, show, wait_for


@pytest.fixture
def checking(page: Page) -> Page:
    """Open the page with a sentence and the box for another translation."""
    page.get_by_label("Model").select_option("shipped")
    show(page, TEMPLE)
    page.get_by_text("Check another translation").click()
    return page


def test_omissions_of_a_checked_translation_are_marked_beside_the_verdict(checking: Page) -> None:
    ask(checking, "Kinkaku-ji is a famous temple.")
    verdict = checking.locator(".verdict")
    expect(verdict).to_contain_text("1 place to look at. Probably left out: 京都")
    expect(verdict).to_contain_text("A hint")
    expect(verdict).to_have_role("status")
    line = verdict.locator(".source-line")
    expect(line).to_have_text(TEMPLE)
    expect(line.locator("mark")).to_contain_text("京都")
    # not by color alone
    style = line.locator("mark").evaluate("mark => getComputedStyle(mark).borderBottomStyle")
    assert style == "dashed"
    # what was said of another text is gone as soon as there is a new one
    checking.get_by_label("Translation to check").press_sequentially("x")
    expect(verdict).to_be_empty()


def test_a_complete_translation_has_no_marks(checking: Page) -> None:
    box, verdict = checking.get_by_label("Translation to check"), checking.locator(".verdict")
    expect(box).to_have_value(checking.locator(".translation").inner_text())
    box.press("Tab")
    checking.keyboard.press("Enter")
    expect(verdict).to_contain_text("the model's own translation")
    ask(checking, "Kinkaku-ji is a famous temple in Kyoto.")
    expect(verdict).to_contain_text("Nothing found")
    expect(verdict).to_contain_text("not proof")
    ask(checking, " ")
    expect(verdict).to_contain_text("paste a translation")
    expect(checking.locator(".verdict mark")).to_have_count(0)


def test_marks_are_in_the_characters_of_the_reader(page: Page) -> None:
    """zh-en reads traditional characters as simplified ones."""
    page.get_by_label("Model").select_option("laws")
    show(page, "圖書館應保存閱覽紀錄。")
    report = {
        "source_tokens": ["▁图书馆", "应", "保存", "阅览", "纪录", "。"],
        "own": "x",
        "left_out": [{"text": "阅览", "start": 3, "end": 4, "gain": 2.0}],
    }
    page.route("**/v1/check", lambda route: route.fulfill(json={"checks": [report]}))
    page.get_by_text("Check another translation").click()
    ask(page, "The library keeps records.")
    expect(page.locator(".verdict .missing")).to_have_text("閱覽")
    expect(page.locator(".verdict mark")).to_have_text("閱覽")


def test_a_verdict_tells_how_far_it_can_be_trusted(checking: Page) -> None:
    report = {
        "source_tokens": ["▁金閣寺は京都にある有名な寺です。"],
        "own": "x",
        "left_out": [{"text": TEMPLE, "start": 0, "end": 1, "gain": 2.0, "probability": 0.931}],
        "unrelated": 0.8,
        "unusual": True,
        "words": 8,
        "judged": 5,
    }
    checking.route("**/v1/check", lambda route: route.fulfill(json={"checks": [report]}))
    ask(checking, "Good morning!")
    verdict = checking.locator(".verdict")
    expect(verdict.locator(".warning").first).to_contain_text("not look like a translation")
    expect(verdict.locator(".warning").last).to_contain_text("unlike the text that the model")
    expect(verdict).to_contain_text(f"{TEMPLE} (93%)")
    expect(verdict).to_contain_text("5 of 8 words could be judged")
    # what the server sends is text, never HTML
    report["left_out"] = [{"text": "<i>x</i>", "start": 0, "end": 0, "gain": 2.0}]
    ask(checking, "Good morning?")
    expect(verdict).to_contain_text("Probably left out: <i>x</i>")
    # nothing found in what is no translation does not say that it is complete
    report["left_out"] = []
    ask(checking, "Good evening!")
    expect(verdict).to_contain_text("not look like a translation")
    expect(verdict).not_to_contain_text("Nothing found")
    report["unrelated"] = 0.0  # nor in what is unlike the model's field
    ask(checking, "Good night!")
    expect(verdict).to_contain_text("unlike the text that the model")
    expect(verdict).not_to_contain_text("Nothing found")


def test_a_translation_that_is_too_long_shows_an_error(checking: Page) -> None:
    ask(checking, "temple " * 101)
    expect(checking.locator(".verdict")).to_contain_text("101 tokens")


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
