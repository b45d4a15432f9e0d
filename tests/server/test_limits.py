"""Overload and its numbers: 429 before any 200 (H14), and gauges that fall back to zero (J2)."""

import asyncio
from typing import Any

import pytest


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_queue_is_429(serve: Any, gated: Any, stream: bool) -> None:
    """H14: batch of 1, queue of 4, ten at once: five run or wait, five are told to come back, none is half taken."""
    server = await serve(runner=gated, max_batch_size=1, max_queued_requests=4)

    async def ask() -> tuple[int, str | None]:
        body = {"prompt": "x", "max_tokens": 3, "stream": stream}
        async with server.http.post(f"{server.url}/v1/completions", json=body) as response:
            await response.read()
            return response.status, response.headers.get("Retry-After")

    asks = [asyncio.create_task(ask()) for _ in range(10)]
    while sum(task.done() for task in asks) < 5:
        await asyncio.wait(asks, return_when=asyncio.FIRST_COMPLETED, timeout=0.01)
    refused = [task.result() for task in asks if task.done()]
    waiting = [task for task in asks if not task.done()]
    assert refused == [(429, "1")] * 5
    gated.gate.set()
    assert await asyncio.gather(*waiting) == [(200, None)] * 5
    assert server.engine.audit() == []
    assert server.engine.unfinished_count == 0


async def test_a_request_that_could_never_fit_the_queue_is_400(serve: Any) -> None:
    """Waiting would not help it."""
    server = await serve(max_batch_size=1, max_queued_requests=1)
    status, answer = await server.post("completions", prompt=["a", "b"], n=2)
    assert status == 400
    assert "asked=4" in answer["error"]["message"]
    assert (await server.post("completions", prompt=["a"], n=2, max_tokens=1))[0] == 200


async def test_gauges_return_to_zero(serve: Any, gated: Any) -> None:
    """J2: twenty streams, all closed; the first reading after shows nothing running, waiting or used."""
    server = await serve(runner=gated, max_batch_size=8)
    tasks = [asyncio.create_task(server.post("completions", prompt="x" * 40)) for _ in range(20)]
    while server.engine.unfinished_count < 20:
        await asyncio.sleep(0)
    assert await server.metric("num_requests_running") == 8
    assert await server.metric("num_requests_waiting") == 12
    assert await server.metric("cache_blocks", state="used") > 0
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    gated.gate.set()
    while server.engine.unfinished_count or server.engine.stats().scheduler.rounds_in_flight:
        await asyncio.sleep(0)
    for state in ("running", "waiting"):
        assert await server.metric(f"num_requests_{state}") == 0
    blocks = [await server.metric("cache_blocks", state=state) for state in ("used", "cached", "free")]
    assert blocks[0] == 0
    assert sum(blocks) == await server.metric("cache_capacity_blocks")


async def test_counters_count(server: Any) -> None:
    """Tokens and responses, the latter by route and status."""
    await server.post("completions", prompt="hello", max_tokens=3)
    await server.post("completions", prompt="")
    await server.get("/no/such/path")
    assert await server.metric("prompt_tokens_total") == 5
    assert await server.metric("generation_tokens_total") == 3
    for status in (200, 400):
        labels = {"method": "POST", "handler": "/v1/completions", "status": str(status)}
        assert await server.metric("http_requests_total", **labels) == 1
    assert await server.metric("http_requests_total", method="GET", handler="unknown", status="404") == 1


async def test_a_request_id_is_echoed(server: Any) -> None:
    """B7: two clients with one id both get their own answers; an id that could not be a header is replaced."""

    async def ask(given: str, stream: bool) -> tuple[str, str]:
        body = {"prompt": "x", "max_tokens": 2, "temperature": 0, "stream": stream}
        headers = {"X-Request-ID": given}
        async with server.http.post(f"{server.url}/v1/completions", json=body, headers=headers) as response:
            return response.headers["X-Request-ID"], (await response.text())[:60]

    answers = await asyncio.gather(ask("same", False), ask("same", True), ask("same", False))
    assert [answer[0] for answer in answers] == ["same"] * 3
    assert all('"id":"cmpl-same"' in answer[1] for answer in answers)
    assert answers[0][1] == answers[2][1]
    assert (await ask("x" * 129, False))[0] != "x" * 129
    async with server.http.get(f"{server.url}/health", headers={"X-Request-ID": "h"}) as response:
        assert response.headers["X-Request-ID"] == "h"
