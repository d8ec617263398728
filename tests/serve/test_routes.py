"""The routes under /v1 over HTTP: results, streams, timeouts, disconnects, full queues."""

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from covnmt.inference.model import Model
from covnmt.metrics.adequacy import LOW_ATTENTION
from covnmt.serve.remarks import max_coverage
from covnmt.serve.served_model import parse_spec
from covnmt.serve.settings import ServeSettings

from .server import PATIENCE, Running, post, serving, wait_until


def test_translations_are_those_of_the_model(
    client: httpx.Client, translator: Model, lines: list[str]
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


def test_sentences_have_only_the_requested_parts(client: httpx.Client, lines: list[str]) -> None:
    [text] = post(client, text=lines[0])["translations"]
    assert set(text["sentences"][0]) == {"source", "text", "score"}
    [text] = post(client, text=lines[0], **{"return": ["remarks"]})["translations"]
    assert set(text["sentences"][0]) == {"source", "text", "score", "remarks", "unusual"}


def test_beam_nbest_and_model_can_be_chosen(
    client: httpx.Client, translator: Model, lines: list[str]
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


def test_a_text_keeps_its_spaces_and_line_breaks(client: httpx.Client, lines: list[str]) -> None:
    [text] = post(client, text=f"  {lines[0]}\n\n\t{lines[1]}\n")["translations"]
    first, second = (sentence["text"] for sentence in text["sentences"])
    assert text["text"] == f"  {first}\n\n\t{second}\n"


@pytest.mark.parametrize("text", ["", " \n "])
def test_an_empty_text_has_no_sentences(client: httpx.Client, text: str) -> None:
    assert post(client, text=text)["translations"] == [{"text": text, "sentences": []}]


def stream(client: httpx.Client, **body: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return the events of a stream: names and contents."""
    answer = client.post("/v1/translate/stream", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no"
    blocks = [block.split("\n") for block in answer.text.strip().split("\n\n")]
    return [
        (name.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
        for name, data in blocks
    ]


def test_a_stream_has_every_sentence_then_the_texts(client: httpx.Client, lines: list[str]) -> None:
    texts = [f"{lines[0]}\n{lines[1]}", lines[2]]
    events = stream(client, text=texts, **{"return": ["tokens"]})
    *sentences, done = [event for event in events if event[0] != "partial"]
    assert [name for name, _ in sentences] == ["sentence"] * 3
    places = [(each["text_number"], each["sentence_number"]) for _, each in sentences]
    assert places == [(0, 0), (0, 1), (1, 0)]
    whole = post(client, text=texts)["translations"]
    content = {"model": "tiny", "texts": [text["text"] for text in whole], "warnings": []}
    assert done == ("done", content)


def test_partial_texts_come_before_their_sentence(client: httpx.Client, lines: list[str]) -> None:
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


def test_a_stream_reports_a_sentence_that_is_too_long(client: httpx.Client) -> None:
    answer = client.post("/v1/translate/stream", json={"text": "a\n" + "b " * 300})
    assert answer.status_code == 200
    assert "event: error\ndata: " in answer.text
    assert r"sentence 2: \"b b b" in answer.text
    assert "has 300 tokens" in answer.text


def test_alignments_are_those_of_the_model(
    client: httpx.Client, tiny_model: Path, tiny_text: Path, lines: list[str]
) -> None:
    targets = (tiny_text / "test.tgt").read_text("utf-8").splitlines()
    pairs = list(zip(lines[:5], targets, strict=False))
    body = {"pairs": [{"source": source, "target": target} for source, target in pairs]}
    answer = client.post("/v1/align", json=body)
    assert answer.status_code == 200
    aligner = Model.load(tiny_model, device="cpu")
    for row, expected in zip(answer.json()["alignments"], aligner.align(pairs), strict=True):
        assert row["tokens"] == list(expected.target_tokens)
        assert row["log_prob"] == pytest.approx(expected.log_prob, abs=1e-3)
        np.testing.assert_allclose(row["alignment"], expected.matrix, atol=1e-3)


def test_models_lists_properties_of_every_model(client: httpx.Client) -> None:
    first, second = client.get("/v1/models").json()["models"]
    assert (first["name"], first["coverage"], first["fertility"]) == ("tiny", "fertility", True)
    assert (first["min_attention"], first["max_coverage"]) == (LOW_ATTENTION, max_coverage(True))
    assert (second["name"], second["source"], second["target"]) == ("twin", "aa", "bb")
    # a tokenized corpus, and nobody wrote a README.md
    assert (first["description"], first["plain_text"]) == (None, False)


def test_the_description_of_a_model_is_the_heading_of_its_readme(tmp_path: Path) -> None:
    bundled = parse_spec("ja-en").description
    assert bundled == "Japanese to English, Wikipedia articles about Kyoto"
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n\n# Somali to English\n\n# More")
    assert parse_spec(f"so-en={tmp_path}").description == "Somali to English"
    (tmp_path / "README.md").write_bytes(b"\xff\xfe")
    assert parse_spec(f"so-en={tmp_path}").description is None


# A batch that is not full waits for more, longer than any test.
PATIENT = ServeSettings(rate=0, wait=10.0 * PATIENCE, timeout=10.0 * PATIENCE, batch_size=4)


def test_requests_over_their_timeout_get_408(tiny_model: Path, lines: list[str]) -> None:
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
    return list(next(iter(running.models.values())).queue.waiting)


CALLS = {
    "/v1/translate": {"text": "a b"},
    "/v1/translate/stream": {"text": "a b"},
    "/v1/align": {"pairs": [{"source": "a", "target": "b"}]},
    "/v1/check": {"pairs": [{"source": "a", "target": "b"}, {"source": "c", "target": "d"}]},
    "/translate": {"q": "a b", "target": "target"},
}


@pytest.mark.parametrize("path", CALLS)
def test_waiting_work_of_a_disconnected_client_is_cancelled(tiny_model: Path, path: str) -> None:
    with serving({"tiny": tiny_model}, PATIENT) as running:
        host, _, port = running.url.removeprefix("http://").partition(":")
        body = json.dumps(CALLS[path]).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            wait_until(lambda: waiting(running))
        wait_until(lambda: all(job.future.cancelled() for job in waiting(running)))


def test_a_full_queue_refuses_requests_with_429(tiny_model: Path, lines: list[str]) -> None:
    """The queue has room for four: three wait, two more are refused, the fourth fills the batch."""
    with serving({"tiny": tiny_model}, PATIENT.model_copy(update={"queue": 4})) as running:
        with running.client() as client, ThreadPoolExecutor() as thread:
            first = thread.submit(post, client, text=lines[:1] * 3)
            wait_until(lambda: waiting(running))
            refused = client.post("/v1/translate", json={"text": lines[:1] * 2})
            last = post(client, text=lines[0])
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert first.result()["translations"] == last["translations"] * 3


def test_a_short_text_overtakes_long_ones(tiny_model: Path, lines: list[str]) -> None:
    """It is sent last, while many long sentences wait, and is among the first to be done."""
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
    running: Running, translator: Model, lines: list[str]
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
    sample = running.metrics.registry.get_sample_value
    small = sample("covnmt_batch_sentences_bucket", {"le": "2.0"})
    batches = sample("covnmt_batch_sentences_count")
    assert small is not None
    assert batches is not None
    assert batches > small
