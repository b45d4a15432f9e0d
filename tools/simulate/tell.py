"""Reads a run's recording aloud, a round a line."""

from collections.abc import Iterator
from pathlib import Path

from control_plane.messages.wire import decode_events, decode_plan, decode_specs
from control_plane.rounds.render import Narrator
from control_plane.rounds.trace import FrameKind, TraceReader


def told_rounds(recording: Path) -> Iterator[str]:
    """The rounds of a recording that had work or a reason for having none."""
    narrator = Narrator()
    key = 0
    for frame in TraceReader(recording):
        match frame.kind:
            case FrameKind.SUBMISSIONS:
                specs = decode_specs(frame.payload)
                narrator.submitted(range(key + 1, key + 1 + len(specs)), specs)
                key += len(specs)
            case FrameKind.EVENTS:
                narrator.happened(decode_events(frame.payload))
            case FrameKind.PLAN:
                plan = decode_plan(frame.payload)
                line = narrator.planned(plan)
                if plan.has_work or plan.notes:
                    yield line
            case FrameKind.CLOCK:
                continue
