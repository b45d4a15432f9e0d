"""When the model or the engine fails under a request (H6)."""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from control_plane.messages.columns import Int32s
from data_plane.batch.rows import Rows
from data_plane.model.faulty import FaultyRunner
from data_plane.model.stamp import StampOptions, StampRunner

SIZE = StampOptions(max_context_tokens=1024)


async def read_frames(response: aiohttp.ClientResponse) -> tuple[list[Any], bool]:
    """The frames that came, and whether the body ended as a complete one does."""
    payloads = []
    try:
        async for line in response.content:
            if line.startswith(b"data: "):
                payload = line.removeprefix(b"data: ").strip()
                payloads.append("[DONE]" if payload == b"[DONE]" else json.loads(payload))
    except aiohttp.ClientPayloadError:
        return payloads, False
    return payloads, True


async def test_a_whole_answer_that_cannot_be_finished_is_a_500(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    """H6: an error body; the next request works, and nothing is left behind."""
    server = await serve(runner=FaultyRunner(StampRunner(SIZE), fail_rounds=(3,)))
    status, answer = await server.post("completions", prompt="x", max_tokens=8)
    assert (status, answer["error"]["code"]) == (500, "generation_failed")
    assert "batch 3 was told to fail" in answer["error"]["message"]
    assert (await server.post("completions", prompt="x", max_tokens=8))[0] == 200
    assert server.engine.audit() == []
    assert (await server.get("/health"))[0] == 200


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
async def test_a_stream_that_breaks_says_so_and_does_not_end_well(serve: Any, path: str) -> None:
    """H6: the last frame is an error object; no `[DONE]`, no finish reason, and the body has no proper end."""
    server = await serve(runner=FaultyRunner(StampRunner(SIZE), fail_results=(3,)))
    prompt = {"prompt": "x"} if path == "completions" else {"messages": [{"role": "user", "content": "x"}]}
    body = {**prompt, "max_tokens": 8, "stream": True}
    async with server.http.post(f"{server.url}/v1/{path}", json=body) as response:
        assert response.status == 200
        got, is_complete = await read_frames(response)
    *chunks, last = got
    assert last["error"]["code"] == "generation_failed"
    assert "[DONE]" not in got
    assert all(choice["finish_reason"] is None for chunk in chunks for choice in chunk["choices"])
    assert not is_complete
    assert await server.stream(path, **prompt, max_tokens=2)


async def test_one_choice_that_fails_ends_the_whole_answer(serve: Any) -> None:
    """The other choice is taken back: nobody would read it."""
    server = await serve(runner=FaultyRunner(StampRunner(SIZE), fail_keys=(2,)), overlap_depth=0)
    body = {"prompt": "x", "n": 2, "max_tokens": 900, "stream": True}
    async with server.http.post(f"{server.url}/v1/completions", json=body) as response:
        got, is_complete = await read_frames(response)
    assert ("error" in got[-1], is_complete) == (True, False)
    status, _ = await server.post("completions", prompt="y", max_tokens=1)
    assert status == 200
    assert await server.metric("num_requests_running") == 0


async def test_closing_the_engine_breaks_streams_visibly(serve: Any, gated: Any) -> None:
    """H6: at shutdown a stream gets an error frame, a whole answer 503; new requests too, and health says why."""
    server = await serve(runner=gated)
    url = f"{server.url}/v1/completions"
    async with server.http.post(url, json={"prompt": "x", "stream": True}) as response:
        whole = asyncio.create_task(server.post("completions", prompt="x"))
        while server.engine.unfinished_count < 2:
            await asyncio.sleep(0)
        gated.gate.set()
        closing = asyncio.create_task(server.engine.aclose())
        got, is_complete = await read_frames(response)
        status, answer = await whole
        await closing
    assert (got[-2]["error"]["code"], got[-1], is_complete) == ("engine_unavailable", "[DONE]", True)
    assert (status, answer["error"]["code"]) == (503, "engine_unavailable")
    assert (await server.post("completions", prompt="x"))[0] == 503
    status, text = await server.get("/health")
    assert (status, json.loads(text)) == (503, {"status": "failed", "reason": "the engine is closed"})


async def test_a_device_that_stops_makes_the_server_unhealthy(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    """H6: a fault that reaches further than one round ends what runs, and later requests are told at once."""
    caplog.set_level(logging.CRITICAL)

    class DeviceGone(BaseException):
        """Not an error of the model, which would concern one round only."""

    class Broken(FaultyRunner):
        def run(self, rows: Rows) -> Callable[[], Int32s]:
            super().run(rows)
            return self._tell

        def _tell(self) -> Int32s:
            raise DeviceGone("the device is gone")

    server = await serve(runner=Broken(StampRunner(SIZE)))
    status, answer = await server.post("completions", prompt="x")
    assert status == 500
    assert "the device is gone" in answer["error"]["message"]
    status, text = await server.get("/health")
    assert status == 503
    assert "the device is gone" in json.loads(text)["reason"]
    assert (await server.post("completions", prompt="x"))[0] == 503
    assert await server.metric("healthy") == 0
