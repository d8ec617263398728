"""One line of JSON per request on standard error, and the counts of /metrics.

A line never holds the text that was translated, unless the server is told to log it.
"""

import json
import logging
import time
from datetime import UTC, datetime
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from covnmt.serve.prometheus import ServerMetrics

CLIENT_CLOSED_REQUEST = 499
logger = logging.getLogger("covnmt.serve")


def add_log_fields(scope: Scope, **facts: Any) -> None:
    """Add to the line of this request."""
    scope.setdefault("covnmt", {}).update(facts)


class AccessLogMiddleware:
    """The middleware that writes it; the page, and what is not there, are `other` than `paths`."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics, paths: set[str]) -> None:
        self.app, self.metrics, self.paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and note what became of it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = CLIENT_CLOSED_REQUEST  # stays where the client was gone before there was an answer
        facts = scope["covnmt"] = {}

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        began = time.monotonic()
        try:
            await self.app(scope, receive, watched)
        except Exception:
            # the answer to a fault of ours is made outside, and passes by here no more
            status = 500 if status == CLIENT_CLOSED_REQUEST else status
            raise
        finally:
            self._write(scope, status, time.monotonic() - began, facts)

    def _write(self, scope: Scope, status: int, seconds: float, facts: dict[str, Any]) -> None:
        path = scope["path"] if scope["path"] in self.paths else "other"
        self.metrics.observe_request(path, status, seconds)
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "method": scope["method"],
            "path": path,
            "status": status,
            "ms": round(1000 * seconds, 1),
            **facts,
        }
        logger.info(json.dumps(line, ensure_ascii=False))
