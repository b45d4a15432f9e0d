"""`tokenspeed generate`."""

from typing import Annotated, Any

import typer
import uvloop

from tokenspeed.commands.chats import can_chat
from tokenspeed.commands.options import MODEL_FIELDS, Config, progress, settings_of, takes
from tokenspeed.config import EngineConfig
from tokenspeed.engine import AsyncEngine
from tokenspeed.prompts import Prompt
from tokenspeed.sampling import SamplingParams
from tokenspeed.terminal import reported
from tokenspeed.text.tokenizer import ChatMessage


@takes((*MODEL_FIELDS, "record"))
def generate(
    prompt: Annotated[str, typer.Argument(help="What to continue, or to answer.")],
    chat: Annotated[
        bool, typer.Option("--chat/--no-chat", help="Ask as a user, or continue the text as it is.")
    ] = True,
    max_tokens: Annotated[int, typer.Option(help="Tokens to generate at most.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token each time.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Makes draws repeatable.")] = None,
    config: Config = None,
    **options: Any,
) -> None:
    """Answer one prompt on the terminal."""
    with reported():
        settings = settings_of(config, **options)
        params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
        uvloop.run(_generate(settings, prompt, params, is_chat=chat))


async def _generate(config: EngineConfig, prompt: str, params: SamplingParams, *, is_chat: bool) -> None:
    async with await AsyncEngine.start(config, progress=progress) as engine:
        given: Prompt = prompt
        if is_chat and await can_chat(engine):
            given = await engine.encode_chat([ChatMessage("user", prompt)])
        async for output in engine.generate(given, params):
            typer.echo(output.text, nl=False)
        typer.echo()
