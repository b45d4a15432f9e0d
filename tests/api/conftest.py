"""One server over a small random model with real logits, for all tests of this folder."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.api import small_model
from tests.server.conftest import Running
from tokenspeed import AsyncEngine, EngineConfig
from tokenspeed.server.runner import serving


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the model."""
    folder = tmp_path_factory.mktemp("small") / "small"
    small_model.write(folder)
    return folder


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared(model_folder: Path) -> AsyncIterator[Running]:
    """The server."""
    config = EngineConfig(model=str(model_folder), port=0, device_blocks=512, max_context_tokens=1024)
    engine = await AsyncEngine.start(config)
    async with serving(engine) as running, aiohttp.ClientSession() as http:
        yield Running(running, engine, http)


@pytest_asyncio.fixture(loop_scope="session")
async def server(shared: Running) -> AsyncIterator[Any]:
    """The server, of which nothing may be left behind."""
    yield shared
    assert shared.engine.unfinished_count == 0
    assert shared.engine.audit() == []
