"""The bundle: everything that a page-holding request owns, moved whole from state to state (R2.1)."""

from typing import Protocol

from control_plane.cache.coordinator.demand import CacheProgress


class ForwardsOut(Protocol):
    """Where the number of forwards that are out against a slot's pages is counted (R2.2)."""

    def results_in_flight(self, slot: int) -> int:
        """Forwards scheduled for this slot's owner that have not landed."""
        ...


class ForwardResources:
    """A slot, the block tables behind it, how far its pages went into the cache, and the forwards out against them.

    A successor state receives this very object or does not mention it. Only a successful admission changes it; a
    transition only carries it. Tables and counters are columns indexed by `slot`; their owners are the coordinator and
    the resident table.
    """

    __slots__ = ("_forwards_out", "progress", "slot")

    def __init__(self, *, slot: int, progress: CacheProgress, forwards_out: ForwardsOut) -> None:
        self.slot = slot
        self.progress = progress
        self._forwards_out = forwards_out

    @property
    def results_in_flight(self) -> int:
        """Forwards that are out against these pages."""
        return self._forwards_out.results_in_flight(self.slot)

    def __repr__(self) -> str:
        return f"ForwardResources(slot={self.slot}, progress={self.progress})"
