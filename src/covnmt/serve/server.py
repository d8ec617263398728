"""The server: its application of routes, middleware and error handlers; starting and stopping."""

import asyncio
import errno
import logging
import math
import socket
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from covnmt import __version__
from covnmt.base.console import log
from covnmt.base.errors import UserError
from covnmt.serve import libretranslate, routes
from covnmt.serve.connections import limited_protocol
from covnmt.serve.monitoring import (
    CLIENT_CLOSED_REQUEST,
    AccessLogMiddleware,
    BackgroundHandler,
    JsonFormatter,
    ServerMetrics,
    log_event,
)
from covnmt.serve.openapi import build_document
from covnmt.serve.schemas import request_error_message
from covnmt.serve.security import SecurityMiddleware
from covnmt.serve.served_model import ServedModel, open_models, parse_spec
from covnmt.serve.service import FAILURES, TranslationService, describe_failure
from covnmt.serve.settings import ServeSettings, bracket_ipv6
from covnmt.serve.worker_process import freeze_gc

# Starlette and FastAPI raise these themselves, with messages that do not help.
NO_ENDPOINT = "no such endpoint or method; see /openapi.json"
MESSAGES = {400: "the body is not JSON in UTF-8", 404: NO_ENDPOINT, 405: NO_ENDPOINT}
DOCUMENT = "/openapi.json"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
PAGE = Path(__file__).parent / "page"
SECONDS_TO_ANSWER = 2  # requests whose time is up when the server is stopped
SECONDS_BETWEEN_ACCEPT_ERRORS = 60.0  # in the log
OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def run_server(
    models: Sequence[str], settings: ServeSettings, device: str, signals: Sequence[int]
) -> None:
    """Serve these models until there are `signals`; then finish what was accepted."""
    metrics = ServerMetrics()
    with suppress(KeyboardInterrupt):  # of `check_interrupt`
        # First, so that a taken port fails at once: opening models takes longer.
        specs = [parse_spec(text) for text in models]
        listening = open_socket(settings.host, settings.port)
        check_temporary_directory()
        start_log(metrics)

        def check_interrupt() -> None:
            if signals:
                raise KeyboardInterrupt

        served = open_models(specs, device, settings, metrics, check_interrupt)
        try:
            server = build_server(served, settings, metrics, signals)
            freeze_gc()
            host, port = listening.getsockname()[:2]
            log(f"listening on http://{bracket_ipv6(host)}:{port}")
            server.run(sockets=[listening])
        finally:
            for model in served.values():
                model.abort()
                model.close(finish=False)


def start_log(metrics: ServerMetrics) -> None:
    """Let log lines go to standard error, without ever waiting for it."""
    handler = BackgroundHandler()
    handler.on_drop = metrics.dropped_log_lines.inc
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("covnmt.serve").setLevel(logging.INFO)


class GracefulServer(uvicorn.Server):
    """Stops when a signal was received: gives requests some seconds, then answers them with 503."""

    def __init__(
        self,
        config: uvicorn.Config,
        models: Iterable[ServedModel],
        grace: float,
        signals: Sequence[int],
    ) -> None:
        super().__init__(config)
        self.models, self.grace, self.signals = models, grace, signals

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `recorded_signals`, which fills the list."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Stop once a signal was received."""
        return await super().on_tick(counter) or bool(self.signals)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing new; finish what was accepted, or fail it when its time is up."""
        aborting = asyncio.ensure_future(self._abort_after_grace())
        try:
            await super().shutdown(sockets)
        finally:
            aborting.cancel()

    async def _abort_after_grace(self) -> None:
        """Fail what is left when time is up, or at once at a second signal."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.grace
        while loop.time() < end and len(self.signals) < 2:
            await asyncio.sleep(0.1)
        for model in self.models:
            model.abort()


def build_server(
    models: dict[str, ServedModel],
    settings: ServeSettings,
    metrics: ServerMetrics,
    signals: Sequence[int],
) -> GracefulServer:
    """Build the server of these models; it stops when `signals` is not empty any more."""
    config = uvicorn.Config(
        create_app(models, settings, metrics),
        http=limited_protocol(settings, metrics),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        # after this, clients are left that do not read their answers
        timeout_graceful_shutdown=math.ceil(settings.grace) + SECONDS_TO_ANSWER,
    )
    return GracefulServer(config, models.values(), settings.grace, signals)


def check_temporary_directory() -> None:
    """Raise an error if worker processes cannot be started through a socket in it."""
    directory = tempfile.gettempdir()
    try:
        Listener(family="AF_UNIX").close()
    except OSError as error:
        raise UserError(
            f"{directory}: worker processes are started through a socket in this temporary "
            f"directory, but: {error}; name another, with a short path: TMPDIR=/tmp for example"
        ) from None


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on this address."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        port_refused = getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES)
        remedy = "try --port 0" if port_refused else "give --host an address of this machine"
        raise UserError(f"cannot listen on {host}, port {port}: {error}; {remedy}") from None
    # connections inherit it; asyncio sets it only on sockets made another way, and without it the
    # body of every answer waits 40 ms for the client to confirm the head
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


class AcceptErrorFilter:
    """Logs in one line, once a minute, that no connection could be accepted.

    asyncio would log it with a traceback for every connection.
    """

    def __init__(self) -> None:
        self.last = -math.inf

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an error of the event loop."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in OUT_OF_RESOURCES:
            loop.default_exception_handler(context)
        elif loop.time() - self.last > SECONDS_BETWEEN_ACCEPT_ERRORS:
            self.last = loop.time()
            log_event("connections cannot be accepted", error=str(error))


def create_app(
    models: dict[str, ServedModel], settings: ServeSettings, metrics: ServerMetrics
) -> FastAPI:
    """Build the application for these models, which it closes when it ends."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        asyncio.get_running_loop().set_exception_handler(AcceptErrorFilter())
        yield
        for model in models.values():
            await asyncio.to_thread(model.close)

    app = FastAPI(
        title="covnmt",
        version=__version__,
        openapi_url=DOCUMENT,
        # these pages load scripts from elsewhere
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    service = TranslationService(models, settings)
    app.include_router(routes.build_api_router(service))
    app.include_router(libretranslate.build_libretranslate_router(service))
    _add_probes(app, models, metrics)
    specs = [model.spec for model in models.values()]
    document = build_document(app, specs, settings)
    app.openapi = lambda: document  # type: ignore[method-assign]
    _answer_other_methods(app)
    app.mount("/", PageFiles(directory=PAGE, html=True))
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


class PageFiles(StaticFiles):
    """The files of the page; 404 rather than 405 for a missing file, whatever the method."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file, for GET and HEAD."""
        if scope["method"] in ("GET", "HEAD"):
            return await super().get_response(path, scope)
        _, found = await asyncio.to_thread(self.lookup_path, path)
        if found is None:
            raise HTTPException(404)
        raise HTTPException(405, headers={"Allow": "GET, HEAD"})


def _answer_other_methods(app: FastAPI) -> None:
    """Name the methods of each path where another one is used, or in answer to OPTIONS."""
    methods: dict[str, set[str]] = defaultdict(set)
    for path, operations in app.openapi()["paths"].items():
        methods[path] |= {method.upper() for method in operations}
    for path, known in methods.items():
        allowed = known | {"OPTIONS"} | ({"HEAD"} if "GET" in known else set())
        headers = {"Allow": ", ".join(sorted(allowed))}

        async def answer(request: Request, headers: dict[str, str] = headers) -> Response:
            if request.method == "OPTIONS":
                return Response(status_code=204, headers=headers)
            raise HTTPException(405, headers=headers)

        app.add_route(path, answer, methods=list(METHODS), include_in_schema=False)


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
            loaded = [worker for worker in model.workers if not worker.unloaded]
            metrics.workers_ready.labels(name).set(sum(worker.ready() for worker in loaded))
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _add_error_handlers(app: FastAPI) -> None:
    """Answer every expected failure by `{"error": "..."}`.

    It repeats nothing that the client sent except the beginning of a sentence that is too long.
    """

    def answer(kind: type[Exception], describe: Callable[[Any], tuple[int, str]]) -> None:
        async def handle(request: Request, error: Exception) -> Response:
            status, message = describe(error)
            headers = getattr(error, "headers", None)
            return JSONResponse({"error": message}, status, headers)

        app.add_exception_handler(kind, handle)

    for kind in FAILURES:
        answer(kind, describe_failure)
    answer(ClientDisconnect, lambda error: (CLIENT_CLOSED_REQUEST, "the client disconnected"))
    answer(HTTPException, lambda e: (e.status_code, MESSAGES.get(e.status_code, e.detail)))
    answer(RequestValidationError, lambda error: (422, request_error_message(error)))
