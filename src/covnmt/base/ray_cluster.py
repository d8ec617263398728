"""Map a function over items on a Ray cluster; items of a worker that is lost are retried.

The same guarantee as `processes.map_unordered`, across machines that see the same files at the same
paths. There is an actor per GPU, or per `cores` CPUs (fewer where no machine has as many).
`ray.util.ActorPool` would not do: it loses the item of an actor that dies, and idle actors keep the
resources that a new one waits for.
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

from covnmt.base.console import warn
from covnmt.base.errors import UserError, install_command
from covnmt.base.processes import MAX_RETRIES

SECONDS_UNTIL_WARNING = 20.0

T = TypeVar("T")
R = TypeVar("R")


def map_on_cluster(
    function: Callable[[T], R], items: Iterable[T], address: str, cores: int
) -> Iterator[R]:
    """Yield the results of all items as they come; an exception in a worker is raised here."""
    waiting = deque(items)
    if waiting:
        with _connect(address) as ray:
            yield from ActorDispatcher(ray, function, waiting, cores).results()


class FunctionActor(Generic[T, R]):
    """An actor: its process keeps the function, and what the function caches between calls."""

    def __init__(self, function: Callable[[T], R]) -> None:
        self.function = function

    def ready(self) -> None:
        """Return when the actor has started."""

    def call(self, item: T) -> R:
        """Return the result of one item."""
        return self.function(item)


class ActorDispatcher(Generic[T, R]):
    """Gives waiting items to actors, and replaces actors that die."""

    def __init__(
        self, ray: ModuleType, function: Callable[[T], R], waiting: deque[T], cores: int
    ) -> None:
        self.ray, self.function, self.waiting = ray, function, waiting
        self.deaths: Counter[T] = Counter()
        self.failed_starts = 0  # in a row
        # by awaited result: its actor, and the item, or None while the actor starts
        self.running: dict[Any, tuple[Any, T | None]] = {}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = sum(int(resources.get("GPU", 0)) for resources in nodes)
        cpus = [int(resources.get("CPU", 0)) for resources in nodes]
        cores = min(cores, max(cpus))
        if not gpus and not cores:
            raise UserError(
                "no node of the Ray cluster has a CPU or GPU to work with; see `ray status`"
            )
        self.needs = {"num_gpus": 1} if gpus else {"num_cpus": cores}
        self.actor_class = ray.remote(FunctionActor).options(max_restarts=0, **self.needs)
        capacity = gpus or sum(number // cores for number in cpus)
        self.actors = min(capacity, len(waiting))
        self.patience: float | None = SECONDS_UNTIL_WARNING
        for _ in range(self.actors):
            self._start()

    def results(self) -> Iterator[R]:
        """Yield results; an actor that is done gets the next item, one that died is replaced."""
        while self.running:
            finished, _ = self.ray.wait(list(self.running), num_returns=1, timeout=self.patience)
            if not finished:
                needs = " and ".join(f"{k}={v}" for k, v in self.needs.items())
                warn(
                    f"no worker has started on the Ray cluster in {self.patience:g} s; waiting "
                    f"until other jobs leave {needs} on a machine; see `ray status`"
                )
            self.patience = None
            if not finished:
                continue
            [first] = finished
            actor, item = self.running.pop(first)
            try:
                result = self.ray.get(first)
            except self.ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except self.ray.exceptions.RayError:
                self._replace(actor, item)
                continue
            if self.waiting:
                next_item = self.waiting.popleft()
                self.running[actor.call.remote(next_item)] = (actor, next_item)
            # else the actor ends here and frees its resources for one that waits to start
            del actor
            if item is None:
                self.failed_starts = 0
            else:
                yield result

    def _start(self) -> None:
        actor = self.actor_class.remote(self.function)
        self.running[actor.ready.remote()] = (actor, None)

    def _replace(self, actor: Any, item: T | None) -> None:
        """Take back the item of an actor that is dead or unreachable, and start another."""
        self.ray.kill(actor)
        if item is None:
            self.failed_starts += 1
            if self.failed_starts > MAX_RETRIES * self.actors:
                raise UserError(
                    f"{self.failed_starts} workers in a row died while they started; is covnmt "
                    "installed on all machines of the cluster, in the same version?"
                )
        else:
            self.deaths[item] += 1
            if self.deaths[item] > MAX_RETRIES:
                raise UserError(f"{item}: {MAX_RETRIES + 1} workers died on it; split it")
            self.waiting.appendleft(item)
        if self.waiting:
            self._start()


@contextmanager
def _connect(address: str) -> Iterator[ModuleType]:
    # no usage statistics; and Ray does not hide GPUs from workers that ask for none
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise UserError(
            f"--ray needs a package that is not installed: {install_command('cluster')}"
        ) from None
    try:
        if re.fullmatch(r"[^/:]+:\d+", address):  # Ray itself would retry for minutes
            host, _, port = address.partition(":")
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{address}: no Ray cluster found ({reason}); start one with `ray start --head`"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()
