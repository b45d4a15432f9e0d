"""Trace commands that write files: `cut`, `redact`, `export` and `import`."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from control_plane.rounds.steps import Recording
from control_plane.rounds.trace import TraceReader
from tokenspeed.terminal import reported, said
from tokenspeed.trace import arrivals as arrivals_file
from tokenspeed.trace import rewriting
from tokenspeed.trace.imports import Source, load
from tokenspeed.trace.options import File, Out, RoundSpan, Strict, span_of
from tokenspeed.trace.showing import bar, say_damage


def cut(file: File, out: Out, rounds: RoundSpan = None, strict: Strict = False) -> None:
    """Write a window of rounds to a file of its own."""
    with reported():
        first, last = span_of(rounds)
        with bar("cutting", TraceReader(file).total_bytes) as update:
            written = rewriting.cut(
                file, out, first=first, last=last, strict=strict, progress=lambda reader: update(reader.bytes_read)
            )
    typer.echo(f"{written} rounds written to {out}")


def redact(file: File, out: Out, strict: Strict = False) -> None:
    """Write a recording without what its clients wrote: tokens are permuted, names hashed, prefixes shared."""
    with reported(), bar("redacting", TraceReader(file).total_bytes) as update:
        rewriting.redact(file, out, strict=strict, progress=lambda reader: update(reader.bytes_read))
    typer.echo(f"{out} replays to the same schedule; how often each token occurs, lengths and times remain visible")


def export(file: File, out: Annotated[Path | None, typer.Argument(help="File; else standard output.")] = None) -> None:
    """Write every step as a line of JSON, for scripts of one's own."""
    with reported():
        recording = Recording(file)
        encoder = msgspec.json.Encoder()
        lines = (encoder.encode(line) + b"\n" for line in rewriting.exported(recording))
        if out is None:
            for line in lines:
                typer.echo(line, nl=False)
        else:
            with out.open("wb") as target, bar("exporting", recording.total_bytes) as update:
                for line in lines:
                    target.write(line)
                    update(recording.bytes_read)
    say_damage(recording.damage)


def import_arrivals(
    file: Annotated[Path, typer.Argument(help="A Mooncake trace (JSON lines) or an Azure LLM inference trace (CSV).")],
    out: Out,
    source: Annotated[
        Source | None, typer.Option("--format", help="What kind of file it is; else its name says it.")
    ] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Only so many rows, from the first on.")] = None,
    block_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens that each block id of 512 stands for: shorter prompts, same tree.")
    ] = None,
    speed: Annotated[float, typer.Option(help="How much denser the arrivals come.")] = 1.0,
    skip_bad_rows: Annotated[bool, typer.Option("--skip-bad-rows", help="Leave out rows that cannot be used.")] = False,
) -> None:
    """Make arrivals of a public trace, for `run` and `what-if`."""
    with reported():
        kind = source or (Source.AZURE if file.suffix == ".csv" else Source.MOONCAKE)
        with bar("importing", rows or file.stat().st_size / 100) as update:
            arrivals, left_out = load(file, kind, rows=rows, skip_bad_rows=skip_bad_rows, progress=update)
        for problem in left_out:
            said.print(f"left out: {problem}", markup=False)
        if block_tokens is not None:
            arrivals = arrivals_file.scaled(arrivals, block_tokens)
        arrivals = arrivals_file.faster(arrivals, speed)
        arrivals_file.write(out, arrivals)
    seconds = arrivals.requests[-1].at_us / 1e6
    typer.echo(
        f"{len(arrivals.requests)} requests with {arrivals.prompt_tokens} prompt tokens in {seconds:.1f} s: {out}"
    )
