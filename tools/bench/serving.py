"""Tokens a second through the HTTP server beside the same weights in a bare decode loop, in turns."""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import aiohttp
import msgspec

from tools.bench.bare_model import BareModel
from tools.bench.figures import markdown_table
from tools.bench.workloads import token_ids

START_LIMIT_S = 600  # the first start of a model may have to prepare its weights
HEALTH_POLL_S = 0.2
FIRST_ORDINARY_ID = 1000  # below lie special tokens
ORDINARY_IDS = 40_000


@dataclass(frozen=True)
class Load:
    """`streams` prompts at once, each of `prompt_tokens`, each continued by `new_tokens`."""

    model: str
    streams: int
    prompt_tokens: int
    new_tokens: int
    repeats: int

    def prompts(self, repeat: int) -> list[list[int]]:
        """Prompts that share nothing, and nothing with other repeats."""
        first = 40_000_000 + repeat * self.streams
        return [
            (FIRST_ORDINARY_ID + token_ids(first + index, self.prompt_tokens) % ORDINARY_IDS).tolist()
            for index in range(self.streams)
        ]


@dataclass(frozen=True)
class Pace:
    """Tokens a second, all streams together."""

    prefill: float
    decode: float


@dataclass(frozen=True)
class Turn:
    """Both contenders on the same prompts, one after the other."""

    server: Pace
    bare: Pace


class Arrival(NamedTuple):
    """When a chunk came, and how many tokens its stream had brought by then."""

    at: float
    tokens: int


Timeline = list[Arrival]


def measure_serving(load: Load) -> list[Turn]:
    """Start a server, then let it and the bare model have their turns."""
    bare = BareModel(load.model)
    turns = []
    with served(load.model) as url:
        # A first turn for both that does not count: caches fill, kernels are chosen.
        server_pace(url, load, load.prompts(load.repeats))
        bare_pace(bare, load, load.prompts(load.repeats))
        for repeat in range(load.repeats):
            prompts = load.prompts(repeat)
            turn = Turn(server=server_pace(url, load, prompts), bare=bare_pace(bare, load, prompts))
            print(turn, flush=True)
            turns.append(turn)
    return turns


def describe_serving(load: Load, turns: Sequence[Turn]) -> str:
    """What was asked, and the medians with every turn's ratio."""
    decode = [turn.server.decode / turn.bare.decode for turn in turns]
    prefill = [turn.server.prefill / turn.bare.prefill for turn in turns]
    rows = [
        [
            "decode",
            f"{median(turn.server.decode for turn in turns):.1f}",
            f"{median(turn.bare.decode for turn in turns):.1f}",
            f"{median(decode):.2f}",
            ", ".join(f"{ratio:.2f}" for ratio in decode),
        ],
        [
            "prefill",
            f"{median(turn.server.prefill for turn in turns):.1f}",
            f"{median(turn.bare.prefill for turn in turns):.1f}",
            f"{median(prefill):.2f}",
            ", ".join(f"{ratio:.2f}" for ratio in prefill),
        ],
    ]
    asked = (
        f"`{load.model}`, float32: {load.streams} streams, {load.prompt_tokens} prompt tokens and "
        f"{load.new_tokens} new tokens each, greedy. Decode through the server is measured while every stream runs, "
        "with the prompts in the prefix cache; prefill from the first byte sent to the last stream's end."
    )
    head = ["tokens a second", "through the server", "bare model", "ratio", "of each turn"]
    return f"{asked}\n\n{markdown_table(head, rows)}"


def server_pace(url: str, load: Load, prompts: Sequence[Sequence[int]]) -> Pace:
    """Prompts in for one token each; then again, now cached, to be continued."""
    begin = time.perf_counter()
    asyncio.run(stream_all(url, load.model, prompts, max_tokens=1))
    prefill_s = time.perf_counter() - begin
    streams = asyncio.run(stream_all(url, load.model, prompts, max_tokens=load.new_tokens))
    return Pace(prefill=load.streams * load.prompt_tokens / prefill_s, decode=steady_tokens_per_second(streams))


def steady_tokens_per_second(streams: Sequence[Timeline]) -> float:
    """All streams together, while every one of them runs. Raises RuntimeError when they never all did."""
    begin = max(stream[0].at for stream in streams)
    end = min(stream[-1].at for stream in streams)
    if begin >= end:
        raise RuntimeError("the streams did not run side by side: ask for more new tokens")
    tokens = sum(tokens_until(stream, end) - tokens_until(stream, begin) for stream in streams)
    return tokens / (end - begin)


def tokens_until(stream: Timeline, moment: float) -> int:
    """How many tokens a stream had received at a moment."""
    return max(arrival.tokens for arrival in stream if arrival.at <= moment)


def bare_pace(bare: BareModel, load: Load, prompts: Sequence[Sequence[int]]) -> Pace:
    """The same tokens as one batch."""
    prefill_s, decode_s = bare.generate(prompts, new_tokens=load.new_tokens)
    return Pace(
        prefill=load.streams * load.prompt_tokens / prefill_s,
        decode=load.streams * (load.new_tokens - 1) / decode_s,
    )


async def stream_all(url: str, model: str, prompts: Sequence[Sequence[int]], *, max_tokens: int) -> list[Timeline]:
    """Send every prompt at once and read every stream to its end."""
    connector = aiohttp.TCPConnector(limit=len(prompts))
    async with aiohttp.ClientSession(connector=connector) as session:
        return await asyncio.gather(*(stream_one(session, url, model, prompt, max_tokens) for prompt in prompts))


async def stream_one(
    session: aiohttp.ClientSession, url: str, model: str, prompt: Sequence[int], max_tokens: int
) -> Timeline:
    """Read one stream. Raises RuntimeError unless it ran to its full length."""
    body = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    arrivals = []
    async with session.post(f"{url}/v1/completions", json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"the server answered {response.status}: {await response.text()}")
        async for line in response.content:
            if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                usage = msgspec.json.decode(line[len(b"data: ") :]).get("usage") or {}
                if tokens := usage.get("completion_tokens", 0):
                    arrivals.append(Arrival(time.perf_counter(), tokens))
    if not arrivals or arrivals[-1].tokens != max_tokens:
        raise RuntimeError(f"a stream ended before its {max_tokens} tokens: {arrivals[-1:]}")
    return arrivals


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def served(model: str) -> Iterator[str]:
    """The URL of a server of ours in a process of its own. Raises RuntimeError when it does not come up."""
    with served_process(model) as (url, _):
        yield url


@contextmanager
def served_process(model: str) -> Iterator[tuple[str, int]]:
    """As `served`, with the number of its process."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([sys.executable, "-m", "tokenspeed", "serve", "--model", model, "--port", str(port)])
    try:
        asyncio.run(until_healthy(url, process))
        yield url, process.pid
    finally:
        process.terminate()
        process.wait(timeout=60)


async def until_healthy(url: str, process: "subprocess.Popen[bytes]") -> None:
    """Ask until the server answers. Raises RuntimeError when its process ends or the time is up."""
    deadline = time.monotonic() + START_LIMIT_S
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with status {process.returncode} before it answered")
            try:
                async with session.get(f"{url}/health") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                pass  # not listening yet
            await asyncio.sleep(HEALTH_POLL_S)
    raise RuntimeError(f"the server did not answer within {START_LIMIT_S} s")
