"""Threads apart from those of asyncio: clients take turns, and what nobody waits for is not run."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from covnmt.serve.background_threads import BackgroundThreads


def in_event_loop(scenario: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Let a coroutine be a test."""

    def run() -> None:
        asyncio.run(scenario())

    return run


@in_event_loop
async def test_clients_take_turns() -> None:
    background, begin, order = BackgroundThreads(1), threading.Event(), list[str]()
    first = asyncio.ensure_future(background.run("a", begin.wait))
    while background.waiting or not background.threads:  # until it has begun
        await asyncio.sleep(0.01)
    names = ["a1", "a2", "a3", "b1"]
    calls = [background.run(name[0], order.append, name) for name in names]
    others = asyncio.gather(*calls)
    await asyncio.sleep(0)
    begin.set()
    await asyncio.gather(first, others)
    assert order == ["a1", "b1", "a2", "a3"]


@in_event_loop
async def test_what_is_cancelled_before_its_turn_never_runs() -> None:
    background, begin, order = BackgroundThreads(1), threading.Event(), list[str]()
    first = asyncio.ensure_future(background.run("a", begin.wait))
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(background.run("b", order.append, "cancelled"), 0.05)
    begin.set()
    await first
    await background.run("b", order.append, "run")
    assert order == ["run"]


@in_event_loop
async def test_errors_reach_the_caller() -> None:
    background = BackgroundThreads(1)
    with pytest.raises(ZeroDivisionError):
        await background.run("a", lambda: 1 // 0)
    assert await background.run("a", lambda: 1) == 1
