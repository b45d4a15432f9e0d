"""The command line: `tokenspeed serve | generate | plan | trace ...`. Each command is a file of `commands/`."""

import os

import typer

from tokenspeed.commands.generate import generate
from tokenspeed.commands.plan import plan
from tokenspeed.commands.serve import serve
from tokenspeed.trace.commands import trace

app = typer.Typer(help="An LLM serving core.", no_args_is_help=True, pretty_exceptions_enable=False)
app.command()(serve)
app.command()(generate)
app.command()(plan)
app.add_typer(trace, name="trace")


def main() -> None:
    """The entry point of the installed command."""
    # Before torch is loaded: OpenMP workers that spin between operations would take the cores that the rounds are
    # planned on. A program that embeds the engine decides this for itself.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    app()
