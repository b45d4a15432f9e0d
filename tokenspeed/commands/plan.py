"""`tokenspeed plan`."""

from typing import Annotated

import typer

from tokenspeed.commands.options import (
    Chunk,
    Config,
    Device,
    Dtype,
    MaxBatchSize,
    MaxContext,
    Memory,
    bytes_of,
    progress,
    settings_of,
)
from tokenspeed.terminal import reported


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
        for line in plan_capacity(settings, progress=progress).lines():
            typer.echo(line)
