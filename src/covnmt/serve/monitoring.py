"""The access log, one line of JSON per request on standard error, and the metrics of GET /metrics.

A line holds the text that was translated only with --log-text.
"""

import json
import logging
import os
import queue
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from covnmt import __version__

# The time at which each metric was created would be a metric of its own.
disable_created_metrics()  # type: ignore[no-untyped-call]

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
CLOSED_CONNECTIONS = ("refused", "crowded out", "no whole header", "answer not read")
SENTENCES = (1, 2, 4, 8, 16, 32, 64)
CLIENT_CLOSED_REQUEST = 499
REQUEST_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)
UNEXPECTED = "something failed here; see the server's log"
current_request: ContextVar[str | None] = ContextVar("current_request", default=None)
SECONDS_TO_WRITE = 1.0  # the last lines of the log
logger = logging.getLogger("covnmt.serve")


class ServerMetrics:
    """What one server measures; the registry is its own, so a process may have several."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        self.waiting = gauge(
            "covnmt_waiting_sentences", "Sentences that wait, by model.", ["model"]
        )
        self.requests = counter(
            "covnmt_requests", "Requests by path and status.", ["path", "status"]
        )
        self.request_seconds = histogram(
            "covnmt_request_seconds",
            "Time to answer a request, by path.",
            ["path"],
            buckets=SECONDS,
        )
        self.sentences = counter("covnmt_sentences", "Sentences done, by model.", ["model"])
        self.batch_sentences = histogram(
            "covnmt_batch_sentences", "Sentences of a batch.", buckets=SENTENCES
        )
        self.batch_seconds = histogram(
            "covnmt_batch_seconds", "Time to do a batch.", buckets=SECONDS
        )

        self.in_flight = gauge("covnmt_requests_in_flight", "Requests that are being answered.")
        self.connections = gauge("covnmt_connections", "Open connections.")
        self.closed_connections = counter(
            "covnmt_closed_connections",
            "Connections that the server closed, by reason.",
            ["reason"],
        )
        self.dropped_log_lines = counter(
            "covnmt_dropped_log_lines", "Log lines dropped, as nobody read the log fast enough."
        )
        build = gauge("covnmt_build_info", "The version, as a label.", ["version"])
        build.labels(__version__).set(1)
        ProcessCollector(registry=self.registry)
        self.workers_ready = gauge(
            "covnmt_workers_ready", "Worker processes that can translate, by model.", ["model"]
        )
        self.worker_restarts = counter(
            "covnmt_worker_restarts",
            "Worker processes replaced, by model and reason: died, stalled, overdue.",
            ["model", "reason"],
        )

        for closed in CLOSED_CONNECTIONS:  # counters begin at 0, so that a first event is seen
            self.closed_connections.labels(closed)

    def add_model(self, model: str, failures: Iterable[str]) -> None:
        """Let the counters of a model begin at 0."""
        self.sentences.labels(model)
        for failure in failures:
            self.worker_restarts.labels(model, failure)

    def observe_batch(self, model: str, size: int, seconds: float) -> None:
        """Count a batch that was run."""
        self.sentences.labels(model).inc(size)
        self.batch_sentences.observe(size)
        self.batch_seconds.observe(seconds)


def log_event(event: str, **fields: Any) -> None:
    """Log what is no request as a line of JSON."""
    logger.warning(json.dumps({"time": timestamp(), "event": event, **fields}, ensure_ascii=False))


def timestamp() -> str:
    """Return the time now in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def add_log_fields(scope: Scope, **fields: Any) -> None:
    """Add fields to the line of this request."""
    scope.setdefault("covnmt", {}).update(fields)


def add_translated(scope: Scope, model: str, sentences: int) -> None:
    """Add a model and its sentences to those that the line of this request has."""
    fields = scope.setdefault("covnmt", {})
    models = fields.get("model", model).split(", ")
    fields["model"] = ", ".join(dict.fromkeys([*models, model]))
    fields["sentences"] = fields.get("sentences", 0) + sentences


def client_address(scope: Scope) -> str:
    """Return the address that a request came from."""
    return scope["client"][0] if scope.get("client") else ""


def choose_request_id(headers: Headers) -> str:
    """Return the id that the client or a proxy gave the request, or a new one."""
    given = headers.get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else secrets.token_hex(8)


class JsonFormatter(logging.Formatter):
    """Makes a line of JSON of what is none yet: errors with their traceback, words of libraries."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, with the id of the request that it belongs to."""
        if record.name == logger.name and not record.exc_info:
            return record.getMessage()
        line = {"time": timestamp(), "event": record.getMessage()}
        if request_id := current_request.get():
            line["request_id"] = request_id
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class BackgroundHandler(logging.Handler):
    """Writes to a file descriptor from a thread, and drops lines when that is too slow.

    So the server answers also when nobody reads its log.
    """

    def __init__(self, descriptor: int = 2, capacity: int = 10_000) -> None:
        super().__init__()
        self.descriptor, self.dropped = descriptor, 0
        self.on_drop: Callable[[], None] = lambda: None
        self.lines: queue.Queue[str] = queue.Queue(capacity)
        threading.Thread(target=self._write_lines, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line, or drop it."""
        try:
            self.lines.put_nowait(self.format(record))
        except queue.Full:
            self.dropped += 1
            self.on_drop()

    def close(self) -> None:
        """Wait for the last lines, for a moment."""
        end = time.monotonic() + SECONDS_TO_WRITE
        while self.lines.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.01)
        super().close()

    def _write_lines(self) -> None:
        while True:
            line = self.lines.get()
            if self.dropped:
                dropped, self.dropped = self.dropped, 0
                event = {"time": timestamp(), "event": "log lines dropped", "number": dropped}
                line = f"{json.dumps(event)}\n{line}"
            content = memoryview(f"{line}\n".encode(errors="replace"))
            with suppress(OSError):  # the disk may be full, or the reader gone
                while content:
                    content = content[os.write(self.descriptor, content) :]
            self.lines.task_done()


class AccessLogMiddleware:
    """Log and count every request.

    Only `paths` are logged by name: all others are `other`, as anybody may write anything there.
    """

    def __init__(self, app: ASGIApp, metrics: ServerMetrics, paths: set[str]) -> None:
        self.app, self.metrics, self.paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and log what became of it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = CLIENT_CLOSED_REQUEST  # unless a response begins
        fields = scope["covnmt"] = {}
        request_id = scope["covnmt_request_id"] = choose_request_id(Headers(scope=scope))
        current_request.set(request_id)

        async def send_and_see_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        start = time.monotonic()
        self.metrics.in_flight.inc()
        try:
            await self.app(scope, receive, send_and_see_status)
        except Exception:
            if status != CLIENT_CLOSED_REQUEST:  # a response has begun: the connection is closed
                raise
            logger.exception("unexpected error")
            answer = JSONResponse({"error": UNEXPECTED}, 500)
            await answer(scope, receive, send_and_see_status)
        finally:
            seconds = time.monotonic() - start
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.requests.labels(path, status).inc()
            self.metrics.request_seconds.labels(path).observe(seconds)
            self.metrics.in_flight.dec()
            line = {
                "time": timestamp(),
                "request_id": request_id,
                "client": client_address(scope),
                "method": scope["method"],
                "path": path,
                "status": status,
                "ms": round(1000 * seconds, 1),
                **fields,
            }
            logger.info(json.dumps(line, ensure_ascii=False))
