"""How long a request waits."""

import asyncio

import pytest
from starlette.requests import Request
from starlette.types import Message

from covnmt.serve.security import RequestRefusedError
from covnmt.serve.service import TranslationService
from covnmt.serve.settings import ServeSettings


async def never() -> Message:
    return await asyncio.Future()


def test_steps_of_a_request_share_its_time() -> None:
    """The first step is done in time; the second has only what is left of it."""
    service = TranslationService({}, ServeSettings(timeout=600))

    async def answer() -> str:
        return "done"

    async def wait_twice() -> None:
        request = Request({"type": "http"}, never)
        assert await service.finish(request, 0.01, answer()) == "done"
        await asyncio.sleep(0.02)
        with pytest.raises(RequestRefusedError):
            await service.finish(request, None, never())

    asyncio.run(asyncio.wait_for(wait_twice(), 60))
