"""The server as an ASGI application: routes, limits, errors, start and stop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles

from covnmt import __version__
from covnmt.base.errors import UserError
from covnmt.serve import libretranslate, routes
from covnmt.serve.access_log import CLIENT_CLOSED_REQUEST, AccessLogMiddleware
from covnmt.serve.batching import ClosedError, QueueFullError
from covnmt.serve.model_pool import ServedModel
from covnmt.serve.openapi import build_openapi_document
from covnmt.serve.prometheus import Metrics
from covnmt.serve.schemas import first_problem
from covnmt.serve.security import RequestRefusedError, SecurityMiddleware
from covnmt.serve.service import TranslationService
from covnmt.serve.settings import ServeSettings
from covnmt.serve.worker import WorkerDiedError

# what FastAPI and Starlette say, and what helps
DETAILS = {
    "There was an error parsing the body": "the body is not JSON in UTF-8",
    "Not Found": "nothing can be asked for here in this way; see /openapi.json",
    "Method Not Allowed": "nothing can be asked for here in this way; see /openapi.json",
}
DOCUMENT = "/openapi.json"
PAGE = Path(__file__).parent / "page"


def create_app(
    models: dict[str, ServedModel], settings: ServeSettings, metrics: Metrics
) -> FastAPI:
    """Build the application for these models, which it closes when it ends."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        for model in models.values():
            await asyncio.to_thread(model.close)

    # FastAPI's own document knows no models, and its pages load scripts from elsewhere
    app = FastAPI(title="covnmt", version=__version__, openapi_url=None, lifespan=lifespan)
    service = TranslationService(models, settings)
    app.include_router(routes.build_router(service))
    app.include_router(libretranslate.build_router(service))
    _add_probes(app, models, metrics)
    document = build_openapi_document(app, [model.spec for model in models.values()], settings)
    _add_document(app, document)
    _allow_head(app)
    app.mount("/", StaticFiles(directory=PAGE, html=True))
    _add_error_handlers(app)
    if settings.allow_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allow_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["content-type", "authorization", "x-api-key"],
        )
    app.add_middleware(SecurityMiddleware, settings=settings)
    app.add_middleware(AccessLogMiddleware, metrics=metrics, paths={*document["paths"], DOCUMENT})
    return app


def _add_probes(app: FastAPI, models: dict[str, ServedModel], metrics: Metrics) -> None:
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Is the server alive?"""
        return {"status": "alive"}

    @app.get("/readyz", responses={503: {"description": "a model is being opened again"}})
    async def readyz() -> Response:
        """Can it translate at once?"""
        ready = all(model.ready() for model in models.values())
        return JSONResponse({"status": "ready" if ready else "opening"}, 200 if ready else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def show_metrics() -> Response:
        """Counts and times for Prometheus."""
        waiting = {name: len(model.queue.waiting) for name, model in models.items()}
        return Response(metrics.text(waiting), media_type="text/plain; version=0.0.4")


def _add_document(app: FastAPI, document: dict[str, Any]) -> None:
    @app.get(DOCUMENT, include_in_schema=False)
    async def openapi() -> Response:
        return JSONResponse(document)


def _allow_head(app: FastAPI) -> None:
    """Let monitors probe by HEAD; the document, made before, need not say so."""
    for route in app.routes:
        if isinstance(route, APIRoute) and route.methods == {"GET"}:
            route.methods = {"GET", "HEAD"}


def _add_error_handlers(app: FastAPI) -> None:
    """Every failure is `{"error": "..."}`, and none repeats what it was sent, but for
    the beginning of a sentence that is too long."""

    def answer(kind: type[Exception], status: int, message: Callable[[Exception], str]) -> None:
        async def handle(request: Request, error: Exception) -> Response:
            headers = getattr(error, "headers", None)
            if isinstance(error, QueueFullError):
                headers = {"Retry-After": str(error.retry_after)}
            code = getattr(error, "status_code", status)
            return JSONResponse({"error": message(error)}, int(code), headers)

        app.add_exception_handler(kind, handle)

    answer(UserError, 422, str)
    answer(RequestRefusedError, 400, str)
    answer(QueueFullError, 429, str)
    answer(ClosedError, 503, lambda error: "the server is stopping")
    answer(WorkerDiedError, 503, lambda error: f"{error}; try again, or send less at once")
    answer(ClientDisconnect, CLIENT_CLOSED_REQUEST, lambda error: "the client has gone")
    answer(Exception, 500, lambda error: "something failed here; the server's log tells what")
    answer(HTTPException, 400, _detail)
    answer(RequestValidationError, 422, _problem)


def _detail(error: Exception) -> str:
    detail = str(getattr(error, "detail", error))
    return DETAILS.get(detail, detail)


def _problem(error: Exception) -> str:
    assert isinstance(error, RequestValidationError)
    return first_problem(error.errors())
