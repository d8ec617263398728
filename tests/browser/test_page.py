"""The page in a real browser: the example, typing, marks, copying, models, links, streams."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("playwright.sync_api", reason="pip install playwright: browser tests skipped")

from playwright.sync_api import BrowserContext, Page, Route, expect

from covnmt.inference.model import Model
from covnmt.model.directory import find_model
from tests.serve.server import UNLIMITED, Running, serving

from .driving import (
    DONE,
    TEMPLE,
    choose,
    send,
    send_all,
    sentence,
    show,
    slow_page,
    wait_for,
    write,
)

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
CLIPBOARD = ["clipboard-read", "clipboard-write"]


def test_the_page_opens_with_an_omission_explained(page: Page) -> None:
    example = page.locator(".example")
    expect(example).to_contain_text("Probably left out: gegen die Arbeitslosigkeit")
    expect(example.locator(".gloss mark")).to_have_text(
        "gegen die Arbeitslosigkeit against unemployment"
    )
    expect(example.locator(".own mark")).to_contain_text(["against unemployment"])
    write(page, "word")
    expect(example).to_be_hidden()
    write(page, "")
    expect(example).to_be_visible()


def test_the_example_can_be_tried_and_is_what_the_server_finds(
    context: BrowserContext, tiny_model: Path
) -> None:
    with serving({"de-en": find_model("de-en"), "kftt:ja-en": tiny_model}, UNLIMITED) as server:
        page = context.new_page()
        page.goto(server.url)
        shown = page.locator(".example .missing").inner_text()
        page.get_by_role("button", name="Try it").click()
        box = page.get_by_label("Translation to check")
        expect(box).to_have_value("On Monday, the government announced new measures.")
        expect(box).to_be_focused()
        expect(page.locator(".verdict .missing")).to_have_text(shown)
        expect(page.locator(".verdict .source-line mark")).to_have_text(shown)
        # the next text may be in another language
        expect(page.get_by_label("Model")).to_have_value("")


def test_the_translation_appears_while_typing(page: Page, translator: Model, line: str) -> None:
    page.get_by_label("Text to translate").press_sequentially(line)
    [expected] = translator.translate([line])
    expect(page.locator(f"{DONE} .translation")).to_have_text(expected.text)
    expect(page.locator(f"{DONE} .source-line")).to_have_text(line)


def test_a_line_without_words_stays_as_it_is(page: Page, line: str) -> None:
    show(page, f"{line}\n***\n{line}")
    expect(page.locator(f"{DONE} .translation")).to_have_count(3)
    expect(page.locator(f"{DONE} .translation").nth(1)).to_have_text("***")
    expect(page.get_by_text("How it was made")).to_have_count(2)


def test_text_typed_before_the_models_are_loaded_stays(
    context: BrowserContext, running: Running, line: str
) -> None:
    page = context.new_page()
    held: list[Route] = []
    page.route("**/v1/models", lambda route: held.append(route))
    page.goto(running.url)
    write(page, line)
    wait_for(page, lambda: held)
    held[0].continue_()
    expect(page.locator("#status")).to_contain_text("Done")
    expect(page.locator("#text")).to_have_value(line)


def test_aligned_words_are_highlighted_in_the_text(
    page: Page, translator: Model, line: str
) -> None:
    show(page, line)
    [expected] = translator.translate([line])
    i = 1
    page.locator(".translation [data-side]").nth(i).hover()
    j = int(expected.alignment[i].argmax())
    partner = page.locator(".source-line [data-side]").nth(j)
    expect(partner).to_have_class(re.compile(r"\bhighlighted\b"))
    page.locator("h1").hover()
    expect(page.locator(".highlighted")).to_have_count(0)


def test_doubtful_places_are_marked_in_the_text_and_listed(
    context: BrowserContext, running: Running
) -> None:
    page = slow_page(context, running, "a")
    remarks = [
        {"side": "source", "position": 1, "kind": "left out", "reason": "hardly attended to"},
        {"side": "source", "position": 2, "kind": "left out", "reason": "hardly attended to"},
        {"side": "source", "position": 3, "kind": "left out", "reason": "a comma"},
        {"side": "target", "position": 1, "kind": "made up", "message": "in no dictionary"},
    ]
    content: dict[str, Any] = {
        "source": "the big red, dog",
        "source_tokens": ["▁the", "▁big", "▁red", ",", "▁dog"],
        "text": "dog dragon",
        "tokens": ["▁dog", "▁dra", "gon"],
        "alignment": [[0, 0, 0, 0, 1.0]] * 3,
        "coverage": [0, 0, 0, 0, 3.0],
        "remarks": remarks,
        "unusual": True,
    }
    send(page, "sentence", **sentence(**content))
    send(page, "done", model="baseline", texts=["dog dragon"])
    expect(page.locator(".summary")).to_have_text("2 places to look at.")
    # neighbors are one place, a comma is none, and a subword stands for its word
    expect(page.locator(".source-line mark")).to_have_text("big red")
    expect(page.locator(".translation mark")).to_have_text("dragon")
    places = page.locator(".places li")
    expect(places.first).to_have_text("May be left out: big redhardly attended to")
    expect(page.locator(".sentence .warning")).to_contain_text("unlike the text")
    # a kind that the page does not know is shown as the server names it
    expect(places.last).to_have_text("made up: dragonin no dictionary")


@pytest.mark.parametrize("field", [{"unusual": True}, {"finished": False}])
def test_nothing_is_said_to_be_in_order_where_the_model_is_lost(
    context: BrowserContext, running: Running, field: dict[str, bool]
) -> None:
    page = slow_page(context, running, "a")
    send(page, "sentence", **sentence(0, **field))
    warnings = [{"kind": "unusual", "message": "1 of 1 sentence is unlike"}]
    send(page, "done", model="baseline", texts=["x"], warnings=warnings)
    expect(page.locator(f"{DONE} .warning")).to_have_count(1)
    expect(page.locator(".summary")).to_have_text("")


def test_warnings_about_several_sentences_stand_above_them(
    context: BrowserContext, running: Running
) -> None:
    page = slow_page(context, running, "a. b")
    for number in range(2):
        send(page, "sentence", **sentence(number, unusual=True))
    warnings = [{"kind": "unusual", "message": "2 of 2 sentences are unlike it"}]
    send(page, "done", model="baseline", texts=["x. y"], warnings=warnings)
    expect(page.locator(f"{DONE} > .warning")).to_have_text("2 of 2 sentences are unlike it.")
    expect(page.locator(f"{DONE} .sentence .warning")).to_have_count(2)


def test_without_a_model_to_compare_with_the_setting_is_hidden(
    context: BrowserContext, tiny_model: Path, page: Page
) -> None:
    expect(page.locator("label", has=page.locator("#compare"))).not_to_have_attribute("hidden", "")
    with serving({"tiny": tiny_model}, UNLIMITED) as alone:
        other = context.new_page()
        other.goto(alone.url)
        expect(other.locator("#choices")).to_be_visible()
        other.get_by_text("Settings").click()
        expect(other.get_by_label("Beam")).to_be_visible()
        expect(other.get_by_label("Compare with")).to_be_hidden()


def test_the_summary_leads_to_the_sentences(context: BrowserContext, running: Running) -> None:
    page = slow_page(context, running, "a. b. c")
    remark = {"side": "source", "position": 0, "kind": "left out", "reason": ""}
    warnings = [{"kind": "unusual", "message": "unlike laws"}]
    for number in range(3):
        remarks = [remark] if number == 2 else []
        send(page, "sentence", **sentence(number, remarks=remarks))
    send(page, "done", model="baseline", texts=["x x x"], warnings=warnings)
    expect(page.locator(".summary")).to_have_text("1 place to look at, in sentence 3.")
    expect(page.locator(".result .warning")).to_have_text("unlike laws.")
    page.get_by_role("button", name="Go to sentence 3").click()
    expect(page.locator(".sentence").nth(2)).to_be_focused()


def test_the_translation_is_copied_with_its_line_breaks(
    page: Page, context: BrowserContext, translator: Model, lines: list[str]
) -> None:
    context.grant_permissions(CLIPBOARD)
    text = f"{lines[0]}\n\n{lines[1]}"
    show(page, text)
    page.get_by_role("button", name="Copy translation").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    expected = [each.text for each in translator.translate(lines[:2])]
    assert page.evaluate("navigator.clipboard.readText()") == "\n\n".join(expected)


def test_copying_works_without_the_clipboard_of_secure_pages(page: Page, line: str) -> None:
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    show(page, line)
    copied: list[str] = []
    page.expose_function("tell", lambda text: copied.append(text))
    page.evaluate("addEventListener('copy', () => tell(document.activeElement.value))")
    page.get_by_role("button", name="Copy translation").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert copied == [page.locator(".translation").inner_text()]


def test_the_model_is_chosen_by_the_script_of_the_text(page: Page, line: str) -> None:
    title = page.locator(f"{DONE} h2")
    for text, expected in [
        (TEMPLE, "Japanese to English"),
        ("申请人应于三十日内补正。", "Chinese to English"),
        ("שלום עולם", "Hebrew to Arabic"),
        (line, "baseline"),
    ]:
        show(page, text)
        expect(title).to_contain_text(expected)
        expect(page.locator("#notice")).to_be_hidden()
    page.get_by_label("Model").select_option("laws")
    expect(title).to_contain_text("Chinese to English")
    expect(page.locator("#notice")).to_have_text(
        "This does not look like Chinese: expect nonsense."
    )


def test_a_text_in_the_language_of_another_model_can_be_given_to_that(page: Page) -> None:
    page.get_by_label("Model").select_option("laws")
    show(page, TEMPLE)
    # one warning is enough, and where it stands there is no all-clear
    expect(page.locator(".warning")).to_have_text(
        ["This does not look like Chinese. Translate from Japanese"]
    )
    expect(page.locator(".summary")).to_have_text("")
    page.get_by_role("button", name="Translate from Japanese").click()
    expect(page.locator(f"{DONE} h2")).to_contain_text("Japanese to English")
    expect(page.locator("#notice")).to_be_hidden()


TRANSLATED = [
    ("How is the weather tomorrow?", "de", "en", True),
    ("Wie wird das Wetter in London?", "de", "en", False),
    ("Was soll man in Howl-O-Scream tun?", "de", "en", False),
    ("How is the weather tomorrow?", "de", "nl", False),
    ("How is the weather tomorrow?", "ja", "en", False),  # the script says that
]


def test_a_text_in_the_target_language_is_recognized_by_frequent_words(page: Page) -> None:
    script = """async ([text, source, target]) => {
      const { isTranslated } = await import("./languages.js");
      return isTranslated(text, { source, target });
    }"""
    for *arguments, expected in TRANSLATED:
        assert page.evaluate(script, arguments) == expected, arguments


def test_a_model_is_described_in_words(page: Page) -> None:
    options = page.get_by_label("Model").locator("option")
    expect(options.last).to_have_text("Japanese to English, Wikipedia articles about Kyoto")
    # these two have no description, and their languages do not tell them apart from others
    expect(page.get_by_label("Model").locator("[value=baseline]")).to_have_text("baseline")
    expect(page.get_by_label("Model").locator("[value=laws]")).to_have_text("Chinese to English")


GUESSES = [
    ("京都の寺", ["zh", "ja"], "ja"),
    ("第三条，申请人", ["ja", "zh"], "zh"),
    ("Der Hund und die Katze sind nicht da", ["en", "de"], "de"),
    ("The dog and the cat are not here", ["de", "en"], "en"),
    ("Привет", ["en", "ru"], "ru"),
    ("wwwwww", ["ja", "zh"], "ja"),
    ("12:30", ["zh", "ja"], "zh"),
]


def test_languages_are_guessed_from_scripts_and_frequent_words(page: Page) -> None:
    script = """async ([text, codes]) => {
      const { guessModel } = await import("./languages.js");
      return guessModel(text, codes.map((source) => ({ source, target: "x" }))).source;
    }"""
    for text, codes, expected in GUESSES:
        assert page.evaluate(script, [text, codes]) == expected


WORDS = [
    ("Kinkaku-ji Temple.", "▁Kin kaku - ji ▁Temple .", "Kinkaku-ji Temple ."),
    ("彼は1868年に", "▁彼は 1 8 6 8 年に", "彼は 1868 年に"),
    ("in 1868, 10,000 yen", "▁in ▁ 1 8 6 8 , ▁10 , 000 ▁yen", "in 1868 , 10,000 yen"),
    ("don't go - now", "▁don ' t ▁go ▁- ▁now", "don't go - now"),
    # what the model reads is not what the reader wrote
    ("圖書館", "▁图书 馆", "圖書 館"),
    ("cafés 驫", "▁ca fé s ▁ <0xE9> <0xA9> <0xAB>", "cafés 驫"),
    ("no subwords - here", "no subwords - here", "no subwords - here"),
]


def test_subwords_are_joined_to_whole_words(page: Page) -> None:
    script = """async ([text, tokens]) => {
      const { readSide } = await import("./sentence.js");
      const { words } = readSide(text, tokens, "");
      return words.map((word) => [word.text, word.start, word.end]);
    }"""
    for text, tokens, expected in WORDS:
        words = page.evaluate(script, [text, tokens.split()])
        assert [word for word, _, _ in words] == expected.split()
        # every token belongs to one word
        starts, ends = [start for _, start, _ in words], [end for _, _, end in words]
        assert [*starts[1:], len(tokens.split())] == ends
        assert starts[0] == 0


def test_two_models_are_compared_and_a_link_reproduces_it(
    page: Page, context: BrowserContext, line: str, running: Running
) -> None:
    context.grant_permissions(CLIPBOARD)
    show(page, line)
    choose(page, "Compare with", "coverage")
    expect(page.locator(f"{DONE} h2")).to_have_text(["baseline", "coverage"])
    page.get_by_role("button", name="Copy link").click()
    expect(page.locator("#status")).to_contain_text("Link copied")
    link = page.evaluate("navigator.clipboard.readText()")
    again = context.new_page()
    again.goto(link)
    expect(again.locator(f"{DONE} h2")).to_have_text(["baseline", "coverage"])
    expect(again.locator("#text")).to_have_value(line)
    # nothing of it stays in the address, and so in the browser's history
    assert page.url == again.url == f"{running.url}/"


def test_only_models_of_one_language_are_compared(page: Page) -> None:
    choose(page, "Compare with", "shipped")
    offered = (
        page.get_by_label("Compare with")
        .locator("option")
        .evaluate_all("all => all.map((each) => each.value)")
    )
    assert offered == ["", "baseline", "coverage", "kftt", "shipped"]
    show(page, TEMPLE)
    expect(page.locator(f"{DONE} h2")).to_have_count(2)
    page.get_by_label("Model").select_option("laws")
    expect(page.locator(f"{DONE} h2")).to_have_text(["Chinese to English"])


def test_a_link_works_in_a_page_that_is_open(page: Page, line: str) -> None:
    page.evaluate("hash => { location.hash = hash; }", urlencode({"text": line, "beam": 2}))
    expect(page.locator(DONE)).to_be_visible()
    expect(page.locator("#beam")).to_have_value("2")
    assert "#" not in page.url


def test_a_reload_keeps_the_text_and_another_tab_does_not_have_it(
    page: Page, context: BrowserContext, line: str, running: Running
) -> None:
    show(page, line)
    page.reload()
    expect(page.locator("#text")).to_have_value(line)
    expect(page.locator(DONE)).to_be_visible()
    other = context.new_page()
    other.goto(running.url)
    expect(other.locator(".example")).to_be_visible()
    expect(other.locator("#text")).to_have_value("")


def test_text_is_never_inserted_as_html(page: Page) -> None:
    show(page, "<img src=x onerror=alert(1)> <b>bold</b>")
    expect(page.locator(".source-line")).to_contain_text("<img")
    assert page.locator(".result img, .result b:not(.places b, .summary b)").count() == 0


def test_an_example_of_two_lines_has_two_sentences(page: Page) -> None:
    page.get_by_label("Model").select_option("baseline")
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
    # a list, as the result before this one may have several lines
    expect(page.locator(f"{DONE} .source-line")).to_have_text([shown])


def test_examples_for_plain_text_have_no_spaces(page: Page) -> None:
    page.get_by_label("Model").select_option("shipped")
    page.get_by_label("Example").select_option("Short")
    expect(page.get_by_label("Text to translate")).to_have_value("この寺は京都市の北にある。")


def test_examples_in_german_keep_their_spaces_and_are_split_for_other_models(page: Page) -> None:
    script = """async (plain_text) => {
      const { examplesFor } = await import("./examples.js");
      return examplesFor({ source: "de", plain_text })[0][1];
    }"""
    plain = "Wir brauchen sauberes Wasser, gesunde Wälder und fruchtbare Böden."
    assert page.evaluate(script, True) == plain
    assert page.evaluate(script, False) == plain.replace(",", " ,").replace(".", " .")


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
    expect(draft.locator(".translation")).to_have_text(["x <b>y</b>", "z"])
    expect(page.locator("#status")).to_have_text("Translating…")
    # a sentence that is done takes the place of its draft
    send(page, "sentence", **sentence(0, text="x y.", tokens=["x", "y."], alignment=[[1.0]] * 2))
    expect(draft.locator(".sentence .translation")).to_have_text("x y.")
    expect(draft.locator(".translation")).to_have_text(["x y.", "z"])
    send(page, "sentence", **sentence(1, text="z", tokens=["z"]))
    send(page, "done", model="baseline", texts=["x y. z"])
    expect(page.locator(f"{DONE} .translation")).to_have_text(["x y.", "z"])
    expect(page.locator("[aria-busy]")).to_have_count(0)
    expect(page.locator("#status")).to_contain_text("Done")


def test_a_long_text_is_drawn_in_slices_and_without_heat_maps(
    context: BrowserContext, running: Running
) -> None:
    """All sentences come at once; other work of the page gets its turn between them."""
    page = slow_page(context, running, "a")
    count, words = 400, 30
    text = " ".join(["word"] * words)
    row = [1.0 / words] * words
    content = {"source": text, "source_tokens": text.split(), "text": text, "tokens": text.split()}
    numbers = {"alignment": [row] * words, "coverage": [1.0] * words}
    events = [("sentence", sentence(n, **content, **numbers)) for n in range(count)]
    page.evaluate("""() => {
      window.seen = new Set();
      window.look = setInterval(() => {
        window.seen.add(document.querySelectorAll(".sentence").length);
      });
    }""")
    send_all(page, [*events, ("done", {"model": "baseline", "texts": [text]})])
    expect(page.locator("#status")).to_contain_text("Done")
    between = page.evaluate("[...window.seen].filter((n) => n > 0 && n < 400).length")
    assert between > 2
    expect(page.locator(".sentence")).to_have_count(count)
    assert page.locator("svg").count() == 0
