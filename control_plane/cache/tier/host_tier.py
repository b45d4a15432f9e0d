"""The host pool and its index: where cached pages outlive the device's (L2).

A store takes its host blocks when it is planned and lists them when it is acknowledged; until then its pieces are
neither found nor stored again. A load-back pins its host blocks until it is acknowledged. What nobody pins goes, oldest
access first, when room is needed, as on the device.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, groupby

import numpy as np
from msgspec import Struct

from control_plane.cache.core.block_pool import BlockPool
from control_plane.cache.prefix.eviction import Category, EvictionOrder, Victim, make_room
from control_plane.cache.prefix.index import PrefixIndex
from control_plane.cache.prefix.kv_events import NoKvEventLog
from control_plane.config import SchedulerConfig
from control_plane.messages import LoadBack, Store, StoreSourceGuard
from control_plane.messages.columns import pack

Name = tuple[int, int, bytes]
"""(group, ordinal within the prefix page, digest): what a piece of a prefix is called in both tiers."""


class Piece(Struct, frozen=True, gc=False):
    """A cached device block, by name. `end` is the token at which what it holds ends."""

    name: Name
    block: int
    end: int
    epoch: int
    category: Category

    @property
    def group(self) -> int:
        """The group of the block."""
        return self.name[0]


class StoreTicket(Struct, frozen=True):
    """A store that is out. A pinned one holds its device sources as well; `owner` is the request it was planned for."""

    owner: int
    guard: StoreSourceGuard
    pieces: tuple[Piece, ...]
    destinations: tuple[int, ...]

    @property
    def pinned_sources(self) -> list[Victim]:
        """(group, device block) of every source that its acknowledgement lets go of."""
        if self.guard is StoreSourceGuard.STREAM_ORDERED:
            return []
        return [(piece.group, piece.block) for piece in self.pieces]


class LoadTicket(Struct, frozen=True):
    """A load-back that is out: the host blocks it pins, and the device blocks it holds.

    `readers` are the requests that ever had one of its destinations in their table, whether or not they still do.
    """

    group: int
    sources: tuple[int, ...]
    destinations: tuple[int, ...]
    readers: dict[int, None]


class HostTier:
    """Host blocks of every group over one pool of LCM blocks."""

    def __init__(self, config: SchedulerConfig) -> None:
        packings = [group.packing for group in config.groups]
        self._pool = BlockPool(parents=config.host_blocks, packings=packings)
        self._index = PrefixIndex(
            granularities=[group.block_granularity for group in config.groups],
            prefix_granularity=config.prefix_granularity,
            log=NoKvEventLog(),
        )
        self._order = EvictionOrder(groups=len(packings))
        sizes = [(config.host_blocks + 1) * packing for packing in packings]
        self._pins = [np.zeros(size, dtype=np.int32) for size in sizes]
        self._epochs = [np.zeros(size, dtype=np.int64) for size in sizes]
        self._ends = [np.zeros(size, dtype=np.int32) for size in sizes]
        self._categories: list[dict[int, Category]] = [{} for _ in packings]
        self._being_stored: dict[Name, None] = {}
        self._stores: dict[int, StoreTicket] = {}
        self._loads: dict[int, LoadTicket] = {}
        self._being_loaded: dict[Victim, int] = {}
        self._ops = count(1)
        self.stored_blocks = 0
        self.loaded_blocks = 0

    @property
    def loads_out(self) -> int:
        """Load-backs that were not acknowledged, and that somebody still counts on."""
        return sum(bool(ticket.readers) for ticket in self._loads.values())

    @property
    def pinned_stores_out(self) -> int:
        """Stores out that hold device blocks until their acknowledgement."""
        return sum(ticket.guard is StoreSourceGuard.PINNED_UNTIL_ACK for ticket in self._stores.values())

    @property
    def copies_out(self) -> int:
        """Stores and load-backs that were not acknowledged, given up or not: they hold blocks."""
        return len(self._stores) + len(self._loads)

    @property
    def is_moving(self) -> bool:
        """Whether an acknowledgement is on its way that something may wait for."""
        return bool(self._stores) or self.loads_out > 0

    def being_stored_for(self, owner: int) -> Iterator[Piece]:
        """The pieces that are on their way here for this request."""
        return (piece for ticket in self._stores.values() if ticket.owner == owner for piece in ticket.pieces)

    def find(self, group: int, ordinal: int, digest: bytes) -> int | None:
        """The host block that holds this piece."""
        return self._index.find(group, ordinal, digest)

    def renew(self, names: Iterable[Name], epoch: int) -> None:
        """A request of this epoch used these pieces, in the order of their prefix: they are as young as it."""
        held = [(group, block) for group, ordinal, digest in names if (block := self.find(group, ordinal, digest))]
        for group, block in held:
            self._epochs[group][block] = max(int(self._epochs[group][block]), epoch)
        self._enter([victim for victim in held if self._order.leave(*victim)])

    def begin_stores(self, pieces: Sequence[Piece], guard: StoreSourceGuard, owner: int) -> list[Store]:
        """Plan to copy pieces, in the order of their prefix, unless they are here or on their way: one store a group.

        Where the pool has no room for all of them, those at the end are left out (E3): what is before them is of use
        without them, but not the other way round.
        """
        is_here = {piece.name: self.find(*piece.name) for piece in pieces}
        new = [piece for piece in pieces if is_here[piece.name] is None and piece.name not in self._being_stored]
        if not new:
            return []
        protected = frozenset((name[0], block) for name, block in is_here.items() if block is not None)
        fitting = self._fitting(new, protected)
        stores = []
        for group in sorted({piece.group for piece in fitting}):
            of_group = tuple(piece for piece in fitting if piece.group == group)
            destinations = tuple(self._pool.take(group, len(of_group)))
            self._being_stored.update(dict.fromkeys(piece.name for piece in of_group))
            op = next(self._ops)
            self._stores[op] = StoreTicket(owner, guard, of_group, destinations)
            stores.append(Store(op, guard, group, pack([piece.block for piece in of_group]), pack(destinations)))
        return stores

    def end_store(self, op: int, *, success: bool) -> StoreTicket | None:
        """A store was acknowledged: its pieces are listed, or its host blocks are free again. None: it is late."""
        ticket = self._stores.pop(op, None)
        if ticket is None:
            return None
        for piece, destination in zip(ticket.pieces, ticket.destinations, strict=True):
            group, ordinal, digest = piece.name
            del self._being_stored[piece.name]
            if not success:
                self._pool.give_back(group, destination)
                continue
            self._index.insert(group, ordinal, digest, destination, parent=None)
            self._epochs[group][destination] = piece.epoch
            self._ends[group][destination] = piece.end
            self._categories[group][destination] = piece.category
        if success:
            self.stored_blocks += len(ticket.pieces)
            self._enter([(piece.group, block) for piece, block in zip(ticket.pieces, ticket.destinations, strict=True)])
        return ticket

    def begin_load(
        self, group: int, sources: Sequence[int], destinations: Sequence[int], *, epoch: int, owner: int
    ) -> LoadBack:
        """Plan to copy host blocks to device blocks; they cannot go before the acknowledgement (E2)."""
        for block in sources:
            self._pins[group][block] += 1
            self._epochs[group][block] = epoch
            self._order.leave(group, block)
        op = next(self._ops)
        self._loads[op] = LoadTicket(group, tuple(sources), tuple(destinations), {owner: None})
        self._being_loaded.update(((group, block), op) for block in destinations)
        return LoadBack(op, group, pack(sources), pack(destinations))

    def read_by(self, group: int, block: int, reader: int) -> None:
        """A request takes a device block into its table: it will read what a load-back that is out brings there."""
        op = self._being_loaded.get((group, block))
        if op is not None:
            self._loads[op].readers[reader] = None

    def give_up_loads(self, reader: int) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
        """(group, destinations, readers) of the load-backs that are out and bring something to this request.

        Their readers are forgotten: what the acknowledgement says makes no difference to them any more.
        """
        given_up = []
        for ticket in self._loads.values():
            if reader in ticket.readers:
                given_up.append((ticket.group, ticket.destinations, tuple(ticket.readers)))
                ticket.readers.clear()
        return given_up

    def end_load(self, op: int) -> LoadTicket | None:
        """A load-back was acknowledged, one way or the other. None: it is late."""
        ticket = self._loads.pop(op, None)
        if ticket is None:
            return None
        for block in ticket.destinations:
            del self._being_loaded[ticket.group, block]
        pins = self._pins[ticket.group]
        for block in ticket.sources:
            pins[block] -= 1
        self._enter([(ticket.group, block) for block in ticket.sources if not pins[block]])
        self.loaded_blocks += len(ticket.destinations)
        return ticket

    def clear(self) -> None:
        """Drop every piece that no load-back pins."""
        while (candidate := self._order.pop()) is not None:
            self._index.remove(*candidate.victim)
            self._pool.give_back(*candidate.victim)

    def counts(self) -> tuple[int, int]:
        """LCM blocks in use, and all there are."""
        return self._pool.parents - self._pool.empty_count, self._pool.parents

    def pinned_device_blocks(self) -> list[Victim]:
        """(group, device block) of everything that copies hold, once for each of them; for audits."""
        held = [source for ticket in self._stores.values() for source in ticket.pinned_sources]
        return held + [(ticket.group, block) for ticket in self._loads.values() for block in ticket.destinations]

    def audit(self) -> list[str]:
        """Every way in which pool, index, order, pins and tickets disagree."""
        problems = []
        for group, pins in enumerate(self._pins):
            listed = self._index.cached_blocks(group)
            stored = sum(
                len(ticket.destinations) for ticket in self._stores.values() if ticket.pieces[0].group == group
            )
            if len(listed) + stored != self._pool.occupied_count(group):
                problems.append(
                    f"host group {group}: {len(listed)} blocks listed, {stored} being stored, "
                    f"{self._pool.occupied_count(group)} handed out"
                )
            expected = np.zeros_like(pins)
            for ticket in self._loads.values():
                if ticket.group == group:
                    np.add.at(expected, list(ticket.sources), 1)
            if not np.array_equal(expected, pins):
                problems.append(f"host group {group}: load-backs pin other blocks than those that are pinned")
            for block in listed:
                if (pins[block] == 0) != ((group, block) in self._order):
                    problems.append(f"host group {group} block {block}: {pins[block]} pins, wrong order")
        return problems

    def _fitting(self, pieces: list[Piece], protected: frozenset[Victim]) -> list[Piece]:
        """The longest part of `pieces`, from the front, for which there is room, which is made."""
        while pieces:
            wanted = [0] * len(self._pins)
            for piece in pieces:
                wanted[piece.group] += 1
            if make_room(self._pool, self._order, self._index, wanted, protected) is not None:
                return pieces
            last = pieces[-1].end
            pieces = [piece for piece in pieces if piece.end < last]
        return pieces

    def _enter(self, blocks: list[Victim]) -> None:
        """Blocks in the order of their prefix can go from now on, the last of them first."""

        def rank(victim: Victim) -> tuple[int, Category]:
            group, block = victim
            return int(self._epochs[group][block]), self._categories[group][block]

        for (epoch, category), run in groupby(sorted(blocks, key=rank), key=rank):
            members = list(run)
            is_closed = category is Category.CLOSED_PREFIX
            depth = max(int(self._ends[group][block]) for group, block in members) if is_closed else 0
            self._order.enter(epoch, category, members, depth=depth)


class NoHostTier:
    """The device's blocks are all there is."""

    loads_out = pinned_stores_out = copies_out = stored_blocks = loaded_blocks = 0
    is_moving = False

    def being_stored_for(self, owner: int) -> Iterator[Piece]:
        """Nothing is."""
        return iter(())

    def find(self, group: int, ordinal: int, digest: bytes) -> int | None:
        """Nothing is here."""
        return None

    def renew(self, names: Iterable[Name], epoch: int) -> None:
        """There is nothing to renew."""

    def begin_stores(self, pieces: Sequence[Piece], guard: StoreSourceGuard, owner: int) -> list[Store]:
        """Nowhere to store."""
        return []

    def end_store(self, op: int, *, success: bool) -> StoreTicket | None:
        """Whatever it is, it is late."""
        return None

    def begin_load(
        self, group: int, sources: Sequence[int], destinations: Sequence[int], *, epoch: int, owner: int
    ) -> LoadBack:
        """Nothing is ever found, hence nothing loaded."""
        raise AssertionError("a load-back without a host tier")

    def read_by(self, group: int, block: int, reader: int) -> None:
        """Nothing is being loaded."""

    def give_up_loads(self, reader: int) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
        """Nothing is being loaded."""
        return []

    def end_load(self, op: int) -> LoadTicket | None:
        """Whatever it is, it is late."""
        return None

    def clear(self) -> None:
        """There is nothing to drop."""

    def counts(self) -> tuple[int, int]:
        """None of none."""
        return 0, 0

    def pinned_device_blocks(self) -> list[Victim]:
        """Nothing."""
        return []

    def audit(self) -> list[str]:
        """All is well."""
        return []
