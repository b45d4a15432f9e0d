"""Work for a peer: pages that it reads or writes on this device."""

from typing import Protocol

from control_plane.messages import RemoteWork
from data_plane.faults import PlanFault


class Remote(Protocol):
    """Enqueues a plan's remote work on streams of its own. Called on the forward thread."""

    def prefill(self, work: RemoteWork) -> None:
        """A peer writes the pages of these requests."""
        ...

    def decode(self, work: RemoteWork) -> None:
        """A peer reads the pages of these requests."""
        ...


class NoRemote:
    """This device has no peer."""

    def prefill(self, work: RemoteWork) -> None:
        """Refuse."""
        raise PlanFault("the plan has remote prefills, but this device has no peer")

    def decode(self, work: RemoteWork) -> None:
        """Refuse."""
        raise PlanFault("the plan has remote decodes, but this device has no peer")
