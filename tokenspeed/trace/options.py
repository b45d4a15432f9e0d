"""Arguments and options that several trace commands take."""

import re
from pathlib import Path
from typing import Annotated

import typer

from control_plane.errors import ConfigError

File = Annotated[Path, typer.Argument(help="What `--record` wrote; of a recording in parts, the first.")]
Out = Annotated[Path, typer.Argument(help="File to write.")]
Strict = Annotated[bool, typer.Option("--strict", help="A damaged recording is an error; else what is whole is read.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="A field of the scheduler's configuration, as name=value; may be repeated."),
]
RoundSpan = Annotated[str | None, typer.Option("--rounds", help="Only these, as first:last; either may be left out.")]


def span_of(text: str | None) -> tuple[int, int]:
    """First and last round of a span. Raises ConfigError when it is none."""
    if text is None:
        return 0, 2**31
    found = re.fullmatch(r"(\d*):(\d*)", text)
    if found is None or (found[1] and found[2] and int(found[1]) > int(found[2])):
        raise ConfigError([f"rounds={text!r} must be first:last, such as 10:20, 10: or :20"])
    return int(found[1] or 0), int(found[2] or 2**31)
