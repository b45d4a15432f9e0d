"""Forwards that are out, and which cached blocks would hold rubbish if one of them failed.

Pages are listed when the chunk after theirs is scheduled, which with overlap is before theirs landed. Their blocks must
be known when a failure is reported, though the request may have let them slide out by then, or be gone.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from control_plane.cache.coordinator.coordinator import CacheCoordinator
from control_plane.cache.coordinator.demand import Listed
from control_plane.cache.tier.host_tier import Piece
from control_plane.messages import ExecutionPlan, ForwardBatch
from control_plane.messages.columns import Int32s, view


class Flight(Struct, frozen=True):
    """A forward that is out: whose rows it computes, from which position on."""

    round: int
    batch: ForwardBatch

    @property
    def keys(self) -> Int32s:
        """The request of each row."""
        return view(self.batch.keys)

    @property
    def slots(self) -> Int32s:
        """The slot of each row."""
        return view(self.batch.slots)

    @property
    def begins(self) -> Int32s:
        """The first position that each row computes."""
        return view(self.batch.prefix_lengths)


class Report(Struct, frozen=True):
    """A forward that reported: what it was, and what was done on its account before.

    `unwritten` are (group, blocks) that hold rubbish if it failed. `storable` are the pieces to be copied to the host
    if it landed, by the key of their request.
    """

    flight: Flight
    unwritten: list[tuple[int, Int32s]]
    storable: dict[int, list[Piece]]


class _Account:
    """What was done while a forward was out, counting on it."""

    def __init__(self) -> None:
        self.void: dict[int, None] = {}
        self.unwritten: dict[int, list[tuple[int, Int32s]]] = {}
        self.storable: dict[int, list[Piece]] = {}


class FlightLog:
    """Rounds whose forward has not reported, oldest first."""

    def __init__(self, coordinator: CacheCoordinator) -> None:
        self._coordinator = coordinator
        self._flights: dict[int, Flight] = {}
        self._accounts: dict[int, _Account] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, round_number: object) -> bool:
        return round_number in self._flights

    def scheduled(self, plan: ExecutionPlan) -> None:
        """A plan's batch is about to be out."""
        batch = plan.forward
        if batch is not None:
            self._flights[plan.round] = Flight(plan.round, batch)

    def reported_plainly(self, round_number: int, keys: bytes) -> bool:
        """A forward of exactly these rows reported, and nothing else was done on its account; False: ask `reported`."""
        flight = self._flights.get(round_number)
        if flight is None or flight.batch.keys != keys or round_number in self._accounts:
            return False
        del self._flights[round_number]
        return True

    def reported(self, round_number: int) -> Report | None:
        """A forward reported. None: it is late, or reported before."""
        flight = self._flights.pop(round_number, None)
        account = self._accounts.pop(round_number, None)
        if flight is None:
            return None
        if account is None:
            return Report(flight, [], {})
        unwritten = [entry for entries in account.unwritten.values() for entry in entries]
        return Report(flight, unwritten, account.storable)

    def void_keys(self, round_number: int) -> frozenset[int]:
        """Requests whose tokens from this round do not count: they were thrown out since and go on."""
        account = self._accounts.get(round_number)
        return frozenset(account.void if account else ())

    def disown(self, key: int) -> list[tuple[int, Int32s]]:
        """A request is thrown out with forwards out, or has left: nothing that they report is its own.

        Returns (group, blocks) that are listed on their account.
        """
        unwritten = []
        for flight, _ in self._of(key):
            account = self._account(flight)
            account.void[key] = None
            account.storable.pop(key, None)
            unwritten += account.unwritten.pop(key, [])
        return unwritten

    def pages_listed(self, key: int, listed: Sequence[Listed], *, stores: bool) -> list[Listed]:
        """A request's pages went into the cache while forwards of it may be out that compute them.

        Returns those that are computed. The others are remembered, and if it `stores` them they are due when landed.
        """
        if not self._flights:
            return list(listed)
        flights = self._of(key)
        computed = []
        for group, block, end in listed:
            computing = [flight for flight, begin in flights if end > begin]
            for flight in computing:
                blocks = np.array([block], dtype=np.int32)
                self._account(flight).unwritten.setdefault(key, []).append((group, blocks))
            if not computing:
                computed.append((group, block, end))
            elif stores:
                pieces = self._coordinator.pieces([(group, block, end)])
                self._account(computing[-1]).storable.setdefault(key, []).extend(pieces)
        return computed

    def is_computed(self, piece: Piece) -> bool:
        """Whether no forward that is out is to write a cached block."""
        return not any(
            group == piece.group and piece.block in blocks
            for account in self._accounts.values()
            for entries in account.unwritten.values()
            for group, blocks in entries
        )

    def _account(self, flight: Flight) -> _Account:
        return self._accounts.setdefault(flight.round, _Account())

    def _of(self, key: int) -> list[tuple[Flight, int]]:
        """The flights with a row of this request, and where the row begins."""
        return [
            (flight, int(begins[row]))
            for flight, begins in [(flight, flight.begins) for flight in self._flights.values()]
            for row in np.flatnonzero(flight.keys == key).tolist()
        ]
