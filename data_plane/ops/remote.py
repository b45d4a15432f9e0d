"""Work for a peer: pages that it reads or writes on this device."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from control_plane.messages import RemoteWork
from data_plane.faults import PlanFault
from data_plane.memory.tables import HostTables
from data_plane.model.base import DeviceMemory, GroupLayout
from data_plane.streams.base import Streams


class DeviceParts(Struct, frozen=True):
    """What a transfer needs of a device. `device` says where its memory is: "cpu" or "cuda"."""

    groups: tuple[GroupLayout, ...]
    slots: int
    tables: HostTables
    memory: DeviceMemory
    streams: Streams
    device: str


class Remote(Protocol):
    """Begins a plan's remote work and never waits for it. What comes of it is said in letters of its own."""

    def start(self, deliver: Callable[[bytes], None]) -> None:
        """Before the first plan: where encoded events go, from any thread and at any time."""
        ...

    def prefill(self, work: RemoteWork) -> None:
        """A peer writes the pages of these requests. Called on the forward thread, in the plan's order."""
        ...

    def decode(self, work: RemoteWork) -> None:
        """A peer reads the pages of these requests. Called on the forward thread, in the plan's order."""
        ...


MakeRemote = Callable[[DeviceParts], Remote]


class NoRemote:
    """This device has no peer."""

    def start(self, deliver: Callable[[bytes], None]) -> None:
        """There is nothing to say."""

    def prefill(self, work: RemoteWork) -> None:
        """Refuse."""
        raise PlanFault("the plan has remote prefills, but this device has no peer")

    def decode(self, work: RemoteWork) -> None:
        """Refuse."""
        raise PlanFault("the plan has remote decodes, but this device has no peer")
