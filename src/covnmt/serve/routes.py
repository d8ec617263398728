"""The routes under /v1: translate, the same as a stream of events, align, check, models."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from covnmt.base.errors import UserError
from covnmt.inference.translate import override_decoding
from covnmt.serve.access_log import CLIENT_CLOSED_REQUEST, add_log_fields
from covnmt.serve.model_pool import ServedModel, message_prefixes
from covnmt.serve.model_runner import ProgressCallback, TextPair
from covnmt.serve.responses import SubmittedTexts, alignment_json, model_json, sentence_json
from covnmt.serve.schemas import (
    AlignRequest,
    AlignResponse,
    CheckRequest,
    CheckResponse,
    Failure,
    ModelsResponse,
    TranslateRequest,
    TranslateResponse,
)
from covnmt.serve.security import RequestRefusedError
from covnmt.serve.settings import ServeSettings
from covnmt.serve.stream import PartialTranslations, stream_events
from covnmt.text.sentences import split_into_sentences

P = TypeVar("P")
T = TypeVar("T")

STREAM_HEADERS = {"X-Accel-Buffering": "no"}  # nginx would keep events until it has 4 KiB of them
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"model": Failure, "description": "not JSON, or not UTF-8"},
    401: {"model": Failure, "description": "no API key, or a wrong one"},
    404: {"model": Failure, "description": "no such model"},
    408: {"model": Failure, "description": "not done in time"},
    413: {"model": Failure, "description": "too large"},
    422: {"model": Failure, "description": "does not fit the schema, or cannot be translated"},
    429: {"model": Failure, "description": "too many requests; see Retry-After"},
}


class TranslationService:
    """What the routes share: the models and the limits."""

    def __init__(self, engines: dict[str, ServedModel], settings: ServeSettings) -> None:
        self.engines, self.settings = engines, settings

    def engine(self, name: str | None) -> ServedModel:
        """The model of this name; only names given at the start of the server are known."""
        if name is None:
            return next(iter(self.engines.values()))
        if name not in self.engines:
            known = ", ".join(self.engines)
            raise RequestRefusedError(404, f"no model of that name; there are: {known}")
        return self.engines[name]

    def submit(
        self,
        request: Request,
        engine: ServedModel,
        texts: Sequence[str],
        beam: int | None = None,
        nbest: int | None = None,
        tell: ProgressCallback | None = None,
    ) -> SubmittedTexts:
        """Split texts into sentences, queue these, and note it in the journal."""
        if (beam or 1) > self.settings.max_beam:
            raise UserError(f"beam may be {self.settings.max_beam} at most on this server")
        layouts = [split_into_sentences(text) for text in texts]
        sentences = [sentence for layout in layouts for sentence in layout.sentences]
        self.check_count(len(sentences))
        decode = override_decoding(engine.decode, {"beam": beam, "nbest": nbest})
        names = [
            text + sentence
            for text, layout in zip(message_prefixes("text", len(layouts)), layouts, strict=True)
            for sentence in message_prefixes("sentence", len(layout.sentences))
        ]
        accepted = SubmittedTexts(layouts, engine.translate(sentences, names, decode, tell))
        add_log_fields(request.scope, model=engine.spec.name, sentences=len(sentences))
        if self.settings.log_text:
            add_log_fields(request.scope, text=texts)
        return accepted

    def check_count(self, sentences: int) -> None:
        """Refuse more sentences than a request may have."""
        most = min(self.settings.max_sentences, self.settings.queue)
        if sentences > most:
            raise RequestRefusedError(
                413, f"{sentences:,} sentences; send {most} at most in one request"
            )

    def seconds(self, asked: float | None) -> float:
        """How long a request may take."""
        return min(asked or self.settings.timeout, self.settings.timeout)

    async def finish(
        self, request: Request, timeout: float | None, work: Coroutine[Any, Any, T]
    ) -> T:
        """Do the work; it is cancelled when time is up or the client has gone."""
        seconds = self.seconds(timeout)
        try:
            async with asyncio.timeout(seconds):
                return await run_while_connected(request, work)
        except TimeoutError:
            raise RequestRefusedError(
                408, f"not done within {seconds:g} s; send less at once"
            ) from None


async def gather_futures(futures: "Sequence[Future[T]]") -> list[T]:
    """Wait for all; the first failure, or being cancelled, cancels what is left."""
    try:
        return list(await asyncio.gather(*map(asyncio.wrap_future, futures)))
    except BaseException:
        for future in futures:
            future.cancel()
        raise


async def submit_one_by_one(submit: "Callable[[P], Future[T]]", payloads: Sequence[P]) -> list[T]:
    """Queue each when the one before it is done, so that others have their turn in between."""
    return [done for payload in payloads for done in await gather_futures([submit(payload)])]


async def run_while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do the work, or drop it as soon as the client hangs up."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RequestRefusedError(CLIENT_CLOSED_REQUEST, "the client has gone")
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def build_router(desk: TranslationService) -> APIRouter:
    """The routes, bound to these models."""
    router = APIRouter(prefix="/v1", responses=ERROR_RESPONSES)

    def accept(
        body: TranslateRequest, request: Request, tell: ProgressCallback | None = None
    ) -> tuple[ServedModel, SubmittedTexts]:
        engine = desk.engine(body.model)
        texts = [body.text] if isinstance(body.text, str) else body.text
        return engine, desk.submit(request, engine, texts, body.beam, body.nbest, tell)

    @router.post("/translate", response_model=TranslateResponse)
    async def translate(body: TranslateRequest, request: Request) -> Response:
        """Translate one text or several."""
        engine, accepted = accept(body, request)
        done = await desk.finish(request, body.timeout, gather_futures(accepted.futures))
        texts = [
            {"text": text, "sentences": [sentence_json(each, body.parts) for each in sentences]}
            for text, sentences in accepted.joined(done)
        ]
        return JSONResponse({"model": engine.spec.name, "translations": texts})

    @router.post(
        "/translate/stream",
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {}}, "description": "events"}},
    )
    async def stream(body: TranslateRequest, request: Request) -> Response:
        """The same while it comes: events `partial`, `sentence`, at last `done` or `error`."""
        news = PartialTranslations(asyncio.get_running_loop())
        engine, accepted = accept(body, request, news.tell)
        deadline = time.monotonic() + desk.seconds(body.timeout)
        events = stream_events(engine.spec.name, accepted, news, body.parts, deadline)
        return StreamingResponse(events, media_type="text/event-stream", headers=STREAM_HEADERS)

    @router.get("/models", response_model=ModelsResponse)
    async def models() -> Response:
        """The models that can be asked for, the default first."""
        rows = [model_json(engine) for engine in desk.engines.values()]
        return JSONResponse({"models": rows})

    add_pair_routes(router, desk)
    return router


def add_pair_routes(router: APIRouter, desk: TranslationService) -> None:
    """Those that are given a translation too."""

    def accept(
        body: AlignRequest | CheckRequest, request: Request
    ) -> tuple[ServedModel, list[TextPair]]:
        engine = desk.engine(body.model)
        desk.check_count(len(body.pairs))
        add_log_fields(request.scope, model=engine.spec.name, sentences=len(body.pairs))
        return engine, [(pair.source, pair.target) for pair in body.pairs]

    @router.post("/align", response_model=AlignResponse)
    async def align(body: AlignRequest, request: Request) -> Response:
        """Where does the model look while it says a given translation?"""
        engine, pairs = accept(body, request)
        futures = engine.align(pairs, body.tokenized)
        done = await desk.finish(request, body.timeout, gather_futures(futures))
        rows = [alignment_json(each) for each in done]
        return JSONResponse({"model": engine.spec.name, "alignments": rows})

    @router.post("/check", response_model=CheckResponse)
    async def check(body: CheckRequest, request: Request) -> Response:
        """Which source words does a given translation, by whomever, probably leave out?"""
        engine, pairs = accept(body, request)
        named = list(zip(pairs, message_prefixes("pair", len(pairs)), strict=True))
        work = submit_one_by_one(lambda each: engine.check(*each), named)
        done = await desk.finish(request, body.timeout, work)
        rows = [each.to_json() for each in done]
        return JSONResponse({"model": engine.spec.name, "checks": rows})
