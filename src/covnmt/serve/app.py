"""The server as an ASGI application: routes, middleware, error handlers, OpenAPI document."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
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
from covnmt.serve.model_pool import ModelSpec, ServedModel
from covnmt.serve.prometheus import ServerMetrics
from covnmt.serve.schemas import first_error_message
from covnmt.serve.security import RequestRefusedError, SecurityMiddleware
from covnmt.serve.service import TranslationService
from covnmt.serve.settings import ServeSettings
from covnmt.serve.worker import WorkerDiedError

# Starlette and FastAPI raise these themselves, with messages that do not help.
MESSAGES = {
    400: "the body is not JSON in UTF-8",
    404: "nothing can be asked for here in this way; see /openapi.json",
    405: "nothing can be asked for here in this way; see /openapi.json",
}
DOCUMENT = "/openapi.json"
PAGE = Path(__file__).parent / "page"


def create_app(
    models: dict[str, ServedModel], settings: ServeSettings, metrics: ServerMetrics
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
    document = _build_document(app, [model.spec for model in models.values()], settings)
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


def _add_probes(app: FastAPI, models: dict[str, ServedModel], metrics: ServerMetrics) -> None:
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
        for name, model in models.items():
            metrics.waiting.labels(name).set(len(model.queue.waiting))
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _add_document(app: FastAPI, document: dict[str, Any]) -> None:
    @app.get(DOCUMENT, include_in_schema=False)
    async def openapi() -> Response:
        return JSONResponse(document)


def _allow_head(app: FastAPI) -> None:
    """Let monitors probe by HEAD; the document, made before, need not say so."""
    for route in app.routes:
        if isinstance(route, APIRoute) and route.methods == {"GET"}:
            route.methods = {"GET", "HEAD"}


def _build_document(
    app: FastAPI, specs: Sequence[ModelSpec], settings: ServeSettings
) -> dict[str, Any]:
    """Build the OpenAPI document with the models, languages and limits of this server."""
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas = document["components"]["schemas"]
    names = [spec.name for spec in specs]
    for kind in ("TranslateRequest", "AlignRequest", "CheckRequest"):
        properties = schemas[kind]["properties"]
        properties["model"] |= {"enum": [*names, None], "examples": names}
    beam = schemas["TranslateRequest"]["properties"]["beam"]["anyOf"][0]
    beam["maximum"] = min(beam["maximum"], settings.max_beam)
    sources = list(dict.fromkeys(["auto", *(spec.source for spec in specs)]))
    targets = list(dict.fromkeys(spec.target for spec in specs))
    example = {"q": "ze muye piro sire tuye", "source": specs[0].source, "target": specs[0].target}
    contents = document["paths"]["/translate"]["post"]["requestBody"]["content"]
    for content in contents.values():
        schema = content["schema"]
        properties = schema["properties"] | {
            "source": schema["properties"]["source"] | {"enum": sources},
            "target": schema["properties"]["target"] | {"enum": targets},
        }
        content["schema"] = schema | {"properties": properties, "examples": [example]}
    return document


def _add_error_handlers(app: FastAPI) -> None:
    """Answer every failure by `{"error": "..."}`, which repeats nothing that the client sent
    except the beginning of a sentence that is too long."""

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
    answer(Exception, 500, lambda error: "something failed here; see the server's log")
    answer(HTTPException, 400, _http_message)
    answer(RequestValidationError, 422, _validation_message)


def _http_message(error: Exception) -> str:
    assert isinstance(error, HTTPException)
    return MESSAGES.get(error.status_code, error.detail)


def _validation_message(error: Exception) -> str:
    assert isinstance(error, RequestValidationError)
    return first_error_message(error.errors())
