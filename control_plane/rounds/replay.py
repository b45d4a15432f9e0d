"""Replay: feed the recorded inputs to a fresh scheduler and compare every plan byte for byte."""

from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from control_plane.messages import ExecutionPlan, ForwardBatch
from control_plane.messages.columns import view
from control_plane.messages.wire import decode_events, decode_plan, decode_specs, encode_plan
from control_plane.rounds.frames import FrameKind
from control_plane.rounds.trace import Damage, TraceReader
from control_plane.scheduler.scheduler import Scheduler


class Difference(Struct, frozen=True):
    """The first plan that came out otherwise than recorded, as (field, recorded, replayed)."""

    round: int
    plan_index: int
    fields: tuple[tuple[str, str, str], ...]

    def render(self) -> str:
        """The difference field by field, for a person."""
        lines = [f"round {self.round} (plan {self.plan_index} of the recording) differs:"]
        for field, recorded, replayed in self.fields:
            lines += [f"  {field}", f"    recorded: {recorded}", f"    replayed: {replayed}"]
        return "\n".join(lines)


class Replayed(Struct, frozen=True):
    """What a replay found: how many plans were compared, and the first difference if there is one."""

    plans: int
    rounds: int
    difference: Difference | None
    damage: Damage | None = None


def replay(
    path: str | Path, *, strict: bool = False, progress: Callable[[TraceReader], None] | None = None
) -> Replayed:
    """Plan again from a recording's inputs, as far as it can be read; with `strict` damage is an error.

    Raises WireError when the file cannot be read or begins in the middle of a run. `progress` is told of every plan.
    """
    reader = TraceReader(path, strict=strict)
    reader.require_beginning()
    scheduler = Scheduler(reader.header.config)
    plans = rounds = 0
    for frame in reader:
        match frame.kind:
            case FrameKind.SUBMISSIONS:
                scheduler.submit(decode_specs(frame.payload))
            case FrameKind.EVENTS:
                scheduler.advance(decode_events(frame.payload))
            case FrameKind.PLAN:
                plan = scheduler.next_plan()
                if encode_plan(plan) != frame.payload:
                    recorded = decode_plan(frame.payload)
                    difference = Difference(recorded.round, plans, differing_fields(recorded, plan))
                    return Replayed(plans, rounds, difference)
                plans += 1
                rounds += plan.has_work
                if progress is not None:
                    progress(reader)
            case FrameKind.HEADER | FrameKind.LIVE | FrameKind.PACK:
                continue
    return Replayed(plans, rounds, None, reader.damage)


def differing_fields(recorded: ExecutionPlan, replayed: ExecutionPlan) -> tuple[tuple[str, str, str], ...]:
    """The fields in which two plans differ, as (name, one's value, the other's)."""
    fields = []
    for name in ExecutionPlan.__struct_fields__:
        before, after = getattr(recorded, name), getattr(replayed, name)
        if before == after:
            continue
        if isinstance(before, ForwardBatch) and isinstance(after, ForwardBatch):
            for column in ForwardBatch.__struct_fields__:
                one, other = getattr(before, column), getattr(after, column)
                if one != other:
                    fields.append((f"forward.{column}", _readable(one), _readable(other)))
        else:
            fields.append((name, _readable(before), _readable(after)))
    return tuple(fields)


def _readable(value: object) -> str:
    """Columns as numbers, records as their fields."""
    if isinstance(value, bytes):
        return str(view(value).tolist())
    if isinstance(value, tuple):
        return "(" + ", ".join(_readable(part) for part in value) + ")"
    if isinstance(value, Struct):
        shown = (f"{name}={_readable(part)}" for name, part in msgspec.structs.asdict(value).items())
        return f"{type(value).__name__}({', '.join(shown)})"
    return str(value)
