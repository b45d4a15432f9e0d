"""`python -m tools.bench stream`: processor time of one streamed token, layer by layer, and of an idle server.

The loop alone: rounds over a thread that answers every plan at once, so that hand-off, events, stop rules and fan-out
are what is left. The engine: the same with the stamp model, streams and text. The server: all of it, and HTTP.
"""

import asyncio
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from control_plane import CacheGroupConfig, Scheduler, SchedulerConfig
from control_plane.loop.outbox import OutputStream
from control_plane.loop.round_loop import RoundLoop
from control_plane.messages import ExecutionPlan, RequestSpec
from control_plane.messages.wire import decode_plan, encode_events, encode_plan
from control_plane.testing.simulated_device import result_of
from tokenspeed import AsyncEngine, EngineConfig, SamplingParams
from tools.bench.figures import markdown_table
from tools.bench.serving import served_process, stream_all
from tools.bench.workloads import token_ids

PROMPT_TOKENS = 64
IDLE_SECONDS = 10.0


@dataclass(frozen=True)
class Streamed:
    """Processor time of all threads of the process, by token."""

    layer: str
    streams: int
    tokens: int
    cpu_s: float

    @property
    def us_per_token(self) -> float:
        """Microseconds."""
        return self.cpu_s / self.tokens * 1e6


class AnsweringThread:
    """A device whose thread decodes each plan and answers it at once."""

    failure: str | None = None

    def __init__(self) -> None:
        self._plans: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, deliver: Callable[[bytes], None]) -> None:
        """Begin to answer."""
        self._thread = threading.Thread(target=self._answer, args=(deliver,), name="answering")
        self._thread.start()

    def execute(self, plan: ExecutionPlan) -> None:
        """Hand the bytes over."""
        self._plans.put(encode_plan(plan))

    def close(self) -> None:
        """Wait for the thread to end."""
        self._plans.put(None)
        if self._thread is not None:
            self._thread.join()

    def _answer(self, deliver: Callable[[bytes], None]) -> None:
        while (payload := self._plans.get()) is not None:
            deliver(encode_events([result_of(decode_plan(payload), lambda key, position: 7)]))


def measure_streaming(streams: int, new_tokens: int) -> list[Streamed]:
    """All three layers, the innermost first."""
    return [
        asyncio.run(_loop_alone(streams, new_tokens)),
        asyncio.run(_engine(streams, new_tokens)),
        _server(streams, new_tokens),
    ]


def idle_cpu_ms() -> float:
    """Milliseconds of processor time that a server takes in ten seconds in which nobody asks anything."""
    with served_process("stamp") as (_, pid):
        time.sleep(2.0)  # what starting left behind
        before = _cpu_s(pid)
        time.sleep(IDLE_SECONDS)
        return (_cpu_s(pid) - before) * 1000


def describe_streaming(measured: list[Streamed], idle_ms: float) -> str:
    """One row a layer."""
    rows = []
    inner = 0.0
    for each in measured:
        rows.append([each.layer, str(each.streams), f"{each.us_per_token:.1f}", f"{each.us_per_token - inner:.1f}"])
        inner = each.us_per_token
    head = ["layer", "streams", "us of processor time a token", "more than the layer before"]
    return f"{markdown_table(head, rows)}\n\nIdle: {idle_ms:.0f} ms of processor time in {IDLE_SECONDS:.0f} s."


async def _loop_alone(streams: int, new_tokens: int) -> Streamed:
    config = SchedulerConfig(
        prefix_granularity=16,
        max_scheduled_tokens=8192,
        max_batch_size=streams,
        device_blocks=streams * ((PROMPT_TOKENS + new_tokens) // 16 + 2),
        groups=(CacheGroupConfig(id="full", block_granularity=16),),
        max_context_tokens=PROMPT_TOKENS + new_tokens,
        overlap_depth=1,
    )
    device = AnsweringThread()
    loop = RoundLoop(Scheduler(config), device)
    running = asyncio.create_task(loop.run())
    await asyncio.sleep(0)
    begin = time.process_time()
    opened = [loop.submit(_spec(index, new_tokens)) for index in range(streams)]
    tokens = sum(await asyncio.gather(*(_drain(stream) for stream in opened)))
    cpu_s = time.process_time() - begin
    loop.close()
    await running
    device.close()
    return Streamed("loop and a thread that answers at once", streams, tokens, cpu_s)


def _spec(index: int, new_tokens: int) -> RequestSpec:
    return RequestSpec(f"r{index}", token_ids(60_000_000 + index, PROMPT_TOKENS).tobytes(), new_tokens)


async def _drain(stream: OutputStream) -> int:
    tokens = 0
    while True:
        output = await stream.next()
        tokens += len(output.tokens)
        if output.reason is not None:
            return tokens


async def _engine(streams: int, new_tokens: int) -> Streamed:
    config = EngineConfig(model="stamp", max_batch_size=streams)
    async with await AsyncEngine.start(config) as engine:

        async def read(index: int) -> None:
            prompt = _prompt(index)
            params = SamplingParams(max_tokens=new_tokens, temperature=0.0, ignore_eos=True)
            async for _ in engine.generate(prompt, params):
                pass

        await read(0)
        begin = time.process_time()
        await asyncio.gather(*(read(1 + index) for index in range(streams)))
        cpu_s = time.process_time() - begin
    return Streamed("engine with the stamp model, text included", streams, streams * new_tokens, cpu_s)


def _server(streams: int, new_tokens: int) -> Streamed:
    prompts = [_prompt(index) for index in range(streams)]
    with served_process("stamp") as (url, pid):
        asyncio.run(stream_all(url, "stamp", prompts, max_tokens=4))
        before = _cpu_s(pid)
        asyncio.run(stream_all(url, "stamp", prompts, max_tokens=new_tokens))
        cpu_s = _cpu_s(pid) - before
    return Streamed("server, HTTP included", streams, streams * new_tokens, cpu_s)


def _prompt(index: int) -> list[int]:
    return [token % 200 for token in token_ids(61_000_000 + index, PROMPT_TOKENS).tolist()]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
