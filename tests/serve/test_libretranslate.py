"""The two routes that LibreTranslate's clients use."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from libretranslatepy import LibreTranslateAPI  # type: ignore[import-untyped]

from covnmt.serve.libretranslate import find_model_for_languages
from covnmt.serve.security import RequestRefusedError
from covnmt.serve.served_model import ModelSpec
from covnmt.serve.service import TranslationService
from covnmt.serve.settings import ServeSettings

from .server import PATIENCE, Running, serving


def translated(client: httpx.Client, text: str | list[str]) -> Any:
    found = client.post("/v1/translate", json={"text": text}).json()["translations"]
    texts = [each["text"] for each in found]
    return texts[0] if isinstance(text, str) else texts


@pytest.mark.parametrize("kind", ["json", "data"])
def test_json_and_forms_are_translated(client: httpx.Client, lines: list[str], kind: str) -> None:
    body = {"q": lines[0], "source": "aa", "target": "bb", "format": "text", "api_key": ""}
    answer = client.post("/translate", **{kind: body})  # type: ignore[arg-type]
    assert answer.json() == {"translatedText": translated(client, lines[0])}


def test_the_content_type_is_case_insensitive(client: httpx.Client) -> None:
    headers = {"content-type": "Application/JSON; charset=UTF-8"}
    answer = client.post("/translate", content=b'{"q": "a", "target": "bb"}', headers=headers)
    assert answer.status_code == 200


def test_a_list_of_texts_gives_a_list_of_translations(
    client: httpx.Client, lines: list[str]
) -> None:
    body = {"q": lines[:3], "source": "auto", "target": "target", "alternatives": 0}
    answer = client.post("/translate", json=body)
    assert answer.json() == {"translatedText": translated(client, lines[:3])}


# Models by name, source and target; what is asked for, and who answers: None is a refusal.
MODELS = [
    ("first", "ja", "en"),
    ("second", "zh", "en"),
    ("third", "zh", "en"),
    ("last", "zh", "fr"),
]
PAIRS = [
    ("ja", "en", "first"),
    ("zh", "en", "second"),
    ("zh-Hant", "en-GB", "second"),
    ("zh-TW", "fr", "last"),
    ("auto", "fr", "last"),
    ("auto", "en", None),
    ("ja", "fr", None),
]


@pytest.mark.parametrize(("source", "target", "name"), PAIRS)
def test_the_model_is_chosen_by_the_languages(source: str, target: str, name: str | None) -> None:
    """A text is never translated by a model of another language."""
    specs = [ModelSpec(each, Path(each), x, y) for each, x, y in MODELS]
    models = {spec.name: SimpleNamespace(spec=spec) for spec in specs}
    service = cast(TranslationService, SimpleNamespace(models=models))
    if name is not None:
        assert find_model_for_languages(service, source, target).spec.name == name
        return
    with pytest.raises(RequestRefusedError, match=r"one of ja, zh|see /languages"):
        find_model_for_languages(service, source, target)


def test_languages_lists_the_models(client: httpx.Client) -> None:
    assert client.get("/languages").json() == [
        {"code": "source", "name": "source", "targets": ["target"]},
        {"code": "aa", "name": "aa", "targets": ["bb"]},
    ]


def test_the_libretranslate_client_works(
    running: Running, client: httpx.Client, lines: list[str]
) -> None:
    theirs = LibreTranslateAPI(running.url)
    assert theirs.languages() == client.get("/languages").json()
    assert theirs.translate(lines[0], "aa", "bb") == translated(client, lines[0])
    text = f"{lines[0]}\n\n{lines[1]} & 100% + ü"
    assert theirs.translate(text, "auto", "bb", timeout=PATIENCE) == translated(client, text)


def test_the_libretranslate_client_sends_its_key(tiny_model: Path, lines: list[str]) -> None:
    settings = ServeSettings(rate=0, api_key="a-secret-key")
    with serving({"tiny:aa-bb": tiny_model}, settings) as guarded:
        with pytest.raises(OSError, match="401"):
            LibreTranslateAPI(guarded.url).translate(lines[0], "aa", "bb")
        theirs = LibreTranslateAPI(guarded.url, api_key="a-secret-key")
        assert theirs.languages()[0]["targets"] == ["bb"]
        assert theirs.translate(lines[0], "aa", "bb")


BAD_REQUESTS = {
    "languages": ({"q": "a", "source": "aa", "target": "aa"}, "see /languages"),
    "no text": ({"source": "aa", "target": "bb"}, "q: Field required"),
    "control character": ({"q": "\x01", "target": "bb"}, "q: control character U+0001"),
    "HTML": ({"q": "<b>a</b>", "target": "bb", "format": "html"}, "format=text"),
    "too long": ({"q": "a " * 300, "target": "bb"}, "300 tokens"),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_bad_requests_get_400_and_a_message(client: httpx.Client, case: str) -> None:
    body, message = BAD_REQUESTS[case]
    answer = client.post("/translate", json=body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]


@pytest.mark.parametrize("body", [b"q=%ff", b"\xff", b"&" * 100, b"{"])
def test_unreadable_bodies_get_400(client: httpx.Client, body: bytes) -> None:
    for kind in ("application/json", "application/x-www-form-urlencoded", ""):
        headers = {"content-type": kind}
        assert client.post("/translate", content=body, headers=headers).status_code == 400


def test_multipart_forms_are_refused_with_a_message(client: httpx.Client) -> None:
    answer = client.post("/translate", files={"q": (None, "a"), "target": (None, "bb")})
    assert answer.status_code == 400
    assert "application/x-www-form-urlencoded" in answer.json()["error"]
