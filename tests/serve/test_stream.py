"""The events of a stream: partial texts, sentences, errors, and their order."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from typing import Any, cast

import numpy as np
import pytest

from covnmt.base.errors import UserError
from covnmt.inference.translate import Translation
from covnmt.serve.request_queue import ClosedError
from covnmt.serve.service import PartialTranslations, SubmittedTexts, stream_events
from covnmt.serve.work import ChangedText
from covnmt.serve.worker_process import WorkerDiedError
from covnmt.text.codec import Codec
from covnmt.text.sentences import split_into_sentences

from .server import PATIENCE


def translation(text: str) -> Translation:
    return Translation(text, (), text, (), -1.0, (), np.zeros(0, dtype=np.float32), None)


class Stream:
    """A stream of two texts with three sentences, whose results the test sets."""

    def __init__(self) -> None:
        self.partial = PartialTranslations(asyncio.get_running_loop())
        self.futures: list[Future[Translation]] = [Future() for _ in range(3)]
        layouts = [split_into_sentences("One.\nTwo."), split_into_sentences("Three.")]
        accepted = SubmittedTexts(layouts, self.futures)
        deadline = time.monotonic() + PATIENCE
        self.events: AsyncGenerator[str, None] = stream_events(
            "tiny", accepted, self.partial, [], deadline
        )

    async def next(self) -> tuple[str, dict[str, Any]]:
        """Return the next event: its name and content."""
        name, data = (await anext(self.events)).rstrip("\n").split("\n")
        return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def place(text: int, sentence: int) -> dict[str, int]:
    return {"text_number": text, "sentence_number": sentence}


def test_partial_texts_come_first_and_sentences_in_order() -> None:
    async def scenario() -> None:
        stream = Stream()
        threading.Thread(target=stream.partial.update, args=(0, "Un")).start()
        assert await stream.next() == ("partial", {**place(0, 0), "text": "Un"})
        stream.partial.update(2, "Tr")
        assert await stream.next() == ("partial", {**place(1, 0), "text": "Tr"})
        stream.futures[1].set_result(translation("Deux."))
        stream.partial.update(1, "late words of a sentence that is done")
        stream.partial.update(0, "Une")
        assert await stream.next() == ("partial", {**place(0, 0), "text": "Une"})
        stream.futures[0].set_result(translation("Un."))
        names = []
        stream.futures[2].set_result(translation("Trois."))
        for _ in range(3):
            name, content = await stream.next()
            names.append((name, content["text_number"], content["sentence_number"]))
        assert names == [("sentence", 0, 0), ("sentence", 0, 1), ("sentence", 1, 0)]
        done = {"model": "tiny", "texts": ["Un.\nDeux.", "Trois."], "warnings": []}
        assert await stream.next() == ("done", done)
        with pytest.raises(StopAsyncIteration):
            await stream.next()

    asyncio.run(scenario())


def test_a_slow_reader_gets_the_newest_partial_text() -> None:
    async def scenario() -> None:
        stream = Stream()
        for text in ("U", "Un", "Une"):
            stream.partial.update(0, text)
        assert await stream.next() == ("partial", {**place(0, 0), "text": "Une"})
        await stream.events.aclose()
        assert all(future.cancelled() for future in stream.futures)

    asyncio.run(scenario())


ERRORS = {
    "too long": (UserError("too long"), 422, "too long"),
    "dead process": (WorkerDiedError("a process died"), 503, "a process died"),
    "stopping": (ClosedError(), 503, "stopping"),
    "bug": (RuntimeError("secret"), 500, "something failed here; see the server's log"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_the_first_error_ends_the_stream_and_cancels_the_rest(case: str) -> None:
    error, status, message = ERRORS[case]

    async def scenario() -> None:
        stream = Stream()
        stream.futures[0].set_exception(error)
        name, content = await stream.next()
        assert (name, content["status"]) == ("error", status)
        assert message in content["error"]
        with pytest.raises(StopAsyncIteration):
            await stream.next()
        assert stream.futures[1].cancelled()
        assert stream.futures[2].cancelled()

    asyncio.run(scenario())


def test_partial_text_is_reported_only_when_it_changes() -> None:
    class Target:
        def detokenize(self, tokens: tuple[str, ...]) -> str:
            return " ".join(tokens)

    reported: list[tuple[int, str]] = []
    on_step = ChangedText(lambda *news: reported.append(news), cast(Codec, Target()))
    for position, tokens in [(0, ("a",)), (1, ("x",)), (0, ("a",)), (0, ("a", "b"))]:
        on_step(position, tokens)
    assert reported == [(0, "a"), (1, "x"), (0, "a b")]
