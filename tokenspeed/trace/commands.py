"""`tokenspeed trace ...`: what is asked of a recording. Files are made in `making.py`, virtual time in `trying.py`."""

from typing import Annotated

import msgspec
import typer

from control_plane.rounds.render import Narrator
from control_plane.rounds.replay import replay as replay_rounds
from control_plane.rounds.steps import Recording
from control_plane.rounds.told import told, told_rounds
from control_plane.rounds.trace import TraceReader
from tokenspeed.terminal import reported
from tokenspeed.trace.comparing import aligned, compare, side_by_side
from tokenspeed.trace.making import cut, export, import_arrivals, redact
from tokenspeed.trace.numbers import numbers_of, rows
from tokenspeed.trace.options import File, Json, RoundSpan, Strict, span_of
from tokenspeed.trace.pool import Replayed, legend, pool_map
from tokenspeed.trace.showing import bar, dump, reading, say_damage
from tokenspeed.trace.trying import run
from tokenspeed.trace.why import facts, lives_of, said_lines

trace = typer.Typer(help="Ask a recording.", no_args_is_help=True)


@trace.callback()
def recordings() -> None:
    """Ask a recording that `--record` wrote."""


@trace.command()
def replay(file: File, strict: Strict = False, json: Json = False) -> None:
    """Plan the recorded rounds again. Exits with 1 at the first plan that differs, and shows it field by field."""
    with reported(), bar("planning again", TraceReader(file).total_bytes) as update:
        replayed = replay_rounds(file, strict=strict, progress=lambda reader: update(reader.bytes_read))
    say_damage(replayed.damage)
    if json:
        typer.echo(dump(replayed))
    elif replayed.difference is not None:
        typer.echo(replayed.difference.render())
    else:
        typer.echo(f"{replayed.plans} plans of {replayed.rounds} rounds planned again: all are identical")
    if replayed.difference is not None:
        raise typer.Exit(1)


@trace.command()
def show(
    file: File,
    pool: Annotated[
        bool, typer.Option("--pool", help="After each round the pool of every group, one character a block.")
    ] = False,
    rounds: RoundSpan = None,
    strict: Strict = False,
) -> None:
    """Read a recording aloud, a round a line."""
    with reported():
        first, last = span_of(rounds)
        if not pool and rounds is None:
            for line in told_rounds(file, strict=strict):
                typer.echo(line)
            return
        recording = Recording(file, strict=strict)
        if pool:
            recording.require_beginning()
        replayed, narrator = Replayed(recording.header.config), Narrator()
        for step in recording:
            told_now = told(narrator, step)
            if pool:
                replayed.take(step)
            if told_now is None or not first <= step.round <= last:
                continue
            typer.echo(told_now)
            if pool:
                _show_pool(replayed)
        say_damage(recording.damage)


def _show_pool(replayed: Replayed) -> None:
    if replayed.differs_at is not None:
        typer.echo(f"    the pool is not known: from round {replayed.differs_at} on this program plans otherwise")
        return
    for group, line in zip(replayed.scheduler.config.groups, pool_map(replayed.scheduler), strict=True):
        typer.echo(f"    {group.id} {line.rstrip()}")
    if who := legend(replayed.scheduler):
        typer.echo(f"    {who}")


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
    else:
        typer.echo("\n\n".join("\n".join(said_lines(life)) for life in lives))
    say_damage(recording.damage)


@trace.command()
def stats(file: File, strict: Strict = False, json: Json = False) -> None:
    """Add a recording up: throughput, waits and their percentiles, hits by tier, retractions, the use of the pool."""
    with reported():
        recording = Recording(file, strict=strict)
        with reading(recording) as progress:
            numbers = numbers_of(recording, progress=progress)
    if json:
        typer.echo(dump(numbers))
    else:
        for line in aligned(list(rows(numbers))):
            typer.echo(line)
    say_damage(recording.damage)


@trace.command()
def diff(one: File, other: File, strict: Strict = False, json: Json = False) -> None:
    """Compare two recordings: settings, the first plan that differs, numbers. Exits with 1 if any plan differs."""
    with reported():
        recordings = [Recording(file, strict=strict) for file in (one, other)]
        comparison = compare(*recordings)
        numbers = []
        for recording in recordings:
            with reading(recording) as progress:
                numbers.append(numbers_of(recording, progress=progress))
    if json:
        typer.echo(dump({"comparison": msgspec.to_builtins(comparison), "numbers": numbers}))
    else:
        for name, before, after in comparison.settings:
            typer.echo(f"{name}: {before} -> {after}")
        if comparison.first is None:
            typer.echo(f"all {comparison.plans} plans are the same")
        else:
            typer.echo(f"round {comparison.first.round} is the first that differs:")
            for field, before, after in comparison.first.fields:
                typer.echo(f"  {field}\n    first:  {before}\n    second: {after}")
        for line in aligned(side_by_side([("first", numbers[0]), ("second", numbers[1])])):
            typer.echo(line)
    if comparison.first is not None:
        raise typer.Exit(1)


for command in (cut, redact, export, run):
    trace.command()(command)
trace.command("import")(import_arrivals)
