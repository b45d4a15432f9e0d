"""`tokenspeed trace ...`."""

from pathlib import Path
from typing import Annotated

import typer

from control_plane.rounds.replay import replay as replay_rounds
from tokenspeed.terminal import reported

trace = typer.Typer(help="Ask a recording.", no_args_is_help=True)


@trace.callback()
def recordings() -> None:
    """Ask a recording that `--record` wrote."""


@trace.command()
def replay(file: Annotated[Path, typer.Argument(help="What `--record` wrote.")]) -> None:
    """Plan the recorded rounds again. Exits with 1 at the first plan that differs, and shows it field by field."""
    with reported():
        replayed = replay_rounds(file)
    if replayed.difference is not None:
        typer.echo(replayed.difference.render())
        raise typer.Exit(1)
    typer.echo(f"{replayed.plans} plans of {replayed.rounds} rounds planned again: all are identical")
