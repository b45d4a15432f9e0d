"""A recording, a round a line."""

from collections.abc import Iterator
from pathlib import Path

from control_plane.rounds.render import Narrator
from control_plane.rounds.steps import Happened, Planned, Recording, Resumed, Step, Submitted


def told_rounds(recording: str | Path, *, strict: bool = False) -> Iterator[str]:
    """The rounds of a recording that had work, or a reason for having none; last, where it is damaged."""
    narrator = Narrator()
    steps = Recording(recording, strict=strict)
    for step in steps:
        line = told(narrator, step)
        if line is not None:
            yield line
    if steps.damage is not None:
        yield steps.damage.render()


def told(narrator: Narrator, step: Step) -> str | None:
    """The line of a step, if it is a round worth one."""
    match step:
        case Submitted(keys=keys, specs=specs):
            narrator.submitted(keys, specs)
        case Happened(events=events):
            narrator.happened(events)
        case Resumed(live=live):
            for request in live:
                narrator.known(request.key, request.id, waits=request.waits)
        case Planned(plan=plan):
            line = narrator.planned(plan)
            if plan.has_work or plan.notes:
                return line
    return None
