"""Limits on connections: how many there may be, and how long they may send or read nothing.

A connection is closed that does not send a whole header in time, or does not read its answer. When
there are too many, from one address or in all, the one that has waited longest without a whole
request makes room for the new one: it is closed, not the new one refused. So an address that holds
connections open harms itself alone, and not for long.
"""

import asyncio
import resource
from collections.abc import Collection
from pathlib import Path
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from covnmt.serve.monitoring import ServerMetrics
from covnmt.serve.settings import ServeSettings

# File descriptors that are not for clients: to restart workers and to read files of the page.
RESERVED_DESCRIPTORS = 64
MAX_DESCRIPTORS = 1 << 16
MIN_CONNECTIONS = 8
REFUSAL = b'{"error": "too many connections; try again in 5 s"}'
REFUSAL_RESPONSE = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 5\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(REFUSAL), REFUSAL)
)


def raise_descriptor_limit() -> int:
    """Raise the soft limit of file descriptors as far as is useful; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def affordable_connections(wanted: int) -> int:
    """Return how many connections this process can have open, at most those wanted."""
    try:
        in_use = sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:
        in_use = RESERVED_DESCRIPTORS
    available = raise_descriptor_limit() - in_use - RESERVED_DESCRIPTORS
    return max(MIN_CONNECTIONS, min(wanted, available))


class ConnectionTable:
    """All open connections, by address and the oldest first."""

    def __init__(self, settings: ServeSettings, metrics: ServerMetrics) -> None:
        self.settings, self.metrics = settings, metrics
        self.max_connections = affordable_connections(settings.max_connections)
        self.by_address: dict[str, dict[LimitedProtocol, None]] = {}
        self.count = 0

    def add(self, connection: "LimitedProtocol") -> bool:
        """Add a connection, at the cost of another one if there are too many, or refuse it."""
        siblings = self.by_address.setdefault(connection.address, {})
        if len(siblings) >= self.settings.max_connections_per_address:
            made_room = self._close_one(siblings)
        elif self.count >= self.max_connections:
            made_room = self._close_one(max(self.by_address.values(), key=len))
        else:
            made_room = True
        if not made_room:
            self.metrics.closed_connections.labels("refused").inc()
            self._forget_empty(connection.address)
            return False
        self.by_address.setdefault(connection.address, {})[connection] = None
        self.count += 1
        self.metrics.connections.set(self.count)
        return True

    def remove(self, connection: "LimitedProtocol") -> None:
        """Remove a connection, if it is still here."""
        siblings = self.by_address.get(connection.address, {})
        if connection in siblings:
            del siblings[connection]
            self.count -= 1
            self.metrics.connections.set(self.count)
            self._forget_empty(connection.address)

    def _forget_empty(self, address: str) -> None:
        if not self.by_address.get(address, True):
            del self.by_address[address]

    def _close_one(self, connections: Collection["LimitedProtocol"]) -> bool:
        """Close the oldest connection that has no whole request; tell whether there is one."""
        for connection in connections:
            if connection.lacks_whole_request():
                connection.give_up("crowded out")
                return True
        return False


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 with the limits of a table, which `limited_protocol` sets."""

    table: ConnectionTable

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for a header, unless there are too many connections."""
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self.header_timer: asyncio.TimerHandle | None = None
        self.write_timer: asyncio.TimerHandle | None = None
        self.unread_timer: asyncio.TimerHandle | None = None
        self.unread_bytes = 0  # of answers, when the timer last ran
        if self.table.add(self):
            self._await_header()
            self._watch_unread()
        else:
            transport.write(REFUSAL_RESPONSE)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Make room for others."""
        self.table.remove(self)
        self.header_timer = cancel_timer(self.header_timer)
        self.write_timer = cancel_timer(self.write_timer)
        self.unread_timer = cancel_timer(self.unread_timer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Receive data; the time for a header runs until it is complete."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._has_unanswered_header():
            self.header_timer = cancel_timer(self.header_timer)
        else:
            self._await_header()

    def pause_writing(self) -> None:
        """Wait for the client to read, though not forever."""
        super().pause_writing()
        self.write_timer = self.write_timer or self.loop.call_later(
            self.table.settings.write_timeout, self.give_up, "answer not read"
        )

    def resume_writing(self) -> None:
        """Continue, as the client reads."""
        self.write_timer = cancel_timer(self.write_timer)
        super().resume_writing()

    def lacks_whole_request(self) -> bool:
        """Whether this connection has no request, or only the beginning of one."""
        return not self._has_unanswered_header() or bool(self.cycle.more_body)

    def give_up(self, reason: str) -> None:
        """Close the connection at once and count it."""
        self.table.metrics.closed_connections.labels(reason).inc()
        self.table.remove(self)
        self.transport.abort()

    def _watch_unread(self) -> None:
        """Give up a client that leaves the rest of its answers unread.

        Several small answers need not be enough to pause writing, and a connection with a rest
        does not close by itself.
        """
        unread = self.transport.get_write_buffer_size()
        nothing_is_added = self.transport.is_closing() or not self._has_unanswered_header()
        if nothing_is_added and 0 < self.unread_bytes <= unread:
            self.give_up("answer not read")
            return
        self.unread_bytes = unread if nothing_is_added else 0
        self.unread_timer = self.loop.call_later(
            self.table.settings.write_timeout, self._watch_unread
        )

    def _has_unanswered_header(self) -> bool:
        """Tell whether a header has come that is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def _await_header(self) -> None:
        self.header_timer = self.header_timer or self.loop.call_later(
            self.table.settings.header_timeout, self.give_up, "no whole header"
        )


def cancel_timer(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Cancel a timer, if there is one; return None, which stands for none."""
    if timer is not None:
        timer.cancel()
    return None


def limited_protocol(settings: ServeSettings, metrics: ServerMetrics) -> type[asyncio.Protocol]:
    """Return the protocol of a server, whose connections share one table."""
    bound: dict[str, Any] = {"table": ConnectionTable(settings, metrics)}
    return type("BoundProtocol", (LimitedProtocol,), bound)
