"""Stores and load-backs: copies between the device's blocks and a host tier."""

from collections.abc import Sequence
from typing import Protocol

from control_plane.messages import LoadBack, Store
from data_plane.faults import PlanFault


class HostTier(Protocol):
    """Enqueues the copies of a plan on the streams it was given. Called on the forward thread."""

    def store(self, stores: Sequence[Store]) -> None:
        """Device to host. Fences the forward stream for the stores whose sources are given away in this round."""
        ...

    def load_back(self, load_backs: Sequence[LoadBack]) -> None:
        """Host to device. The forward stream waits for what is loaded."""
        ...


class NoHostTier:
    """The device's blocks are all there is."""

    def store(self, stores: Sequence[Store]) -> None:
        """Refuse."""
        raise PlanFault(f"the plan stores {len(stores)} times, but this device has no host tier")

    def load_back(self, load_backs: Sequence[LoadBack]) -> None:
        """Refuse."""
        raise PlanFault(f"the plan loads back {len(load_backs)} times, but this device has no host tier")
