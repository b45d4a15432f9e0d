"""A server over the stamp model on a free port, and a client that speaks plain HTTP."""

import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from control_plane.messages import SlotBinding
from control_plane.messages.columns import Int32s
from data_plane.batch.rows import Rows
from data_plane.model.base import DeviceMemory, ModelFacts, ModelRunner
from data_plane.model.stamp import StampOptions, StampRunner
from tokenspeed import AsyncEngine, EngineConfig
from tokenspeed.server.runner import Serving, serving


class GatedRunner:
    """The stamp model, computing only while the gate is open: a test decides when anything happens."""

    def __init__(self) -> None:
        self._inner: ModelRunner = StampRunner(StampOptions(max_context_tokens=1024))
        self.gate = threading.Event()

    @property
    def facts(self) -> ModelFacts:
        return self._inner.facts

    def attach(self, memory: DeviceMemory, *, slots: int) -> None:
        self._inner.attach(memory, slots=slots)

    def bind(self, binding: SlotBinding) -> None:
        self._inner.bind(binding)

    def run(self, rows: Rows) -> Callable[[], Int32s]:
        self.gate.wait()
        return self._inner.run(rows)


class Running:
    """A server, its engine, and a client."""

    def __init__(self, running: Serving, engine: AsyncEngine, http: aiohttp.ClientSession) -> None:
        self.url = running.url
        self.lifecycle = running.lifecycle
        self.engine = engine
        self.http = http

    async def post(self, path: str, body: object = None, **fields: Any) -> tuple[int, Any]:
        """Send JSON; the status and the answer."""
        async with self.http.post(f"{self.url}/v1/{path}", json=fields if body is None else body) as response:
            return response.status, await response.json()

    async def get(self, path: str) -> tuple[int, str]:
        """The status and the body."""
        async with self.http.get(f"{self.url}{path}") as response:
            return response.status, await response.text()

    async def stream(self, path: str, **fields: Any) -> list[Any]:
        """All frames of a stream as objects, `[DONE]` as that text."""
        async with self.http.post(f"{self.url}/v1/{path}", json={"stream": True, **fields}) as response:
            assert response.status == 200, await response.text()
            assert response.content_type == "text/event-stream"
            return frames(await response.read())

    async def metrics(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Every sample by its name, without the prefix, and its labels, without the model's name."""
        _, text = await self.get("/metrics")
        return {
            (sample.name.removeprefix("tokenspeed:"), frozenset(sample.labels.items() - {("model_name", "stamp")})): (
                sample.value
            )
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    async def metric(self, name: str, **labels: str) -> float:
        """The number behind a metric's name and labels."""
        return (await self.metrics())[name, frozenset(labels.items())]


def frames(body: bytes) -> list[Any]:
    """The data frames of a stream."""
    parts = body.decode().split("\n\n")
    assert parts.pop() == "", "the stream ends inside a frame"
    payloads = [part.removeprefix("data: ") for part in parts]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]


Serve = Callable[..., Awaitable[Running]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start a server with these settings over the stamp model's."""
    async with AsyncExitStack() as stack:

        async def start(*, runner: ModelRunner | None = None, **settings: Any) -> Running:
            config = EngineConfig(**{"model": "stamp", "port": 0, "max_context_tokens": 1024, **settings})
            engine = await AsyncEngine.start(config, runner=runner)
            running = await stack.enter_async_context(serving(engine))
            if isinstance(runner, GatedRunner):
                stack.callback(runner.gate.set)
            http = await stack.enter_async_context(aiohttp.ClientSession())
            return Running(running, engine, http)

        yield start


@pytest.fixture
def gated() -> GatedRunner:
    """A model whose gate is closed."""
    return GatedRunner()


@pytest.fixture
async def server(serve: Serve) -> Running:
    """A server with the usual settings."""
    return await serve()
