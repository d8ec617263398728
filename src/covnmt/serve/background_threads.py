"""Threads for what takes long in the server itself, such as the markup of documents.

A separate pool, so that long jobs neither block asyncio's default executor nor delay shutdown.
Clients take turns.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

THREADS = 2

P = ParamSpec("P")
T = TypeVar("T")


class BackgroundThreads:
    """A few threads that run functions; the process does not wait for them when it ends."""

    def __init__(self, number: int = THREADS) -> None:
        self.number = number
        self.threads: list[threading.Thread] = []
        self.changed = threading.Condition()
        # of every client in its turn, what waits
        self.waiting: dict[Hashable, deque[tuple[Future[Any], Callable[[], Any]]]] = {}

    async def run(
        self, client: Hashable, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a function in the turn of this client, and wait for its result.

        If it is cancelled before its turn, it never runs; after that, its result is dropped.
        """
        future: Future[T] = Future()
        with self.changed:
            calls = self.waiting.setdefault(client, deque())
            calls.append((future, partial(function, *args, **kwargs)))
            if len(self.threads) < self.number:
                thread = threading.Thread(target=self._run, name="background", daemon=True)
                self.threads.append(thread)
                thread.start()
            self.changed.notify()
        return await asyncio.wrap_future(future)

    def _run(self) -> None:
        while True:
            future, call = self._next()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            del future, call  # a thread without work holds no document

    def _next(self) -> tuple[Future[Any], Callable[[], Any]]:
        """Wait for the next call, then move its client to the end of the turns."""
        with self.changed:
            self.changed.wait_for(lambda: self.waiting)
            client = next(iter(self.waiting))
            calls = self.waiting.pop(client)
            call = calls.popleft()
            if calls:
                self.waiting[client] = calls
            return call
