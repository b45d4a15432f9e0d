"""Clients that go: their requests end, nobody else's do (H3, H4, B6, B8)."""

import asyncio
import json
import logging
import random
from pathlib import Path
from typing import Any

import pytest

from control_plane.rounds.replay import replay
from tokenspeed import AsyncEngine, SamplingParams


class RawClient:
    """One request over a plain socket, so that a test decides when it goes, and how."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def ask(cls, url: str, **body: Any) -> "RawClient":
        """Send a completion request; nothing is read yet."""
        host, port = url.removeprefix("http://").rsplit(":", 1)
        client = cls(*await asyncio.open_connection(host, int(port)))
        payload = json.dumps({"stream": True, **body}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(payload)}\r\n\r\n"
        client.writer.write(head.encode() + payload)
        await client.writer.drain()
        return client

    async def frame(self) -> str:
        """The payload of the next frame."""
        while not (line := await self.reader.readline()).startswith(b"data: "):
            assert line, "the server closed the connection"
        return line.decode().removeprefix("data: ").strip()

    async def rest(self) -> list[str]:
        """All frames up to `[DONE]`."""
        frames = []
        while (frame := await self.frame()) != "[DONE]":
            frames.append(frame)
        return frames

    def hang_up(self, *, abruptly: bool = False) -> None:
        """Close, or reset, the connection."""
        if abruptly:
            self.writer.transport.abort()
        else:
            self.writer.close()


async def drained(engine: AsyncEngine) -> None:
    """Until nothing is unfinished, here or in the scheduler."""
    while engine.unfinished_count or (stats := engine.stats().scheduler).running or stats.rounds_in_flight:
        await asyncio.sleep(0.001)
    assert engine.audit() == []


async def test_a_client_that_goes_aborts_its_request(start: Any) -> None:
    """In the middle of a stream, closed and reset; and one that waits for a whole answer."""
    engine, url = await start()
    for abruptly in (False, True):
        client = await RawClient.ask(url, prompt="a", max_tokens=2000)
        await client.frame()
        client.hang_up(abruptly=abruptly)
        await drained(engine)
    client = await RawClient.ask(url, prompt="a", max_tokens=2000, stream=False)
    while not engine.unfinished_count:
        await asyncio.sleep(0.001)
    client.hang_up()
    await drained(engine)


async def test_a_queued_request_that_goes_leaves_the_running_one_alone(start: Any) -> None:
    """H3: batch of 1; B and C wait, and go; A gets all its tokens."""
    engine, url = await start(max_batch_size=1)
    running = await RawClient.ask(url, prompt="a", max_tokens=300)
    await running.frame()
    for _ in range(2):
        queued = await RawClient.ask(url, prompt="b", max_tokens=5)
        while engine.unfinished_count < 2:
            await asyncio.sleep(0)
        queued.hang_up()
        while engine.unfinished_count > 1:
            await asyncio.sleep(0.001)
    frames = await running.rest()
    assert json.loads(frames[-1])["choices"][0]["finish_reason"] == "length"
    running.hang_up()
    await drained(engine)


async def test_all_choices_of_a_client_that_goes_end(start: Any) -> None:
    """B6: n=3, closed after five frames; nothing of it is left."""
    engine, url = await start()
    client = await RawClient.ask(url, prompt="a", n=3, max_tokens=1000)
    for _ in range(5):
        await client.frame()
    assert engine.unfinished_count == 3
    client.hang_up()
    await drained(engine)


async def test_a_hundred_hang_ups_do_not_take_the_engine_down(
    start: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """H4, B8: closed before, in and after every step; nothing is logged, and the record replays.

    An exception that nobody retrieved would be logged by the event loop.
    """
    caplog.set_level(logging.WARNING)
    file = tmp_path / "run.rounds"
    engine, url = await start(max_batch_size=8, record=str(file))
    chance = random.Random(4)

    async def visit(number: int) -> None:
        client = await RawClient.ask(
            url, prompt="a" * (1 + number), max_tokens=30, stream=bool(number % 4), n=1 + number % 2
        )
        for _ in range(chance.randrange(20)):
            await asyncio.sleep(0)
        for _ in range(chance.randrange(6) if number % 4 else 0):
            if await client.frame() == "[DONE]":
                break
        client.hang_up(abruptly=bool(number % 3))

    await asyncio.gather(*(visit(number) for number in range(100)))
    await drained(engine)
    assert engine.failure is None
    last = await RawClient.ask(url, prompt="plain", max_tokens=5)
    assert json.loads((await last.rest())[-1])["choices"][0]["finish_reason"] == "length"
    last.hang_up()
    await engine.aclose()
    assert [record.getMessage() for record in caplog.records] == []
    assert replay(file).difference is None


async def test_thirty_two_streams_of_which_eight_go(start: Any, tmp_path: Path) -> None:
    """The others finish in full, the books are clean and the record replays identically."""
    file = tmp_path / "run.rounds"
    engine, url = await start(record=str(file), device_blocks=96, max_batch_size=16)

    async def visit(number: int) -> int:
        client = await RawClient.ask(url, prompt=[1 + number] * (20 + number), max_tokens=40, seed=number)
        if number % 4 == 0:
            for _ in range(1 + number % 5):
                await client.frame()
            client.hang_up()
            return 0
        frames = await client.rest()
        client.hang_up()
        assert json.loads(frames[-1])["choices"][0]["finish_reason"] == "length"
        return sum(len(json.loads(frame)["choices"][0]["text"].split()) for frame in frames)

    counts = await asyncio.gather(*(visit(number) for number in range(32)))
    assert counts == [0 if number % 4 == 0 else 40 for number in range(32)]
    await drained(engine)
    await engine.aclose()
    assert replay(file).difference is None


async def test_a_slow_reader_slows_nobody_and_loses_nothing(start: Any) -> None:
    """H10: one client reads nothing while its request and others run to their end; then it finds every token, merged.

    What it does not read waits as token ids in the loop: text is made of them when its connection has room. The long
    model name makes frames so large that no socket buffer holds the stream.
    """
    engine, url = await start(max_batch_size=4, model_names=("m" * 8000,))
    slow = await RawClient.ask(url, prompt="a", max_tokens=1500, temperature=0)
    slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
    for _ in range(5):
        quick = await RawClient.ask(url, prompt="b", max_tokens=20)
        frames = await quick.rest()
        assert sum(len(json.loads(frame)["choices"][0]["text"].split()) for frame in frames) == 20
        quick.hang_up()
    while engine.stats().open_streams:
        await asyncio.sleep(0.001)
    assert engine.unfinished_count == 1
    slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
    texts = [json.loads(frame)["choices"][0]["text"] for frame in await slow.rest()]
    slow.hang_up()
    assert len(texts) < 1500
    params = SamplingParams(max_tokens=1500, temperature=0)
    assert "".join(texts) == "".join([output.text async for output in engine.generate("a", params)])
    await drained(engine)


async def test_a_slow_reader_that_goes_is_cleaned_up(start: Any) -> None:
    """H10: its handler waits for room in the connection; the reset ends that wait and the request."""
    engine, url = await start(model_names=("m" * 8000,))
    slow = await RawClient.ask(url, prompt="a", max_tokens=1500)
    slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
    while engine.stats().scheduler.generated_tokens < 1500:
        await asyncio.sleep(0.001)
    slow.hang_up(abruptly=True)
    await drained(engine)
