"""All cache groups as one: probe a prefix, admit a step, publish what was computed, free a request.

An admission is atomic (R3.1). It publishes the pages that the request completed, lets go of what slid out of its
windows (R3.2), then takes new blocks, evicting cached ones only as far as needed; or it refuses and leaves every
table, index and counter as it was.

Below the device may be a host tier: what a prefix hit finds there is loaded back by the admission that takes it.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from msgspec import Struct

from control_plane.cache.coordinator.demand import (
    BoundaryKind,
    CacheProgress,
    Granted,
    GroupDemand,
    Listed,
    Refused,
    RequestProgress,
)
from control_plane.cache.coordinator.holdings import Holdings
from control_plane.cache.coordinator.step import Step
from control_plane.cache.core.block_pool import BlockPool
from control_plane.cache.core.block_table import BlockTables
from control_plane.cache.prefix.eviction import EvictionOrder, Victim, make_room
from control_plane.cache.prefix.index import PrefixIndex
from control_plane.cache.prefix.kv_events import KvEventLog, NoKvEventLog
from control_plane.cache.prefix.matcher import GroupHit, PrefixHit, PrefixMatcher
from control_plane.cache.tier.host_tier import HostTier, Name, NoHostTier, Piece
from control_plane.config import SchedulerConfig
from control_plane.messages import LoadBack, LoadBackDone, Store, StoreSourceGuard, WriteBackDone
from control_plane.messages.columns import Int32s, view


class FailedLoad(Struct, frozen=True):
    """Blocks of a group that hold rubbish, and every request that ever had one of them in its table."""

    group: int
    blocks: Int32s
    readers: tuple[int, ...]


class CacheCoordinator:
    """Owner of the pool, the tables, the references and the prefix index of the device tier."""

    def __init__(self, config: SchedulerConfig, *, longest_tokens: int) -> None:
        self._groups = config.groups
        self._open_groups = [(g, group) for g, group in enumerate(config.groups) if not group.is_prefix_closed]
        granularities = [group.block_granularity for group in config.groups]
        packings = [group.packing for group in config.groups]
        self._prefix_granularity = config.prefix_granularity
        self._is_flat = all(packing == 1 for packing in packings)
        self.pool = BlockPool(parents=config.device_blocks, packings=packings)
        self.tables = BlockTables(
            slots=config.max_batch_size, granularities=granularities, longest_tokens=longest_tokens
        )
        self.kv_events: KvEventLog | NoKvEventLog = NoKvEventLog()
        if config.kv_events:
            self.kv_events = KvEventLog(config.groups, prefix_granularity=config.prefix_granularity)
        self.index = PrefixIndex(
            granularities=granularities, prefix_granularity=config.prefix_granularity, log=self.kv_events
        )
        self.host = HostTier(config) if config.host_blocks else NoHostTier()
        self.matcher = PrefixMatcher(
            self.index,
            config.groups,
            prefix_granularity=config.prefix_granularity,
            host=self.host if config.host_blocks else None,
        )
        self._order = EvictionOrder(groups=len(granularities))
        self._holdings = Holdings(self.pool, self.index, self._order, config.groups, parents=config.device_blocks)
        self._kept: dict[int, list[Victim]] = {}
        self._owners = [0] * config.max_batch_size  # request keys by slot, as of the last admission into it
        self._epoch = 0  # rises with every request that is admitted
        self.freed_count = 0  # rises whenever room appears; a refusal stands while it does not

    @property
    def available_blocks(self) -> int:
        """LCM blocks that could be had at most: empty ones, and those that evicting everything unheld would empty.

        Exact where every packing is 1, an upper bound elsewhere.
        """
        return self.pool.empty_count + self._order.count

    @property
    def is_held_outside(self) -> bool:
        """Whether copies or transfers hold blocks that they will give back."""
        return self.host.is_moving or bool(self._kept)

    def probe_prefix(self, digests: Sequence[bytes], limit_tokens: int) -> PrefixHit:
        """The longest cached prefix within the limit. Claims nothing."""
        return self.matcher.match(digests, limit_tokens)

    def admit_first(
        self, slot: int, demands: Sequence[GroupDemand], hit: PrefixHit, *, owner: int
    ) -> Granted | Refused:
        """Give an empty slot, from now on its `owner`'s, the hit and the blocks of `demands`; or change nothing.

        What the hit finds on the host takes device blocks here and is listed at once: the load-back comes before
        whatever reads them (R4.4).
        """
        wanted, beyond = [], []
        for group, demand, part in zip(self._groups, demands, hit.groups, strict=True):
            first = max(demand.first, part.first + len(part.blocks))
            beyond.append(max(0, demand.rows(group.block_granularity) - first))
            wanted.append(beyond[-1] + len(part.loads))
        evicted = self._secure(wanted, hit)
        if evicted is None:
            return self._refusal(wanted, hit)
        self._epoch += 1
        self._owners[slot] = owner
        loads = []
        for index, part in enumerate(hit.groups):
            assert self.tables.held(slot, index) == 0, f"slot {slot} already holds blocks"
            self._holdings.acquire(index, part.device_blocks, self._epoch)
            if self.host.loads_out:
                for block in part.device_blocks:
                    self.host.read_by(index, block, owner)
            blocks = part.blocks
            if part.loads:
                blocks, load = self._load(index, part, hit.digests, owner)
                loads.append(load)
            self.tables.set_rows(slot, index, part.first, blocks)
        # Those that the device has as well: a prefix must not go before what follows it.
        self.host.renew(self._names(hit), self._epoch)
        fresh = self._take(slot, demands, beyond)
        pages = hit.tokens // self._prefix_granularity
        promotion = hit.closed_tokens if hit.closed_tokens > hit.tokens else 0
        return Granted(fresh, evicted, CacheProgress(pages, self._epoch, promotion), load_backs=loads)

    def admit(self, slot: int, demands: Sequence[GroupDemand], progress: RequestProgress) -> Granted | Refused:
        """Give a resident slot the blocks of `demands`, publishing and reclaiming on the way; or change nothing."""
        wanted = []
        for index, (group, demand) in enumerate(zip(self._groups, demands, strict=True)):
            first = max(demand.first, self.tables.held(slot, index))
            wanted.append(max(0, demand.rows(group.block_granularity) - first))
        step = self._step(slot, progress)
        step.publish()
        step.slide_out()
        evicted = self._secure(wanted, None)
        if evicted is None:
            step.undo()
            return self._refusal(wanted, None)
        self.freed_count += step.conclude()
        fresh = self._take(slot, demands, wanted)
        return Granted(fresh, evicted, step.progress_after(), step.listed)

    def publish(self, slot: int, progress: RequestProgress) -> Sequence[Listed]:
        """Publish completed pages outside an admission: at a finish or a retraction. Returns what was listed."""
        step = self._step(slot, progress)
        step.publish()
        self.freed_count += step.conclude()
        return step.listed

    def cached_pieces(self, slot: int) -> list[Piece]:
        """What of a slot's pages is in the cache, in the order of its tokens."""
        return self.pieces(
            [
                (index, block, (row + 1) * group.block_granularity)
                for index, group in enumerate(self._groups)
                for row, block in self.tables.live_blocks(slot, index)
            ]
        )

    def pieces(self, listed: Sequence[Listed]) -> list[Piece]:
        """Those of these blocks that are cached, by name, in the order of their tokens."""
        pieces = []
        for group, block, end in sorted(listed, key=lambda entry: entry[2]):
            named = self.index.name(group, block)
            if named is not None:
                pieces.append(Piece((group, *named), block, end, *self._holdings.worth(group, block)))
        return pieces

    def store(self, pieces: Sequence[Piece], guard: StoreSourceGuard, owner: int) -> list[Store]:
        """Plan to copy pieces to the host: those that the device still has, and that are neither there nor on the way.

        Whoever calls chooses the guard (R5.3): only who gives the blocks away in the same plan may leave them unpinned.
        """
        present = [piece for piece in pieces if self.index.find(*piece.name) == piece.block]
        stores = self.host.begin_stores(present, guard, owner)
        if guard is StoreSourceGuard.PINNED_UNTIL_ACK:
            for store in stores:
                for block in view(store.sources).tolist():
                    self._holdings.share(store.group, block)
        return stores

    def has_left_device(self, owner: int) -> bool:
        """Whether a piece that is being stored for a request is not on the device any more."""
        return any(self.index.find(*piece.name) is None for piece in self.host.being_stored_for(owner))

    def end_store(self, event: WriteBackDone) -> None:
        """A store was acknowledged: what it pinned is let go of."""
        ticket = self.host.end_store(event.op, success=event.success)
        if ticket is not None and (sources := ticket.pinned_sources):
            self._holdings.release(sources)
            self.freed_count += 1

    def end_load(self, event: LoadBackDone) -> FailedLoad | None:
        """A load-back was acknowledged: its blocks are let go of. Returns what it spoiled, if it failed."""
        ticket = self.host.end_load(event.op)
        if ticket is None:
            return None
        self._holdings.release([(ticket.group, block) for block in ticket.destinations])
        self.freed_count += 1
        if event.success:
            return None
        return FailedLoad(ticket.group, np.array(ticket.destinations, dtype=np.int32), tuple(ticket.readers))

    def free(self, slot: int) -> int:
        """Give back everything that a slot holds; what is cached stays so, evictable. Returns the blocks let go."""
        let_go = self._holdings.release(self._rows_in_eviction_order(slot))
        self.tables.clear(slot)
        self.freed_count += 1
        return let_go

    def give_up_loads(self, reader: int) -> list[FailedLoad]:
        """Take the load-backs that are out and whose blocks a request had in its table for failed.

        Their blocks stay held until the acknowledgement, whose word does not count any more.
        """
        return [
            FailedLoad(group, np.array(destinations, dtype=np.int32), readers)
            for group, destinations, readers in self.host.give_up_loads(reader)
        ]

    def keep(self, slot: int, key: int) -> None:
        """A slot is given up, but its blocks stay held under this key: somebody outside still reads or writes them."""
        assert key not in self._kept, f"the pages of {key} are kept already"
        self._kept[key] = self._rows_in_eviction_order(slot)
        self.tables.clear(slot)

    def let_go(self, key: int) -> None:
        """What was kept under this key, if anything, is let go of."""
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._holdings.release(kept)
            self.freed_count += 1

    def releasable_blocks(self, slot: int) -> int:
        """LCM blocks that nobody would hold any more if this slot let go of its pages."""
        return sum(
            self._holdings.releasable_parents(index, [block for _, block in self.tables.live_blocks(slot, index)])
            for index in range(len(self._groups))
        )

    def discard(self, group: int, blocks: Int32s) -> Int32s:
        """Unlist those of `blocks` that are cached: what they should hold was never written. Returns them."""
        tainted = [block for block in blocks.tolist() if block and self.index.is_cached(group, block)]
        for block in tainted:
            self.index.remove(group, block)
            if self._order.leave(group, block):
                self.pool.give_back(group, block)
                self.freed_count += 1
        return np.array(tainted, dtype=np.int32)

    def clear_cache(self) -> int:
        """Drop every cached block that nobody holds; returns how many."""
        dropped = 0
        while (candidate := self._order.pop()) is not None:
            group, block = candidate.victim
            self.index.remove(group, block)
            self.pool.give_back(group, block)
            dropped += 1
        self.freed_count += 1
        return dropped

    def counts(self) -> tuple[int, int, int]:
        """LCM blocks that requests hold, that hold only cached blocks, and that are empty."""
        groups = self.group_counts()
        return sum(held for held, _ in groups), sum(cached for _, cached in groups), self.pool.empty_count

    def group_counts(self) -> list[tuple[int, int]]:
        """For each group, its LCM blocks that requests hold and those that hold only cached blocks.

        An LCM block belongs to one group at a time, so that with the empty ones they add up to the pool (J4).
        """
        groups = range(len(self.pool.packings))
        held = [self._holdings.held_parents(group) for group in groups]
        return [(held[group], self.pool.bound_count(group) - held[group]) for group in groups]

    def block_uses(self, group: int) -> tuple[Int32s, list[int]]:
        """How often each block of a group is held, and which of them are cached. For people, not for rounds."""
        return self._holdings.references(group), self.index.cached_blocks(group)

    def audit(self) -> list[str]:
        """Every way in which the books do not add up; empty when all is well. Costs as much as the pool is large."""
        kept = [victim for rows in self._kept.values() for victim in rows]
        return self._holdings.audit(self.tables, [*self.host.pinned_device_blocks(), *kept]) + self.host.audit()

    def _rows_in_eviction_order(self, slot: int) -> list[Victim]:
        """What a slot holds: the last row goes first, and of equal rows the one of the earlier group."""
        rows = [
            (row, -index, block)
            for index in range(len(self._groups))
            for row, block in self.tables.live_blocks(slot, index)
        ]
        rows.sort()
        return [(-negated_index, block) for _, negated_index, block in rows]

    def _load(self, index: int, part: GroupHit, digests: Sequence[bytes], owner: int) -> tuple[list[int], LoadBack]:
        """Device blocks for what a hit finds on the host, listed by its names and held by the copy as well."""
        taken = self._holdings.take(index, len(part.loads))
        blocks = list(part.blocks)
        per_page = self.index.blocks_per_page[index]
        for (offset, _), block in zip(part.loads, taken, strict=True):
            page, ordinal = divmod(part.first + offset, per_page)
            self.index.insert(index, ordinal, digests[page], block, parent=digests[page - 1] if page else None)
            end = (page + 1) * self._prefix_granularity
            self._holdings.first_listed(index, block, epoch=self._epoch, kind=BoundaryKind.ENDPOINT, end=end)
            self._holdings.share(index, block)
            blocks[offset] = block
        sources = [source for _, source in part.loads]
        return blocks, self.host.begin_load(index, sources, taken, epoch=self._epoch, owner=owner)

    def _names(self, hit: PrefixHit) -> Iterator[Name]:
        """What the pieces of a hit are called, in the order of each group's table."""
        for index, part in enumerate(hit.groups):
            per_page = self.index.blocks_per_page[index]
            for row in range(part.first, part.first + len(part.blocks)):
                page, ordinal = divmod(row, per_page)
                yield index, ordinal, hit.digests[page]

    def _step(self, slot: int, progress: RequestProgress) -> Step:
        return Step(
            self.tables,
            self.index,
            self._holdings,
            self._groups,
            open_groups=self._open_groups,
            slot=slot,
            progress=progress,
            pointed_at=partial(self._pointed_at, self._owners[slot]),
        )

    def _pointed_at(self, owner: int, group: int, block: int) -> None:
        self.host.read_by(group, block, owner)

    def _take(self, slot: int, demands: Sequence[GroupDemand], wanted: Sequence[int]) -> tuple[list[int], ...]:
        fresh = []
        for index, (demand, count) in enumerate(zip(demands, wanted, strict=True)):
            blocks = self._holdings.take(index, count) if count else []
            if blocks:
                self.tables.set_rows(slot, index, max(demand.first, self.tables.held(slot, index)), blocks)
            fresh.append(blocks)
        return tuple(fresh)

    def _secure(self, wanted: list[int], hit: PrefixHit | None) -> tuple[int, ...] | None:
        """Make sure that `wanted` can be taken beside the hit; None if not."""
        if not self.pool.missing_parents(wanted):
            return (0,) * len(wanted)
        protected = self._hit_blocks(hit)
        if self._is_flat and sum(wanted) > self.available_blocks - self._unheld(protected):
            return None
        return make_room(self.pool, self._order, self.index, wanted, protected)

    def _refusal(self, wanted: list[int], hit: PrefixHit | None) -> Refused:
        group = max(range(len(wanted)), key=lambda g: wanted[g])
        available = self.available_blocks - self._unheld(self._hit_blocks(hit))
        # Where several blocks share a parent, no simple number tells when the demand may fit: ask after every change.
        return Refused(group, wanted[group], available, sum(wanted) if self._is_flat else 0)

    def _hit_blocks(self, hit: PrefixHit | None) -> frozenset[Victim]:
        parts = hit.groups if hit else ()
        return frozenset((index, block) for index, part in enumerate(parts) for block in part.device_blocks)

    def _unheld(self, blocks: frozenset[Victim]) -> int:
        return sum(victim in self._order for victim in blocks)
