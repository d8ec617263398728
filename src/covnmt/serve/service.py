"""What the routes share: limits, queued texts, and results, as a whole or as a stream of events."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import Response

from covnmt.base.config import DecodeConfig
from covnmt.base.errors import UserError
from covnmt.inference.domain import DomainStatistics
from covnmt.inference.translate import Translation, override_decoding
from covnmt.serve.background_threads import BackgroundThreads
from covnmt.serve.monitoring import (
    CLIENT_CLOSED_REQUEST,
    UNEXPECTED,
    add_log_fields,
    add_translated,
    client_address,
    logger,
)
from covnmt.serve.request_queue import ClosedError, QueueFullError
from covnmt.serve.schemas import sentence_json
from covnmt.serve.security import RequestRefusedError
from covnmt.serve.served_model import ServedModel
from covnmt.serve.settings import ApiKey, ServeSettings
from covnmt.serve.warnings import find_warnings
from covnmt.serve.work import ProgressCallback, R, TranslateWork, Work
from covnmt.serve.worker_process import WorkerDiedError
from covnmt.text.sentences import SplitText, split_into_sentences

T = TypeVar("T")

FAILURES: dict[type[Exception], tuple[int, Callable[[Exception], str]]] = {
    UserError: (422, str),
    RequestRefusedError: (400, str),  # each has a status of its own
    QueueFullError: (429, str),
    ClosedError: (503, lambda error: "the server is stopping"),
    WorkerDiedError: (503, lambda error: f"{error}; try again, or send less at once"),
}
BYTES_PER_TOKEN = 4  # at least, in Japanese as in English
MANY_CHARACTERS = 20_000  # are split into sentences in another thread
ALIGNMENT_WEIGHT = 10  # a cell written as JSON, compared with one that is only held in memory


@dataclass(frozen=True)
class SubmittedTexts:
    """Texts whose sentences are being translated."""

    layouts: list[SplitText]
    futures: "list[Future[Translation]]"
    domain: DomainStatistics | None = None  # what the model was trained on

    def join(self, translations: Sequence[Translation]) -> list[tuple[str, list[Translation]]]:
        """Return every text put together again, and the translations of its sentences."""
        rest = iter(translations)
        texts = []
        for layout in self.layouts:
            sentences = [next(rest) for _ in layout.sentences]
            texts.append((layout.join([sentence.text for sentence in sentences]), sentences))
        return texts


class TranslationService:
    """The served models, and what a request may ask of them."""

    def __init__(self, models: dict[str, ServedModel], settings: ServeSettings) -> None:
        self.models, self.settings = models, settings
        self.background = BackgroundThreads()

    def model(self, name: str | None) -> ServedModel:
        """Return the model of this name, by default the first; clients cannot open others."""
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            names = ", ".join(self.models)
            raise RequestRefusedError(404, f"no model of that name; there are: {names}")
        return self.models[name]

    async def submit_texts(
        self,
        request: Request,
        model: ServedModel,
        texts: str | Sequence[str],
        beam: int | None = None,
        nbest: int | None = None,
        on_partial: ProgressCallback | None = None,
        parts: Sequence[str] = (),
    ) -> SubmittedTexts:
        """Split one text or several into sentences and queue these for translation.

        `parts` are those of the answer, whose size is bounded; with `remarks` the
        translations are checked for omissions too.
        """
        texts = [texts] if isinstance(texts, str) else texts
        decode = self.decoding(model, beam, nbest)
        layouts = await self._split(request, texts)
        self.check_size(request, model, sum(len(layout.sentences) for layout in layouts))
        sentences = [sentence for layout in layouts for sentence in layout.sentences]
        self.check_cells(model, sentences, decode.nbest, parts)
        work, prefixes = [], []
        for text_prefix, layout in zip(numbered_prefixes("text", len(texts)), layouts, strict=True):
            sentence_prefixes = numbered_prefixes("sentence", len(layout.sentences))
            prefixes += [text_prefix + prefix for prefix in sentence_prefixes]
            work += [
                TranslateWork((sentence,), decode, "remarks" in parts)
                for sentence in layout.sentences
            ]
        futures = self.submit(request, model, work, prefixes, on_partial)
        self.log_text(request, texts)
        return SubmittedTexts(layouts, futures, model.properties.domain)

    async def _split(self, request: Request, texts: Sequence[str]) -> list[SplitText]:
        """Split texts into sentences, in another thread if that takes a while."""
        if sum(map(len, texts)) <= MANY_CHARACTERS:
            return split_texts(texts)
        splitting = self.background.run(client_name(request), split_texts, texts)
        return await self.finish(request, None, splitting)

    def submit(
        self,
        request: Request,
        model: ServedModel,
        work: Sequence[Work[R]],
        prefixes: Sequence[str],
        on_partial: ProgressCallback | None = None,
    ) -> "list[Future[R]]":
        """Queue work of a request, in its turn; messages about it begin with the prefixes."""
        identity = request.scope.get("covnmt_request_id")
        return model.submit(work, prefixes, on_partial, client_name(request), identity)

    def decoding(
        self, model: ServedModel, beam: int | None = None, nbest: int | None = None
    ) -> DecodeConfig:
        """Return the settings of a search; refuse a beam that is too wide for this server."""
        if (beam or 1) > self.settings.max_beam:
            raise UserError(f"beam may be {self.settings.max_beam} at most on this server")
        return override_decoding(model.decode, {"beam": beam, "nbest": nbest})

    def log_text(self, request: Request, texts: Sequence[str]) -> None:
        """Log what is translated, if that is wanted."""
        if self.settings.log_text:
            earlier = request.scope.get("covnmt", {}).get("text", [])
            add_log_fields(request.scope, text=[*earlier, *texts])

    def check_size(self, request: Request, model: ServedModel, sentences: int) -> None:
        """Refuse more sentences than a request may have; log the model and their number.

        Several calls for one request are logged together.
        """
        key: ApiKey | None = request.scope.get("covnmt_api_key")
        limit = (key and key.max_sentences) or self.settings.max_sentences
        limit = min(limit, self.settings.queue)
        if sentences > limit:
            message = f"{sentences:,} sentences; send {limit} at most in one request"
            raise RequestRefusedError(413, message)
        add_translated(request.scope, model.spec.name, sentences)

    def check_cells(
        self, model: ServedModel, sentences: Sequence[str], nbest: int, parts: Sequence[str]
    ) -> None:
        """Refuse what would make an answer of tens of megabytes, or take as much memory."""
        sizes = (len(sentence.encode()) // BYTES_PER_TOKEN for sentence in sentences)
        cells = nbest * sum(min(size, model.decode.max_source) ** 2 for size in sizes)
        weight = ALIGNMENT_WEIGHT if "alignment" in parts else 1
        if weight * cells > self.settings.max_cells:
            remedy = "ask for fewer nbest, send less at once, or leave alignment out of return"
            raise RequestRefusedError(413, f"the answer would be too large; {remedy}")

    def time_limit(self, requested: float | None) -> float:
        """Return the seconds that a request may take."""
        return min(requested or self.settings.timeout, self.settings.timeout)

    async def finish(
        self, request: Request, timeout: float | None, results: Coroutine[Any, Any, T]
    ) -> T:
        """Wait for results; they are cancelled when time is up or the client disconnected.

        What a request waits for one after the other shares its time.
        """
        seconds = self.time_limit(timeout)
        deadline = request.scope.setdefault("covnmt_deadline", time.monotonic() + seconds)
        work = asyncio.ensure_future(results)
        disconnected = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait(
                {work, disconnected},
                timeout=max(0.0, deadline - time.monotonic()),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if work.done():
                return work.result()
            if disconnected.done():
                raise RequestRefusedError(CLIENT_CLOSED_REQUEST, "the client disconnected")
            message = f"not done within {seconds:g} s; send less at once"
            raise RequestRefusedError(408, message)
        finally:
            work.cancel()
            disconnected.cancel()


def split_texts(texts: Sequence[str]) -> list[SplitText]:
    """Split every text into sentences."""
    return [split_into_sentences(text) for text in texts]


def client_name(request: Request) -> str:
    """Return whose turn a request takes: the name of its key, or else its address."""
    key: ApiKey | None = request.scope.get("covnmt_api_key")
    return key.name if key and key.name else client_address(request.scope)


def numbered_prefixes(noun: str, count: int) -> list[str]:
    """Return `noun 1: `, `noun 2: `, ...: beginnings of messages; a single thing has no number."""
    return [f"{noun} {n}: " for n in range(1, count + 1)] if count > 1 else [""] * count


async def gather_futures(futures: "Sequence[Future[T]]") -> list[T]:
    """Wait for all; the first failure, or being cancelled, cancels the others."""
    try:
        return list(await asyncio.gather(*map(asyncio.wrap_future, futures)))
    except BaseException:
        for future in futures:
            future.cancel()
        raise


async def run_one_by_one(
    submit: "Callable[[Sequence[Work[R]], Sequence[str]], list[Future[R]]]",
    work: Sequence[Work[R]],
    prefixes: Sequence[str],
) -> list[R]:
    """Submit work when the work before it is done, so that others have their turn between."""
    return [
        result
        for entry, prefix in zip(work, prefixes, strict=True)
        for result in await gather_futures(submit([entry], [prefix]))
    ]


async def _disconnected(request: Request) -> None:
    """Return when the client hangs up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


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


async def translate_response(
    model: ServedModel, texts: Sequence[tuple[str, list[Translation]]], parts: Sequence[str]
) -> Response:
    """Write the answer in a thread, hypothesis by hypothesis: others are answered meanwhile."""

    def encode() -> bytes:
        rows = []
        for text, translations in texts:
            sentences = ",".join(encode_sentence(sentence, parts) for sentence in translations)
            rows.append(f'{{"text":{to_json(text)},"sentences":[{sentences}]}}')
        name, done = model.spec.name, [sentence for _, each in texts for sentence in each]
        warnings = to_json(find_warnings(name, model.properties.domain, done))
        content = f'"model":{to_json(name)},"translations":[{",".join(rows)}],"warnings":{warnings}'
        return f"{{{content}}}".encode()

    return Response(await asyncio.to_thread(encode), media_type="application/json")


def encode_sentence(sentence: Translation, parts: Sequence[str]) -> str:
    """Return what `sentence_json` does as JSON, in steps of one hypothesis each."""
    content = to_json(sentence_json(replace(sentence, alternatives=()), parts))
    if not sentence.alternatives:
        return content
    others = ",".join(encode_sentence(other, parts) for other in sentence.alternatives)
    return f'{content[:-1]},"nbest":[{others}]}}'


def to_json(content: Any) -> str:
    """Return compact JSON."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


async def stream_events(
    model: str,
    submitted: SubmittedTexts,
    partial: PartialTranslations,
    parts: Sequence[str],
    deadline: float,
) -> AsyncGenerator[str, None]:
    """Yield partial texts, each sentence in order as soon as it is done, then the whole texts.

    A client that reads slowly gets the last event too: its time counts only while it waits for
    events, and is compared with the deadline when it has read one.
    """
    # the text and the sentence in it, by the number of the sentence among all
    positions = [
        {"text_number": text, "sentence_number": sentence}
        for text, layout in enumerate(submitted.layouts)
        for sentence in range(len(layout.sentences))
    ]
    done: list[Translation] = []
    try:
        async for number, news in _progress(submitted, partial, deadline):
            if isinstance(news, str):
                yield format_event("partial", positions[number] | {"text": news})
            else:
                done.append(news)
                content = positions[number] | sentence_json(news, parts)
                yield await asyncio.to_thread(format_event, "sentence", content)
        texts = [text for text, _ in submitted.join(done)]
        warnings = find_warnings(model, submitted.domain, done)
        content = {"model": model, "texts": texts, "warnings": warnings}
        yield format_event("done", content)
    except Exception as error:
        status, message = describe_failure(error)
        if status == 500:
            logger.exception("a stream failed")
        yield format_event("error", {"status": status, "error": message})
    finally:
        for future in submitted.futures:
            future.cancel()


async def _progress(
    submitted: SubmittedTexts, partial: PartialTranslations, deadline: float
) -> AsyncIterator[tuple[int, str | Translation]]:
    """Yield the number of a sentence with its text so far, or with its translation, in order.

    Refuse the request at the deadline.
    """
    futures = [asyncio.wrap_future(future) for future in submitted.futures]
    for future in futures:
        # the first failure ends the stream; asyncio would complain that nobody asks for the others
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
    for number, future in enumerate(futures):
        while not future.done():
            if (seconds := deadline - time.monotonic()) <= 0:
                raise RequestRefusedError(408, "not done in time; send less at once")
            changed = asyncio.ensure_future(partial.changed.wait())
            try:
                await asyncio.wait(
                    (future, changed), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                changed.cancel()
            for sentence, text in partial.take().items():
                if not futures[sentence].done():
                    yield sentence, text
        yield number, future.result()


def describe_failure(error: Exception) -> tuple[int, str]:
    """Return the status of the answer to a request that failed so, and what it says."""
    for kind, (status, describe) in FAILURES.items():
        if isinstance(error, kind):
            return getattr(error, "status_code", status), describe(error)
    return 500, UNEXPECTED


def format_event(name: str, content: dict[str, Any]) -> str:
    """Format a server-sent event."""
    return f"event: {name}\ndata: {json.dumps(content, ensure_ascii=False)}\n\n"
