"""Reads a recording aloud, a round a line: `python -m tools.rounds FILE`."""

import sys

from control_plane.messages.wire import decode_events, decode_plan, decode_specs
from control_plane.rounds.render import Narrator
from control_plane.rounds.trace import FrameKind, TraceReader


def main() -> None:
    """Print every round of the recording that is named."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tools.rounds FILE")
    narrator = Narrator()
    key = 0
    for frame in TraceReader(sys.argv[1]):
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
                    print(line)
            case FrameKind.CLOCK:
                continue


if __name__ == "__main__":
    main()
