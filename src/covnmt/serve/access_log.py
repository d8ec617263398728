"""The access log: one line of JSON per request on standard error, and the counts of /metrics.

A line holds the text that was translated only with --log-text.
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
            self.metrics.observe_request(path, status, seconds)
            line = {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "method": scope["method"],
                "path": path,
                "status": status,
                "ms": round(1000 * seconds, 1),
                **fields,
            }
            logger.info(json.dumps(line, ensure_ascii=False))
