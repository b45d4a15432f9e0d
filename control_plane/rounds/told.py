"""A recording, a round a line."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from control_plane.messages.wire import decode_events, decode_plan, decode_specs
from control_plane.rounds.frames import FrameKind
from control_plane.rounds.render import Narrator
from control_plane.rounds.trace import LiveRequest, TraceReader


def told_rounds(recording: str | Path, *, strict: bool = False) -> Iterator[str]:
    """The rounds of a recording that had work, or a reason for having none; last, where it is damaged."""
    narrator = Narrator()
    reader = TraceReader(recording, strict=strict)
    key = reader.header.first_key - 1
    for frame in reader:
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
            case FrameKind.LIVE:
                # A part that begins in the middle of a run says who was there.
                for live in msgspec.msgpack.decode(frame.payload, type=list[LiveRequest]):
                    narrator.known(live.key, live.id, waits=live.waits)
            case FrameKind.HEADER | FrameKind.PACK:
                continue
    if reader.damage is not None:
        yield reader.damage.render()
