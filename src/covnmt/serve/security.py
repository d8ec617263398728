"""Who may ask what: host, origin, request rate, API key and size of every request.

Also the response headers that keep a browser from running anything but the page's own scripts.
"""

import asyncio
import hmac
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from covnmt.serve.monitoring import CLIENT_CLOSED_REQUEST, client_address
from covnmt.serve.settings import ServeSettings

PROTECTED_PATHS = (
    "/translate",
    "/detect",
    "/languages",
    "/metrics",
    "/openapi.json",
)  # and all under /v1
# LibreTranslate's clients send their key in the body, which is read later, and ask for languages
# without one.
KEY_CHECKED_LATER = ("/translate", "/detect", "/languages")
PROBES = ("/healthz", "/readyz")
MAX_ADDRESSES = 10_000  # remembered for the rate; the one not seen for longest is forgotten
RESPONSE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class RequestRefusedError(Exception):
    """A request that gets an error response with this status and message."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status_code, self.headers = status, headers


class RateLimiter:
    """A token bucket per address, refilled at `rate` tokens a second up to `burst`."""

    def __init__(self, rate: float, burst: int) -> None:
        self.rate, self.burst = rate, burst
        self.buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def seconds_to_wait(self, address: str, now: float) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        if self.rate <= 0:
            return 0.0
        tokens, last = self.buckets.pop(address, (float(self.burst), now))
        tokens = min(self.burst, tokens + (now - last) * self.rate)
        allowed = tokens >= 1
        self.buckets[address] = (tokens - 1 if allowed else tokens, now)
        while len(self.buckets) > MAX_ADDRESSES:
            self.buckets.popitem(last=False)
        return 0.0 if allowed else (1 - tokens) / self.rate


class SecurityMiddleware:
    """Refuse requests that may not be made, and add the headers that protect the page.

    Starlette's TrustedHostMiddleware would not do: it knows no addresses and answers in plain text.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        self.app, self.settings = app, settings
        self.rate_limiter = RateLimiter(settings.rate, settings.burst)
        self.hosts = {"localhost", *settings.allow_hosts, settings.host.lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        bytes_received, whole = 0, False
        deadline = asyncio.get_running_loop().time() + self.settings.body_timeout

        async def receive_limited() -> Message:
            """Stop a body that grows beyond the limit, whatever its header says, or is late."""
            nonlocal bytes_received, whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                seconds = self.settings.body_timeout
                raise HTTPException(408, f"the body did not come within {seconds:g} s") from None
            if message["type"] == "http.disconnect":
                raise HTTPException(CLIENT_CLOSED_REQUEST, "the client disconnected")
            whole = not message.get("more_body", False)
            bytes_received += len(message.get("body", b""))
            if bytes_received > self.settings.max_body:
                raise HTTPException(413, too_large_message(self.settings.max_body))
            return message

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in RESPONSE_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        headers = Headers(scope=scope)
        try:
            # simple probes speak HTTP/1.0 and name no host
            if scope["path"] not in PROBES or "host" in headers:
                self._check_host(headers)
            # the page itself is for everybody: it can then say that it may not call the server
            if scope["path"].startswith("/v1/") or scope["path"] in PROTECTED_PATHS:
                self._check_access(scope, headers)
        except RequestRefusedError as refusal:
            response_headers = dict(refusal.headers or {})
            if (origin := headers.get("origin", "")) in self.settings.allow_origins:
                # lets the page of an allowed site read why it was refused
                response_headers |= {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}
            response = JSONResponse({"error": str(refusal)}, refusal.status_code, response_headers)
            await response(scope, receive, send_with_headers)
        else:
            if (
                scope["method"] == "HEAD"
            ):  # monitors may use it; the HTTP protocol leaves out bodies
                scope = {**scope, "method": "GET"}
            await self.app(scope, receive_limited, send_with_headers)

    def _check_host(self, headers: Headers) -> None:
        """Refuse foreign names, so that no other site can pose as this one (DNS rebinding).

        No site can pose as an address, and probes from other machines have nothing else.
        """
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name.lower() in self.hosts or "*" in self.hosts:
            return
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            message = f"this server is not called {name!r}; see --allow-host"
            raise RequestRefusedError(421, message) from None

    def _check_access(self, scope: Scope, headers: Headers) -> None:
        """Refuse pages of other sites, addresses that ask too often, wrong keys, large bodies."""
        origin = headers.get("origin")
        same_site = origin is None or origin.partition("://")[2] == headers.get("host", "")
        if not same_site and origin not in self.settings.allow_origins:
            raise RequestRefusedError(
                403,
                "pages of other sites may not call this server; see --allow-origin, or let the "
                "proxy before it pass the Host header on",
            )
        if scope["method"] == "OPTIONS":
            return
        address = client_address(scope)
        if seconds := self.rate_limiter.seconds_to_wait(address, time.monotonic()):
            message = "too many requests from this address; wait a little"
            raise RequestRefusedError(429, message, {"Retry-After": str(int(seconds) + 1)})
        if scope["path"] not in KEY_CHECKED_LATER:
            check_api_key(self.settings.api_key, api_key_from_headers(headers))
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self.settings.max_body:
            raise RequestRefusedError(413, too_large_message(self.settings.max_body))


def check_api_key(required: str | None, key: str | None) -> None:
    """Refuse a request without the right key, if one is required."""
    if required is None or hmac.compare_digest(required.encode(), (key or "").encode()):
        return
    raise RequestRefusedError(
        401, "send the API key of this server", {"WWW-Authenticate": "Bearer"}
    )


def api_key_from_headers(headers: Headers) -> str | None:
    """Return the key of `Authorization: Bearer KEY` or `X-API-Key: KEY`."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key if scheme.lower() == "bearer" else headers.get("x-api-key")


def too_large_message(limit: int) -> str:
    """Say that a body is over the limit."""
    return f"a request may have {limit:,} bytes; send less at once"
