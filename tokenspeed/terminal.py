"""What the commands share: where they speak, and how they end when a user has something to put right."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from control_plane.errors import ConfigError, RequestRejected, WireError
from tokenspeed.errors import GenerationFailed

# Standard output is for results alone.
said = Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def reported() -> Iterator[None]:
    """What a user can put right ends the command with its message and exit code 2, not with a traceback."""
    try:
        yield
    except (ConfigError, RequestRejected, WireError, GenerationFailed, OSError) as error:
        said.print(str(error), style="red", markup=False)
        raise typer.Exit(2) from error
