"""`tokenspeed serve`: the only command that touches signals."""

import asyncio
import json
import signal
from typing import Annotated, Any

import typer
import uvloop

from tokenspeed.commands.chats import can_chat
from tokenspeed.commands.options import (
    Chunk,
    Config,
    Device,
    Dtype,
    HostMemory,
    MaxBatchSize,
    MaxContext,
    Memory,
    Model,
    Overlap,
    Record,
    Threads,
    bytes_of,
    progress,
    settings_of,
)
from tokenspeed.config import EngineConfig
from tokenspeed.engine import AsyncEngine
from tokenspeed.server.runner import serving
from tokenspeed.terminal import reported, said


def serve(
    model: Model = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    dtype: Dtype = None,
    device: Device = None,
    memory: Memory = None,
    host_memory: HostMemory = None,
    max_batch_size: MaxBatchSize = None,
    max_scheduled_tokens: Chunk = None,
    max_context_tokens: MaxContext = None,
    overlap: Overlap = None,
    threads: Threads = None,
    record: Record = None,
    check_order: Annotated[
        bool | None, typer.Option("--check-order", help="Check the order of all device operations; slow.")
    ] = None,
    model_name: Annotated[list[str] | None, typer.Option(help="Name for clients to ask for; may be repeated.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="TOKENSPEED_API_KEY", help="Key that clients must send.")
    ] = None,
    max_queued_requests: Annotated[int | None, typer.Option(help="Requests that may wait; more are refused.")] = None,
    config: Config = None,
) -> None:
    """Serve a model over HTTP, with the OpenAI API."""
    with reported():
        settings = settings_of(
            config,
            model=model,
            host=host,
            port=port,
            dtype=dtype,
            device=device,
            memory_bytes=bytes_of(memory),
            host_memory_bytes=bytes_of(host_memory, "host_memory"),
            max_batch_size=max_batch_size,
            max_scheduled_tokens=max_scheduled_tokens,
            max_context_tokens=max_context_tokens,
            overlap_depth=None if overlap is None else int(overlap),
            threads=threads,
            record=record,
            check_order=check_order,
            model_names=model_name or None,
            api_key=api_key,
            max_queued_requests=max_queued_requests,
        )
        uvloop.run(_serve(settings))


async def _serve(config: EngineConfig) -> None:
    """Until SIGINT or SIGTERM; open streams then end with an error frame."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    engine = await _unless(stop, AsyncEngine.start(config, progress=progress))
    if engine is None:
        return
    async with engine, serving(engine) as url:
        said.print(f"\nserving {engine.specs.model} at {url}\n", style="bold", markup=False)
        # Plain lines: a console would break them where the terminal ends, and they are there to be copied.
        typer.echo(example_request(url, is_chat=await can_chat(engine)), err=True)
        await stop.wait()
        said.print("\nstopping")


async def _unless(stop: asyncio.Event, loading: Any) -> AsyncEngine | None:
    """What is loaded, or None when the stop came first."""
    task: asyncio.Task[AsyncEngine] = asyncio.ensure_future(loading)
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.wait((task,))
    return None


def example_request(url: str, *, is_chat: bool) -> str:
    """A request to paste into a shell."""
    question = "What is the capital of France?"
    body: dict[str, Any] = {"stream": True, "temperature": 0, "max_tokens": 64}
    if is_chat:
        path, body = "chat/completions", {"messages": [{"role": "user", "content": question}], **body}
    else:
        path, body = "completions", {"prompt": "The capital of France is", **body}
    return f"  curl -N {url}/v1/{path} -H 'Content-Type: application/json' \\\n    -d '{json.dumps(body)}'\n"
