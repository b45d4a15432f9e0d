"""Trace commands in virtual time: `run` and `what-if`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from control_plane import SchedulerConfig
from control_plane.rounds.steps import Recording
from tokenspeed.terminal import reported, said
from tokenspeed.trace import arrivals as arrivals_file
from tokenspeed.trace.comparing import aligned
from tokenspeed.trace.cost import preset
from tokenspeed.trace.numbers import numbers_of, rows
from tokenspeed.trace.options import Json, Out, Settings
from tokenspeed.trace.settings import changed, config_for
from tokenspeed.trace.showing import bar, dump
from tokenspeed.trace.virtual import StampDevice, VirtualDevice, VirtualRun, scripted

DEFAULT_COST = "a100-llama-8b"


class Device(StrEnum):
    """Who answers in virtual time."""

    STAMP = "stamp"  # the stamp model: every block that is read is checked
    SCRIPT = "script"  # nobody computes anything: quicker, and checks nothing


Cost = Annotated[str, typer.Option(help="A shipped cost model: h100-llama-8b, a100-llama-8b or unit.")]


def device_of(kind: Device, config: SchedulerConfig) -> VirtualDevice:
    """A device of this kind."""
    if kind is Device.STAMP:
        return StampDevice(config)
    return scripted(lambda key, position: 1 + (key * 7919 + position) % arrivals_file.LAST_TOKEN)


def run(
    arrivals: Annotated[Path, typer.Argument(help="What `trace import` wrote.")],
    out: Out,
    settings: Settings = None,
    cost: Cost = DEFAULT_COST,
    device: Annotated[Device, typer.Option(help="Who answers.")] = Device.STAMP,
    json: Json = False,
) -> None:
    """Serve arrivals in virtual time and record every round. Without settings, on a pool in which everything fits."""
    with reported():
        requests = arrivals_file.read(arrivals)
        config = changed(config_for(requests), settings or [])
        model = preset(cost)
        virtual = VirtualRun(config, requests, model, device_of(device, config), out)
        with bar("running", len(requests.requests)) as update:
            outcome = virtual.run(update)
        numbers = numbers_of(Recording(out), with_pool=False)
    for name in outcome.unserved:
        said.print(f"{name} cannot be served by this configuration", markup=False)
    if json:
        typer.echo(dump(numbers))
        return
    typer.echo(f"{outcome.rounds} rounds in {outcome.end_us / 1e6:.1f} s of virtual time, recorded in {out}")
    for line in aligned(list(rows(numbers))):
        typer.echo(line)
