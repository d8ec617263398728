"""The access log, one line of JSON per request on standard error, and the metrics of GET /metrics.

A line holds the text that was translated only with --log-text.
"""

import json
import logging
import time
from datetime import UTC, datetime
from functools import partial
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# The time at which each metric was created would be a metric of its own.
disable_created_metrics()  # type: ignore[no-untyped-call]

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SENTENCES = (1, 2, 4, 8, 16, 32, 64)
CLIENT_CLOSED_REQUEST = 499
logger = logging.getLogger("covnmt.serve")


class ServerMetrics:
    """What one server measures; the registry is its own, so a process may have several."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.waiting = Gauge(
            "covnmt_waiting_sentences",
            "Sentences that wait, by model.",
            ["model"],
            registry=self.registry,
        )
        self.requests = counter(
            "covnmt_requests", "Requests by path and status.", ["path", "status"]
        )
        self.request_seconds = histogram(
            "covnmt_request_seconds", "Time to answer a request.", buckets=SECONDS
        )
        self.sentences = counter("covnmt_sentences", "Sentences done, by model.", ["model"])
        self.batch_sentences = histogram(
            "covnmt_batch_sentences", "Sentences of a batch.", buckets=SENTENCES
        )
        self.batch_seconds = histogram(
            "covnmt_batch_seconds", "Time to do a batch.", buckets=SECONDS
        )

    def observe_batch(self, model: str, size: int, seconds: float) -> None:
        """Count a batch that was run."""
        self.sentences.labels(model).inc(size)
        self.batch_sentences.observe(size)
        self.batch_seconds.observe(seconds)


def add_log_fields(scope: Scope, **fields: Any) -> None:
    """Add fields to the line of this request."""
    scope.setdefault("covnmt", {}).update(fields)


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

        async def send_and_see_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        start = time.monotonic()
        try:
            await self.app(scope, receive, send_and_see_status)
        except Exception:
            # Starlette answers an unexpected exception further out, where this does not see it
            status = 500 if status == CLIENT_CLOSED_REQUEST else status
            raise
        finally:
            seconds = time.monotonic() - start
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.requests.labels(path, status).inc()
            self.metrics.request_seconds.observe(seconds)
            line = {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "method": scope["method"],
                "path": path,
                "status": status,
                "ms": round(1000 * seconds, 1),
                **fields,
            }
            logger.info(json.dumps(line, ensure_ascii=False))
