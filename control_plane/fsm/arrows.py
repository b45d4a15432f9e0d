"""The machine: every legal move of a request. The annotations are the diagram; a move without an arrow is refused."""

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from control_plane.fsm.events import (
    FillFailed,
    RetractForCapacity,
    ScheduleChunk,
    ScheduleDecode,
    ScheduleFirstChunk,
    ScheduleRemotePrefill,
)
from control_plane.fsm.states import (
    Bootstrapping,
    Decoding,
    Finished,
    PrefillDone,
    Prefilling,
    RemotePrefilling,
    Retracted,
    Submitted,
)
from control_plane.messages import (
    Abort,
    Bootstrapped,
    Finish,
    FinishReason,
    RemotePrefillDone,
    TransferFailed,
    TransferSucceeded,
)


def bootstrapped(state: Bootstrapping, event: Bootstrapped) -> Submitted:
    """The peer knows of the request: it may be scheduled."""
    return Submitted()


def first_chunk(state: Submitted | Retracted, event: ScheduleFirstChunk) -> Prefilling | PrefillDone:
    """A prompt that is scheduled in full leaves `Prefilling` out, so it never holds the line (R3.5)."""
    if event.window.end == event.prefill_tokens:
        return PrefillDone(event.resources, event.window, event.reserve_tokens)
    return Prefilling(event.resources, event.window, event.reserve_tokens)


def next_chunk(state: Prefilling, event: ScheduleChunk) -> Prefilling | PrefillDone:
    """The chunk that reaches the end of the prompt leaves this state within the same plan build."""
    window = state.window.next(event.chunk_tokens)
    if window.end == event.prefill_tokens:
        return PrefillDone(state.resources, window, event.reserve_tokens)
    return Prefilling(state.resources, window, event.reserve_tokens)


def remote_chunk(state: Submitted, event: ScheduleRemotePrefill) -> RemotePrefilling:
    """The whole prompt at once: there is no mid-way to hold a line at (R6.D)."""
    return RemotePrefilling(event.resources, event.window, event.reserve_tokens)


def remote_landed(state: RemotePrefilling, event: RemotePrefillDone) -> PrefillDone:
    """Leaving the state is what ends the peer's claim on the pages."""
    return PrefillDone(state.resources, state.window, state.reserve_tokens)


def handed_over(state: PrefillDone, event: TransferSucceeded) -> Finished:
    """Role P: the peer has the pages, and goes on from here."""
    return Finished(FinishReason.TRANSFERRED)


def first_decode(state: PrefillDone, event: ScheduleDecode) -> Decoding:
    """From here on a step moves counters only."""
    return Decoding(state.resources)


def retract_for_capacity(state: Prefilling | PrefillDone | Decoding, event: RetractForCapacity) -> Retracted:
    """The pages go back; the tokens stay, and prefill again."""
    return Retracted(event.epoch, event.resumes_generation, event.is_recoverable)


def not_filled(state: RemotePrefilling | Prefilling | PrefillDone | Decoding, event: FillFailed) -> Retracted:
    """The pages hold rubbish, so none of them is published (R7.5)."""
    return Retracted(event.epoch, event.resumes_generation, event.is_recoverable)


def transfer_failed(
    state: Bootstrapping | Submitted | RemotePrefilling | PrefillDone, event: TransferFailed
) -> Finished:
    """The peer will not do its half."""
    return Finished(FinishReason.ERROR)


def finish(state: Prefilling | PrefillDone | Decoding | Retracted, event: Finish) -> Finished:
    """A stop rule was met, or the forward failed. A stop string may be found after its request was retracted."""
    return Finished(event.reason)


def abort(
    state: Bootstrapping | Submitted | RemotePrefilling | Prefilling | PrefillDone | Decoding | Retracted, event: Abort
) -> Finished:
    """Legal in every state that is not the last one (R2.4)."""
    return Finished(FinishReason.ABORT)


class Arrow(Struct, frozen=True):
    """One legal move: the function that makes it, and the states it may lead to."""

    move: Callable[[Any, Any], Any]
    successors: tuple[type, ...]


def arrows(*moves: Callable[[Any, Any], Any]) -> dict[tuple[type, type], Arrow]:
    """Read the machine off the annotations of its moves: (state, event) -> arrow. No pair may have two."""
    machine: dict[tuple[type, type], Arrow] = {}
    for move in moves:
        hints = typing.get_type_hints(move)
        state_name, event_name = inspect.signature(move).parameters
        for source in _members(hints[state_name]):
            key = (source, hints[event_name])
            assert key not in machine, f"two arrows for {key}"
            machine[key] = Arrow(move, _members(hints["return"]))
    return machine


def _members(annotation: Any) -> tuple[type, ...]:
    return typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)


ARROWS = arrows(
    bootstrapped,
    first_chunk,
    next_chunk,
    remote_chunk,
    remote_landed,
    handed_over,
    first_decode,
    retract_for_capacity,
    not_filled,
    transfer_failed,
    finish,
    abort,
)
