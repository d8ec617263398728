"""The gate every request passes: which host, which site, how often, whose key, how large.

Also the headers that keep a browser from running anything but the page's own scripts.
"""

import hmac
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from covnmt.serve.settings import ServeSettings

GUARDED = ("/translate", "/languages", "/metrics", "/openapi.json")  # and all under /v1
CLIENTS = 10_000  # addresses remembered; the one not seen for longest is forgotten
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class RequestRefusedError(Exception):
    """Not to be let in: the status and the reason."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status_code, self.headers = status, headers


class RateLimiter:
    """A bucket of tokens per address, filled at `rate` a second up to `burst`."""

    def __init__(self, rate: float, burst: int) -> None:
        self.rate, self.burst = rate, burst
        self.buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, address: str, now: float) -> float:
        """Take a token; how many seconds are missing to the next one, 0 if there was one."""
        if self.rate <= 0:
            return 0.0
        tokens, then = self.buckets.pop(address, (float(self.burst), now))
        tokens = min(self.burst, tokens + (now - then) * self.rate)
        allowed = tokens >= 1
        self.buckets[address] = (tokens - 1 if allowed else tokens, now)
        while len(self.buckets) > CLIENTS:
            self.buckets.popitem(last=False)
        return 0.0 if allowed else (1 - tokens) / self.rate


class SecurityMiddleware:
    """The middleware that asks these questions, in this order."""

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        self.app, self.settings = app, settings
        self.rate = RateLimiter(settings.rate, settings.burst)
        self.hosts = {"localhost", *settings.allow_hosts, settings.host.lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request in, or answer it here."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        guarded = _with_headers(send)
        try:
            self._judge(scope)
        except RequestRefusedError as refusal:
            headers = {**(refusal.headers or {}), **self._for_sites(scope)}
            answer = JSONResponse({"error": str(refusal)}, refusal.status_code, headers)
            await answer(scope, receive, guarded)
            return
        await self.app(scope, _bounded(receive, self.settings.max_body), guarded)

    def _judge(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        self._judge_host(headers.get("host", ""))
        if not needs_access_checks(scope["path"]):
            return  # the page itself can then tell that it may not ask
        self._judge_origin(headers.get("origin"), headers.get("host", ""))
        if scope["method"] == "OPTIONS":
            return
        address = scope["client"][0] if scope.get("client") else ""
        if missing := self.rate.wait(address, time.monotonic()):
            seconds = {"Retry-After": str(int(missing) + 1)}
            raise RequestRefusedError(
                429, "too many requests from this address; wait a little", seconds
            )
        # LibreTranslate's clients send their key in the body, which is read later, and ask for
        # languages without one
        if scope["path"] not in ("/translate", "/languages"):
            check_api_key(self.settings.api_key, api_key_from_headers(headers))
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self.settings.max_body:
            raise RequestRefusedError(413, too_large_message(self.settings.max_body))

    def _for_sites(self, scope: Scope) -> dict[str, str]:
        """What lets a page of an allowed site read why it was refused."""
        origin = Headers(scope=scope).get("origin", "")
        if origin not in self.settings.allow_origins:
            return {}
        return {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}

    def _judge_host(self, host: str) -> None:
        """Foreign names are refused, so no other site can pose as this one (DNS rebinding).

        With an address no site can, and probes from other machines have nothing else.
        """
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        known = name.lower() in self.hosts or "*" in self.hosts
        if not known and not is_address(name.strip("[]")):
            raise RequestRefusedError(421, f"this server is not called {name!r}; see --allow-host")

    def _judge_origin(self, origin: str | None, host: str) -> None:
        if origin is None or origin.partition("://")[2] == host:
            return
        if origin not in self.settings.allow_origins:
            raise RequestRefusedError(
                403,
                "pages of other sites may not call this server; see --allow-origin, or let the "
                "proxy before it pass the Host header on",
            )


def needs_access_checks(path: str) -> bool:
    """All but the page and the probes."""
    return path.startswith("/v1/") or path in GUARDED


def is_address(name: str) -> bool:
    """Whether it is the number of a machine, and no name for one."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def check_api_key(wanted: str | None, given: str | None) -> None:
    """Refuse a request without the right key, where one is wanted."""
    if wanted is None or hmac.compare_digest(wanted.encode(), (given or "").encode()):
        return
    raise RequestRefusedError(
        401, "send the API key of this server", {"WWW-Authenticate": "Bearer"}
    )


def api_key_from_headers(headers: Headers) -> str | None:
    """From `Authorization: Bearer KEY` or `X-API-Key: KEY`."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key if scheme.lower() == "bearer" else headers.get("x-api-key")


def too_large_message(limit: int) -> str:
    """The message for a body over the limit."""
    return f"a request may have {limit:,} bytes; send less at once"


def _bounded(receive: Receive, limit: int) -> Receive:
    """Stops a body that grows beyond the limit, whatever its header said."""
    read = 0

    async def bounded() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > limit:
            raise HTTPException(413, too_large_message(limit))
        return message

    return bounded


def _with_headers(send: Send) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return guarded
