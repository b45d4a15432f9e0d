"""`tokenspeed trace ...`."""

from pathlib import Path
from typing import Annotated

import typer

from control_plane.rounds.replay import replay as replay_rounds
from control_plane.rounds.steps import Recording
from control_plane.rounds.told import told_rounds
from tokenspeed.terminal import reported
from tokenspeed.trace.showing import dump, reading, say_damage
from tokenspeed.trace.why import facts, lives_of, said_lines

File = Annotated[Path, typer.Argument(help="What `--record` wrote; of a recording in parts, the first.")]
Strict = Annotated[bool, typer.Option("--strict", help="A damaged recording is an error; else what is whole is read.")]

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

trace = typer.Typer(help="Ask a recording.", no_args_is_help=True)


@trace.callback()
def recordings() -> None:
    """Ask a recording that `--record` wrote."""


@trace.command()
def replay(file: File, strict: Strict = False) -> None:
    """Plan the recorded rounds again. Exits with 1 at the first plan that differs, and shows it field by field."""
    with reported():
        replayed = replay_rounds(file, strict=strict)
    say_damage(replayed.damage)
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


@trace.command()
def why(
    file: File,
    request: Annotated[str, typer.Argument(help="Its id, or # and its key.")],
    strict: Strict = False,
    json: Json = False,
) -> None:
    """Say where the time of a request went, phase by phase, and why."""
    with reported():
        recording = Recording(file, strict=strict)
        with reading(recording) as progress:
            lives = lives_of(recording, request, progress=progress)
    if json:
        typer.echo(dump([facts(life) for life in lives]))
        return
    typer.echo("\n\n".join("\n".join(said_lines(life)) for life in lives))
    say_damage(recording.damage)
