"""The one encoder and the one decoder of the boundary.

An encoded plan is what the forward thread executes, what a recording keeps and what replay compares, so
nothing can be edited after it was handed over: there is no shared object. Bump `SCHEMA_VERSION` when the
meaning of bytes changes; a trace of another version is refused.
"""

from collections.abc import Sequence

import msgspec

from control_plane.errors import WireError
from control_plane.messages.columns import type_bytes
from control_plane.messages.events import Event
from control_plane.messages.plan import ExecutionPlan, ForwardBatch, RequestSpec

SCHEMA_VERSION = 3

_encoder = msgspec.msgpack.Encoder()
_plan_decoder = msgspec.msgpack.Decoder(ExecutionPlan)
_events_decoder = msgspec.msgpack.Decoder(list[Event])
_specs_decoder = msgspec.msgpack.Decoder(list[RequestSpec])


class _Encoded:
    """The plan that was encoded last: a recording and the device want the same bytes, one after the other."""

    def __init__(self) -> None:
        self.last: tuple[ExecutionPlan, bytes] | None = None


_encoded = _Encoded()


def encode_plan(plan: ExecutionPlan) -> bytes:
    """A plan as bytes. Asserts the shape that `decode_plan` relies on."""
    last = _encoded.last
    if last is not None and last[0] is plan:  # a plan is never edited, so neither are its bytes
        return last[1]
    if plan.forward is not None:
        _check_batch(plan.forward)
    payload = _encoder.encode(plan)
    _encoded.last = plan, payload
    return payload


def decode_plan(payload: bytes) -> ExecutionPlan:
    """The plan that `encode_plan` wrote. Raises WireError on anything else."""
    try:
        plan = _plan_decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise WireError(f"not a plan of schema {SCHEMA_VERSION}: {error}") from error
    if plan.forward is not None:
        _check_batch(plan.forward)
    return plan


def encode_events(events: Sequence[Event]) -> bytes:
    """Events as bytes, in order."""
    return _encoder.encode(events)


def decode_events(payload: bytes) -> list[Event]:
    """The events that `encode_events` wrote. Raises WireError on anything else."""
    try:
        return _events_decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise WireError(f"not events of schema {SCHEMA_VERSION}: {error}") from error


def encode_specs(specs: Sequence[RequestSpec]) -> bytes:
    """Submissions as bytes, in order."""
    return _encoder.encode(specs)


def decode_specs(payload: bytes) -> list[RequestSpec]:
    """The submissions that `encode_specs` wrote. Raises WireError on anything else."""
    try:
        return _specs_decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise WireError(f"not submissions of schema {SCHEMA_VERSION}: {error}") from error


def _check_batch(batch: ForwardBatch) -> None:
    rows, extends = batch.row_count, batch.num_extends
    assert rows > 0, "a batch without rows"
    assert 0 <= extends <= rows, f"{extends} extends among {rows} rows"
    row_bytes, extend_bytes = rows * type_bytes, extends * type_bytes
    assert len(batch.slots) == row_bytes, "slots does not have an entry a row"
    assert len(batch.input_lengths) == row_bytes, "input_lengths does not have an entry a row"
    assert len(batch.prefix_lengths) == row_bytes, "prefix_lengths does not have an entry a row"
    assert len(batch.prefill_lengths) == extend_bytes, "prefill_lengths does not have an entry an extend"
    assert len(batch.replay_lengths) == extend_bytes, "replay_lengths does not have an entry an extend"
    assert len(batch.checkpoints) == extend_bytes, "checkpoints does not have an entry an extend"
