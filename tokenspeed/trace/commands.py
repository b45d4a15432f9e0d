"""`tokenspeed trace ...`."""

from pathlib import Path
from typing import Annotated

import typer

from control_plane.rounds.replay import replay as replay_rounds
from control_plane.rounds.told import told_rounds
from tokenspeed.terminal import reported, said

File = Annotated[Path, typer.Argument(help="What `--record` wrote; of a recording in parts, the first.")]
Strict = Annotated[bool, typer.Option("--strict", help="A damaged recording is an error; else what is whole is read.")]

trace = typer.Typer(help="Ask a recording.", no_args_is_help=True)


@trace.callback()
def recordings() -> None:
    """Ask a recording that `--record` wrote."""


@trace.command()
def replay(file: File, strict: Strict = False) -> None:
    """Plan the recorded rounds again. Exits with 1 at the first plan that differs, and shows it field by field."""
    with reported():
        replayed = replay_rounds(file, strict=strict)
    if replayed.damage is not None:
        said.print(replayed.damage.render(), style="red", markup=False)
    if replayed.difference is not None:
        typer.echo(replayed.difference.render())
        raise typer.Exit(1)
    typer.echo(f"{replayed.plans} plans of {replayed.rounds} rounds planned again: all are identical")


@trace.command()
def show(file: File, strict: Strict = False) -> None:
    """Read a recording aloud, a round a line."""
    with reported():
        for line in told_rounds(file, strict=strict):
            typer.echo(line)
