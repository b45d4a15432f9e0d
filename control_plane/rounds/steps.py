"""The frames of a recording, decoded and numbered: what was submitted, what happened, what was planned."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from control_plane.messages import Event, ExecutionPlan, RequestSpec
from control_plane.messages.wire import decode_events, decode_plan, decode_specs
from control_plane.rounds.frames import Frame, FrameKind
from control_plane.rounds.trace import Damage, LiveRequest, TraceHeader, TraceReader


class Submitted(Struct, frozen=True):
    """Requests entered, under these keys. `round` is here and below the round that was planned last."""

    round: int
    time_us: int
    keys: range
    specs: list[RequestSpec]


class Happened(Struct, frozen=True):
    """Facts were told."""

    round: int
    time_us: int
    events: list[Event]


class Planned(Struct, frozen=True):
    """A plan was made, with work or without."""

    round: int
    time_us: int
    plan: ExecutionPlan


class Resumed(Struct, frozen=True):
    """A part of a recording begins, with these requests."""

    round: int
    time_us: int
    live: list[LiveRequest]


Step = Submitted | Happened | Planned | Resumed


class Recording:
    """A recording to be read from its beginning, any number of times. See `TraceReader` for damage and errors."""

    def __init__(self, path: str | Path, *, strict: bool = False) -> None:
        self._reader = TraceReader(path, strict=strict)

    @property
    def header(self) -> TraceHeader:
        """Version, configuration and place among the parts."""
        return self._reader.header

    @property
    def damage(self) -> Damage | None:
        """Where the last reading had to stop."""
        return self._reader.damage

    @property
    def bytes_read(self) -> int:
        """How far a reading is, of `total_bytes`."""
        return self._reader.bytes_read

    @property
    def total_bytes(self) -> int:
        """Size of all parts."""
        return self._reader.total_bytes

    def require_beginning(self) -> None:
        """Raise WireError if this is a later part of a recording, which cannot be planned again."""
        self._reader.require_beginning()

    def __iter__(self) -> Iterator[Step]:
        key = self.header.first_key
        for frame in self._reader:
            step = step_of(frame, key)
            if isinstance(step, Submitted):
                key += len(step.specs)
            if step is not None:
                yield step


def step_of(frame: Frame, next_key: int) -> Step | None:
    """What a frame says; None: nothing that happened. `next_key` is that of the next request that is submitted."""
    match frame.kind:
        case FrameKind.SUBMISSIONS:
            specs = decode_specs(frame.payload)
            return Submitted(frame.round, frame.time_us, range(next_key, next_key + len(specs)), specs)
        case FrameKind.EVENTS:
            return Happened(frame.round, frame.time_us, decode_events(frame.payload))
        case FrameKind.PLAN:
            return Planned(frame.round, frame.time_us, decode_plan(frame.payload))
        case FrameKind.LIVE:
            live = msgspec.msgpack.decode(frame.payload, type=list[LiveRequest])
            return Resumed(frame.round, frame.time_us, live)
        case FrameKind.HEADER | FrameKind.PACK:
            return None
