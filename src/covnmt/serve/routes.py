"""The routes under /v1: translate, the same as a stream of events, align, check, models."""

import asyncio
import time
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from covnmt.base.errors import UserError
from covnmt.inference.terms import Terms
from covnmt.serve.documents import translate_documents
from covnmt.serve.schemas import (
    AlignRequest,
    AlignResponse,
    CheckRequest,
    CheckResponse,
    Failure,
    ModelsResponse,
    TranslateRequest,
    TranslateResponse,
    alignment_json,
    document_json,
    model_json,
)
from covnmt.serve.service import (
    PartialTranslations,
    TranslationService,
    gather_futures,
    numbered_prefixes,
    run_one_by_one,
    stream_events,
    to_json,
    translate_response,
)
from covnmt.serve.work import AlignWork, CheckWork

STREAM_HEADERS = {"X-Accel-Buffering": "no"}  # nginx would keep events until it has 4 KiB of them
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"model": Failure, "description": "not JSON, or not UTF-8"},
    401: {"model": Failure, "description": "no API key, or a wrong one"},
    403: {"model": Failure, "description": "called by the page of another site"},
    404: {"model": Failure, "description": "no such model"},
    408: {"model": Failure, "description": "not done in time"},
    413: {"model": Failure, "description": "too large"},
    421: {"model": Failure, "description": "not a name of this server; see --allow-host"},
    422: {"model": Failure, "description": "does not fit the schema, or cannot be translated"},
    429: {"model": Failure, "description": "too many requests; see Retry-After"},
    500: {"model": Failure, "description": "something failed; the log has more"},
    503: {"model": Failure, "description": "stopping, or a process died; try again"},
}


def required_terms(body: TranslateRequest) -> Terms:
    """Return the terms of a request; those without a translation stay as they are."""
    return Terms({source: target or source for source, target in body.terms.items()})


def build_api_router(service: TranslationService) -> APIRouter:
    """Build the routes of these models."""
    router = APIRouter(prefix="/v1", responses=ERROR_RESPONSES)

    @router.post("/translate", response_model=TranslateResponse)
    async def translate(body: TranslateRequest, request: Request) -> Response:
        """Translate one text or several."""
        model = service.model(body.model)
        if body.is_document:
            body.refuse_sentence_options()
            sources = [body.text] if isinstance(body.text, str) else body.text
            translating = translate_documents(
                service, request, model, sources, body.format, required_terms(body), body.beam
            )
            with_terms = bool(body.terms)
            documents, warnings = await service.finish(request, body.timeout, translating)
            translations = [document_json(document, with_terms) for document in documents]
            content = {"model": model.spec.name, "translations": translations}
            return JSONResponse(content | {"warnings": warnings})
        submitted = await service.submit_texts(
            request, model, body.text, body.beam, body.nbest, parts=body.parts
        )
        done = await service.finish(request, body.timeout, gather_futures(submitted.futures))
        return await translate_response(model, submitted.join(done), body.parts)

    @router.post(
        "/translate/stream",
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {}}, "description": "events"}},
    )
    async def stream(body: TranslateRequest, request: Request) -> Response:
        """The same as a stream of events: `partial`, `sentence`, at the end `done` or `error`."""
        if body.is_document:
            raise UserError("a stream works only with format=text and without terms")
        model = service.model(body.model)
        texts_so_far = PartialTranslations(asyncio.get_running_loop())
        submitted = await service.submit_texts(
            request, model, body.text, body.beam, body.nbest, texts_so_far.update, body.parts
        )
        deadline = time.monotonic() + service.time_limit(body.timeout)
        events = stream_events(model.spec.name, submitted, texts_so_far, body.parts, deadline)
        return StreamingResponse(events, media_type="text/event-stream", headers=STREAM_HEADERS)

    @router.post("/align", response_model=AlignResponse)
    async def align(body: AlignRequest, request: Request) -> Response:
        """Align given translations by forced decoding."""
        model = service.model(body.model)
        service.check_size(request, model, len(body.pairs))
        service.check_cells(model, [pair.source for pair in body.pairs], 1, ["alignment"])
        work = [AlignWork((pair.source, pair.target), body.tokenized) for pair in body.pairs]
        futures = service.submit(request, model, work, numbered_prefixes("pair", len(work)))
        done = await service.finish(request, body.timeout, gather_futures(futures))
        rows = await asyncio.to_thread(
            lambda: ",".join(to_json(alignment_json(alignment)) for alignment in done)
        )
        content = f'{{"model":{to_json(model.spec.name)},"alignments":[{rows}]}}'
        return Response(content, media_type="application/json")

    @router.post("/check", response_model=CheckResponse)
    async def check(body: CheckRequest, request: Request) -> Response:
        """Find source words that given translations probably leave out."""
        model = service.model(body.model)
        service.check_size(request, model, len(body.pairs))
        work = [CheckWork((pair.source, pair.target)) for pair in body.pairs]
        prefixes = numbered_prefixes("pair", len(work))
        reports = run_one_by_one(partial(service.submit, request, model), work, prefixes)
        done = await service.finish(request, body.timeout, reports)
        return JSONResponse(
            {"model": model.spec.name, "checks": [report.to_json() for report in done]}
        )

    @router.get("/models", response_model=ModelsResponse)
    async def models() -> Response:
        """The models that requests can name, the default first."""
        return JSONResponse({"models": [model_json(model) for model in service.models.values()]})

    return router
