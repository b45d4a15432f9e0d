"""The command line: `tokenspeed serve | generate | plan | trace ...`. The only part that touches signals."""

import asyncio
import json
import os
import re
import signal
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import uvloop

from control_plane.errors import ConfigError, RequestRejected
from tokenspeed.config import EngineConfig
from tokenspeed.engine import AsyncEngine
from tokenspeed.prompts import Prompt
from tokenspeed.sampling import SamplingParams
from tokenspeed.server.runner import serving
from tokenspeed.terminal import reported, said
from tokenspeed.text.tokenizer import ChatMessage
from tokenspeed.trace.commands import trace

BYTE_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

app = typer.Typer(help="An LLM serving core.", no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(trace, name="trace")

Model = Annotated[str | None, typer.Option(help="smollm2, gemma3-270m, stamp, a transformers folder or a GGUF file.")]
Dtype = Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda.")]
Memory = Annotated[str | None, typer.Option(help="What the cache may take, as in 512M or 4G.")]
HostMemory = Annotated[
    str | None, typer.Option(help="What a second tier of the cache may take in host memory, as in 8G; none by default.")
]
MaxBatchSize = Annotated[int | None, typer.Option(help="Requests that run at once.")]
Chunk = Annotated[int | None, typer.Option("--max-scheduled-tokens", "--chunk", help="Tokens of one round.")]
MaxContext = Annotated[int | None, typer.Option("--max-context-tokens", help="Limit on prompt plus output.")]
Overlap = Annotated[
    bool | None, typer.Option("--overlap/--no-overlap", help="Plan a round while the one before computes.")
]
Threads = Annotated[int | None, typer.Option(help="CPU threads of one operation.")]
Record = Annotated[str | None, typer.Option(help="Keep every round in this file.")]
Config = Annotated[Path | None, typer.Option(help="A JSON file of settings; options given here go before it.")]


def main() -> None:
    """The entry point of the installed command."""
    # Before torch is loaded: OpenMP workers that spin between operations would take the cores that the rounds are
    # planned on. A program that embeds the engine decides this for itself.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    app()


@app.command()
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


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="What to continue, or to answer.")],
    model: Model = None,
    chat: Annotated[
        bool, typer.Option("--chat/--no-chat", help="Ask as a user, or continue the text as it is.")
    ] = True,
    max_tokens: Annotated[int, typer.Option(help="Tokens to generate at most.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token each time.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Makes draws repeatable.")] = None,
    dtype: Dtype = None,
    device: Device = None,
    memory: Memory = None,
    max_context_tokens: MaxContext = None,
    threads: Threads = None,
    record: Record = None,
    config: Config = None,
) -> None:
    """Answer one prompt on the terminal."""
    with reported():
        settings = settings_of(
            config,
            model=model,
            dtype=dtype,
            device=device,
            memory_bytes=bytes_of(memory),
            max_context_tokens=max_context_tokens,
            threads=threads,
            record=record,
        )
        params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
        uvloop.run(_generate(settings, prompt, params, is_chat=chat))


@app.command()
def plan(
    model: Annotated[str, typer.Argument(help="smollm2, gemma3-270m, stamp, a transformers folder or a GGUF file.")],
    memory: Memory = None,
    dtype: Dtype = None,
    device: Device = None,
    max_batch_size: MaxBatchSize = None,
    max_scheduled_tokens: Chunk = None,
    max_context_tokens: MaxContext = None,
    config: Config = None,
) -> None:
    """Say how many tokens and requests fit into so much memory, and why."""
    # Loads the device side, which the other commands do only when they start an engine.
    from tokenspeed.planning import plan_capacity

    with reported():
        settings = settings_of(
            config,
            model=model,
            memory_bytes=bytes_of(memory),
            dtype=dtype,
            device=device,
            max_batch_size=max_batch_size,
            max_scheduled_tokens=max_scheduled_tokens,
            max_context_tokens=max_context_tokens,
        )
        for line in plan_capacity(settings, progress=_progress).lines():
            typer.echo(line)


def settings_of(file: Path | None, **options: Any) -> EngineConfig:
    """The file's settings under the options that were given. Raises ConfigError with every problem."""
    given = {name: value for name, value in options.items() if value is not None}
    if file is None:
        return EngineConfig.from_mapping(given)
    return EngineConfig.from_file(file, **given)


def bytes_of(text: str | None, option: str = "memory") -> int | None:
    """A size as people write it: 512M, 4G, 4GiB, 1073741824. Raises ConfigError that names the option."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ConfigError([f"{option}={text!r} must be a size such as 512M or 4G"])
    return int(float(match[1]) * BYTE_UNITS[match[2].upper()])


async def _serve(config: EngineConfig) -> None:
    """Until SIGINT or SIGTERM; open streams then end with an error frame."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    engine = await _unless(stop, AsyncEngine.start(config, progress=_progress))
    if engine is None:
        return
    async with engine, serving(engine) as url:
        said.print(f"\nserving {engine.specs.model} at {url}\n", style="bold", markup=False)
        # Plain lines: a console would break them where the terminal ends, and they are there to be copied.
        typer.echo(example_request(url, is_chat=await _can_chat(engine)), err=True)
        await stop.wait()
        said.print("\nstopping")


async def _generate(config: EngineConfig, prompt: str, params: SamplingParams, *, is_chat: bool) -> None:
    async with await AsyncEngine.start(config, progress=_progress) as engine:
        given: Prompt = prompt
        if is_chat and await _can_chat(engine):
            given = await engine.encode_chat([ChatMessage("user", prompt)])
        async for output in engine.generate(given, params):
            typer.echo(output.text, nl=False)
        typer.echo()


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


async def _can_chat(engine: AsyncEngine) -> bool:
    """Whether the model has a chat template; a base model has none."""
    try:
        await engine.encode_chat([ChatMessage("user", "Hello")])
    except RequestRejected:
        return False
    return True


def example_request(url: str, *, is_chat: bool) -> str:
    """A request to paste into a shell."""
    question = "What is the capital of France?"
    body: dict[str, Any] = {"stream": True, "temperature": 0, "max_tokens": 64}
    if is_chat:
        path, body = "chat/completions", {"messages": [{"role": "user", "content": question}], **body}
    else:
        path, body = "completions", {"prompt": "The capital of France is", **body}
    return f"  curl -N {url}/v1/{path} -H 'Content-Type: application/json' \\\n    -d '{json.dumps(body)}'\n"


def _progress(line: str) -> None:
    said.print(line, style="dim", markup=False)
