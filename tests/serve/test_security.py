"""Which requests are refused, and the security headers of responses."""

import asyncio
import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.responses import PlainTextResponse

from covnmt.serve.security import RateLimiter, SecurityMiddleware
from covnmt.serve.settings import ApiKey, ServeSettings

from .server import Running, serving, wait_until

KEY = "a-secret-key"


@pytest.fixture(scope="module")
def guarded(tiny_model: Path) -> Iterator[Running]:
    settings = ServeSettings(
        rate=0, api_keys=(ApiKey(key=KEY),), allow_origins=("https://good.example",), log_text=True
    )
    with serving({"tiny": tiny_model}, settings) as running:
        yield running


@pytest.fixture
def guest(guarded: Running) -> Iterator[httpx.Client]:
    """Open a client without the key."""
    with guarded.client() as session:
        yield session


OPEN = ["/", "/healthz", "/readyz", "/languages"]
CLOSED = ["/v1/models", "/metrics", "/openapi.json"]


@pytest.mark.parametrize("path", OPEN)
def test_page_and_probes_need_no_key(guest: httpx.Client, path: str) -> None:
    assert guest.get(path).status_code == 200


@pytest.mark.parametrize("path", CLOSED)
def test_other_routes_need_the_key(guest: httpx.Client, path: str) -> None:
    answer = guest.get(path)
    assert answer.status_code == 401
    assert "API key" in answer.json()["error"]
    for headers in ({"x-api-key": "wrong"}, {"authorization": f"Basic {KEY}"}):
        assert guest.get(path, headers=headers).status_code == 401
    for headers in ({"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"}):
        assert guest.get(path, headers=headers).status_code == 200


def test_a_key_that_is_not_ascii_is_refused(guest: httpx.Client) -> None:
    answer = guest.get("/v1/models", headers={b"x-api-key": "é".encode("latin-1")})
    assert answer.status_code == 401


def test_libretranslate_takes_the_key_from_the_body(guest: httpx.Client) -> None:
    form = {"q": "a", "source": "auto", "target": "target"}
    assert guest.post("/translate", data=form).status_code == 401
    answer = guest.post("/translate", data=form | {"api_key": KEY})
    assert answer.status_code == 200


def test_only_allowed_origins_may_call(
    running: Running, client: httpx.Client, guest: httpx.Client
) -> None:
    def ask(server: httpx.Client, origin: str) -> httpx.Response:
        return server.get("/v1/models", headers={"origin": origin, "x-api-key": KEY})

    for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
        assert ask(client, origin).status_code == 403
        assert ask(guest, origin).status_code == 403
    assert ask(client, running.url).status_code == 200
    answer = ask(guest, "https://good.example")
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://good.example"


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "://", "http://[::1]:x"])
def test_a_malformed_origin_is_refused(client: httpx.Client, origin: str) -> None:
    assert client.get("/v1/models", headers={"origin": origin}).status_code == 403


def test_a_foreign_host_header_is_explained(client: httpx.Client) -> None:
    """A proxy changes the Host header: scripts load, but requests are refused."""
    other = {"origin": "https://translate.example.org"}
    script = client.get("/main.js", headers=other)
    assert script.status_code == 200
    assert "access-control-allow-origin" not in script.headers
    answer = client.post("/v1/translate", headers=other, json={"text": "a"})
    assert answer.status_code == 403
    assert "let the proxy before it pass the Host header on" in answer.json()["error"]


def test_an_allowed_origin_can_read_error_responses(guest: httpx.Client) -> None:
    def refused(origin: str) -> httpx.Response:
        return guest.get("/v1/models", headers={"origin": origin, "x-api-key": "wrong"})

    answer = refused("https://good.example")
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == "https://good.example"
    assert "Origin" in answer.headers["vary"]
    assert "access-control-allow-origin" not in refused("https://evil.example").headers


def test_there_are_no_cors_headers_by_default(client: httpx.Client) -> None:
    assert "access-control-allow-origin" not in client.get("/v1/models").headers


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "", "127.0.0.1.evil"])
def test_foreign_host_names_are_refused(client: httpx.Client, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 421


OWN = ["localhost", "LocalHost:1", "127.0.0.1:8000", "[::1]", "192.0.2.7:8000", "[2001:db8::1]:1"]


@pytest.mark.parametrize("host", OWN)
def test_addresses_and_localhost_are_accepted_as_host(client: httpx.Client, host: str) -> None:
    """A server on 0.0.0.0 has any of them, and no other site can pose as an address."""
    assert client.get("/healthz", headers={"host": host}).status_code == 200


def test_the_name_it_listens_on_is_accepted_as_host() -> None:
    gate = SecurityMiddleware(PlainTextResponse("in"), ServeSettings(host="Translator"))
    transport = httpx.ASGITransport(gate)

    async def status(name: str) -> int:
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{name}") as client:
            return (await client.get("/")).status_code

    assert asyncio.run(status("translator:8000")) == 200
    assert asyncio.run(status("other:8000")) == 421


@pytest.mark.parametrize("path", ["/", "/v1/models", "/nothing"])
def test_responses_have_security_headers(client: httpx.Client, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path", ["/../pyproject.toml", "/%2e%2e/app.py", "/..%2fapp.py", "/page/../../app.py"]
)
def test_files_outside_the_page_are_not_served(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 404


def test_the_rate_limiter_refills_each_address() -> None:
    limiter = RateLimiter(rate=2.0, burst=3)
    assert [limiter.seconds_to_wait("a", 0.0) for _ in range(4)] == [0, 0, 0, 0.5]
    assert limiter.seconds_to_wait("b", 0.0) == 0
    assert limiter.seconds_to_wait("a", 0.5) == 0
    assert limiter.seconds_to_wait("a", 0.5) == pytest.approx(0.5)
    assert [limiter.seconds_to_wait("a", 1000.0) for _ in range(4)] == [0, 0, 0, 0.5]


def test_the_rate_limiter_forgets_the_oldest_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covnmt.serve.security.MAX_ADDRESSES", 5)
    limiter = RateLimiter(rate=1.0, burst=1)
    for number in range(100):
        limiter.seconds_to_wait(str(number), 0.0)
    assert list(limiter.buckets) == ["95", "96", "97", "98", "99"]


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/metrics"])
def test_get_routes_answer_head_requests(client: httpx.Client, path: str) -> None:
    answer = client.head(path)
    assert (answer.status_code, answer.content) == (200, b"")


def test_requests_over_the_rate_get_429(tiny_model: Path) -> None:
    settings = ServeSettings(rate=0.001, burst=2)
    with serving({"tiny": tiny_model}, settings) as running, running.client() as client:
        answers = [client.get("/v1/models") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert int(answers[2].headers["retry-after"]) > 1
        assert client.get("/healthz").status_code == 200


def test_wrong_keys_count_against_the_rate(tiny_model: Path) -> None:
    settings = ServeSettings(rate=0.001, burst=2, api_keys=(ApiKey(key=KEY),))
    with serving({"tiny": tiny_model}, settings) as running, running.client() as client:
        answers = [client.get("/v1/models", headers={"x-api-key": f"{n}"}) for n in range(3)]
    assert [answer.status_code for answer in answers] == [401, 401, 429]


def test_the_access_log_has_text_only_with_log_text(
    running: Running,
    guarded: Running,
    client: httpx.Client,
    guest: httpx.Client,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # a request is noted after its answer has left; those before this test are not meant
    wait_until(lambda: not (running.server.server_state.tasks | guarded.server.server_state.tasks))
    caplog.set_level(logging.INFO, "covnmt.serve")
    body = {"text": "private matters"}
    client.post("/v1/translate", json=body)
    wait_until(lambda: caplog.messages)
    [line] = map(json.loads, caplog.messages)
    assert (line["path"], line["status"], line["sentences"]) == ("/v1/translate", 200, 1)
    assert "private" not in caplog.text
    guest.post("/v1/translate", json=body, headers={"x-api-key": KEY})
    wait_until(lambda: len(caplog.messages) == 2)
    assert json.loads(caplog.messages[1])["text"] == ["private matters"]
    form = {"q": "private affairs", "target": "target", "api_key": KEY}
    guest.post("/translate", json=form)
    wait_until(lambda: len(caplog.messages) == 3)
    assert json.loads(caplog.messages[2])["text"] == ["private affairs"]
    assert KEY not in caplog.text


def test_probes_need_no_host(running: Running) -> None:
    host, _, port = running.url.removeprefix("http://").partition(":")
    for path, status in (("/healthz", b"200"), ("/readyz", b"200"), ("/metrics", b"421")):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            assert connection.recv(99).split()[1] == status


METHODS = [
    ("GET", "/v1/translate", 405, "OPTIONS, POST"),
    ("OPTIONS", "/v1/translate", 204, "OPTIONS, POST"),
    ("DELETE", "/healthz", 405, "GET, HEAD, OPTIONS"),
    ("HEAD", "/v1/models", 200, None),
    ("HEAD", "/", 200, None),
    ("POST", "/", 405, "GET, HEAD"),
    ("POST", "/nothing", 404, None),
]


@pytest.mark.parametrize(("method", "path", "status", "allowed"), METHODS)
def test_other_methods_are_refused_with_those_that_are_allowed(
    client: httpx.Client, method: str, path: str, status: int, allowed: str | None
) -> None:
    answer = client.request(method, path)
    assert (answer.status_code, answer.headers.get("allow")) == (status, allowed)


def test_searches_are_bounded_by_the_limits_of_the_server(running: Running) -> None:
    decode = running.models["tiny"].decode
    assert decode.stop_loops
    assert decode.max_retry_beam == ServeSettings().max_beam
