"""Translations as server-sent events, from the first words on."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from covnmt.base.errors import UserError
from covnmt.inference.translate import Translation
from covnmt.serve.responses import sentence_json
from covnmt.serve.service import SubmittedTexts
from covnmt.serve.worker import WorkerDiedError


class PartialTranslations:
    """The newest partial translation of every sentence, from any thread to the event loop.

    A slow reader misses steps in between, but never the newest.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.newest: dict[int, str] = {}
        self.changed = asyncio.Event()

    def update(self, sentence: int, text: str) -> None:
        """Set the text of a sentence; called from any thread."""
        self.loop.call_soon_threadsafe(self._set, sentence, text)

    def _set(self, sentence: int, text: str) -> None:
        self.newest[sentence] = text
        self.changed.set()

    def take(self) -> dict[int, str]:
        """Return what has changed since the last call."""
        newest, self.newest = self.newest, {}
        self.changed.clear()
        return newest


async def stream_events(
    model: str,
    submitted: SubmittedTexts,
    partial: PartialTranslations,
    parts: Sequence[str],
    deadline: float,
) -> AsyncGenerator[str, None]:
    """Yield partial texts, each sentence in order as soon as it is done, then the whole texts."""
    # the text and the sentence in it, by the number of the sentence among all
    positions = [
        {"text_number": text, "sentence_number": sentence}
        for text, layout in enumerate(submitted.layouts)
        for sentence in range(len(layout.sentences))
    ]
    done: list[Translation] = []
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            async for number, news in _progress(submitted, partial):
                if isinstance(news, str):
                    yield format_event("partial", positions[number] | {"text": news})
                else:
                    done.append(news)
                    content = positions[number] | sentence_json(news, parts)
                    yield format_event("sentence", content)
        texts = [text for text, _ in submitted.join(done)]
        yield format_event("done", {"model": model, "texts": texts})
    except TimeoutError:
        yield format_event("error", {"error": "not done in time; send less at once"})
    except (UserError, WorkerDiedError) as error:
        yield format_event("error", {"error": str(error)})
    finally:
        for future in submitted.futures:
            future.cancel()


async def _progress(
    submitted: SubmittedTexts, partial: PartialTranslations
) -> AsyncIterator[tuple[int, str | Translation]]:
    """Yield the number of a sentence with its text so far, or with its translation, in order."""
    futures = [asyncio.wrap_future(future) for future in submitted.futures]
    for future in futures:
        # the first failure ends the stream; asyncio would complain that nobody asks for the others
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
    for number, future in enumerate(futures):
        while not future.done():
            changed = asyncio.ensure_future(partial.changed.wait())
            try:
                await asyncio.wait((future, changed), return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
            for sentence, text in partial.take().items():
                if not futures[sentence].done():
                    yield sentence, text
        yield number, future.result()


def format_event(name: str, content: dict[str, Any]) -> str:
    """Format a server-sent event."""
    return f"event: {name}\ndata: {json.dumps(content, ensure_ascii=False)}\n\n"
