"""`tokenspeed plan`."""

from typing import Annotated, Any

import typer

from tokenspeed.commands.options import Config, progress, settings_of, takes
from tokenspeed.terminal import reported


@takes(
    ("memory_bytes", "dtype", "quantization", "device", "max_batch_size", "max_scheduled_tokens", "max_context_tokens")
)
def plan(
    model: Annotated[str, typer.Argument(help="smollm2, gemma3-270m, stamp, a transformers folder or a GGUF file.")],
    config: Config = None,
    **options: Any,
) -> None:
    """Say how many tokens and requests fit into so much memory, and why."""
    # Loads the device side, which the other commands do only when they start an engine.
    from tokenspeed.planning import plan_capacity

    with reported():
        settings = settings_of(config, model=model, **options)
        for line in plan_capacity(settings, progress=progress).lines():
            typer.echo(line)
