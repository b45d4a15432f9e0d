"""The feed behind the live page: bounded, and about now."""

import asyncio
import json
from typing import Any

from tokenspeed.observe.rounds import KEPT_ROUNDS
from tokenspeed.server.live import PAGE, SHOWN_REQUESTS


async def feed(server: Any, since: str = "") -> Any:
    """What the page reads."""
    status, text = await server.get(f"/v1/live{since}")
    assert status == 200
    return json.loads(text)


async def test_the_page_is_one_file_that_loads_nothing(server: Any) -> None:
    """No address of another file or host is in it, and the browser is told to hold to that."""
    async with server.http.get(f"{server.url}/") as response:
        assert (response.status, response.content_type) == (200, "text/html")
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        text = await response.text()
    assert text == PAGE.read_text()
    assert "http" not in text.replace("httpEquiv", "")
    assert "src=" not in text
    assert "@import" not in text


async def test_rounds_come_once_and_only_the_last_ones(server: Any) -> None:
    """`since` is the last round that the reader has; nonsense reads as none."""
    await server.post("completions", prompt="x" * 20, max_tokens=KEPT_ROUNDS + 50)
    now = await feed(server)
    numbers = [card["round"] for card in now["rounds"]]
    assert len(numbers) == KEPT_ROUNDS
    assert numbers == list(range(numbers[0], numbers[0] + KEPT_ROUNDS))
    assert all(card["decode_tokens"] + card["prefill_tokens"] > 0 for card in now["rounds"])
    assert (await feed(server, f"?since={numbers[-1]}"))["rounds"] == []
    assert [card["round"] for card in (await feed(server, f"?since={numbers[-3]}"))["rounds"]] == numbers[-2:]
    for nonsense in ("x", "-1", "9" * 40, ""):
        assert len((await feed(server, f"?since={nonsense}"))["rounds"]) == KEPT_ROUNDS
    assert (now["requests"], now["running"], now["generated_tokens"]) == ([], 0, KEPT_ROUNDS + 50)


async def test_requests_are_shown_with_their_states(serve: Any, gated: Any) -> None:
    """As many as a screen holds; the others are counted."""
    server = await serve(runner=gated, max_batch_size=2)
    asked = [asyncio.create_task(server.post("completions", prompt=["x"] * 50)) for _ in range(5)]
    while server.engine.stats().scheduler.waiting != 248:
        await asyncio.sleep(0)
    now = await feed(server)
    assert (len(now["requests"]), now["hidden_requests"]) == (SHOWN_REQUESTS, 50)
    assert [row["state"] for row in now["requests"][:3]] == ["prefilling", "prefilling", "waiting"]
    assert (now["running"], now["waiting"], now["condition"]) == (2, 248, "ready")
    gated.gate.set()
    assert {status for status, _ in await asyncio.gather(*asked)} == {200}
    now = await feed(server)
    assert (now["requests"], now["hidden_requests"]) == ([], 0)


async def test_a_retracted_request_says_so(serve: Any) -> None:
    """Until it is admitted again, and how often it happened after."""
    server = await serve(device_blocks=24, max_batch_size=4, safe_steps=16, max_context_tokens=256)
    users = [[{"role": "user", "content": f"{number}" * 40}] for number in range(4)]
    asked = asyncio.gather(*(server.post("chat/completions", messages=user, ignore_eos=True) for user in users))
    states: set[tuple[str, bool]] = set()
    while not asked.done():
        states |= {(times.state, times.retractions > 0) for _, times in server.engine.watch.requests.live()}
        await asyncio.sleep(0)
    assert {("retracted", True), ("decoding", True), ("decoding", False)} <= states
    assert ("retracted", False) not in states
