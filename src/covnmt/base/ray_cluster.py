"""One function over many items on a Ray cluster; what a lost worker had in hand is done again.

The same promise as `pool.spread`, across machines: all of them see the same files, by the same
names. Ray finds the machines and keeps an actor on each GPU, or on so many cores; which actor does
what is decided here, so that a machine that goes away takes nothing with it but time.
"""

import logging
import os
import re
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Generic, TypeVar

from covnmt.base.errors import UserError, install_command
from covnmt.base.processes import MAX_DEATHS

T = TypeVar("T")
R = TypeVar("R")


def map_on_cluster(
    function: Callable[[T], R], items: Iterable[T], address: str, cores: int
) -> Iterator[R]:
    """The results of all items, as they come; an exception in a worker is raised here."""
    waiting = deque(items)
    if waiting:
        with _connected(address) as ray:
            yield from ActorDispatcher(ray, function, waiting, cores).results()


class FunctionActor(Generic[T, R]):
    """What an actor is: it holds the function, and with it whatever that keeps between calls."""

    def __init__(self, function: Callable[[T], R]) -> None:
        self.function = function

    def ready(self) -> None:
        """Answers when the actor is up."""

    def call(self, item: T) -> R:
        """The result of one item."""
        return self.function(item)


class ActorDispatcher(Generic[T, R]):
    """Who does what: items that wait, and actors that start or work."""

    def __init__(
        self, ray: ModuleType, function: Callable[[T], R], waiting: deque[T], cores: int
    ) -> None:
        self.ray, self.function, self.waiting = ray, function, waiting
        self.deaths: Counter[T] = Counter()
        self.stillborn = 0  # actors in a row that died before they were up
        self.running: dict[Any, tuple[Any, T | None]] = {}  # by what is to come: actor and item
        total = ray.cluster_resources()
        on_gpus = int(total.get("GPU", 0))
        needs = {"num_gpus": 1} if on_gpus else {"num_cpus": cores}
        self.kind = ray.remote(FunctionActor).options(max_restarts=0, **needs)
        most = on_gpus or max(1, int(total.get("CPU", 0)) // cores)
        self.places = min(most, len(waiting))
        for _ in range(self.places):
            self._start()

    def results(self) -> Iterator[R]:
        """Give every actor its next item when it has done the last; start another if it died."""
        while self.running:
            [first], _ = self.ray.wait(list(self.running), num_returns=1)
            actor, item = self.running.pop(first)
            try:
                result = self.ray.get(first)
            except self.ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except self.ray.exceptions.RayError:
                self._lost(actor, item)
                continue
            if self.waiting:
                following = self.waiting.popleft()
                self.running[actor.call.remote(following)] = (actor, following)
            # else the actor ends here, and its place is free for one that waits to start
            del actor
            if item is None:
                self.stillborn = 0
            else:
                yield result

    def _start(self) -> None:
        actor = self.kind.remote(self.function)
        self.running[actor.ready.remote()] = (actor, None)

    def _lost(self, actor: Any, item: T | None) -> None:
        """Take back what an actor had in hand; it may be out of reach rather than dead."""
        self.ray.kill(actor)
        if item is None:
            self.stillborn += 1
            if self.stillborn > MAX_DEATHS * self.places:
                raise UserError(
                    f"{self.stillborn} workers in a row died before they had begun; is covnmt "
                    "installed on all machines of the cluster, in the same version?"
                )
        else:
            self.deaths[item] += 1
            if self.deaths[item] > MAX_DEATHS:
                raise UserError(f"{item}: workers died {MAX_DEATHS + 1} times over it; split it")
            self.waiting.appendleft(item)
        if self.waiting:
            self._start()


@contextmanager
def _connected(address: str) -> Iterator[ModuleType]:
    # nothing is reported to anyone, and Ray leaves the choice of devices to those who ask for some
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise UserError(
            f"--ray needs a package that is not installed: {install_command('cluster')}"
        ) from None
    try:
        if re.fullmatch(r"[^/:]+:\d+", address):  # Ray itself would knock for minutes
            host, _, port = address.partition(":")
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{address}: no Ray cluster answers there ({reason}); start one with `ray start --head`"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()
