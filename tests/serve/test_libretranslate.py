"""LibreTranslate's routes, with its own client and the requests that other clients send."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from libretranslatepy import LibreTranslateAPI  # type: ignore[import-untyped]

from covnmt.serve.libretranslate import LanguageDirectory
from covnmt.serve.security import RequestRefusedError
from covnmt.serve.served_model import ModelSpec, ServedModel
from covnmt.serve.settings import ApiKey, ServeSettings

from .server import PATIENCE, Running, serving


def translated(client: httpx.Client, text: str | list[str]) -> Any:
    found = client.post("/v1/translate", json={"text": text}).json()["translations"]
    texts = [each["text"] for each in found]
    return texts[0] if isinstance(text, str) else texts


@pytest.mark.parametrize("kind", ["json", "data", "files", "params"])
def test_a_text_may_come_as_json_form_multipart_form_or_parameters(
    client: httpx.Client, lines: list[str], kind: str
) -> None:
    body = {"q": lines[0], "source": "aa", "target": "bb", "format": "text", "api_key": ""}
    fields = {key: (None, value) for key, value in body.items()} if kind == "files" else body
    answer = client.post("/translate", **{kind: fields})  # type: ignore[arg-type]
    assert answer.json() == {"translatedText": translated(client, lines[0])}


def test_a_form_with_several_texts_gives_a_list(client: httpx.Client, lines: list[str]) -> None:
    form = {"q": lines[:2], "source": "aa", "target": "bb"}
    answer = client.post("/translate", data=form)
    assert answer.json() == {"translatedText": translated(client, lines[:2])}


@pytest.mark.parametrize("source", ["aa", "auto"])
def test_a_text_without_letters_stays_as_it_is(client: httpx.Client, source: str) -> None:
    body = {"q": "12:30 😀", "source": source, "target": "bb", "format": None}
    answer = client.post("/translate", json=body).json()
    assert answer.pop("translatedText") == "12:30 😀"
    assert answer.get("detectedLanguage", {}).get("confidence", 0) == 0


def test_the_content_type_is_case_insensitive(client: httpx.Client) -> None:
    headers = {"content-type": "Application/JSON; charset=UTF-8"}
    answer = client.post("/translate", content=b'{"q": "a", "target": "bb"}', headers=headers)
    assert answer.status_code == 200


def test_a_list_of_texts_gives_a_list_of_translations(
    client: httpx.Client, lines: list[str]
) -> None:
    body = {"q": lines[:3], "source": "aa", "target": "bb", "alternatives": 0}
    answer = client.post("/translate", json=body)
    assert answer.json() == {"translatedText": translated(client, lines[:3])}


def test_alternatives_are_other_translations(client: httpx.Client, lines: list[str]) -> None:
    text = f"{lines[0]}\n{lines[1]}"
    body = {"q": [text, "-"], "source": "aa", "target": "bb", "alternatives": 2}
    answer = client.post("/translate", json=body).json()
    assert answer["translatedText"][0] == translated(client, text)
    two, none = answer["alternatives"]
    assert len({answer["translatedText"][0], *two}) == 3
    assert all(other.count("\n") == 1 for other in two)
    assert none == []


# Models by name, source and target; what is asked for, and who answers.
MODELS = [
    ("first", "ja", "en"),
    ("second", "zh", "en"),
    ("third", "zh", "en"),
    ("last", "zh", "fr"),
]
PAIRS = [
    ("ja", "en", ["first"]),
    ("JA", "EN", ["first"]),
    ("ja_JP", "en_US", ["first"]),
    ("zt", "en", ["second", "third"]),
    ("zh-Hant", "en-GB", ["second", "third"]),
    ("zh-TW", "fr", ["last"]),
    ("auto", "fr", ["last"]),
    ("auto", "en", ["first", "second", "third"]),
]


def language_directory() -> LanguageDirectory:
    specs = [ModelSpec(each, Path(each), x, y) for each, x, y in MODELS]
    return LanguageDirectory([cast(ServedModel, SimpleNamespace(spec=spec)) for spec in specs])


@pytest.mark.parametrize(("source", "target", "names"), PAIRS)
def test_models_are_chosen_by_their_languages(source: str, target: str, names: list[str]) -> None:
    found = language_directory().candidates(source, target)
    assert [model.spec.name for model in found] == names


@pytest.mark.parametrize(("source", "target"), [("ja", "fr"), ("auto", "ja"), ("", "en")])
def test_languages_without_a_model_are_refused(source: str, target: str) -> None:
    with pytest.raises(RequestRefusedError, match="see /languages"):
        language_directory().candidates(source, target)


def test_languages_lists_sources_and_targets(client: httpx.Client) -> None:
    assert client.get("/languages").json() == [
        {"code": "source", "name": "source", "targets": ["target"]},
        {"code": "target", "name": "target", "targets": []},
        {"code": "aa", "name": "Afar", "targets": ["bb"]},
        {"code": "bb", "name": "bb", "targets": []},
    ]


def test_a_text_is_detected_and_its_model_chosen(client: httpx.Client, lines: list[str]) -> None:
    target_text = translated(client, lines[0])
    found = client.post("/detect", json={"q": lines[0]}).json()
    assert {found[0]["language"], found[1]["language"]} == {"source", "aa"}
    assert found[0]["confidence"] > 20 > 1 > found[2]["confidence"]
    body = {"q": [lines[0], target_text], "source": "auto", "target": "bb"}
    answer = client.post("/translate", json=body).json()
    assert answer["translatedText"] == [target_text] * 2, "it is in the target language already"
    assert [each["language"] for each in answer["detectedLanguage"]] == ["aa", "bb"]


def test_the_settings_of_the_frontend_name_the_languages(client: httpx.Client) -> None:
    found = client.get("/frontend/settings").json()
    assert found["language"]["source"]["code"] == "auto"
    assert found["language"]["target"] == {"code": "target", "name": "target"}
    assert (found["keyRequired"], found["filesTranslation"]) == (False, False)


def test_weblate_finds_languages_and_translates(client: httpx.Client, lines: list[str]) -> None:
    """It reads the codes of /languages, then posts a form with the pair."""
    codes = [each["code"] for each in client.get("/languages").json()]
    assert {"aa", "bb"} <= set(codes)
    form = {"api_key": "", "q": lines[0], "source": "aa", "target": "bb"}
    answer = client.post("/translate", data=form).json()
    assert answer["translatedText"] == translated(client, lines[0])


def test_the_libretranslate_client_works(
    running: Running, client: httpx.Client, lines: list[str]
) -> None:
    theirs = LibreTranslateAPI(running.url)
    assert theirs.languages() == client.get("/languages").json()
    assert theirs.translate(lines[0], "aa", "bb") == translated(client, lines[0])
    text = f"{lines[0]}\n\n{lines[1]} & 100% + ü"
    assert theirs.translate(text, "auto", "bb", timeout=PATIENCE) == translated(client, text)
    assert theirs.detect(lines[0])[0]["language"] in ("source", "aa")


def test_the_libretranslate_client_sends_its_key(tiny_model: Path, lines: list[str]) -> None:
    settings = ServeSettings(rate=0, api_keys=(ApiKey(key="a-secret-key"),))
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
    "format": ({"q": "a", "target": "bb", "format": "pdf"}, "format: Input should be"),
    "alternatives": ({"q": "a", "source": "aa", "target": "bb", "alternatives": 50}, "beam may be"),
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


def test_a_file_in_a_form_is_refused(client: httpx.Client) -> None:
    answer = client.post("/translate", files={"q": ("text.txt", b"a")})
    assert answer.status_code == 400
    assert "cannot be read" in answer.json()["error"]
