"""Moves made by the plan builder. Facts from outside are in `control_plane.messages.events`."""

from msgspec import Struct

from control_plane.fsm.resources import ForwardResources
from control_plane.fsm.tokens import Window
from control_plane.messages import Abort, Bootstrapped, Finish, RemotePrefillDone, TransferFailed, TransferSucceeded


class ScheduleFirstChunk(Struct, frozen=True):
    """An admission gave the request pages; its first chunk is in the batch."""

    resources: ForwardResources
    window: Window
    prefill_tokens: int
    reserve_tokens: int


class ScheduleChunk(Struct, frozen=True):
    """The next chunk is in the batch."""

    chunk_tokens: int
    prefill_tokens: int
    reserve_tokens: int


class ScheduleRemotePrefill(Struct, frozen=True):
    """An admission gave the request pages for its whole prompt, which the peer fills."""

    resources: ForwardResources
    window: Window
    reserve_tokens: int


class ScheduleDecode(Struct, frozen=True):
    """The first decode step is in the batch."""


class RetractForCapacity(Struct, frozen=True):
    """The scheduler's own choice: these pages are needed elsewhere."""

    epoch: int
    resumes_generation: bool
    is_recoverable: bool


class FillFailed(Struct, frozen=True):
    """What was admitted was not filled: the runtime said `Retract`, or a load-back, a transfer or a forward failed."""

    epoch: int
    resumes_generation: bool
    is_recoverable: bool


ScheduleEvent = (
    ScheduleFirstChunk | ScheduleChunk | ScheduleRemotePrefill | ScheduleDecode | RetractForCapacity | FillFailed
)
Move = ScheduleEvent | Bootstrapped | RemotePrefillDone | TransferSucceeded | TransferFailed | Finish | Abort
