"""Checks for omissions over HTTP, by a bundled model; pairs are queued one by one."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, cast

import pytest

from covnmt.base.config import DecodeConfig
from covnmt.inference.check_settings import MAX_TOKENS
from covnmt.inference.model import Model
from covnmt.model.directory import find_model
from covnmt.serve.request_queue import LONG_BYTES
from covnmt.serve.service import run_one_by_one
from covnmt.serve.settings import ServeSettings
from covnmt.serve.work import CheckWork, TranslateWork

from .server import PATIENCE, Running, serving

TEMPLE = "金閣寺は京都にある有名な寺です。"
# A sentence, a translation by somebody, and a word that it leaves out.
CASES = [
    (TEMPLE, "Kinkaku-ji is a famous temple.", "京都"),
    (TEMPLE, "Kinkaku-ji is a famous temple in Kyoto.", ""),
    ("彼は1868年に江戸で生まれた。", "He was born in Edo.", "1868"),
    (TEMPLE, "", "有名な"),
    (TEMPLE, " \n ", "有名な"),
    (" ", "Nothing.", ""),
]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving({"ja-en": find_model("ja-en")}, ServeSettings(rate=0, workers=1)) as server:
        yield server


def test_the_route_finds_the_same_omissions_as_the_model(running: Running) -> None:
    pairs = [(source, target) for source, target, _ in CASES]
    body = {"pairs": [{"source": source, "target": target} for source, target in pairs]}
    with running.client() as client:
        answer = client.post("/v1/check", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == "ja-en"
    checks = answer.json()["checks"]
    model = Model.load("ja-en", device="cpu")
    own = model.translate([source for source, _ in pairs], split_sentences=True)
    assert [check.pop("own") for check in checks] == [each.text for each in own]
    expected = [each.to_json() for each in model.check(pairs, words=True)]
    assert checks == [{k: v for k, v in row.items() if k != "own"} for row in expected]
    for found, (_, _, word) in zip(checks, CASES, strict=True):
        assert word in " ".join(each["text"] for each in found["left_out"])
        assert bool(found["left_out"]) == bool(word)


def test_pairs_over_the_token_limit_are_refused(running: Running) -> None:
    statuses = []
    with running.client() as client:
        for tokens in (MAX_TOKENS, MAX_TOKENS + 1):
            pair = {"source": "寺", "target": "temple " * tokens}
            statuses.append(client.post("/v1/check", json={"pairs": [pair]}).status_code)
    assert statuses == [200, 422]


def test_translations_are_checked_on_request() -> None:
    model = Model.load("ja-en", device="cpu")
    batch = [TranslateWork((text,), model.decode, check=True) for text in (TEMPLE, "hello there")]
    usual, unusual = TranslateWork.run(batch, model, None)
    assert usual.omissions == model.check([(TEMPLE, usual.text)], words=True)[0].omissions
    assert (usual.unusual, unusual.unusual) == (False, True)
    [unchecked] = TranslateWork.run([TranslateWork((TEMPLE,), model.decode)], model, None)
    assert unchecked.omissions is None


def test_a_translation_that_is_checked_costs_more() -> None:
    plain, checked = (TranslateWork((TEMPLE,), DecodeConfig(), check) for check in (False, True))
    assert (checked.size, checked.cost) == (3 * plain.size, 3 * plain.cost)


def test_the_cost_of_a_check_grows_little_faster_than_its_length() -> None:
    short, long = (CheckWork((TEMPLE * n, "A temple.")).cost for n in (1, 5))
    assert 3 * short < long < 10 * short


def test_the_size_of_a_check_counts_its_decodings() -> None:
    """A sentence of ten words is short, but its check is long: it must not delay short ones."""
    sentence = "word " * 10
    assert len(sentence) < LONG_BYTES < CheckWork((sentence, "")).size
    assert CheckWork((sentence, "")).size == len(sentence) * 2 * (1 + 10)


class Queue:
    """Records what is submitted; the test sets the results."""

    def __init__(self) -> None:
        self.futures: list[Future[int]] = []

    def submit(self, work: Sequence[CheckWork], prefixes: Sequence[str]) -> "list[Future[int]]":
        self.futures += [Future() for _ in work]
        return self.futures[-len(work) :]

    async def run(self, count: int) -> Any:
        work = [CheckWork(("a", "b"))] * count
        return await run_one_by_one(cast(Any, self.submit), work, [""] * count)


async def wait_for(queue: Queue, number: int) -> "Future[int]":
    async with asyncio.timeout(PATIENCE):
        while len(queue.futures) < number:
            await asyncio.sleep(0)
    return queue.futures[-1]


def test_pairs_are_queued_one_after_the_other() -> None:
    async def scenario() -> None:
        queue = Queue()
        work = asyncio.ensure_future(queue.run(3))
        for number in (1, 2, 3):
            (await wait_for(queue, number)).set_result(10 * number)
            assert len(queue.futures) == number
        assert await work == [10, 20, 30]

    asyncio.run(scenario())


def test_cancelling_leaves_the_remaining_pairs_unqueued() -> None:
    async def scenario() -> None:
        queue = Queue()
        work = asyncio.ensure_future(queue.run(3))
        (await wait_for(queue, 1)).set_result(10)
        last = await wait_for(queue, 2)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert last.cancelled()
        assert len(queue.futures) == 2

    asyncio.run(scenario())
