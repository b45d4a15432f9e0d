"""Forwards that are out, and which cached blocks would hold rubbish if one of them failed.

Pages are listed when the chunk after theirs is scheduled, which with overlap is before theirs landed. Their blocks must
be known when a failure is reported, though the request may have let them slide out by then, or be gone.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from control_plane.cache.coordinator.coordinator import CacheCoordinator
from control_plane.cache.coordinator.demand import Listed
from control_plane.messages import ExecutionPlan
from control_plane.messages.columns import Int32s, view


class Flight(Struct, frozen=True):
    """A forward that is out: whose rows it computes, from which position on."""

    round: int
    keys: Int32s
    slots: Int32s
    begins: Int32s


class FlightLog:
    """Rounds whose forward has not reported, oldest first."""

    def __init__(self, coordinator: CacheCoordinator) -> None:
        self._coordinator = coordinator
        self._flights: dict[int, Flight] = {}
        self._void: dict[int, dict[int, None]] = {}
        self._unwritten: dict[int, list[tuple[int, Int32s]]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def scheduled(self, plan: ExecutionPlan) -> None:
        """A plan's batch is about to be out."""
        batch = plan.forward
        if batch is not None:
            self._flights[plan.round] = Flight(
                plan.round, view(batch.keys), view(batch.slots), view(batch.prefix_lengths)
            )

    def reported(self, round_number: int) -> tuple[Flight, list[tuple[int, Int32s]]] | None:
        """A forward reported: what it was, and (group, blocks) that are listed, or were held, on its account.

        None: it is late, or reported before.
        """
        flight = self._flights.pop(round_number, None)
        self._void.pop(round_number, None)
        unwritten = self._unwritten.pop(round_number, [])
        return None if flight is None else (flight, unwritten)

    def void_keys(self, round_number: int) -> frozenset[int]:
        """Requests whose tokens from this round do not count: they were thrown out since and go on."""
        return frozenset(self._void.get(round_number, ()))

    def disown(self, key: int) -> None:
        """A request is thrown out with forwards out: nothing that they report is its own."""
        for flight in self._flights.values():
            if key in flight.keys:
                self._void.setdefault(flight.round, {})[key] = None

    def pages_listed(self, key: int, listed: Sequence[Listed]) -> None:
        """A request's pages went into the cache while forwards of it may be out that compute them."""
        for flight, begin in self._of(key):
            for group, block, end in listed:
                if end > begin:
                    blocks = np.array([block], dtype=np.int32)
                    self._unwritten.setdefault(flight.round, []).append((group, blocks))

    def pages_leave(self, key: int, slot: int) -> None:
        """A request lets go of its pages while forwards of it are out."""
        for flight, begin in self._of(key):
            tails = self._coordinator.tail_blocks(slot, begin)
            self._unwritten.setdefault(flight.round, []).extend(enumerate(tails))

    def _of(self, key: int) -> list[tuple[Flight, int]]:
        """The flights with a row of this request, and where the row begins."""
        return [
            (flight, int(flight.begins[row]))
            for flight in self._flights.values()
            for row in np.flatnonzero(flight.keys == key).tolist()
        ]
