"""`tokenspeed serve`: the only command that touches signals."""

import asyncio
import json
import signal
from typing import Annotated, Any, Final

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
    RecordCompress,
    RecordKeep,
    RecordPart,
    RecordRedact,
    Threads,
    bytes_of,
    progress,
    settings_of,
)
from tokenspeed.config import EngineConfig
from tokenspeed.engine import AsyncEngine
from tokenspeed.server.runner import serving
from tokenspeed.terminal import reported, said

# Answers were still under way when the time for draining was up.
CUT_EXIT_CODE: Final = 3


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
    record_part: RecordPart = None,
    record_keep: RecordKeep = None,
    record_compress: RecordCompress = None,
    record_redact: RecordRedact = None,
    check_order: Annotated[
        bool | None, typer.Option("--check-order", help="Check the order of all device operations; slow.")
    ] = None,
    model_name: Annotated[list[str] | None, typer.Option(help="Name for clients to ask for; may be repeated.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="TOKENSPEED_API_KEY", help="Key that clients must send.")
    ] = None,
    max_queued_requests: Annotated[int | None, typer.Option(help="Requests that may wait; more are refused.")] = None,
    max_body_bytes: Annotated[int | None, typer.Option(help="Largest request body; a larger one is 413.")] = None,
    max_prompt_tokens: Annotated[int | None, typer.Option(help="Longest prompt that is taken.")] = None,
    request_timeout_seconds: Annotated[
        float | None, typer.Option(help="End a request that takes longer; no limit by default.")
    ] = None,
    header_timeout_seconds: Annotated[
        float | None, typer.Option(help="Time for a client to send its header, and its body.")
    ] = None,
    keep_alive_seconds: Annotated[
        float | None, typer.Option(help="Send a comment into streams that are silent for so long; off by default.")
    ] = None,
    drain_seconds: Annotated[
        float | None, typer.Option(help="Time for running answers to finish after SIGTERM or SIGINT.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Origin of browser pages that may call this; * for all; may be repeated.")
    ] = None,
    tls_certificate: Annotated[str | None, typer.Option(help="PEM file with the certificate chain.")] = None,
    tls_key: Annotated[str | None, typer.Option(help="PEM file with its private key.")] = None,
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
            record_part_bytes=bytes_of(record_part, "record_part"),
            record_keep_parts=record_keep,
            record_compress=record_compress,
            record_redact=record_redact,
            check_order=check_order,
            model_names=model_name or None,
            api_key=api_key,
            max_queued_requests=max_queued_requests,
            max_body_bytes=max_body_bytes,
            max_prompt_tokens=max_prompt_tokens,
            request_timeout_seconds=request_timeout_seconds,
            header_timeout_seconds=header_timeout_seconds,
            keep_alive_seconds=keep_alive_seconds,
            drain_seconds=drain_seconds,
            cors_origins=cors_origin or None,
            tls_certificate=tls_certificate,
            tls_key=tls_key,
        )
        cut = uvloop.run(_serve(settings))
    if cut:
        raise typer.Exit(CUT_EXIT_CODE)


async def _serve(config: EngineConfig) -> int:
    """Until SIGINT or SIGTERM, then drain; a second signal ends the draining. How many answers were cut."""
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def signalled() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signalled)
    engine = await _unless(stop, AsyncEngine.start(config, progress=progress))
    if engine is None:
        return 0
    async with engine, serving(engine, drain_seconds=config.drain_seconds, hurry=hurry) as server:
        said.print(f"\nserving {engine.specs.model} at {server.url}\n", style="bold", markup=False)
        # Plain lines: a console would break them where the terminal ends, and they are there to be copied.
        typer.echo(example_request(server.url, is_chat=await can_chat(engine)), err=True)
        await stop.wait()
        said.print(f"\ndraining for up to {config.drain_seconds:g} s (signal again to stop at once)", markup=False)
    if server.cut:
        said.print(f"stopped; {server.cut} answers were cut off", style="red")
    else:
        said.print("stopped; every answer was finished")
    return server.cut


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
