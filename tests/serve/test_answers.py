"""Answers are bounded, written outside of the event loop, and streams end with an event."""

import asyncio
import json
import threading
import time
from typing import Any

import httpx
import pytest

from covnmt.inference.model import Model
from covnmt.inference.translate import Translation
from covnmt.serve import service as service_module
from covnmt.serve.request_queue import ClosedError, WorkFuture
from covnmt.serve.schemas import sentence_json
from covnmt.serve.security import RequestRefusedError
from covnmt.serve.service import (
    PartialTranslations,
    SubmittedTexts,
    TranslationService,
    encode_sentence,
    stream_events,
)
from covnmt.serve.settings import ServeSettings
from covnmt.text.sentences import split_into_sentences

from .server import Running, post

EVERYTHING = [
    "tokens",
    "readable_tokens",
    "alignment",
    "coverage",
    "fertility",
    "remarks",
]


def test_an_nbest_list_is_written_in_parts_that_make_the_same_json(
    translator: Model, lines: list[str]
) -> None:
    decode = translator.decode.model_copy(update={"beam": 4, "nbest": 3})
    for translation in translator.translate(lines[:3], decode):
        written = json.loads(encode_sentence(translation, EVERYTHING))
        assert written == json.loads(json.dumps(sentence_json(translation, EVERYTHING)))
        assert len(written["nbest"]) == 2


def test_answers_are_written_outside_of_the_event_loop(
    running: Running, client: httpx.Client, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[str] = set()

    def write(translation: Translation, parts: Any) -> Any:
        threads.add(threading.current_thread().name)
        return sentence_json(translation, parts)

    monkeypatch.setattr(service_module, "sentence_json", write)
    post(client, text=lines[:3], nbest=2, **{"return": EVERYTHING})
    assert threads
    assert all(name.startswith("asyncio") for name in threads)


def test_more_alignment_than_a_server_should_hold_is_refused(client: httpx.Client) -> None:
    text = [" ".join(["ze muye piro sire tuye"] * 20)] * 22
    body = {"text": text, "beam": 10, "nbest": 10, "return": ["alignment"]}
    answer = client.post("/v1/translate", json=body)
    assert answer.status_code == 413
    assert "fewer nbest" in answer.json()["error"]
    pairs = [{"source": text[0], "target": "a"}] * 300
    assert client.post("/v1/align", json={"pairs": pairs}).status_code == 413


def test_alignments_count_more_than_translations_alone(running: Running) -> None:
    service = TranslationService(running.models, ServeSettings(max_cells=1000))
    model = running.models["tiny"]
    service.check_cells(model, ["x" * 40] * 10, 1, [])
    for nbest, parts in ((1, ["alignment"]), (2, [])):
        with pytest.raises(RequestRefusedError):
            service.check_cells(model, ["x" * 40] * 10, nbest, parts)


def events_of(
    futures: "list[WorkFuture[Translation]]", deadline: float, pause: float = 0.0
) -> list[str]:
    """Return the names of all events for a reader that makes a pause after each."""

    async def read() -> list[str]:
        layouts = [split_into_sentences("a") for _ in futures]
        partial = PartialTranslations(asyncio.get_running_loop())
        submitted = SubmittedTexts(layouts, list(futures))
        names = []
        async for event in stream_events("tiny", submitted, partial, [], deadline):
            names.append(event.split()[1])
            await asyncio.sleep(pause)
        return names

    return asyncio.run(read())


def done(translator: Model) -> "WorkFuture[Translation]":
    future: WorkFuture[Translation] = WorkFuture()
    future.set_result(translator.translate(["ze muye"])[0])
    return future


def test_a_reader_slower_than_the_deadline_gets_the_last_event_too(translator: Model) -> None:
    futures = [done(translator), WorkFuture[Translation]()]
    assert events_of(futures, time.monotonic() + 0.1, pause=0.2) == ["sentence", "error"]
    assert futures[1].cancelled()
    futures = [done(translator), done(translator)]
    assert events_of(futures, time.monotonic() + 0.1, pause=0.2) == ["sentence", "sentence", "done"]


def test_a_stream_that_the_end_of_the_server_cuts_off_says_so(translator: Model) -> None:
    future: WorkFuture[Translation] = WorkFuture()
    future.set_exception(ClosedError())
    assert events_of([done(translator), future], time.monotonic() + 60) == ["sentence", "error"]
