"""What a stream promises: enqueue, record, wait, query. Every kind of stream keeps these words.

Work on one stream runs in the order in which it was enqueued. Work on two streams is ordered only by an event: what
was enqueued before `record` happens before what is enqueued after `wait`. A failing piece of work stops nothing on
its stream: its error is carried by the next event that is recorded there, and the first one wins.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from control_plane.messages.columns import Int32s

Work = Callable[[], object]


class Tier(StrEnum):
    """Which pool a block belongs to."""

    DEVICE = "device"
    HOST = "host"


class BlockSpan(Struct, frozen=True):
    """Some blocks of one group in one tier."""

    tier: Tier
    group: int
    blocks: Int32s


class TableRows(Struct, frozen=True):
    """The rows of some slots in the block table of one group."""

    group: int
    slots: Int32s


class SlotState(Struct, frozen=True):
    """What the model keeps of some slots beside their blocks: the owner's sampling, and the token sampled last."""

    slots: Int32s


class Lane(StrEnum):
    """Which way copies between the tiers go."""

    STORE = "store"
    LOAD = "load"


class StagingBuffers(Struct, frozen=True):
    """Some of the buffers of one lane, by their place in the ring: what is in them is on its way."""

    lane: Lane
    buffers: Int32s


Span = BlockSpan | TableRows | SlotState | StagingBuffers


class Access(Struct, frozen=True):
    """What a piece of work touches: what two pieces conflict on when no event orders them (`ordering.py`)."""

    reads: tuple[Span, ...] = ()
    writes: tuple[Span, ...] = ()


NO_BLOCKS = Access()


class StreamEvent(Protocol):
    """A mark in a stream: it has passed when all that was enqueued before it is done."""

    def query(self) -> bool:
        """Whether the mark has passed. Never waits."""
        ...

    def wait_host(self) -> None:
        """Wait until the mark has passed. Raises the first error of the work since the previous mark, if any."""
        ...


class Stream(Protocol):
    """One queue of device work."""

    @property
    def name(self) -> str:
        """For people: in errors and in thread names."""
        ...

    def enqueue(self, work: Work, label: str, access: Access = NO_BLOCKS) -> None:
        """Run `work` after all that is enqueued here. Never raises what `work` raises (see above).

        `label` says in errors what it was. Raises DeviceFailed when the stream is closed.
        """
        ...

    def record(self) -> StreamEvent:
        """A mark after all that is enqueued here."""
        ...

    def wait(self, event: StreamEvent) -> None:
        """What is enqueued here from now on runs after `event` (of the same kind of streams) has passed.

        Orders only: an error that the event carries stays with the event.
        """
        ...


class Streams(Protocol):
    """The streams of one device."""

    @property
    def forward(self) -> Stream:
        """The model's work and all that must be in order with it."""
        ...

    @property
    def write(self) -> Stream:
        """Copies from the device to the host."""
        ...

    @property
    def load(self) -> Stream:
        """Copies from the host to the device."""
        ...

    def close(self) -> None:
        """Finish what is enqueued, then free the streams. A second call does nothing."""
        ...


class FirstError:
    """The first error of a stream since its last mark. Used by one thread at a time."""

    def __init__(self) -> None:
        self._error: BaseException | None = None

    def perform(self, work: Work, *, label: str, stream: str) -> None:
        """Run `work`; keep what it raises if nothing was kept yet. Even SystemExit must not end a stream."""
        try:
            work()
        except BaseException as error:
            if self._error is None:
                error.add_note(f"in {label!r} on the {stream} stream")
                self._error = error

    def take(self) -> BaseException | None:
        """The kept error, which is then no longer kept."""
        error, self._error = self._error, None
        return error
