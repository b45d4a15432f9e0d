"""Ready, draining, stuck and failed told apart; limits of time; where a request is (issue: robustness)."""

import asyncio
import json
import ssl
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tokenspeed.server.lifecycle import STUCK_SECONDS, Condition, Lifecycle


async def raw(server: Any, head: str) -> bytes:
    """What the server answers to these bytes, until it closes the connection."""
    host, port = server.url.removeprefix("http://").rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.encode())
    answer = await reader.read()
    writer.close()
    return answer


async def test_ready_and_version(server: Any) -> None:
    """Both exist, and say what a probe needs."""
    assert await server.get("/ready") == (200, '{"status": "ok"}')
    status, text = await server.get("/version")
    assert (status, set(json.loads(text))) == (200, {"version", "python"})


async def test_a_declared_body_of_99_gb_is_413_at_once(server: Any) -> None:
    """Not one byte of it is waited for, and the connection closes."""
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99000000000\r\n\r\n"
    assert (await raw(server, head)).startswith(b"HTTP/1.1 413 ")


async def test_a_header_or_a_body_that_never_ends_is_closed(serve: Any) -> None:
    """The one without an answer, the other with 408; a connection that was heard stays."""
    server = await serve(header_timeout_seconds=0.05)
    assert await raw(server, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Slow: ") == b""
    body = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
    assert (await raw(server, body)).startswith(b"HTTP/1.1 408 ")


async def test_draining_refuses_new_requests_and_finishes_running_ones(serve: Any, gated: Any) -> None:
    """503 with a hint for the new, `/ready` says no and `/health` yes, and the running stream ends well."""
    server = await serve(runner=gated)
    running = asyncio.create_task(server.stream("completions", prompt="x", max_tokens=3))
    while not server.engine.unfinished_count:
        await asyncio.sleep(0)
    draining = asyncio.create_task(server.lifecycle.drain(60))
    while not server.lifecycle.is_draining:
        await asyncio.sleep(0)
    async with server.http.post(f"{server.url}/v1/completions", json={"prompt": "y"}) as refused:
        assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
    assert (await server.get("/ready"))[0] == 503
    status, text = await server.get("/health")
    assert (status, json.loads(text)["status"]) == (200, "draining")
    gated.gate.set()
    frames = await running
    assert (frames[-2]["choices"][0]["finish_reason"], frames[-1]) == ("length", "[DONE]")
    assert await draining == 0


async def test_what_draining_cannot_wait_for_is_counted(serve: Any, gated: Any) -> None:
    """Time up, or a second signal: how many answers are left."""
    server = await serve(runner=gated)
    running = asyncio.create_task(server.post("completions", prompt="x", max_tokens=3))
    while not server.engine.unfinished_count:
        await asyncio.sleep(0)
    assert await server.lifecycle.drain(0) == 1
    hurry = asyncio.Event()
    hurry.set()
    assert await server.lifecycle.drain(3600, hurry) == 1
    gated.gate.set()
    assert (await running)[0] == 200


async def test_stuck_is_told_from_busy_and_idle(serve: Any, gated: Any) -> None:
    """Nothing moves while something is unfinished, for long enough; idle for as long is ready."""
    now = 0.0
    server = await serve(runner=gated)
    lifecycle = Lifecycle(server.engine, clock=lambda: now)
    assert lifecycle.condition()[0] is Condition.READY
    now += 2 * STUCK_SECONDS
    assert lifecycle.condition()[0] is Condition.READY
    running = asyncio.create_task(server.post("completions", prompt="x", max_tokens=3))
    while not server.engine.stats().scheduler.rounds_in_flight:
        await asyncio.sleep(0)
    assert lifecycle.condition()[0] is Condition.READY
    now += STUCK_SECONDS
    condition, reason = lifecycle.condition()
    assert (condition, "1 generations are unfinished" in reason) == (Condition.STUCK, True)
    gated.gate.set()
    await running
    assert lifecycle.condition()[0] is Condition.READY


async def test_where_a_request_is_and_its_cancellation(serve: Any, gated: Any) -> None:
    """The one that waits says behind whom; DELETE ends it with a reason; then it is not known any more."""
    server = await serve(runner=gated, max_batch_size=1)

    async def ask(request_id: str) -> tuple[int, Any]:
        headers = {"X-Request-ID": request_id}
        async with server.http.post(
            f"{server.url}/v1/completions", json={"prompt": "x", "max_tokens": 2}, headers=headers
        ) as response:
            return response.status, await response.json()

    first = asyncio.create_task(ask("first"))
    while not server.engine.stats().scheduler.running:
        await asyncio.sleep(0)
    second = asyncio.create_task(ask("second"))
    while server.engine.stats().scheduler.waiting != 1:
        await asyncio.sleep(0)
    status, text = await server.get("/v1/requests/second")
    assert (status, json.loads(text)["where"]) == (200, "waiting, first in line: all 1 slots are taken")
    _, text = await server.get("/v1/requests")
    assert [card["id"] for card in json.loads(text)["data"]] == ["first", "second"]
    async with server.http.delete(f"{server.url}/v1/requests/second") as response:
        assert await response.json() == {"id": "second", "object": "request", "cancelled": True}
    status, answer = await second
    assert (status, "cancelled by DELETE" in answer["error"]["message"]) == (503, True)
    assert (await server.get("/v1/requests/second"))[0] == 404
    gated.gate.set()
    assert (await first)[0] == 200


async def test_a_request_that_takes_too_long_ends(serve: Any, gated: Any) -> None:
    """H6: whole as 503, streamed as an error frame and `[DONE]` without a finish reason."""
    server = await serve(runner=gated, request_timeout_seconds=0.05)
    status, answer = await server.post("completions", prompt="x")
    assert (status, "limit of 0.05 s" in answer["error"]["message"]) == (503, True)
    error, done = await server.stream("completions", prompt="x")
    assert ("limit of 0.05 s" in error["error"]["message"], done) == (True, "[DONE]")


async def test_silence_is_filled_with_comments(serve: Any, gated: Any) -> None:
    """H11: headers at once, comments while nothing comes, then frames alone; none without the flag."""
    server = await serve(runner=gated, keep_alive_seconds=0.01)
    async with server.http.post(
        f"{server.url}/v1/completions", json={"prompt": "x", "stream": True, "max_tokens": 2}
    ) as response:
        assert await response.content.readuntil(b"\n\n") == b": keep-alive\n\n"
        assert await response.content.readuntil(b"\n\n") == b": keep-alive\n\n"
        gated.gate.set()
        rest = (await response.read()).split(b"\n\n")
    data = [part for part in rest if not part.startswith(b": ")]
    assert data[-2:] == [b"data: [DONE]", b""]
    assert all(part.startswith(b"data: ") for part in data[:-1])


async def test_a_prompt_over_the_servers_own_limit_is_400(serve: Any) -> None:
    """The limit and the length are in the message."""
    server = await serve(max_prompt_tokens=8)
    assert (await server.post("completions", prompt="12345678", max_tokens=1))[0] == 200
    status, answer = await server.post("completions", prompt="123456789", max_tokens=1)
    assert (status, "max_prompt_tokens=8" in answer["error"]["message"]) == (400, True)


async def test_browsers_of_allowed_origins(serve: Any) -> None:
    """Preflight and answer name the origin; another origin gets nothing that lets its page read."""
    server = await serve(cors_origins=("https://a.example",), api_key="key")
    url = f"{server.url}/v1/models"
    asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    async with server.http.options(url, headers=asked) as response:
        assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (204, "https://a.example")
    for origin, is_allowed in (("https://a.example", True), ("https://b.example", False)):
        headers = {"Origin": origin, "Authorization": "Bearer key"}
        async with server.http.get(url, headers=headers) as response:
            assert ("Access-Control-Allow-Origin" in response.headers) is is_allowed


async def test_tls(serve: Any, tmp_path: Path) -> None:
    """A certificate by two settings, and the same API behind it."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    )
    try:
        subprocess.run(
            [*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=60
        )
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    server = await serve(tls_certificate=str(certificate), tls_key=str(key))
    context = ssl.create_default_context(cafile=str(certificate))
    async with aiohttp.ClientSession() as http, http.get(f"{server.url}/ready", ssl=context) as response:
        assert (server.url[:8], response.status) == ("https://", 200)
