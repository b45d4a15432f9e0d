"""`tokenspeed serve`: the only command that touches signals."""

import asyncio
import json
import signal
from typing import Any, Final

import typer
import uvloop

from tokenspeed.commands.chats import can_chat
from tokenspeed.commands.options import ALL_FIELDS, Config, progress, settings_of, takes
from tokenspeed.config import EngineConfig
from tokenspeed.engine import AsyncEngine
from tokenspeed.garbage import collecting_between_rounds
from tokenspeed.server.runner import serving
from tokenspeed.terminal import reported, said

# Answers were still under way when the time for draining was up.
CUT_EXIT_CODE: Final = 3


@takes(ALL_FIELDS)
def serve(config: Config = None, **options: Any) -> None:
    """Serve a model over HTTP, with the OpenAI API."""
    with reported():
        settings = settings_of(config, **options)
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
    async with (
        engine,
        serving(engine, drain_seconds=config.drain_seconds, hurry=hurry) as server,
        collecting_between_rounds(),
    ):
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
