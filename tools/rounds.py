"""Reads a recording aloud, a round a line: `python -m tools.rounds FILE`."""

import sys
from collections.abc import Iterator
from pathlib import Path

from control_plane.messages.wire import decode_events, decode_plan, decode_specs
from control_plane.rounds.render import Narrator
from control_plane.rounds.trace import FrameKind, TraceReader


def told_rounds(recording: str | Path) -> Iterator[str]:
    """The rounds of a recording that had work, or a reason for having none."""
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


def main() -> None:
    """Print every round of the recording that is named."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tools.rounds FILE")
    for line in told_rounds(sys.argv[1]):
        print(line)


if __name__ == "__main__":
    main()
