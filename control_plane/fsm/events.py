"""Moves made by the plan builder. Facts from outside are in `control_plane.messages.events`."""

from msgspec import Struct

from control_plane.fsm.resources import ForwardResources
from control_plane.fsm.tokens import Window


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


class ScheduleDecode(Struct, frozen=True):
    """The first decode step is in the batch."""


class RetractForCapacity(Struct, frozen=True):
    """The scheduler's own choice: these pages are needed elsewhere."""

    epoch: int
    resumes_generation: bool


ScheduleEvent = ScheduleFirstChunk | ScheduleChunk | ScheduleDecode | RetractForCapacity
