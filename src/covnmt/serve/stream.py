"""Translations as server-sent events, from the first words on."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from covnmt.base.errors import UserError
from covnmt.inference.translate import Translation
from covnmt.serve.responses import SubmittedTexts, sentence_json
from covnmt.serve.worker import WorkerDiedError


class PartialTranslations:
    """The newest words of every sentence: told by threads, taken by the event loop.

    Whoever reads slowly misses steps in between, but never the newest.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.newest: dict[int, str] = {}
        self.some = asyncio.Event()

    def tell(self, sentence: int, text: str) -> None:
        """From any thread."""
        self.loop.call_soon_threadsafe(self._note, sentence, text)

    def _note(self, sentence: int, text: str) -> None:
        self.newest[sentence] = text
        self.some.set()

    def take(self) -> dict[int, str]:
        """What came since the last time."""
        newest, self.newest = self.newest, {}
        self.some.clear()
        return newest


async def stream_events(
    model: str,
    accepted: SubmittedTexts,
    news: PartialTranslations,
    parts: Sequence[str],
    deadline: float,
) -> AsyncGenerator[str, None]:
    """Sentences in order, each as soon as it is done, and words before that; then the texts."""
    done: list[Translation] = []
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            async for name, number, content in _progress(accepted, news):
                if name == "sentence":
                    done.append(content)
                    content = sentence_json(content, parts)
                yield format_event(name, _place(accepted, number) | content)
        texts = [text for text, _ in accepted.joined(done)]
        yield format_event("done", {"model": model, "texts": texts})
    except TimeoutError:
        yield format_event("error", {"error": "not done in time; send less at once"})
    except (UserError, WorkerDiedError) as error:
        yield format_event("error", {"error": str(error)})
    finally:
        for future in accepted.futures:
            future.cancel()


async def _progress(
    accepted: SubmittedTexts, news: PartialTranslations
) -> AsyncIterator[tuple[str, int, Any]]:
    """`partial` with the text of a sentence that is not done, `sentence` with one that is."""
    futures = [asyncio.wrap_future(future) for future in accepted.futures]
    for future in futures:
        # the first failure ends the stream; asyncio would complain that nobody asks for the others
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
    for number, future in enumerate(futures):
        while not future.done():
            some = asyncio.ensure_future(news.some.wait())
            try:
                await asyncio.wait((future, some), return_when=asyncio.FIRST_COMPLETED)
            finally:
                some.cancel()
            for sentence, text in news.take().items():
                if not futures[sentence].done():
                    yield "partial", sentence, {"text": text}
        yield "sentence", number, future.result()


def _place(accepted: SubmittedTexts, number: int) -> dict[str, int]:
    places = [(t, s) for t, x in enumerate(accepted.layouts) for s in range(len(x.sentences))]
    return dict(zip(("text_number", "sentence_number"), places[number], strict=True))


def format_event(name: str, content: dict[str, Any]) -> str:
    """A server-sent event."""
    return f"event: {name}\ndata: {json.dumps(content, ensure_ascii=False)}\n\n"
