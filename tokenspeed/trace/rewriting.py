"""Recordings made of recordings: a window of rounds, one without what clients wrote, JSON lines for other programs."""

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from control_plane.errors import WireError
from control_plane.messages.columns import view
from control_plane.messages.wire import (
    decode_events,
    decode_plan,
    decode_specs,
    encode_events,
    encode_plan,
    encode_specs,
)
from control_plane.rounds.frames import Frame, FrameKind
from control_plane.rounds.redact import Redactor
from control_plane.rounds.steps import Happened, Planned, Recording, Resumed, Submitted, step_of
from control_plane.rounds.trace import LiveRequest, TraceReader
from control_plane.rounds.writer import TraceWriter
from tokenspeed.trace.lives import Lives

Progress = Callable[[TraceReader], None]


def cut(source: Path, target: Path, *, first: int, last: int, strict: bool, progress: Progress) -> int:
    """Write the rounds from `first` to `last` to a file of their own; how many those are.

    From the first round on it can be planned again; later it begins as a part of a recording does, with who was there.
    """
    reader = TraceReader(source, strict=strict)
    _refuse_same(source, target)
    lives = Lives(reader.header)
    key = reader.header.first_key
    writer: TraceWriter | None = None
    rounds = 0
    try:
        for frame in reader:
            progress(reader)
            if frame.round > last:
                break
            if writer is None and frame.round >= first:
                begins = not reader.header.part and first <= 1
                writer = TraceWriter(
                    target,
                    reader.header.config,
                    part=0 if begins else max(1, reader.header.part),
                    first_key=key,
                    redacted=reader.header.redacted,
                )
                if not begins:
                    live = [
                        LiveRequest(life.key, life.name, life.prompt_tokens, life.max_new_tokens, life.is_waiting)
                        for life in lives.live.values()
                    ]
                    writer.write(FrameKind.LIVE, msgspec.msgpack.encode(live), round_number=frame.round)
            step = step_of(frame, key)
            if isinstance(step, Submitted):
                key += len(step.specs)
            if writer is None:
                if step is not None:
                    lives.take(step)
                continue
            rounds += isinstance(step, Planned) and step.plan.has_work
            if frame.kind is not FrameKind.LIVE:
                writer.write(frame.kind, frame.payload, round_number=frame.round, time_us=frame.time_us)
    finally:
        if writer is not None:
            writer.close()
    if writer is None:
        raise WireError(f"{source} has no round {first} or later; its last one is {lives.last_round}")
    return rounds


def redact(source: Path, target: Path, *, strict: bool, progress: Progress) -> None:
    """Write a recording again without what its clients wrote (`control_plane.rounds.redact`). Nobody keeps the key."""
    reader = TraceReader(source, strict=strict)
    _refuse_same(source, target)
    redactor = Redactor(secrets.token_bytes(32))
    header = reader.header
    writer = TraceWriter(target, header.config, part=header.part, first_key=header.first_key, redacted=True)
    try:
        for frame in reader:
            progress(reader)
            payload = _redacted(frame, redactor)
            writer.write(frame.kind, payload, round_number=frame.round, time_us=frame.time_us)
    finally:
        writer.close()


def exported(recording: Recording) -> Iterator[dict[str, Any]]:
    """Every step as plain values: columns are lists of numbers. The first line is the heading."""
    yield {"kind": "header", **_plain(msgspec.structs.asdict(recording.header))}
    for step in recording:
        where = {"round": step.round, "time_us": step.time_us}
        match step:
            case Submitted(keys=keys, specs=specs):
                for key, spec in zip(keys, specs, strict=True):
                    fields = _plain(spec)
                    yield {"kind": "submitted", **where, "key": key, **fields, "tokens": view(spec.tokens).tolist()}
            case Happened(events=events):
                for event in events:
                    yield {"kind": "event", **where, "event": type(event).__name__, **_plain(event)}
            case Planned(plan=plan):
                yield {**_plain(plan), "kind": "plan", **where, "has_work": plan.has_work}
            case Resumed(live=live):
                yield {"kind": "live", **where, "requests": _plain(live)}


def _redacted(frame: Frame, redactor: Redactor) -> bytes:
    match frame.kind:
        case FrameKind.SUBMISSIONS:
            return encode_specs([redactor.spec(spec) for spec in decode_specs(frame.payload)])
        case FrameKind.EVENTS:
            return encode_events([redactor.event(event) for event in decode_events(frame.payload)])
        case FrameKind.PLAN:
            return encode_plan(redactor.plan(decode_plan(frame.payload)))
        case FrameKind.LIVE:
            live = msgspec.msgpack.decode(frame.payload, type=list[LiveRequest])
            return msgspec.msgpack.encode(
                [msgspec.structs.replace(request, id=redactor.name(request.id)) for request in live]
            )
        case FrameKind.HEADER | FrameKind.PACK:
            raise AssertionError("the reader yields no such frames")


def _refuse_same(source: Path, target: Path) -> None:
    if target.exists() and target.samefile(source):
        raise WireError(f"{target} is the recording that is read: write to another file")


def _plain(value: Any) -> Any:
    """Structs as dictionaries, int32 columns as lists."""
    if isinstance(value, bytes):
        return view(value).tolist()
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value
