"""The routes, asked over HTTP: right answers, and 4xx with a message for everything else."""

import asyncio
import inspect
import json
import os
import signal
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from covnmt.align import Aligner
from covnmt.serve.settings import ServeSettings
from covnmt.translate import Translation, Translator

from .server import PATIENCE, Running, serving, wait_until

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def translator(tiny_model: Path) -> Translator:
    return Translator.load(tiny_model, device="cpu")


def post(client: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = client.post("/v1/translate", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_translates_like_the_command(
    client: httpx.Client, translator: Translator, lines: list[str]
) -> None:
    parts = ["tokens", "alignment", "coverage", "fertility"]
    found = post(client, text=lines, **{"return": parts})["translations"]
    for text, expected in zip(found, translator.translate(lines), strict=True):
        [sentence] = text["sentences"]
        wanted = expected.to_json()
        assert text["text"] == sentence["text"] == wanted["text"]
        assert sentence["tokens"] == wanted["tokens"]
        # batches differ in their padding, so sums differ in the last places
        assert sentence["coverage"] == pytest.approx(wanted["coverage"], abs=1e-3)
        assert sentence["fertility"] == pytest.approx(wanted["fertility"], abs=1e-3)
        np.testing.assert_allclose(sentence["alignment"], wanted["alignment"], atol=1e-3)


def test_only_what_was_asked_for(client: httpx.Client, lines: list[str]) -> None:
    [text] = post(client, text=lines[0])["translations"]
    assert set(text["sentences"][0]) == {"source", "text", "score"}
    [text] = post(client, text=lines[0], **{"return": ["remarks"]})["translations"]
    assert set(text["sentences"][0]) == {"source", "text", "score", "remarks"}


def test_beam_nbest_and_model(
    client: httpx.Client, translator: Translator, lines: list[str]
) -> None:
    body = post(client, text=lines[1], beam=4, nbest=3, model="twin")
    assert body["model"] == "twin"
    [sentence] = body["translations"][0]["sentences"]
    decode = translator.decode.model_copy(update={"beam": 4, "nbest": 3})
    [expected] = translator.translate([lines[1]], decode)
    assert [sentence["text"], *(each["text"] for each in sentence["nbest"])] == [
        expected.text,
        *(each.text for each in expected.alternatives),
    ]


def test_a_text_keeps_its_layout(client: httpx.Client, lines: list[str]) -> None:
    [text] = post(client, text=f"  {lines[0]}\n\n\t{lines[1]}\n")["translations"]
    first, second = (sentence["text"] for sentence in text["sentences"])
    assert text["text"] == f"  {first}\n\n\t{second}\n"


@pytest.mark.parametrize("text", ["", " \n "])
def test_nothing_stays_nothing(client: httpx.Client, text: str) -> None:
    assert post(client, text=text)["translations"] == [{"text": text, "sentences": []}]


def stream(client: httpx.Client, **body: Any) -> list[tuple[str, dict[str, Any]]]:
    """The events of a stream: their names, and what they say."""
    answer = client.post("/v1/translate/stream", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = [block.split("\n") for block in answer.text.strip().split("\n\n")]
    return [
        (name.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
        for name, data in blocks
    ]


def test_events(client: httpx.Client, lines: list[str]) -> None:
    texts = [f"{lines[0]}\n{lines[1]}", lines[2]]
    events = stream(client, text=texts, **{"return": ["tokens"]})
    *sentences, done = [event for event in events if event[0] != "partial"]
    assert [name for name, _ in sentences] == ["sentence"] * 3
    places = [(each["text_number"], each["sentence_number"]) for _, each in sentences]
    assert places == [(0, 0), (0, 1), (1, 0)]
    whole = post(client, text=texts)["translations"]
    assert done == ("done", {"model": "tiny", "texts": [text["text"] for text in whole]})


@pytest.mark.skipif(
    "watch" not in inspect.signature(Translator.translate).parameters,
    reason="this search cannot be watched",
)
def test_words_come_before_their_sentence(client: httpx.Client, lines: list[str]) -> None:
    long = " ".join(lines)
    events = stream(client, text=f"{long}\n{lines[0]}")
    names = [name for name, _ in events]
    assert names.count("partial") > 5
    for number in (0, 1):
        mine = [
            (name, each["text"]) for name, each in events if each.get("sentence_number") == number
        ]
        assert [name for name, _ in mine].index("sentence") == len(mine) - 1
        words = [text for name, text in mine if name == "partial"]
        assert all(before != after for before, after in pairwise(words))


def test_a_stream_that_fails_says_so(client: httpx.Client) -> None:
    answer = client.post("/v1/translate/stream", json={"text": "a\n" + "b " * 300})
    assert answer.status_code == 200
    assert "event: error\ndata: " in answer.text
    assert "300 tokens" in answer.text


def test_align(client: httpx.Client, tiny_model: Path, tiny_text: Path, lines: list[str]) -> None:
    targets = (tiny_text / "test.tgt").read_text("utf-8").splitlines()
    pairs = list(zip(lines[:5], targets, strict=False))
    body = {"pairs": [{"source": source, "target": target} for source, target in pairs]}
    answer = client.post("/v1/align", json=body)
    assert answer.status_code == 200
    aligner = Aligner.load(tiny_model, device="cpu")
    for row, expected in zip(answer.json()["alignments"], aligner.align(pairs), strict=True):
        assert row["tokens"] == list(expected.target_tokens)
        assert row["log_prob"] == pytest.approx(expected.log_prob, abs=1e-3)
        np.testing.assert_allclose(row["alignment"], expected.matrix, atol=1e-3)


def test_models(client: httpx.Client) -> None:
    first, second = client.get("/v1/models").json()["models"]
    assert (first["name"], first["coverage"], first["fertility"]) == ("tiny", "fertility", True)
    assert (second["name"], second["source"], second["target"]) == ("twin", "aa", "bb")


def test_probes(client: httpx.Client) -> None:
    assert client.get("/healthz").json() == {"status": "alive"}
    wait_until(lambda: client.get("/readyz").status_code == 200)
    assert 'covnmt_requests_total{path="/readyz",status="200"}' in client.get("/metrics").text


def test_answers_do_not_wait_for_the_network(running: Running, client: httpx.Client) -> None:
    """Nagle's algorithm would hold the body back until the client has confirmed the head."""
    client.get("/healthz")  # and the connection stays open
    transports = [each.transport for each in running.server.server_state.connections]
    sockets = [each.get_extra_info("socket") for each in transports if each]
    assert sockets
    assert all(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in sockets)


def test_the_document_knows_this_server(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    for kind in ("TranslateRequest", "AlignRequest", "CheckRequest"):
        schema = document["components"]["schemas"][kind]
        assert schema["examples"]
        assert schema["properties"]["model"]["enum"] == ["tiny", "twin", None]
    beam = document["components"]["schemas"]["TranslateRequest"]["properties"]["beam"]
    assert beam["anyOf"][0]["maximum"] == ServeSettings().max_beam
    for content in document["paths"]["/translate"]["post"]["requestBody"]["content"].values():
        properties = content["schema"]["properties"]
        assert properties["source"]["enum"] == ["auto", "source", "aa"]
        assert properties["target"]["enum"] == ["target", "bb"]


def test_a_process_that_died_is_replaced(tiny_model: Path, lines: list[str]) -> None:
    settings = ServeSettings(rate=0, workers=1)
    with serving({"tiny": tiny_model}, settings) as running, running.client() as client:
        [worker] = running.engines["tiny"].workers
        with worker.busy:  # nobody may replace it yet
            worker.process.kill()
            worker.process.join()
            assert client.get("/readyz").status_code == 503
        wait_until(lambda: client.get("/readyz").status_code == 200)
        post(client, text=lines[0])


WRONG: dict[str, tuple[str, bytes | dict[str, Any], int, str]] = {
    "no JSON": ("/v1/translate", b'{"text": "a', 422, "send a JSON object"),
    "no body": ("/v1/translate", b"", 422, "send a JSON object"),
    "invalid UTF-8": ("/v1/translate", b'{"text": "\xff"}', 400, "UTF-8"),
    "half a surrogate pair": ("/v1/translate", rb'{"text": "\ud800"}', 422, "U+D800"),
    "control character": ("/v1/translate", {"text": "a\x00b"}, 422, "U+0000"),
    "wrong type": ("/v1/translate", {"text": 3}, 422, "text: Input should be a valid string"),
    "number as text": ("/v1/translate", {"text": "a", "beam": "3"}, 422, "beam"),
    "no text": ("/v1/translate", {}, 422, "text: Field required"),
    "unknown field": ("/v1/translate", {"text": "a", "baem": 3}, 422, "baem"),
    "beam 0": ("/v1/translate", {"text": "a", "beam": 0}, 422, "beam"),
    "beam over the limit": ("/v1/translate", {"text": "a", "beam": 50}, 422, "20 at most"),
    "nbest over beam": ("/v1/translate", {"text": "a", "beam": 2, "nbest": 3}, 422, "nbest"),
    "timeout NaN": ("/v1/translate", b'{"text": "a", "timeout": NaN}', 422, "timeout"),
    "unknown part": ("/v1/translate", {"text": "a", "return": ["x"]}, 422, "return"),
    "unknown model": ("/v1/translate", {"text": "a", "model": "x"}, 404, "there are: tiny, twin"),
    "model by path": ("/v1/translate", {"text": "a", "model": "/tmp/tiny"}, 404, "no model"),
    "model above": ("/v1/translate", {"text": "a", "model": "../tiny"}, 404, "no model"),
    "10,000 words": ("/v1/translate", {"text": "word " * 10_000}, 422, "characters"),
    "too many tokens": ("/v1/translate", {"text": "a " * 201}, 422, "201 tokens"),
    "too many sentences": ("/v1/translate", {"text": "a\n" * 501}, 413, "501 sentences"),
    "too large": ("/v1/translate", {"text": "a" * 1_100_000}, 413, "262,144 bytes"),
    "deeply nested": ("/v1/translate", b'{"text": ' + b"[" * 100_000, 400, ""),
    "long number": ("/v1/translate", b'{"text": ' + b"9" * 9_000 + b"}", 400, ""),
    "one of several": ("/v1/translate", {"text": ["a", "b\x01"]}, 422, "text.1: control character"),
    "no texts": ("/v1/translate", {"text": []}, 422, "text: List should have at least 1 item"),
    "second pair": (
        "/v1/align",
        {"pairs": [{"source": "a", "target": "b"}, {"source": "\u3000", "target": "b"}]},
        422,
        "pairs.1.source: empty",
    ),
    "nothing to align": ("/v1/align", {"pairs": []}, 422, "pairs"),
    "one side is space": ("/v1/align", {"pairs": [{"source": "a", "target": " "}]}, 422, "empty"),
    "long pair": ("/v1/align", {"pairs": [{"source": "a " * 300, "target": "b"}]}, 422, "300"),
    "nothing to check": ("/v1/check", {"pairs": []}, 422, "pairs"),
    "no source to check": ("/v1/check", {"pairs": [{"source": "", "target": "a"}]}, 422, "source"),
    "nothing said": ("/v1/check", {"pairs": [{"source": "a"}]}, 422, "target: Field required"),
    "long to check": ("/v1/check", {"pairs": [{"source": "a " * 101, "target": ""}]}, 422, "101"),
    "endless to check": ("/v1/check", {"pairs": [{"source": "a" * 5001, "target": ""}]}, 422, ""),
    "check by whom": (
        "/v1/check",
        {"pairs": [{"source": "a", "target": "b"}], "model": "x"},
        404,
        "tiny, twin",
    ),
    "many to check": ("/v1/check", {"pairs": [{"source": "a", "target": "b"}] * 501}, 422, "500"),
    "no such path": ("/v1/nothing", {}, 405, "see /openapi.json"),
    "no object": ("/v1/translate", b'["a"]', 422, "send a JSON object"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input(client: httpx.Client, case: str) -> None:
    path, body, status, message = WRONG[case]
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post(path, content=content, headers=JSON)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]


def test_a_body_without_length_is_bounded_too(client: httpx.Client) -> None:
    def chunks() -> Any:
        yield b'{"text": "'
        for _ in range(30):
            yield b"a" * 100_000

    answer = client.post("/v1/translate", content=chunks(), headers=JSON)
    assert answer.status_code == 413


def test_only_json_is_read(client: httpx.Client) -> None:
    """A form of another site can send text/plain without asking; it must not get through."""
    answer = client.post(
        "/v1/translate", content=b'{"text": "a"}', headers={"content-type": "text/plain"}
    )
    assert answer.status_code == 422
    assert "Content-Type: application/json" in answer.json()["error"]


def test_an_address_opened_in_a_browser(client: httpx.Client) -> None:
    answer = client.get("/v1/translate")
    assert answer.status_code == 404
    assert "see /openapi.json" in answer.json()["error"]


# A batch that is not full waits for more, longer than any test.
PATIENT = ServeSettings(rate=0, wait=10.0 * PATIENCE, timeout=10.0 * PATIENCE, batch_size=4)


def test_a_deadline(tiny_model: Path, lines: list[str]) -> None:
    with serving({"tiny": tiny_model}, PATIENT) as running, running.client() as client:
        body = {"text": lines[0], "timeout": 0.05}
        answer = client.post("/v1/translate", json=body)
        assert answer.status_code == 408
        assert "0.05 s" in answer.json()["error"]
        wait_until(lambda: all(job.future.cancelled() for job in waiting(running)))
        late = client.post("/v1/translate/stream", json=body)
        assert "not done in time" in late.text
        pairs = {"pairs": [{"source": "a", "target": "b"}], "timeout": 0.05}
        assert client.post("/v1/align", json=pairs).status_code == 408
        assert client.post("/v1/check", json=pairs).status_code == 408


def waiting(running: Running) -> list[Any]:
    return list(next(iter(running.engines.values())).queue.waiting)


CALLS = {
    "/v1/translate": {"text": "a b"},
    "/v1/translate/stream": {"text": "a b"},
    "/v1/align": {"pairs": [{"source": "a", "target": "b"}]},
    "/v1/check": {"pairs": [{"source": "a", "target": "b"}, {"source": "c", "target": "d"}]},
    "/translate": {"q": "a b", "target": "target"},
}


@pytest.mark.parametrize("path", CALLS)
def test_a_client_that_hangs_up_is_forgotten(tiny_model: Path, path: str) -> None:
    with serving({"tiny": tiny_model}, PATIENT) as running:
        host, _, port = running.url.removeprefix("http://").partition(":")
        body = json.dumps(CALLS[path]).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            wait_until(lambda: waiting(running))
        wait_until(lambda: all(job.future.cancelled() for job in waiting(running)))


def test_a_full_queue(tiny_model: Path, lines: list[str]) -> None:
    """There is room for four: three wait, two more are refused, the fourth sets all to work."""
    with serving({"tiny": tiny_model}, replace(PATIENT, queue=4)) as running:
        with running.client() as client, ThreadPoolExecutor() as thread:
            first = thread.submit(post, client, text=lines[:1] * 3)
            wait_until(lambda: waiting(running))
            refused = client.post("/v1/translate", json={"text": lines[:1] * 2})
            last = post(client, text=lines[0])
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert first.result()["translations"] == last["translations"] * 3


def test_a_graceful_stop(
    tiny_model: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was accepted before the stop is answered; here by a worker that stood still for it."""
    settings = ServeSettings(rate=0, workers=1, timeout=10.0 * PATIENCE)
    with (
        serving({"tiny": tiny_model}, settings) as running,
        running.client() as client,
        ThreadPoolExecutor() as thread,
    ):
        [engine] = running.engines.values()
        translate, accepted = engine.translate, threading.Event()

        def noted(*arguments: Any) -> list[Future[Translation]]:
            futures = translate(*arguments)
            accepted.set()
            return futures

        monkeypatch.setattr(engine, "translate", noted)
        stood_still = engine.workers[0].process.pid
        assert stood_still is not None
        os.kill(stood_still, signal.SIGSTOP)
        asked = thread.submit(post, client, text=lines)
        assert accepted.wait(PATIENCE)
        running.server.should_exit = True
        wait_until(lambda: not running.server.servers[0].is_serving())
        assert not asked.done()
        os.kill(stood_still, signal.SIGCONT)
        assert len(asked.result(PATIENCE)["translations"]) == len(lines)


def test_a_short_text_does_not_wait_for_long_ones(tiny_model: Path, lines: list[str]) -> None:
    """Sent last, while many long sentences wait, and yet among the first to be done."""
    long = " ".join(" ".join(lines).split()[:150])
    order: list[str] = []

    async def ask_all(url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:

            async def ask(name: str, text: str) -> None:
                answer = await client.post("/v1/translate", json={"text": text})
                assert answer.status_code == 200
                order.append(name)

            many = [asyncio.create_task(ask("long", long)) for _ in range(24)]
            while not order:
                await asyncio.sleep(0.001)
            await asyncio.gather(ask("short", lines[0]), *many)

    settings = ServeSettings(rate=0, workers=2, batch_size=4, timeout=PATIENCE)
    with serving({"tiny": tiny_model}, settings) as running:
        asyncio.run(ask_all(running.url))
    assert len(order) == 25
    assert order.index("short") < 12


def test_many_clients_at_once_get_their_own_answers(
    running: Running, translator: Translator, lines: list[str]
) -> None:
    texts = [line for line in lines for _ in range(5)]

    async def ask_all() -> list[str]:
        async with httpx.AsyncClient(base_url=running.url, timeout=PATIENCE) as client:

            async def ask(text: str) -> str:
                answer = await client.post("/v1/translate", json={"text": text})
                return str(answer.json()["translations"][0]["text"])

            return list(await asyncio.gather(*map(ask, texts)))

    expected = {each.source: each.text for each in translator.translate(lines)}
    assert asyncio.run(ask_all()) == [expected[text] for text in texts]
    assert max(running.metrics.batch_sizes.counts[2:]) > 0
