"""Who may ask what: host, origin, request rate, API key and size of every request.

Also the response headers that keep a browser from running anything but the page's own scripts.
"""

import asyncio
import hmac
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from covnmt.serve.monitoring import CLIENT_CLOSED_REQUEST, add_log_fields, client_address
from covnmt.serve.settings import ApiKey, ServeSettings

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


class ApiKeys:
    """The keys of a server, and a rate limit for each that has one."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self.keys = keys
        self.limiters = {
            key: RateLimiter(key.rate, key.burst) for key in keys if key.rate is not None
        }

    def find(self, sent: str | None) -> ApiKey | None:
        """Return the key that a request has sent; compare in constant time."""
        content = (sent or "").encode()
        right = [key for key in self.keys if hmac.compare_digest(key.key.encode(), content)]
        return right[0] if right else None

    def admit(self, scope: Scope, key: ApiKey | None) -> None:
        """Refuse a request without a key, if one is required, or with one that is used too often.

        The key goes with the request, for the limits that are checked later.
        """
        if key is None:
            if self.keys:
                headers = {"WWW-Authenticate": "Bearer"}
                raise RequestRefusedError(401, "send the API key of this server", headers)
            return
        if key.name:
            add_log_fields(scope, key=key.name)
        if (limiter := self.limiters.get(key)) is not None:
            refuse_if_too_often(limiter, key.name, "with this API key")
        scope["covnmt_api_key"] = key


def admit_with_key_in_body(scope: Scope, sent: str | None) -> None:
    """Admit a request whose key may be in its body, unless a header had one."""
    keys: ApiKeys = scope["covnmt_api_keys"]
    if "covnmt_api_key" not in scope:
        keys.admit(scope, keys.find(sent))


def refuse_if_too_often(limiter: RateLimiter, client: str, whence: str) -> None:
    """Refuse a request of a client that asks too often."""
    if seconds := limiter.seconds_to_wait(client, time.monotonic()):
        message = f"too many requests {whence}; wait a little"
        raise RequestRefusedError(429, message, {"Retry-After": str(int(seconds) + 1)})


class SecurityMiddleware:
    """Refuse requests that may not be made, and add the headers that protect the page.

    Starlette's TrustedHostMiddleware would not do: it knows no addresses and answers in plain text.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        self.app, self.settings = app, settings
        self.rate_limiter = RateLimiter(settings.rate, settings.burst)
        self.api_keys = ApiKeys(settings.api_keys)
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
        scope["covnmt_api_keys"] = self.api_keys
        key = self.api_keys.find(api_key_from_headers(headers))
        if key is None or key.rate is None:
            refuse_if_too_often(self.rate_limiter, client_address(scope), "from this address")
        if key or scope["path"] not in KEY_CHECKED_LATER:
            self.api_keys.admit(scope, key)
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self.settings.max_body:
            raise RequestRefusedError(413, too_large_message(self.settings.max_body))


def api_key_from_headers(headers: Headers) -> str | None:
    """Return the key of `Authorization: Bearer KEY` or `X-API-Key: KEY`."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key if scheme.lower() == "bearer" else headers.get("x-api-key")


def too_large_message(limit: int) -> str:
    """Say that a body is over the limit."""
    return f"a request may have {limit:,} bytes; send less at once"
