"""Documents and terms over HTTP, and the requests of Mastodon."""

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from covnmt.serve import documents
from covnmt.serve.settings import ServeSettings

from .server import post, serving


def text_of(client: httpx.Client, text: str) -> str:
    [answer] = post(client, text=text)["translations"]
    found: str = answer["text"]
    return found


def test_a_document_keeps_its_markup(client: httpx.Client, lines: list[str]) -> None:
    html = "<h1>{0}</h1>\n<p>{1}<br>{2} <code>x</code></p>\n<script>a</script>"
    [answer] = post(client, text=html.format(*lines), format="html")["translations"]
    pattern = r"<h1>(.*)</h1>\n<p>(.*)<br>(.*)</p>\n<script>a</script>"
    match = re.fullmatch(pattern, answer["text"])
    assert match is not None
    assert [match[1], match[2]] == [text_of(client, line) for line in lines[:2]]
    assert match[3].count("<code>x</code>") == 1
    sources = [sentence["source"] for sentence in answer["sentences"]]
    assert sources == [lines[0], lines[1], f"{lines[2]} x"]
    assert "terms" not in answer


def test_several_documents_are_translated(client: httpx.Client, lines: list[str]) -> None:
    texts = [f"# {lines[0]}\n\n- {lines[1]}\n", "", "---\n", f"> {lines[2]}"]
    answers = post(client, text=texts, format="markdown")["translations"]
    expected = [text_of(client, line) for line in lines[:3]]
    assert [answer["text"] for answer in answers] == [
        f"# {expected[0]}\n\n- {expected[1]}\n",
        "",
        "---\n",
        f"> {expected[2]}",
    ]


def test_subtitles_keep_their_times(client: httpx.Client, lines: list[str]) -> None:
    srt = "1\n00:00:01,000 --> 00:00:02,000\n{}\n"
    [answer] = post(client, text=srt.format(lines[0]), format="srt")["translations"]
    assert answer["text"] == srt.format(text_of(client, lines[0]))


def test_terms_are_required_and_reported(client: httpx.Client, lines: list[str]) -> None:
    word = lines[0].split()[0]
    terms = {word: "<MY TERM>", "absent": None}
    [answer] = post(client, text=f"{lines[0]}\n{lines[0]}", terms=terms)["translations"]
    assert answer["text"].count("<MY TERM>") == 2
    assert [term["source"] for term in answer["terms"]] == [word] * 2
    assert all(term["target"] == "<MY TERM>" for term in answer["terms"])
    [answer] = post(client, text=f"<p>{lines[0]}", format="html", terms=terms)["translations"]
    assert answer["text"].count("&lt;MY TERM&gt;") == 1


BAD_REQUESTS = {
    "format": ({"text": "a", "format": "pdf"}, "format"),
    "n-best list": ({"text": "a", "format": "html", "nbest": 2}, "nbest and return"),
    "parts": ({"text": "a", "terms": {"a": "b"}, "return": ["alignment"]}, "nbest and return"),
    "beam": ({"text": "a", "format": "html", "beam": 50}, "beam may be"),
    "long target": ({"text": "a", "terms": {"a": "b" * 201}}, "at most 200 "),
    "empty term": ({"text": "a", "terms": {" ": "b"}}, "terms"),
    "too long": ({"text": "a " * 300, "format": "markdown"}, "300 tokens"),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_bad_requests_get_422_and_a_message(client: httpx.Client, case: str) -> None:
    body, message = BAD_REQUESTS[case]
    answer = client.post("/v1/translate", json=body)
    assert answer.status_code == 422
    assert message in answer.json()["error"]


def test_documents_are_not_streamed(client: httpx.Client) -> None:
    answer = client.post("/v1/translate/stream", json={"text": "a", "format": "html"})
    assert answer.status_code == 422
    assert "stream" in answer.json()["error"]


def test_mastodon_gets_its_posts_back(client: httpx.Client, lines: list[str]) -> None:
    """It sends HTML: a post, and what belongs to it; emoji and mentions must stay."""
    emoji = '<span translate="no">:blobcat:</span>'
    mention = '<a href="https://a.example/@b" class="u-url mention">@<span>b</span></a>'
    post_text = f"<p>{lines[0]}<br />{lines[1]}</p><p>{emoji}</p>"
    texts = [post_text, f'<span class="h-card" translate="no">{mention}</span>', lines[2]]
    body = {"q": texts, "source": "aa", "target": "bb", "format": "html", "api_key": None}
    answer = client.post("/translate", json=body).json()
    first, second, third = (text_of(client, line) for line in lines[:3])
    assert answer["translatedText"] == [
        f"<p>{first}<br />{second}</p><p>{emoji}</p>",
        texts[1],
        third,
    ]
    languages = {each["code"]: each["targets"] for each in client.get("/languages").json()}
    assert "bb" in languages["aa"]


def test_the_language_of_html_is_that_of_its_text(client: httpx.Client, lines: list[str]) -> None:
    body = {"q": f"<p>{lines[0]}</p>", "source": "auto", "target": "bb", "format": "html"}
    answer = client.post("/translate", json=body).json()
    assert answer["detectedLanguage"]["language"] == "aa"
    assert answer["translatedText"] == f"<p>{text_of(client, lines[0])}</p>"


TOO_MUCH_MARKUP = {
    "unclosed tags": ("html", "<b>" * 60_000),
    "nested elements": ("html", "<div>" * 40_000 + "x"),
    "entities": ("html", "&amp;" * 40_000),
    "brackets": ("markdown", "[" * 50_000),
    "images": ("markdown", "![x" * 50_000),
    "emphasis": ("markdown", "*" * 100_000),
    "nested quotations": ("markdown", ">" * 50_000),
    "code": ("markdown", "`" * 50_000),
    "lists": ("markdown", "- x\n" * 50_000),
    "tables": ("markdown", "|a|b|\n|-|-|\n" + "|x|y|\n" * 30_000),
    "comments": ("markdown", "x<!--" * 40_000),
    "subtitles": ("srt", "1\n00:00:01,000 --> 00:00:02,000\n- x\n\n" * 6_000),
}


@pytest.mark.parametrize("case", TOO_MUCH_MARKUP)
def test_too_much_markup_is_refused_before_it_is_parsed(client: httpx.Client, case: str) -> None:
    document_format, text = TOO_MUCH_MARKUP[case]
    answer = client.post("/v1/translate", json={"text": text, "format": document_format})
    assert answer.status_code == 413
    assert "send 20,000 at most" in answer.json()["error"]


def test_slow_markup_holds_up_nobody(
    tiny_model: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither other requests, nor the answer when time is up, nor the end of the server."""
    released = threading.Event()
    monkeypatch.setattr(documents, "DocumentBatch", lambda *arguments: released.wait(60))
    with (
        serving({"tiny": tiny_model}, ServeSettings(rate=0, grace=0.5)) as running,
        running.client() as client,
        ThreadPoolExecutor(40) as pool,
    ):
        body = {"text": "<b>", "format": "html", "timeout": 1}
        asked = [pool.submit(client.post, "/v1/translate", json=body) for _ in range(40)]
        assert client.get("/").status_code == 200
        assert post(client, text=lines[0])["translations"]
        assert {each.result().status_code for each in asked} == {408}
        started = time.monotonic()
    assert time.monotonic() - started < 20
    released.set()
