"""A server on a real port, for clients that know nothing of it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from data_plane.model.base import ModelRunner
from tokenspeed import AsyncEngine, EngineConfig
from tokenspeed.server.runner import serving

Start = Callable[..., Awaitable[tuple[AsyncEngine, str]]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Serve the stamp model with these settings; gives the engine and the base URL."""
    async with AsyncExitStack() as stack:

        async def serve(*, runner: ModelRunner | None = None, **settings: Any) -> tuple[AsyncEngine, str]:
            config = EngineConfig(**{"model": "stamp", "port": 0, "max_context_tokens": 2048, **settings})
            engine = await AsyncEngine.start(config, runner=runner)
            return engine, (await stack.enter_async_context(serving(engine))).url

        yield serve
