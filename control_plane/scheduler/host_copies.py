"""Which pages go to the host, and when: the store sites, each with its guard (R5.3).

Pages of a prompt go when they are cached and computed, those of a request's output when it ends; both stay held until
they are there. What a victim computed goes at once, and is held by nobody: its blocks are given away in the same plan.
"""

from collections.abc import Mapping, Sequence

from msgspec import structs

from control_plane.cache.coordinator.coordinator import CacheCoordinator
from control_plane.cache.coordinator.demand import BoundaryKind, Listed, RequestProgress
from control_plane.cache.tier.host_tier import Piece
from control_plane.config import Role, SchedulerConfig
from control_plane.fsm.request import Request
from control_plane.fsm.states import Decoding
from control_plane.messages import NoteKind, Store, StoreSourceGuard
from control_plane.messages.columns import count
from control_plane.scheduler.flights import FlightLog
from control_plane.scheduler.plan_build import PlanOutput


class HostCopies:
    """Plans stores. Without a host tier every call comes to nothing."""

    def __init__(self, config: SchedulerConfig, coordinator: CacheCoordinator, flights: FlightLog) -> None:
        self._has_host = config.host_blocks > 0
        # Prompts of role D come from a peer, which has them stored.
        self._stores_prompts = config.role is not Role.DECODE
        self._stores_outputs = config.role is Role.FUSED
        self._coordinator = coordinator
        self._flights = flights
        self._due: list[Store] = []
        self._stores_out_before = 0

    @property
    def loads_out(self) -> int:
        """Load-backs that were not acknowledged, and that somebody still counts on."""
        return self._coordinator.host.loads_out

    @property
    def pinned_stores_out(self) -> int:
        """Stores that hold device blocks and were out before this round; they give them back by themselves."""
        return self._stores_out_before

    def awaits_store(self, request: Request) -> bool:
        """Whether pages of a request are on their way to the host, and nowhere else by now."""
        return self._coordinator.has_left_device(request.key)

    def write_through(self, request: Request, listed: Sequence[Listed], output: PlanOutput) -> None:
        """Pages of a prompt went into the cache: they go to the host as well, once they are computed.

        Pages of output do not, before it ends: one is complete every few rounds, and while a store holds blocks nobody
        is retracted (R5.4), which that would put off for ever.
        """
        if not listed:
            return
        stores = self._stores_prompts and not isinstance(request.state, Decoding)
        computed = self._flights.pages_listed(request.key, listed, stores=stores)
        if stores and computed:
            output.stores += self._pinned(self._coordinator.pieces(computed), request.key)

    def landed(self, storable: Mapping[int, Sequence[Piece]]) -> None:
        """A forward landed, and with it pages that were cached on its account: they are due with the next plan."""
        for key, pieces in storable.items():
            self._due += self._pinned(pieces, key)

    def ends(self, request: Request) -> None:
        """A request is about to give its pages up for good: what the host lacks of them is due with the next plan."""
        if self._stores_outputs:
            self._due += self._pinned(self._computed_pieces(request), request.key)

    def take_due(self) -> list[Store]:
        """A round begins: the stores that its plan must carry."""
        self._stores_out_before = self._coordinator.host.pinned_stores_out
        due, self._due = self._due, []
        return due

    def give_away(self, victim: Request, progress: RequestProgress, output: PlanOutput) -> bool:
        """Publish what a victim computed and copy it: its blocks have other owners before the copy is acknowledged.

        Whether it can come back by loading any of it.
        """
        self._coordinator.publish(victim.resources.slot, self._with_endpoint(victim, progress))
        pieces = self._computed_pieces(victim)
        stores = self._coordinator.store(pieces, StoreSourceGuard.STREAM_ORDERED, victim.key)
        if stores:
            output.stores += stores
            blocks = sum(count(store.sources) for store in stores)
            output.note(NoteKind.STORED, victim.key, blocks, *(store.op for store in stores))
        return bool(stores) or any(self._coordinator.host.find(*piece.name) for piece in pieces)

    def _with_endpoint(self, victim: Request, progress: RequestProgress) -> RequestProgress:
        """A prefill that is thrown out goes on from its last snapshot, worth keeping if there is a host tier (R4.6)."""
        if not self._has_host or isinstance(victim.state, Decoding):
            return progress
        worth_keeping = tuple(
            (boundary, max(kind, BoundaryKind.ENDPOINT)) for boundary, kind in progress.before.materialized
        )
        return structs.replace(progress, before=structs.replace(progress.before, materialized=worth_keeping))

    def _computed_pieces(self, request: Request) -> list[Piece]:
        if not self._has_host:
            return []
        pieces = self._coordinator.cached_pieces(request.resources.slot)
        return [piece for piece in pieces if self._flights.is_computed(piece)]

    def _pinned(self, pieces: Sequence[Piece], owner: int) -> list[Store]:
        return self._coordinator.store(pieces, StoreSourceGuard.PINNED_UNTIL_ACK, owner)
