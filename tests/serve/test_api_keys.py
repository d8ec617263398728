"""Several API keys, each with limits of its own."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from covnmt.base.errors import UserError
from covnmt.serve.settings import ApiKey, ServeSettings, read_api_keys

from .server import serving, wait_until

FAST, SLOW = "key-of-the-fast-one", "key-of-the-slow-one"
KEYS = (
    ApiKey(name="fast", key=FAST, rate=0, max_sentences=3),
    ApiKey(name="slow", key=SLOW, rate=0.001, burst=2),
)


@pytest.fixture(scope="module")
def guest(tiny_model: Path) -> Iterator[httpx.Client]:
    settings = ServeSettings(rate=0.001, burst=6, workers=1, api_keys=KEYS)
    with serving({"tiny:aa-bb": tiny_model}, settings) as server, server.client() as client:
        yield client


def ask(guest: httpx.Client, key: str, text: str = "a") -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return guest.post("/v1/translate", json={"text": text}, headers=headers)


def test_each_key_has_its_own_limits(guest: httpx.Client) -> None:
    """A key with a rate is not limited by its address, and its requests do not count there."""
    assert [ask(guest, FAST).status_code for _ in range(20)] == [200] * 20
    assert ask(guest, FAST, "a\nb\nc\nd").status_code == 413
    assert [ask(guest, SLOW).status_code for _ in range(3)] == [200, 200, 429]
    assert "API key" in ask(guest, SLOW).json()["error"]
    assert ask(guest, SLOW).headers["retry-after"]
    # in the body it counts too, after the address, which has few requests left
    form = {"q": "a", "source": "aa", "target": "bb", "api_key": SLOW}
    assert guest.post("/translate", data=form).status_code == 429
    assert guest.post("/translate", data=form | {"api_key": FAST}).status_code == 200
    assert [ask(guest, "wrong-key").status_code for _ in range(6)] == [401] * 4 + [429] * 2
    assert ask(guest, FAST).status_code == 200


def test_the_log_names_the_client_that_asks_too_often(
    guest: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "covnmt.serve")
    assert [ask(guest, SLOW).status_code for _ in range(3)][-1] == 429
    wait_until(lambda: any('"status": 429' in line for line in caplog.messages))
    assert json.loads(caplog.messages[-1])["key"] == "slow"


def test_keys_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(
        f'[fast]\nkey = "{FAST}"\nrate = 0\nmax_sentences = 3\n\n'
        f'[slow]\nkey = "{SLOW}"\nrate = 0.001\nburst = 2\n'
    )
    assert read_api_keys(path) == KEYS


BAD_FILES = {
    "no keys": ("", "has no keys"),
    "key with a line break": ('[a]\nkey = "1234567\\n"', "a: key: an API key needs"),
    "no table": ('key = "12345678"', "key: write a table"),
    "short key": ('[a]\nkey = "1234567"', "a: key: "),
    "no key": ("[a]\nrate = 1", "a: key: "),
    "unknown limit": ('[a]\nkey = "12345678"\nrates = 1', "a: unknown key rates"),
    "twice": ('[a]\nkey = "12345678"\n[b]\nkey = "12345678"', "b: another client"),
    "not TOML": ("12345678", "not valid TOML"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_of_keys_are_refused(tmp_path: Path, case: str) -> None:
    content, message = BAD_FILES[case]
    path = tmp_path / "keys.toml"
    path.write_text(content)
    with pytest.raises(UserError, match=message) as error:
        read_api_keys(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "1234567" not in str(error.value)
